"""The main comparisons with ConvNets in one table and one figure: few labels, equal time, and equal steps.

Read first: :mod:`torchckn.experiments.comparisons`. Read next: :mod:`torchckn.experiments.when`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ..plots import COLOURS, zoom_to_ends
from .comparisons import (
    after_steps,
    are_of_one_machine,
    differences,
    differences_by_labels,
    filters_of,
    on_one_machine,
    time_ratio,
    with_regularization_of_own_labels,
)
from .figures import curve_points, panel_grid, plot_with_range, set_labels_axis
from .judging import ABOVE_ZERO, estimate
from .labels import DATA_NAMES, NETWORK_NAMES
from .results import Result, Results, accuracies_by_labels
from .tables import markdown_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_Selection = dict[str, Any]

#: the learner on the other side of all comparisons with few labels
_CONVNET: _Selection = {"experiment": "few-labels", "learner": "convnet-augmented"}
#: instead of an experiment: for each number of labels, the one of two that is more accurate in cross-validation on them
_EITHER = "untuned or few-labels"
#: by data set, the kernel networks that it is compared with
_FEW_LABELS: dict[str, dict[str, _Selection]] = {
    "cifar10": {
        "regularization not tuned": {"experiment": "untuned", "learner": "ckn-augmented"},
        "regularization chosen between the two, on these labels": {"experiment": _EITHER, "learner": "ckn-augmented"},
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
    8: {"ConvNet with learning rate 0.1": {"experiment": "equal-time", "augment": "none", **_DECAYED}},
    16: {
        "ConvNet with learning rate 0.1": {"experiment": "equal-time", "augment": "none", **_DECAYED},
        "ConvNet with learning rate 0.3": {"experiment": "tuning", "lr": "cosine:0.3", **_DECAYED},
    },
    32: {"ConvNet with learning rate 0.3": {"experiment": "equal-time", "augment": "none", **_DECAYED}},
}


class _Comparison(NamedTuple):
    situation: str
    setup: str
    differences: list[float]
    """of the test accuracies, in percentage points, by draw or seed"""
    time: str = "-"
    """of the CKN, relative to the ConvNet's"""
    digits: int = 1


def summary_table(results: Results) -> str:
    """Who is more accurate where, as a Markdown table."""
    rows = []
    for situation, setup, by_seed, time, digits in _comparisons(results):
        interval = estimate(by_seed)
        winner = {True: "CKN", False: "ConvNet", None: "undecided"}[interval.is_within(*ABOVE_ZERO)]
        rows.append([situation, setup, interval.text(digits, unit=""), winner, time])
    difference = "CKN minus ConvNet, percentage points (95 % confidence interval)"
    heads = ["images", "comparison", difference, "more accurate", "time, CKN / ConvNet"]
    return markdown_table(heads, rows) if rows else "Not run yet."


def _comparisons(results: Results) -> Iterator[_Comparison]:
    for data, kinds in _FEW_LABELS.items():
        convnet = results.of(**_CONVNET, data=data)
        by_setup = {setup: differences_by_labels(_runs(results, kind, data), convnet) for setup, kind in kinds.items()}
        for count in sorted({count for by_labels in by_setup.values() for count in by_labels}):
            for setup, by_labels in by_setup.items():
                if count in by_labels:
                    yield _Comparison(f"{DATA_NAMES[data]}, {count:,} labels", setup, by_labels[count])
    for filters, convnets in _CONVNETS.items():
        for setup, how in convnets.items():
            ckn, convnet = on_one_machine(results.of(**_CKN, filters=filters), results.of(**how, filters=filters))
            by_seed = differences(ckn, convnet, "test_accuracy")
            if by_seed:
                situation = f"CIFAR-10, all labels, All-CNN-C with {filters} filters"
                yield _Comparison(situation, f"half an hour, {setup}", by_seed, time_ratio(ckn, convnet))
    for network in ("lenet1", "lenet5"):
        for filters in filters_of(results.of("lenets", network=network)):
            ckn, convnet = (results.of("lenets", network=network, filters=filters, kind=kind) for kind in ("ckn", "convnet"))
            by_seed = differences(ckn, convnet, "test_accuracy")
            if by_seed:
                situation = f"MNIST, all labels, {NETWORK_NAMES[network]} with {filters} filters"
                ratio = time_ratio(ckn, convnet) if are_of_one_machine(ckn, convnet) else "-"
                yield _Comparison(situation, f"{after_steps(ckn)} each", by_seed, ratio, digits=2)


def _runs(results: Results, kind: _Selection, data: str) -> list[Result]:
    if kind["experiment"] == _EITHER:
        return with_regularization_of_own_labels(results, data, kind["learner"])
    return results.of(**kind, data=data)


def summary_figure(results: Results) -> Figure:
    """Few labels of CIFAR-10 on the left, All-CNN-C in equal time on the right; a kind of network has one color in both."""
    figure, (left, right) = panel_grid(2, 2, 3.6)
    not_tuned, _, tuned = _FEW_LABELS["cifar10"].values()
    learners = {
        "CKN, regularization tuned": (tuned, COLOURS[0]),
        "CKN, regularization not tuned": (not_tuned, COLOURS[5]),
        "ConvNet": (_CONVNET, COLOURS[1]),
    }
    counts: set[int] = set()
    for name, (learner, colour) in learners.items():
        by_labels = accuracies_by_labels(results.of(**learner, data="cifar10"))
        plot_with_range(left, sorted(by_labels.items()), colour, name)
        counts |= by_labels.keys()
    set_labels_axis(left, counts)
    left.set_title("few labels: CIFAR-10, augmented", fontsize=9)
    networks = {"CKN, trained bandwidths": _CKN, **_CONVNETS[16]}
    curves: list[list[float]] = []
    for (name, network), colour in zip(networks.items(), (COLOURS[0], COLOURS[4], COLOURS[1]), strict=True):
        points = curve_points(results.of(**network, filters=16), "seconds", 60)
        plot_with_range(right, points, colour, name)
        curves += [list(curve) for curve in zip(*(values for _, values in points), strict=True)]
    zoom_to_ends(right, curves)
    right.set_title("equal time: All-CNN-C, 16 filters, CIFAR-10", fontsize=9)
    right.set_xlabel("total time on one thread (minutes)")
    right.set_ylabel("validation accuracy (%)")
    left.legend(frameon=False, fontsize=8, loc="lower right")
    right.legend(frameon=False, fontsize=8, loc="upper left")
    return figure
