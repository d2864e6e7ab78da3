"""The figures of experiments, from their results alone: in the paper's layout, with the spread over seeds.

Four kinds, which a spec chooses from: accuracy over steps and over time (``curves``), over the number of filters
(``over-filters``), errors of gradients (``errors``), and no figure but a table (``table``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..plots import COLOURS, look_past_start, new_figure, save_figure
from .results import Result, Results
from .spec import Experiment

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLES = {"lenet1": "LeNet-1", "lenet5": "LeNet-5", "allcnn": "All-CNN-C", "ckn": "CKN", "convnet": "ConvNet"}
DATA = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
FLAGS = {"options.bias": "biases", "bandwidths": "trained bandwidths"}
LINES = {
    "ulr": "ULR",
    "sgo": "SGO",
    "sgd": "SGD",
    "eigh": "closed form",
    "newton": "Newton",
    "newton:50": "Newton",
    "svd": "SVD",
}


def figure_names(experiment: Experiment) -> list[str]:
    """The files that an experiment's figures are in."""
    parts = {"curves": ["-steps", "-seconds"], "over-filters": [""], "errors": [""], "table": []}
    return [f"{experiment.name}{part}.png" for part in parts[experiment.figure.kind]]


def draw(experiment: Experiment, results: Results, folder: Path) -> None:
    """Draw what there is of an experiment."""
    found = in_order(experiment, results.of(experiment.name))
    if not found:
        return
    if experiment.figure.beside:
        found = in_order(experiment, results.of(**experiment.figure.beside)) + found
    drawn = _KINDS[experiment.figure.kind](experiment, found)
    for name, figure in zip(figure_names(experiment), drawn, strict=True):
        save_figure(figure, folder / name)


def in_order(experiment: Experiment, found: Sequence[Result]) -> list[Result]:
    """As the experiment's grid has them, which file names do not."""
    grid = experiment.grid

    def place(result: Result) -> list[int]:
        known = ((values, result.variables.get(name)) for name, values in grid.items())
        return [values.index(value) if value in values else len(values) for values, value in known]

    return sorted(found, key=lambda result: (place(result), result.variables.get("filters", 0), result.seed))


def say(name: str, value: Any) -> str:
    """A variable's value in words."""
    if name == "filters":
        return f"{value} filters"
    if isinstance(value, bool):
        return f"{'with' if value else 'without'} {FLAGS.get(name, name)}"
    if name == "budget":
        return f"equal {value}"
    if name == "centering":
        return f"features centred per {value}"
    if name == "slip":
        return "as it should be" if value == "none" else str(value).replace("-", " ")
    return TITLES.get(value, LINES.get(value, str(value)))


def grouped(results: Iterable[Result], names: Sequence[str]) -> dict[tuple[Any, ...], list[Result]]:
    """Results by the values of these variables, in the order they come in."""
    groups: dict[tuple[Any, ...], list[Result]] = {}
    for result in results:
        groups.setdefault(tuple(result.variables.get(name) for name in names), []).append(result)
    return groups


def _panels(count: int, columns: int, height: float = 3.0) -> tuple[Any, list[Axes]]:
    columns = min(columns, count)
    rows = -(-count // columns)
    figure = new_figure(4.2 * columns, height * rows, dpi=80)  # for a page, and small enough for a repository
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in grid[count:]:
        axes.axis("off")
    for axes in grid[:count]:
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, grid[:count]


def _curves(experiment: Experiment, found: list[Result]) -> list[Figure]:
    how = experiment.figure
    panels = grouped(found, how.panels)
    drawn = []
    for name, label in (("steps", "steps"), ("seconds", "seconds, set-up included")):
        figure, grid = _panels(len(panels), 2)
        for axes, (values, inside) in zip(grid, panels.items(), strict=True):
            curves: list[list[float]] = []
            for colour, (line, results) in zip(itertools.cycle(COLOURS), grouped(inside, how.lines).items(), strict=False):
                points = _over(results, name)
                _spread(axes, points, colour, _in_words(how.lines, line))
                curves += [list(curve) for curve in zip(*(values for _, values in points), strict=True)]
            look_past_start(axes, curves)
            axes.set_title(f"{_in_words(how.panels, values)}, {_data(inside)}", fontsize=9)
            axes.set_xlabel(label)
            axes.set_ylabel("validation accuracy (%)")
            axes.legend(frameon=False, fontsize=8, loc="lower right")
        drawn.append(figure)
    return drawn


def _data(results: Sequence[Result]) -> str:
    name = results[0].settings["data"]
    return DATA.get(name, name)


def _over(results: list[Result], name: str) -> list[tuple[float, list[float]]]:
    """Points of a curve: where, and the accuracies of all seeds there."""
    points = []
    for records in zip(*(result.history for result in results), strict=False):
        pairs = list(zip(results, records, strict=True))
        where = [r.seconds_at(record) if name == "seconds" else record["step"] for r, record in pairs]
        points.append((sum(where) / len(where), [100 * record["valid_accuracy"] for record in records]))
    return points


def _over_filters(experiment: Experiment, found: list[Result]) -> list[Figure]:
    how = experiment.figure
    lines = ["experiment", *how.lines]
    panels = grouped(found, how.panels)
    figure, grid = _panels(len(panels), 3, 3.4)
    for axes, (values, inside) in zip(grid, panels.items(), strict=True):
        kinds: dict[tuple[Any, ...], list[Result]] = {}
        for result in inside:
            kinds.setdefault((result.experiment, *(result.variables.get(n) for n in how.lines)), []).append(result)
        for colour, (line, results) in zip(itertools.cycle(COLOURS), kinds.items(), strict=False):
            by_filters = sorted(grouped(results, ["filters"]).items())
            points = [(key[0], [100 * r["test_accuracy"] for r in group]) for key, group in by_filters]
            _spread(axes, points, colour, _line_of_networks(lines, line, experiment.name))
        _count_filters(axes, inside)
        axes.set_title(f"{_in_words(how.panels, values)} on {_data(inside)}", fontsize=9)
        axes.set_ylabel("test accuracy (%)")
        if len(kinds) > 3:  # more names than fit beside the lines
            low, high = axes.get_ylim()
            axes.set_ylim(low, high + 0.09 * len(kinds) * (high - low))
        axes.legend(frameon=False, fontsize=7, loc="upper left" if len(kinds) > 3 else "best")
    return [figure]


def _line_of_networks(names: Sequence[str], line: tuple[Any, ...], experiment: str) -> str:
    values = dict(zip(names, line, strict=True))
    if "kind" not in values:
        return _in_words(names[1:], line[1:])
    name = TITLES[values["kind"]]
    if values["kind"] == "ckn":
        return f"{name}, filters without labels" if values["experiment"] == "unsupervised" else name
    if experiment == "unsupervised":
        return name
    extra = [
        text
        for text, shown in (("biases", values.get("options.bias")), ("equal time", values.get("budget") == "time"))
        if shown
    ]
    return ", ".join([name, *extra])


def _errors(experiment: Experiment, found: list[Result]) -> list[Figure]:
    figure, grid = _panels(2, 2, 3.6)
    titles = {"root_errors": "only the inverse root in float32", "errors": "the whole network in float32"}
    for axes, (key, title) in zip(grid, titles.items(), strict=True):
        for colour, method in zip(itertools.cycle(COLOURS), found[0][key], strict=False):
            by_filters = sorted(grouped(found, ["filters"]).items())
            _spread(
                axes, [(name[0], [r[key][method] for r in group]) for name, group in by_filters], colour, say_method(method)
            )
        _count_filters(axes, found)
        axes.set_yscale("log")
        axes.set_title(title, fontsize=9)
        axes.set_ylabel("relative error of the gradient")
        axes.legend(frameon=False, fontsize=7)
    return [figure]


def _count_filters(axes: Axes, found: Sequence[Result]) -> None:
    axes.set_xscale("log", base=2)
    ticks = sorted({result["filters"] for result in found})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xlabel("filters a layer")


def say_method(method: str) -> str:
    name, _, count = method.partition("-")
    return f"Newton, {count} iterations" if name == "newton" else LINES[name]


def _spread(axes: Axes, points: Sequence[tuple[float, list[float]]], colour: str, label: str) -> None:
    """The mean over seeds as a line, from the least to the most as a band."""
    where = [x for x, _ in points]
    axes.plot(where, [sum(values) / len(values) for _, values in points], "o-", color=colour, label=label, markersize=3)
    axes.fill_between(where, [min(v) for _, v in points], [max(v) for _, v in points], color=colour, alpha=0.2, linewidth=0)


def _in_words(names: Sequence[str], values: Sequence[Any]) -> str:
    return ", ".join(say(name, value) for name, value in zip(names, values, strict=True))


_KINDS: dict[str, Callable[[Experiment, list[Result]], list[Figure]]] = {
    "curves": _curves,
    "over-filters": _over_filters,
    "errors": _errors,
    "table": lambda experiment, found: [],
}
