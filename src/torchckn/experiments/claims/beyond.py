"""Claims that are not the paper's: equal total time, few labels, one setting changed.

Read first: :mod:`torchckn.experiments.claims.paper`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..comparisons import (
    difference_case,
    differences,
    differences_by_labels,
    on_one_machine,
    time_ratio,
    with_regularization_of_own_labels,
)
from ..judging import ABOVE_ZERO, EXTENSION, Case, Claims
from ..labels import DATA_NAMES, LEARNER_NAMES, grouped, joined_label, value_label
from ..labels import NETWORK_NAMES as NAMES
from ..results import Result, Results, paired

CLAIMS = Claims()
_claim = CLAIMS.add


# Equal total time, centering per feature where there is any


def _equal_time_claim(by: str, augment: str = "none", bandwidths: bool = False, **convnet: Any) -> None:
    setup = "" if augment == "none" else f", {value_label('augment', augment)}"
    ours = "CKN with trained bandwidths" if bandwidths else "CKN"

    @_claim(f"All-CNN-C in equal total time{setup}: the {ours} is more accurate than its ConvNet trained by {by}", EXTENSION)
    def _difference(results: Results) -> tuple[list[Case], str]:
        cases: list[Case] = []
        elsewhere: list[str] = []
        for filters, seconds in sorted(grouped(results.of("equal-time", augment=augment), ["filters", "total_seconds"])):
            same = {"filters": filters, "total_seconds": seconds, "augment": augment}
            ckn = results.of("equal-time", kind="ckn", centering="feature", bandwidths=bandwidths, **same)
            other = results.of("equal-time", kind="convnet", **convnet, **same)
            cases += _in_equal_time(same, ckn, other)
            if paired(ckn, other) and not on_one_machine(ckn, other)[0]:
                elsewhere.append(_budget(same))
        return cases, f"not compared, because of different machines: {'; '.join(elsewhere)}" if elsewhere else ""


def _in_equal_time(same: dict[str, Any], ckn: list[Result], convnet: list[Result]) -> list[Case]:
    """The case of a pair of networks, with the time that they actually took."""
    ckn, convnet = on_one_machine(ckn, convnet)
    by_seed = differences(ckn, convnet, "test_accuracy")
    if not by_seed:
        return []
    label = f"{_budget(same)} ({time_ratio(ckn, convnet)} times the ConvNet's time)"
    return difference_case(label, by_seed, ABOVE_ZERO)


def _budget(same: dict[str, Any]) -> str:
    names = ["filters", "total_seconds"]
    return joined_label(names, [same[name] for name in names])


_SGD: dict[str, Any] = {"optimizer": "sgd", "method": "sgd", "centering": "feature"}
for _bandwidths in (False, True):
    _equal_time_claim("SGD from the paper's weights", bandwidths=_bandwidths, **_SGD, weight_decay=0.0)
    _equal_time_claim("SGD with weight decay from the paper's weights", bandwidths=_bandwidths, **_SGD, weight_decay=0.0005)


@_claim(
    "All-CNN-C in equal total time: the CKN with trained bandwidths is more accurate than its ConvNet trained by SGD with weight "
    "decay from the paper's weights, with the learning rate that is the better one over three seeds (0.3)",
    EXTENSION,
)
def _other_learning_rate(results: Results) -> tuple[list[Case], str]:
    half_hour = {"filters": 16, "total_seconds": 1800}
    ckn = results.of("equal-time", kind="ckn", bandwidths=True, augment="none", **half_hour)
    convnet = results.of("tuning", kind="convnet", weight_decay=0.0005, lr="cosine:0.3", **half_hour)
    return _in_equal_time(half_hour, ckn, convnet), ""


_equal_time_claim("SGD from the paper's weights", "flip,crop", **_SGD, weight_decay=0.0)
_equal_time_claim("Adam from He weights", optimizer="adamw")
_equal_time_claim("ULR with weight decay, as in the released runs", method="ulr", centering="feature")


# Few labels: the same labels for both learners, draw by draw


def _of_few_labels(results: Results, data: str, learner: str) -> list[Result]:
    return results.of("few-labels", data=data, learner=learner)


def _untuned(results: Results, data: str, learner: str) -> list[Result]:
    return results.of("untuned", data=data, learner=learner)


def _few_labels_claim(
    data: str,
    first: str,
    second: str,
    setup: str = "",
    runs_of: Callable[[Results, str, str], list[Result]] = _of_few_labels,
) -> None:
    """``runs_of`` gives the runs of the first learner."""
    names = DATA_NAMES[data], setup, *(LEARNER_NAMES[learner] for learner in (first, second))

    @_claim("Few labels, {}{}: *{}* is more accurate than *{}*".format(*names), EXTENSION)
    def _difference(results: Results) -> tuple[list[Case], str]:
        cases: list[Case] = []
        by_labels = differences_by_labels(runs_of(results, data, first), _of_few_labels(results, data, second))
        for count, by_draw in by_labels.items():
            cases += difference_case(f"{count:,} labels", by_draw, ABOVE_ZERO, runs=0 if cases else None)
        return cases, ""


for _data in ("cifar10", "mnist"):
    for _first, _second in (
        ("ckn-augmented", "convnet-augmented"),
        ("ckn-augmented", "hog-svm-augmented"),
        ("ckn-augmented", "kmeans-augmented"),
        ("ckn", "convnet"),
        ("ckn", "hog-svm"),
        ("ckn", "kmeans"),
    ):
        _few_labels_claim(_data, _first, _second)
_few_labels_claim("mnist", "ckn-ulr", "convnet")
_few_labels_claim("mnist", "ckn-ulr", "convnet-augmented")
for _setup, _runs_of in (
    ("regularization not tuned", _untuned),
    ("regularization chosen between the two on the same labels", with_regularization_of_own_labels),
):
    for _first, _second in (
        ("ckn-augmented", "convnet-augmented"),
        ("ckn-augmented", "kmeans-augmented"),
        ("ckn", "hog-svm"),
        ("ckn", "kmeans"),
    ):
        _few_labels_claim("cifar10", _first, _second, f", {_setup}", _runs_of)


# Not in the paper: one setting changed, same seeds


def _comparison(text: str, experiment: str, changed: dict[str, Any], baseline: dict[str, Any]) -> None:
    """The test accuracy of ``changed`` minus that of ``baseline`` is above zero, on every network of the experiment."""

    @_claim(text, EXTENSION)
    def _difference(results: Results) -> tuple[list[Case], str]:
        cases = []
        for network in dict.fromkeys(r["network"] for r in results.of(experiment)):
            first, second = (results.of(experiment, network=network, **variables) for variables in (changed, baseline))
            cases += difference_case(NAMES[network], differences(first, second, "test_accuracy"), ABOVE_ZERO)
        return cases, ""


_comparison(
    "The arc-cosine kernel of order 1, which matches ReLU (All-CNN-C), is more accurate than the RBF kernel (16 filters)",
    *("kernels", {"kernel": "arccosine:1"}, {"kernel": "rbf:0.6"}),
)
_comparison(
    "Trained bandwidths are more accurate than fixed ones (16 filters)",
    *("bandwidths", {"bandwidths": True}, {"bandwidths": False}),
)
_comparison(
    "ConvNets trained with ULR are more accurate than with SGD (16 filters, equal number of steps)",
    *("convnet-ulr", {"method": "ulr"}, {"method": "sgd"}),
)
_comparison(
    "Bug: ULR with a diagonal Hessian is more accurate with the correct sign than with the opposite one (8 filters)",
    *("slips", {"slip": "none", "hessian": "diag"}, {"slip": "diagonal-sign"}),
)
_comparison(
    "Bug: SGO is more accurate with the L2 penalty that ULR has than without it (8 filters)",
    *("slips", {"slip": "none", "method": "sgo"}, {"slip": "sgo-without-penalty"}),
)
_comparison(
    "Bug: whitening is more accurate than half whitening, by the inverse fourth root (8 filters)",
    *("slips", {"slip": "none", "method": "ulr", "hessian": "auto"}, {"slip": "half-whitening"}),
)
