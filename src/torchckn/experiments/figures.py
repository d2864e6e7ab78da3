"""Figures of experiments, drawn from their results: in the paper's layout, with the range over seeds.

A spec chooses one of these kinds: accuracy over steps and over time (``curves``), accuracy over the number of filters
(``over-filters``), or of labels (``over-labels``), errors of gradients (``errors``), or no figure (``table``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from ..plots import COLOURS, crop_out_start, new_figure, save_figure
from .results import Result, Results, accuracies_by_labels
from .spec import Experiment

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NETWORK_NAMES = {"lenet1": "LeNet-1", "lenet5": "LeNet-5", "allcnn": "All-CNN-C", "ckn": "CKN", "convnet": "ConvNet"}
DATA_NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
FLAG_NAMES = {
    "options.bias": "biases",
    "bandwidths": "trained bandwidths",
    "normalize": "normalized gradients",
    "refit": "refitted classifier",
}
LEARNER_NAMES = {
    "ckn": "CKN, unsupervised filters",
    "ckn-augmented": "CKN, unsupervised filters, augmented",
    "ckn-ulr": "CKN, then trained by ULR",
    "convnet": "ConvNet, AdamW",
    "convnet-augmented": "ConvNet, AdamW, augmented",
    "svm": "RBF SVM on pixels",
    "hog-svm": "RBF SVM on HOG",
    "kmeans": "k-means features",
}
METHOD_NAMES = {
    "ulr": "ULR",
    "sgo": "SGO",
    "sgd": "SGD",
    "adamw": "Adam",  # AdamW without weight decay
    "eigh": "closed form",
    "newton": "Newton",
    "newton:50": "Newton",
    "svd": "SVD",
}


def figure_names(experiment: Experiment) -> list[str]:
    """File names of an experiment's figures."""
    suffixes = {"curves": ["-steps", "-seconds"], "over-filters": [""], "over-labels": [""], "errors": [""], "table": []}
    return [f"{experiment.name}{suffix}.png" for suffix in suffixes[experiment.figure.kind]]


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


def in_grid_order(experiment: Experiment, results: Sequence[Result]) -> list[Result]:
    """The results in the order of the experiment's grid."""
    grid = experiment.grid

    def position(result: Result) -> list[int]:
        pairs = ((values, result.variables.get(name)) for name, values in grid.items())
        return [values.index(value) if value in values else len(values) for values, value in pairs]

    return sorted(results, key=lambda result: (position(result), result.variables.get("filters", 0), result.seed))


def value_label(name: str, value: Any) -> str:
    """The label of a variable's value, for figures and tables."""
    if name == "filters":
        return f"{value} filters"
    if name == "steps":
        return f"{value:,} steps"
    if name == "total_seconds":
        return f"{value / 60:g} minutes"
    if isinstance(value, bool):
        return f"{'with' if value else 'without'} {FLAG_NAMES.get(name, name)}"
    if name == "batch_size":
        return f"batches of {value}"
    if name == "loss":
        return f"{value} loss"
    if name == "budget":
        return f"equal {value}"
    if name == "weight_decay":
        return f"weight decay {value}" if value else "no weight decay"
    if name == "centering":
        return "no feature scaling" if value == "raw" else f"centering per {value}"
    if name == "augment":
        return "no augmentation" if value == "none" else " and ".join(f"{kind}s" for kind in value.split(","))
    if name == "slip":
        return "none" if value == "none" else str(value).replace("-", " ")
    return NETWORK_NAMES.get(value, METHOD_NAMES.get(value, str(value)))


def grouped(results: Iterable[Result], names: Sequence[str]) -> dict[tuple[Any, ...], list[Result]]:
    """Results by the values of these variables, in the order of their first occurrence."""
    groups: dict[tuple[Any, ...], list[Result]] = {}
    for result in results:
        groups.setdefault(tuple(result.variables.get(name) for name in names), []).append(result)
    return groups


def _panels(count: int, columns: int, height: float = 3.0) -> tuple[Any, list[Axes]]:
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
    layout = experiment.figure
    panels = grouped(results, layout.panels)
    # a line has one color in all panels
    colours = dict(zip(grouped(results, layout.lines), itertools.cycle(COLOURS), strict=False))
    figures = []
    for name, label in (("steps", "steps"), ("seconds", "total time (seconds)")):
        figure, grid = _panels(len(panels), 2)
        for axes, (values, inside) in zip(grid, panels.items(), strict=True):
            curves: list[list[float]] = []
            for line, runs in grouped(inside, layout.lines).items():
                points = _curve_points(runs, name)
                _plot_with_range(axes, points, colours[line], fill(joined_label(layout.lines, line), 42))
                curves += [list(curve) for curve in zip(*(values for _, values in points), strict=True)]
            crop_out_start(axes, curves)
            axes.set_title(fill(f"{joined_label(layout.panels, values)}, {_data_name(inside)}", 48), fontsize=9)
            axes.set_xlabel(label)
            axes.set_ylabel("validation accuracy (%)")
            axes.legend(frameon=False, fontsize=8, loc="lower right")
        figures.append(figure)
    return figures


def _data_name(results: Sequence[Result]) -> str:
    name = results[0].settings["data"]
    return DATA_NAMES.get(name, name)


def _curve_points(results: list[Result], name: str) -> list[tuple[float, list[float]]]:
    """Points of a curve: x (the mean over seeds), and the accuracies of all seeds."""
    points = []
    for records in zip(*(result.history for result in results), strict=False):
        pairs = list(zip(results, records, strict=True))
        x = [r.seconds_at(record) if name == "seconds" else record["step"] for r, record in pairs]
        points.append((sum(x) / len(x), [100 * _shown_accuracy(record) for record in records]))
    return points


def _shown_accuracy(record: dict[str, Any]) -> float:
    """Validation accuracy with a refitted classifier if there is one, else with that of the last step."""
    return float(record.get("refitted_accuracy", record["valid_accuracy"]))


def _over_filters(experiment: Experiment, results: list[Result]) -> list[Figure]:
    layout = experiment.figure
    lines = ["experiment", *layout.lines]
    panels = grouped(results, layout.panels)
    figure, grid = _panels(len(panels), 3, 3.4)
    for axes, (values, inside) in zip(grid, panels.items(), strict=True):
        kinds: dict[tuple[Any, ...], list[Result]] = {}
        for result in inside:
            kinds.setdefault((result.experiment, *(result.variables.get(n) for n in layout.lines)), []).append(result)
        for colour, (line, runs) in zip(itertools.cycle(COLOURS), kinds.items(), strict=False):
            by_filters = sorted(grouped(runs, ["filters"]).items())
            points = [(key[0], [100 * r["test_accuracy"] for r in group]) for key, group in by_filters]
            _plot_with_range(axes, points, colour, _network_label(lines, line, experiment.name))
        _set_filters_axis(axes, inside)
        axes.set_title(fill(f"{joined_label(layout.panels, values)}, {_data_name(inside)}", 48), fontsize=9)
        axes.set_ylabel("test accuracy (%)")
        if len(kinds) > 3:  # a legend too large for the free space between the lines
            low, high = axes.get_ylim()
            axes.set_ylim(low, high + 0.09 * len(kinds) * (high - low))
        axes.legend(frameon=False, fontsize=7, loc="upper left" if len(kinds) > 3 else "best")
    return [figure]


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
    figure, grid = _panels(len(panels), 2, 4.2)
    plain = [name for name in LEARNER_NAMES if not name.endswith(_AUGMENTED)]
    colours = dict(zip(plain, COLOURS, strict=True))  # a learner has one color in all panels
    lines: dict[str, Any] = {}
    for axes, (values, inside) in zip(grid, panels.items(), strict=True):
        counts: set[int] = set()
        for (learner,), runs in grouped(inside, ["learner"]).items():
            accuracies = accuracies_by_labels(runs)
            colour = colours[learner.removesuffix(_AUGMENTED)]
            _plot_with_range(axes, sorted(accuracies.items()), colour, LEARNER_NAMES[learner])
            line = lines[LEARNER_NAMES[learner]] = axes.get_lines()[-1]
            line.set_linestyle("--" if learner.endswith(_AUGMENTED) else "-")
            counts |= accuracies.keys()
        axes.set_xscale("log")
        axes.set_xticks(sorted(counts), [f"{count:,}" for count in sorted(counts)])
        axes.minorticks_off()
        axes.set_xlabel("labels")
        axes.set_ylabel("test accuracy (%)")
        axes.set_title(", ".join(DATA_NAMES.get(value, value) for value in values), fontsize=9)
    figure.legend(
        lines.values(),
        lines.keys(),
        frameon=False,
        fontsize=8,
        loc="outside lower center",
        ncols=min(3, 2 * len(panels) - 1),
    )
    return [figure]


def _errors(experiment: Experiment, results: list[Result]) -> list[Figure]:
    figure, grid = _panels(2, 2, 3.6)
    titles = {"root_errors": "only the inverse root in float32", "errors": "the whole network in float32"}
    for axes, (key, title) in zip(grid, titles.items(), strict=True):
        for colour, method in zip(itertools.cycle(COLOURS), results[0][key], strict=False):
            by_filters = sorted(grouped(results, ["filters"]).items())
            points = [(name[0], [r[key][method] for r in group]) for name, group in by_filters]
            _plot_with_range(axes, points, colour, method_label(method))
        _set_filters_axis(axes, results)
        axes.set_yscale("log")
        axes.set_title(title, fontsize=9)
        axes.set_ylabel("relative error of the gradient")
        axes.legend(frameon=False, fontsize=7)
    return [figure]


def _set_filters_axis(axes: Axes, results: Sequence[Result]) -> None:
    axes.set_xscale("log", base=2)
    ticks = sorted({result["filters"] for result in results})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xlabel("filters per layer")


def method_label(method: str) -> str:
    """The label of a method of the inverse square root, such as ``"newton-20"``."""
    name, _, count = method.partition("-")
    return f"Newton, {count} iterations" if name == "newton" else METHOD_NAMES[name]


def _plot_with_range(axes: Axes, points: Sequence[tuple[float, list[float]]], colour: str, label: str) -> None:
    """Plot the mean over seeds as a line, and the range from minimum to maximum as a band."""
    xs = [x for x, _ in points]
    axes.plot(xs, [sum(values) / len(values) for _, values in points], "o-", color=colour, label=label, markersize=3)
    axes.fill_between(xs, [min(v) for _, v in points], [max(v) for _, v in points], color=colour, alpha=0.2, linewidth=0)


def joined_label(names: Sequence[str], values: Sequence[Any]) -> str:
    """The label of a line or panel: ``ConvNet, Adam``.

    An optimizer of its own says more than the method, SGD less. Of a kind of network, weight decay and trained bandwidths are
    named where there are any.
    """
    given = dict(zip(names, values, strict=True))
    if "kind" in given:
        given = {name: value for name, value in given.items() if value or name not in ("weight_decay", "bandwidths")}
    if {"optimizer", "method"} <= given.keys():
        del given["optimizer" if given["optimizer"] == "sgd" else "method"]
    return ", ".join(value_label(name, value) for name, value in given.items())


_KINDS: dict[str, Callable[[Experiment, list[Result]], list[Figure]]] = {
    "curves": _curves,
    "over-filters": _over_filters,
    "over-labels": _over_labels,
    "errors": _errors,
    "table": lambda experiment, results: [],
}
