"""Figures of experiments, drawn from their results: in the paper's layout, with the range over seeds.

A spec chooses one of these kinds: accuracy over steps and over time (``curves``), accuracy over the number of filters
(``over-filters``), or of labels (``over-labels``), errors of gradients (``errors``), or no figure (``table``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from ..plots import COLOURS, crop_out_start, new_figure, save_figure, zoom_to_ends
from .labels import (
    DATA_NAMES,
    LEARNER_NAMES,
    NETWORK_NAMES,
    distinguishing_labels,
    grouped,
    in_grid_order,
    joined_label,
    method_label,
    value_label,
)
from .results import Result, Results, accuracies_by_labels
from .spec import Experiment
from .spec import Figure as Layout

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def figure_names(experiment: Experiment) -> list[str]:
    """File names of an experiment's figures."""
    if experiment.figure.kind == "curves":
        return [f"{experiment.name}-{name}.png" for name in experiment.figure.over]
    return [] if experiment.figure.kind == "table" else [f"{experiment.name}.png"]


def draw(experiment: Experiment, results: Results, folder: Path) -> None:
    """Save the figures of an experiment, if it has results."""
    shown = in_grid_order(experiment, results.of(experiment.name))
    if not shown:
        return
    if experiment.figure.beside:
        shown = in_grid_order(experiment, results.of(**experiment.figure.beside)) + shown
    figures = _KINDS[experiment.figure.kind](experiment, shown)
    for name, figure in zip(figure_names(experiment), figures, strict=True):
        save_figure(figure, folder / name)


def panel_grid(count: int, columns: int, height: float = 3.0) -> tuple[Figure, list[Axes]]:
    """A figure with this many panels."""
    columns = min(columns, count)
    rows = -(-count // columns)
    figure = new_figure(4.2 * columns, height * rows, dpi=80)  # a resolution for web pages, with small files
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in grid[count:]:
        axes.axis("off")
    for axes in grid[:count]:
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, grid[:count]


def _curves(experiment: Experiment, results: list[Result]) -> list[Figure]:
    return [_curves_over(name, experiment.figure, results) for name in experiment.figure.over]


def _curves_over(name: str, layout: Layout, results: list[Result]) -> Figure:
    panels, lines = grouped(results, layout.panels), list(grouped(results, layout.lines))
    colours = dict(zip(lines, itertools.cycle(COLOURS), strict=False))  # a line has one color in all panels
    labels = distinguishing_labels(layout.lines, lines)
    figure, grid = panel_grid(len(panels), 2)
    longest = max(result.total_seconds for result in results)
    unit, unit_seconds = ("minutes", 60) if longest > 600 else ("seconds", 1)
    for axes, (values, inside) in zip(grid, panels.items(), strict=True):
        curves: list[list[float]] = []
        for line, runs in grouped(inside, layout.lines).items():
            points = curve_points(runs, name, unit_seconds)
            plot_with_range(axes, points, colours[line], labels[line])
            curves += [list(curve) for curve in zip(*(values for _, values in points), strict=True)]
        if layout.zoom:
            zoom_to_ends(axes, curves)
        else:
            crop_out_start(axes, curves)
        if name == "steps":
            _draw_marks(axes, layout, values, colours)
        axes.set_title(fill(f"{joined_label(layout.panels, values)}, {_data_name(inside)}", 48), fontsize=9)
        axes.set_xlabel(f"total time ({unit})" if name == "seconds" else "steps")
        axes.set_ylabel("validation accuracy (%)")
    legend_below(figure, grid)
    return figure


def _draw_marks(axes: Axes, layout: Layout, panel: tuple[Any, ...], colours: Mapping[tuple[Any, ...], str]) -> None:
    """What others published, as far as the curves of this panel go."""
    (_, last), (low, high) = axes.get_xlim(), axes.get_ylim()
    for mark in layout.marks:
        alike = [colour for line, colour in colours.items() if mark.is_of([*layout.panels, *layout.lines], [*panel, *line])]
        points = [point for point in mark.points if point[0] <= last]
        if alike and points:
            steps, accuracies = zip(*points, strict=True)
            axes.plot(steps, accuracies, "x", color=alike[0], label=mark.label, markersize=7, markeredgewidth=2)
            low, high = min(low, *(value - 1 for value in accuracies)), max(high, *(value + 1 for value in accuracies))
    axes.set_ylim(low, high)


def _data_name(results: Sequence[Result]) -> str:
    name = results[0].settings["data"]
    return DATA_NAMES.get(name, name)


def curve_points(results: list[Result], name: str, unit_seconds: float = 1) -> list[tuple[float, list[float]]]:
    """Points of a curve: x (the mean over seeds), and the accuracies of all seeds."""
    points = []
    for records in zip(*(result.history for result in results), strict=False):
        pairs = list(zip(results, records, strict=True))
        x = [r.seconds_at(record) / unit_seconds if name == "seconds" else record["step"] for r, record in pairs]
        points.append((sum(x) / len(x), [100 * _shown_accuracy(record) for record in records]))
    return points


def _shown_accuracy(record: dict[str, Any]) -> float:
    """Validation accuracy with a refitted classifier if there is one, else with that of the last step."""
    return float(record.get("refitted_accuracy", record["valid_accuracy"]))


def _over_filters(experiment: Experiment, results: list[Result]) -> list[Figure]:
    layout = experiment.figure
    lines = ["experiment", *layout.lines]
    panels = grouped(results, layout.panels)
    figure, grid = panel_grid(len(panels), 3, 3.4)
    for axes, (values, inside) in zip(grid, panels.items(), strict=True):
        kinds: dict[tuple[Any, ...], list[Result]] = {}
        for result in inside:
            kinds.setdefault((result.experiment, *(result.variables.get(n) for n in layout.lines)), []).append(result)
        for colour, (line, runs) in zip(itertools.cycle(COLOURS), kinds.items(), strict=False):
            by_filters = sorted(grouped(runs, ["filters"]).items())
            points = [(key[0], [100 * r["test_accuracy"] for r in group]) for key, group in by_filters]
            plot_with_range(axes, points, colour, _network_label(lines, line, experiment.name))
        _set_filters_axis(axes, inside)
        kernel_networks = [run for run in inside if run.history and run.variables.get("kind", "ckn") == "ckn"]
        trained = f" ({kernel_networks[0].history[-1]['step']:,} steps)" if kernel_networks else ""
        axes.set_title(fill(f"{joined_label(layout.panels, values)}, {_data_name(inside)}{trained}", 54), fontsize=9)
        axes.set_ylabel("test accuracy (%)")
        if len(kinds) > 3:  # a legend too large for the free space between the lines
            low, high = axes.get_ylim()
            axes.set_ylim(low, high + 0.09 * len(kinds) * (high - low))
        axes.legend(frameon=False, fontsize=7, loc="upper left" if len(kinds) > 3 else "best")
    _share_limits(grid, [inside[0].settings["network"] for inside in panels.values()])
    return [figure]


def _share_limits(grid: Sequence[Axes], networks: Sequence[str]) -> None:
    """Panels of the same network have the same axis of accuracies."""
    for network in set(networks):
        alike = [axes for axes, name in zip(grid, networks, strict=True) if name == network]
        lows, highs = zip(*(axes.get_ylim() for axes in alike), strict=True)
        for axes in alike:
            axes.set_ylim(min(lows), max(highs))


#: variables that the label of a network names in words of its own
_NAMED = ("experiment", "kind", "options.bias", "budget")


def _network_label(names: Sequence[str], line: tuple[Any, ...], experiment: str) -> str:
    values = dict(zip(names, line, strict=True))
    if "kind" not in values:
        return joined_label(names[1:], line[1:])
    name = NETWORK_NAMES[values["kind"]]
    others = [value_label(n, value) for n, value in values.items() if n not in _NAMED and value is not None]
    if values["kind"] == "ckn":
        return ", ".join([name, *(["unsupervised filters"] if values["experiment"] == "unsupervised" else []), *others])
    if experiment == "unsupervised":
        return name
    details = {"biases": values.get("options.bias"), "equal time": values.get("budget") == "time"}
    return ", ".join([name, *(text for text, applies in details.items() if applies), *others])


#: ends the name of a learner on augmented images, whose line is dashed
_AUGMENTED = "-augmented"


def _over_labels(experiment: Experiment, results: list[Result]) -> list[Figure]:
    panels = grouped(results, experiment.figure.panels)
    figure, grid = panel_grid(len(panels), 2, 4.2)
    plain = [name for name in LEARNER_NAMES if not name.endswith(_AUGMENTED)]
    colours = dict(zip(plain, COLOURS, strict=True))  # a learner has one color in all panels
    for axes, (values, inside) in zip(grid, panels.items(), strict=True):
        counts: set[int] = set()
        for (learner,), runs in grouped(inside, ["learner"]).items():
            accuracies = accuracies_by_labels(runs)
            colour = colours[learner.removesuffix(_AUGMENTED)]
            errors = [(count, [100 - value for value in values]) for count, values in sorted(accuracies.items())]
            plot_with_range(axes, errors, colour, LEARNER_NAMES[learner])
            axes.get_lines()[-1].set_linestyle("--" if learner.endswith(_AUGMENTED) else "-")
            counts |= accuracies.keys()
        set_labels_axis(axes, counts)
        _set_errors_axis(axes)
        axes.set_title(", ".join(DATA_NAMES.get(value, value) for value in values), fontsize=9)
    legend_below(figure, grid, columns=min(3, 2 * len(panels) - 1))
    return [figure]


def _errors(experiment: Experiment, results: list[Result]) -> list[Figure]:
    figure, grid = panel_grid(2, 2, 3.6)
    titles = {"root_errors": "only the inverse root in float32", "errors": "the whole network in float32"}
    for axes, (key, title) in zip(grid, titles.items(), strict=True):
        for colour, method in zip(itertools.cycle(COLOURS), results[0][key], strict=False):
            by_filters = sorted(grouped(results, ["filters"]).items())
            points = [(name[0], [r[key][method] for r in group]) for name, group in by_filters]
            plot_with_range(axes, points, colour, method_label(method))
        _set_filters_axis(axes, results)
        axes.set_yscale("log")
        axes.set_title(title, fontsize=9)
        axes.set_ylabel("relative error of the gradient")
        axes.legend(frameon=False, fontsize=7)
    return [figure]


def set_labels_axis(axes: Axes, counts: Iterable[int]) -> None:
    axes.set_xscale("log")
    axes.set_xticks(sorted(counts), [f"{count:,}" for count in sorted(counts)])
    axes.minorticks_off()
    axes.set_xlabel("labels")
    axes.set_ylabel("test accuracy (%)")


def _set_errors_axis(axes: Axes) -> None:
    """Test errors, small ones of which differ by factors."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    ticks = [tick for tick in (1, 2, 3, 5, 7, 10, 15, 20, 30, 40, 50, 60, 70, 80, 90) if low <= tick <= high]
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_ylabel("test error (%)")


def _set_filters_axis(axes: Axes, results: Sequence[Result]) -> None:
    axes.set_xscale("log", base=2)
    ticks = sorted({result["filters"] for result in results})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xlabel("filters per layer")


def legend_below(figure: Figure, grid: Sequence[Axes], columns: int = 2) -> None:
    """One legend for the lines of all panels."""
    pairs = [zip(*axes.get_legend_handles_labels(), strict=True) for axes in grid]
    lines = {label: handle for handle, label in itertools.chain(*pairs)}
    figure.legend(
        lines.values(), lines.keys(), frameon=False, fontsize=8, loc="outside lower center", ncols=columns, handlelength=3
    )


def plot_with_range(axes: Axes, points: Sequence[tuple[float, list[float]]], colour: str, label: str) -> None:
    """Plot the mean over seeds as a line, and the range from minimum to maximum as a band."""
    xs = [x for x, _ in points]
    axes.plot(xs, [sum(values) / len(values) for _, values in points], "o-", color=colour, label=label, markersize=3)
    axes.fill_between(xs, [min(v) for _, v in points], [max(v) for _, v in points], color=colour, alpha=0.2, linewidth=0)


_KINDS: dict[str, Callable[[Experiment, list[Result]], list[Figure]]] = {
    "curves": _curves,
    "over-filters": _over_filters,
    "over-labels": _over_labels,
    "errors": _errors,
    "table": lambda experiment, results: [],
}
