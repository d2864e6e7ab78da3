"""The main comparisons with ConvNets in one table and one figure: few labels, and equal time.

Read first: :mod:`torchckn.experiments.comparisons`. Read next: :mod:`torchckn.experiments.when`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..plots import COLOURS, zoom_to_ends
from .comparisons import differences, differences_by_labels
from .figures import curve_points, panel_grid, plot_with_range, set_labels_axis
from .judging import ABOVE_ZERO, estimate
from .labels import DATA_NAMES
from .results import Results, accuracies_by_labels
from .tables import markdown_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_Selection = dict[str, Any]

#: the learner on the other side of all comparisons with few labels
_CONVNET: _Selection = {"experiment": "few-labels", "learner": "convnet-augmented"}
#: by data set, the kernel networks that it is compared with
_FEW_LABELS: dict[str, dict[str, _Selection]] = {
    "cifar10": {
        "regularization not tuned": {"experiment": "untuned", "learner": "ckn-augmented"},
        "regularization tuned with all labels": {"experiment": "few-labels", "learner": "ckn-augmented"},
    },
    "mnist": {
        "unsupervised filters": {"experiment": "few-labels", "learner": "ckn-augmented"},
        "then trained by ULR": {"experiment": "few-labels", "learner": "ckn-ulr"},
    },
}
_HALF_HOUR: _Selection = {"total_seconds": 1800}
_CKN: _Selection = {"experiment": "equal-time", "kind": "ckn", "bandwidths": True, "augment": "none", **_HALF_HOUR}
_DECAYED: _Selection = {"kind": "convnet", "weight_decay": 0.0005, **_HALF_HOUR}
#: by the number of filters; with 32, the experiment equal-time has the learning rate 0.3
_CONVNETS: dict[int, dict[str, _Selection]] = {
    16: {
        "learning rate 0.1 of the ConvNet": {"experiment": "equal-time", "augment": "none", **_DECAYED},
        "learning rate 0.3 of the ConvNet": {"experiment": "tuning", "lr": "cosine:0.3", **_DECAYED},
    },
    32: {"learning rate 0.3 of the ConvNet": {"experiment": "equal-time", "augment": "none", **_DECAYED}},
}


#: of the tuned CKN, the one that is not tuned, the ConvNet
_COLOURS = (COLOURS[0], COLOURS[5], COLOURS[1])


def summary_table(results: Results) -> str:
    """Who is more accurate where, as a Markdown table."""
    rows = []
    for situation, setup, by_seed in _comparisons(results):
        interval = estimate(by_seed)
        winner = {True: "CKN", False: "ConvNet", None: "undecided"}[interval.is_within(*ABOVE_ZERO)]
        rows.append([situation, setup, interval.text(unit=""), winner])
    heads = ["images", "comparison", "CKN minus ConvNet, percentage points (95 % confidence interval)", "more accurate"]
    return markdown_table(heads, rows) if rows else "Not run yet."


def _comparisons(results: Results) -> Iterator[tuple[str, str, list[float]]]:
    """What is compared, how, and the differences of the test accuracies."""
    for data, kinds in _FEW_LABELS.items():
        convnet = results.of(**_CONVNET, data=data)
        by_setup = {setup: differences_by_labels(results.of(**kind, data=data), convnet) for setup, kind in kinds.items()}
        for count in sorted({count for by_labels in by_setup.values() for count in by_labels}):
            for setup, by_labels in by_setup.items():
                if count in by_labels:
                    yield f"{DATA_NAMES[data]}, {count:,} labels", setup, by_labels[count]
    for filters, convnets in _CONVNETS.items():
        ckn = results.of(**_CKN, filters=filters)
        for setup, how in convnets.items():
            by_seed = differences(ckn, results.of(**how, filters=filters), "test_accuracy")
            if by_seed:
                yield f"CIFAR-10, all labels, All-CNN-C with {filters} filters", f"half an hour, {setup}", by_seed


def summary_figure(results: Results) -> Figure:
    """Few labels of CIFAR-10 on the left, All-CNN-C in equal time on the right; a kind of network has one color in both."""
    figure, (left, right) = panel_grid(2, 2, 3.6)
    not_tuned, tuned = _FEW_LABELS["cifar10"].values()
    learners = {"CKN, regularization tuned": tuned, "CKN, regularization not tuned": not_tuned, "ConvNet": _CONVNET}
    counts: set[int] = set()
    for (name, learner), colour in zip(learners.items(), _COLOURS, strict=True):
        by_labels = accuracies_by_labels(results.of(**learner, data="cifar10"))
        plot_with_range(left, sorted(by_labels.items()), colour, name)
        counts |= by_labels.keys()
    set_labels_axis(left, counts)
    left.set_title("few labels: CIFAR-10, augmented", fontsize=9)
    networks = {"CKN": _CKN, "ConvNet": _CONVNETS[16]["learning rate 0.3 of the ConvNet"]}
    curves: list[list[float]] = []
    for (name, network), colour in zip(networks.items(), _COLOURS[::2], strict=True):
        points = curve_points(results.of(**network, filters=16), "seconds", 60)
        plot_with_range(right, points, colour, name)
        curves += [list(curve) for curve in zip(*(values for _, values in points), strict=True)]
    zoom_to_ends(right, curves)
    right.set_title("equal time: All-CNN-C, 16 filters, CIFAR-10", fontsize=9)
    right.set_xlabel("total time on one thread (minutes)")
    right.set_ylabel("validation accuracy (%)")
    for axes in (left, right):
        axes.legend(frameon=False, fontsize=8, loc="lower right")
    return figure
