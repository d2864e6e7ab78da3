"""The paper's claims and those of the released runs, together with similar claims that are not in the paper.

Read first: :mod:`torchckn.experiments.comparisons`. Read next: :mod:`torchckn.experiments.claims.beyond`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..comparisons import (
    accuracy_case,
    after_steps,
    against_convnet,
    at_equal_time,
    difference_case,
    differences,
    filters_of,
    fraction_case,
)
from ..judging import ABOVE_ZERO, EXTENSION, RELEASED, Case, Claims, estimate, geometric_estimate
from ..labels import NETWORK_NAMES as NAMES
from ..labels import value_label
from ..results import Result, Results, paired
from ..spec import experiment

CLAIMS = Claims()
_claim = CLAIMS.add


# Accuracy of the gradient


def _gradient_claim(text: str, source: str, worse: str, better: str, least: float, filters: Sequence[int] | None) -> None:
    @_claim(text, source)
    def _ratio(results: Results) -> tuple[list[Case], str]:
        selected = [r for r in results.of("gradient") if filters is None or r["filters"] in filters]
        cases = []
        for key, what in (("root_errors", "only the inverse root in float32"), ("errors", "the whole network in float32")):
            for count in filters_of(selected):
                group = [r for r in selected if r["filters"] == count]
                interval = geometric_estimate([r[key][worse] / r[key][better] for r in group])
                label = f"{what}, {count} filters: ratio {interval.text(unit='', signed=False)}"
                cases.append(Case(label, interval.is_within(least, math.inf), len(group) if key == "errors" else 0))
        return cases, ""


_gradient_claim(
    "The error of the gradient is smaller with 20 Newton iterations than with the SVD (All-CNN-C, 8 filters; paper: 2.5 times)",
    *("5.2", "svd", "newton-20", 1.0, [8]),
)
_gradient_claim(
    "The error of the gradient with the closed form (Gram matrix and root in float64) is at most that with 20 Newton iterations",
    *(EXTENSION, "newton-20", "eigh", 1.0, None),
)

#: the difference between Newton and SVD that the paper found with 128 filters
_NEWTON = 1.7


@_claim(
    "CKNs trained with Newton and with SVD are equally accurate with 8 filters "
    f"(All-CNN-C; here, on validation images, to within {_NEWTON} points)",
    "5.2",
)
def _newton_few(results: Results) -> tuple[list[Case], str]:
    label = after_steps(results.of("inverse-root", filters=8))
    return difference_case(label, _newton_minus_svd(results, 8), (-_NEWTON, _NEWTON)), ""


@_claim(
    "CKNs trained with Newton are more accurate than with SVD, with 128 filters, after 1,000 steps "
    f"(All-CNN-C; paper: by {_NEWTON} points)",
    "5.2",
)
def _newton_many(results: Results) -> tuple[list[Case], str]:
    cases = difference_case("", _newton_minus_svd(results, 128), ABOVE_ZERO)
    fewer = _newton_minus_svd(results, 32)
    return cases, "" if cases or not fewer else f"with 32 filters instead {estimate(fewer).text(unit=' points')}"


def _newton_minus_svd(results: Results, filters: int) -> list[float]:
    newton, svd = (results.of("inverse-root", filters=filters, inverse_sqrt=method) for method in ("newton:50", "svd"))
    return differences(newton, svd, "valid_accuracy")


# Ultimate layer reversal


def _ulr_claim(network: str, filters: int, normalize: bool, claimed: float | None) -> None:
    size = f" (paper: by {claimed:g} points after 1,000 steps)" if claimed else ""
    how = "which normalizes its gradients as ULR does" if normalize else "which does not normalize its gradients"
    source = "5.2, app. G" if claimed else EXTENSION

    @_claim(
        f"{NAMES[network]}, {filters} filters: ULR is more accurate on validation images than SGO {how}, "
        f"after equal steps and after equal time{size}",
        source,
    )
    def _ulr(results: Results) -> tuple[list[Case], str]:
        selection = {"network": network, "filters": filters, "loss": "multinomial"}
        cases = []
        for refit, key, classifier in (
            (True, "refitted_accuracy", "refitted classifier"),
            (False, "valid_accuracy", "classifier of the last step"),
        ):
            ulr = results.of("ulr-sgo", method="ulr", refit=refit, **selection)
            pairs = paired(ulr, results.of("ulr-sgo", method="sgo", normalize=normalize, refit=refit, **selection))
            if pairs:
                steps = f"{classifier}, {after_steps(ulr)}"
                by_steps = [100 * (a.history[-1][key] - b.history[-1][key]) for a, b in pairs]
                by_time = [100 * at_equal_time(a, b, key) for a, b in pairs]
                cases += difference_case(steps, by_steps, ABOVE_ZERO)
                cases += difference_case("after equal time", by_time, ABOVE_ZERO, runs=0)
        return cases, ""


for _network, _count, _claimed in (
    ("lenet5", 8, 0.5),
    ("lenet5", 32, None),
    ("lenet5", 128, 0.5),
    ("allcnn", 8, 4),
    ("allcnn", 32, None),
    ("allcnn", 128, 40),
):
    _ulr_claim(_network, _count, False, _claimed)
    if _claimed:
        _ulr_claim(_network, _count, True, None)


# Kernel networks compared with ConvNets


def _lenet_claims(network: str, experiment: str, setup: str) -> None:
    @_claim(
        f"{NAMES[network]}{setup}: the CKN is at most 0.1 points less accurate than the ConvNet (and at most 1 point more)",
        "5.3",
    )
    def _difference(results: Results) -> tuple[list[Case], str]:
        return against_convnet(results, experiment, {"network": network}, (-0.1, 1), 2)[0], ""

    @_claim(f"{NAMES[network]}{setup}: the test accuracies of CKN and ConvNet are above 97 %", "5.3")
    def _above(results: Results) -> tuple[list[Case], str]:
        cases = []
        for filters in filters_of(results.of(experiment, network=network)):
            for kind, name in (("ckn", "CKN"), ("convnet", "ConvNet")):
                runs = results.of(experiment, network=network, filters=filters, kind=kind)
                cases += accuracy_case(f"{name}, {filters} filters, {after_steps(runs)}", runs, (97, math.inf))
        return cases, ""


for _network in ("lenet1", "lenet5"):
    _lenet_claims(_network, "lenets", " after 10,000 steps")
    _lenet_claims(_network, "ckn-convnet", "")


def _allcnn_claim(source: str, experiment: str, setup: str, both: dict[str, Any], convnet: dict[str, Any]) -> None:
    @_claim(f"All-CNN-C: the CKN is 3 to 16 points more accurate than the ConvNet ({setup})", source)
    def _difference(results: Results) -> tuple[list[Case], str]:
        cases, pairs = against_convnet(results, experiment, {"network": "allcnn", **both}, (3, 16), **convnet)
        ratios = sorted(other.training_seconds / ckn.training_seconds for ckn, other in pairs)
        shown = " to ".join(dict.fromkeys(f"{ratio:.1f}" for ratio in ratios[:: max(1, len(ratios) - 1)]))
        return cases, f"training time of the ConvNet: {shown} times the CKN's, set-up not counted" if ratios else ""


_BUDGETS = {"steps": "equal number of steps", "time": "equal training time"}
for _budget, _budget_text in _BUDGETS.items():
    for _bias, _bias_text in ((False, "ConvNet without biases"), (True, "ConvNet with biases")):
        _source = "5.3" if _budget == "steps" and not _bias else EXTENSION
        _setup = f"{_bias_text}, {_budget_text}"
        _allcnn_claim(_source, "ckn-convnet", _setup, {}, {"budget": _budget, "options.bias": _bias})
for _budget, _budget_text in _BUDGETS.items():
    _setup = f"centering per feature for both, {_budget_text}"
    _allcnn_claim(EXTENSION, "centering", _setup, {"centering": "feature"}, {"budget": _budget})


# Unsupervised filters


def _unsupervised_claim(network: str, low: int, high: float = math.inf) -> None:
    span = f"at least {low} %" if high == math.inf else f"{low} to {high} %"
    text = f"with unsupervised filters the CKN has {span} of its accuracy with trained filters"

    @_claim(f"{NAMES[network]}: {text}", "5.3")
    def _fractions(results: Results) -> tuple[list[Case], str]:
        cases = []
        for filters in filters_of(results.of("unsupervised", network=network)):
            unsupervised = results.of("unsupervised", network=network, filters=filters)
            trained = results.of("ckn-convnet", network=network, filters=filters, kind="ckn")
            pairs = paired(unsupervised, trained)
            if pairs:
                percentages = [100 * a["test_accuracy"] / b["test_accuracy"] for a, b in pairs]
                label = f"{filters} filters, {after_steps(trained)}"
                cases.append(fraction_case(label, percentages, (low, high), 2 * len(pairs)))
        return cases, ""

    if network == "allcnn":

        @_claim(
            f"{NAMES[network]}: {text} (here, after half an hour on one thread, centering per feature, validation accuracies)",
            "5.3",
        )
        def _after_half_an_hour(results: Results) -> tuple[list[Case], str]:
            selected = {"kind": "ckn", "bandwidths": False, "augment": "none", "total_seconds": 1800, "centering": "feature"}
            cases = []
            trained = [run for run in results.of("equal-time", **selected) if run["start_valid_accuracy"]]
            for filters in filters_of(trained):
                runs = [run for run in trained if run["filters"] == filters]
                percentages = [100 * run["start_valid_accuracy"] / run["valid_accuracy"] for run in runs]
                cases.append(fraction_case(f"{filters} filters", percentages, (low, high), len(runs)))
            return cases, ""


_unsupervised_claim("lenet1", 98)
_unsupervised_claim("lenet5", 64, 97)
_unsupervised_claim("allcnn", 44, 59)


# Connection schemes

_CENTERINGS = {centering: value_label("centering", centering) for centering in ("image", "feature")}


def _connections_claim(network: str, incomplete: float, complete: float) -> None:
    claimed = {"incomplete": incomplete, "complete": complete}
    accuracies = f"{incomplete:.2f} % with the incomplete and {complete:.2f} % with the complete connection scheme"

    def runs_of(results: Results, scheme: str, centering: str) -> list[Result]:
        return results.of("connections", network=network, centering=centering, **{"options.connections": scheme})

    @_claim(f"{NAMES[network]} ConvNet: test accuracy of {accuracies} (within 0.3 points)", "app. B")
    def _values(results: Results) -> tuple[list[Case], str]:
        cases = []
        for scheme, accuracy in claimed.items():
            for centering, label in _CENTERINGS.items():
                runs = runs_of(results, scheme, centering)
                cases += accuracy_case(f"{scheme}, {label}", runs, (accuracy - 0.3, accuracy + 0.3))
        return cases, ""

    @_claim(
        f"{NAMES[network]} ConvNet: the complete scheme is as accurate as the incomplete one (at most 0.1 points less)",
        "app. B",
    )
    def _order(results: Results) -> tuple[list[Case], str]:
        cases = []
        for centering, label in _CENTERINGS.items():
            first, second = (runs_of(results, scheme, centering) for scheme in ("complete", "incomplete"))
            cases += difference_case(label, differences(first, second, "test_accuracy"), (-0.1, math.inf), 2)
        return cases, ""


_connections_claim("lenet1", 98.54, 98.55)
_connections_claim("lenet5", 98.68, 99.12)


# The released runs: one seed, the classifier refitted at every evaluation

#: difference, in percentage points, up to which an accuracy is called that of a released run
_CLOSE = 0.5


def _released_claim(network: str, kind: str, steps: int, accuracies: Sequence[float]) -> None:
    """A claim on one released run, or on several."""
    low, high = min(accuracies), max(accuracies)
    released = f"{low:.1f} %" if low == high else f"{low:.1f} to {high:.1f} % ({len(accuracies)} runs)"
    reached = f"test accuracy of {released} after {steps:,} steps (within {_CLOSE} points)"

    @_claim(f"Released run, {NAMES[network]} {NAMES[kind]}, refitted classifier: {reached}", RELEASED)
    def _reached(results: Results) -> tuple[list[Case], str]:
        runs = results.of("released", network=network, kind=kind, steps=steps)
        return accuracy_case("", runs, (low - _CLOSE, high + _CLOSE)), ""


for _mark in experiment("released").figure.marks:
    _network, _kind = _mark.match["network"], _mark.match["kind"]
    for _steps in (100, 1000, 10_000) if _kind == "ckn" else (1000, 10_000):
        _released_claim(_network, _kind, _steps, [accuracy for steps, accuracy in _mark.points if steps == _steps])
