"""The paper's claims, the measurements, and whether the claims hold. To add a claim, decorate a function with ``@_claim``.

Read first: :mod:`torchckn.experiments.comparisons`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .comparisons import accuracy_case, against_convnet, at_equal_time, difference_case, differences, filters_of
from .figures import DATA_NAMES, LEARNER_NAMES
from .judging import Case, Claims, JudgedClaim, estimate, geometric_estimate
from .results import Result, Results, accuracies_by_labels

NAMES = {"lenet1": "LeNet-1", "lenet5": "LeNet-5", "allcnn": "All-CNN-C"}
#: source of a claim that is not the paper's
EXTENSION = "not in the paper"
_CLAIMS = Claims()
_claim = _CLAIMS.add
_ABOVE_ZERO = (math.ulp(0.0), math.inf)


def judge_claims(results: Results) -> list[JudgedClaim]:
    """All claims, in the paper's order."""
    return _CLAIMS.judged(results)


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
    "The error of the gradient is 2.5 times smaller with 20 Newton iterations than with the SVD (All-CNN-C, 8 filters)",
    *("5.2", "svd", "newton-20", 2.5, [8]),
)
_gradient_claim(
    "The error of the gradient with the closed form (Gram matrix and root in float64) is at most that with 20 Newton iterations",
    *(EXTENSION, "newton-20", "eigh", 1.0, None),
)

#: the difference between Newton and SVD that the paper found with 128 filters
_NEWTON = 1.7


@_claim(
    f"CKNs trained with Newton and with SVD are equally accurate with 8 filters (All-CNN-C; here, to within {_NEWTON} %)",
    "5.2",
)
def _newton_few(results: Results) -> tuple[list[Case], str]:
    return difference_case("", _newton_minus_svd(results, 8), (-_NEWTON, _NEWTON)), ""


@_claim(
    f"CKNs trained with Newton are {_NEWTON} % more accurate than with SVD, with 128 filters, after 1,000 steps (All-CNN-C)",
    "5.2",
)
def _newton_many(results: Results) -> tuple[list[Case], str]:
    cases = difference_case("", _newton_minus_svd(results, 128), _ABOVE_ZERO)
    fewer = _newton_minus_svd(results, 32)
    return cases, "" if cases or not fewer else f"with 32 filters instead {estimate(fewer).text()}"


def _newton_minus_svd(results: Results, filters: int) -> list[float]:
    newton, svd = (results.of("inverse-root", filters=filters, inverse_sqrt=method) for method in ("newton:50", "svd"))
    return differences(results, newton, svd, "valid_accuracy")


# Ultimate layer reversal


def _ulr_claim(network: str, filters: int, normalize: bool, claimed: float | None) -> None:
    size = f" (paper: by {claimed:g} % after 1,000 steps)" if claimed else ""
    how = "which normalizes its gradients as ULR does" if normalize else "which does not normalize its gradients"
    source = "5.2, app. G" if claimed else EXTENSION

    @_claim(
        f"{NAMES[network]}, {filters} filters: ULR is more accurate than SGO {how}, after equal steps and after equal time{size}",
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
            pairs = results.paired(ulr, results.of("ulr-sgo", method="sgo", normalize=normalize, refit=refit, **selection))
            if pairs:
                steps = f"{classifier}, after {pairs[0][0].history[-1]['step']} steps"
                by_steps = [100 * (a.history[-1][key] - b.history[-1][key]) for a, b in pairs]
                by_time = [100 * at_equal_time(a, b, key) for a, b in pairs]
                cases += difference_case(steps, by_steps, _ABOVE_ZERO)
                cases += difference_case("after equal time", by_time, _ABOVE_ZERO, runs=0)
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


def _lenet_claims(network: str) -> None:
    @_claim(f"{NAMES[network]}: the CKN is at most 0.1 % less accurate than the ConvNet (and at most 1 % more)", "5.3")
    def _difference(results: Results) -> tuple[list[Case], str]:
        return against_convnet(results, "ckn-convnet", {"network": network}, (-0.1, 1), 2, budget="steps")[0], ""

    @_claim(f"{NAMES[network]}: the test accuracies of CKN and ConvNet are above 97 %", "5.3")
    def _above(results: Results) -> tuple[list[Case], str]:
        cases = []
        for filters in filters_of(results.of("ckn-convnet", network=network)):
            for kind, name in (("ckn", "CKN"), ("convnet", "ConvNet")):
                runs = results.of("ckn-convnet", network=network, filters=filters, kind=kind)
                cases += accuracy_case(f"{name}, {filters} filters", runs, (97, math.inf))
        return cases, ""


_lenet_claims("lenet1")
_lenet_claims("lenet5")


def _allcnn_claim(source: str, experiment: str, setup: str, both: dict[str, Any], convnet: dict[str, Any]) -> None:
    @_claim(f"All-CNN-C: the CKN is 3 to 16 % more accurate than the ConvNet ({setup})", source)
    def _difference(results: Results) -> tuple[list[Case], str]:
        cases, pairs = against_convnet(results, experiment, {"network": "allcnn", **both}, (3, 16), **convnet)
        ratios = [other.training_seconds / ckn.training_seconds for ckn, other in pairs]
        return cases, f"training time of the ConvNet: {estimate(ratios).mean:.1f} times the CKN's" if ratios else ""


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

    @_claim(f"{NAMES[network]}: with unsupervised filters the CKN has {span} of its accuracy with trained filters", "5.3")
    def _fractions(results: Results) -> tuple[list[Case], str]:
        cases = []
        for filters in filters_of(results.of("unsupervised", network=network)):
            unsupervised = results.of("unsupervised", network=network, filters=filters)
            trained = results.of("ckn-convnet", network=network, filters=filters, kind="ckn")
            pairs = results.paired(unsupervised, trained)
            if pairs:
                interval = estimate([100 * a["test_accuracy"] / b["test_accuracy"] for a, b in pairs])
                label = f"{filters} filters: {interval.text(signed=False)}"
                cases.append(Case(label, interval.is_within(low, high), 2 * len(pairs)))
        return cases, ""


_unsupervised_claim("lenet1", 98)
_unsupervised_claim("lenet5", 64, 97)
_unsupervised_claim("allcnn", 44, 59)


# Connection schemes


def _connections_claim(network: str, incomplete: float, complete: float) -> None:
    claimed = {"incomplete": incomplete, "complete": complete}
    accuracies = f"{incomplete:.2f} % with the incomplete and {complete:.2f} % with the complete connection scheme"

    def runs_of(results: Results, scheme: str) -> list[Result]:
        return results.of("connections", network=network, **{"options.connections": scheme})

    @_claim(f"{NAMES[network]} ConvNet: test accuracy of {accuracies} (within 0.3 %)", "app. B")
    def _values(results: Results) -> tuple[list[Case], str]:
        cases = []
        for scheme, accuracy in claimed.items():
            cases += accuracy_case(scheme, runs_of(results, scheme), (accuracy - 0.3, accuracy + 0.3))
        return cases, ""

    @_claim(
        f"{NAMES[network]} ConvNet: the complete scheme is as accurate as the incomplete one (at most 0.1 % less)", "app. B"
    )
    def _order(results: Results) -> tuple[list[Case], str]:
        first, second = (runs_of(results, scheme) for scheme in ("complete", "incomplete"))
        return difference_case("", differences(results, first, second, "test_accuracy"), (-0.1, math.inf), 2), ""


_connections_claim("lenet1", 98.54, 98.55)
_connections_claim("lenet5", 98.68, 99.12)


# The released runs: one seed, the classifier refitted at every evaluation


def _released_claim(network: str, kind: str, steps: int, accuracy: float) -> None:
    name = {"ckn": "CKN", "convnet": "ConvNet"}[kind]

    @_claim(
        f"Released run, {NAMES[network]} {name}, refitted classifier: test accuracy of {accuracy:.1f} % after {steps:,} steps",
        "released curves",
    )
    def _reached(results: Results) -> tuple[list[Case], str]:
        runs = [r for r in results.of("released", network=network, kind=kind) if r.settings["steps"] == steps]
        return accuracy_case("", [r for r in runs if r.settings["final_head"]], (accuracy - 0.5, accuracy + 0.5)), ""


for _network, _kind, _accuracies in (
    ("lenet5", "ckn", {100: 98.8, 1000: 99.1, 10_000: 99.1}),
    ("lenet5", "convnet", {10_000: 98.5}),
    ("allcnn", "ckn", {100: 55.6, 1000: 71.3, 10_000: 76.3}),
    ("allcnn", "convnet", {10_000: 75.9}),
):
    for _steps, _accuracy in _accuracies.items():
        _released_claim(_network, _kind, _steps, _accuracy)


# Equal total time, centering per feature where there is any


def _equal_time_claim(by: str, **convnet: Any) -> None:
    @_claim(f"All-CNN-C in equal total time: the CKN is more accurate than its ConvNet trained by {by}", EXTENSION)
    def _difference(results: Results) -> tuple[list[Case], str]:
        cases: list[Case] = []
        for filters in filters_of(results.of("equal-time")):
            same = {"filters": filters, "augment": "none"}
            ckn = results.of("equal-time", kind="ckn", centering="feature", **same)
            other = results.of("equal-time", kind="convnet", **convnet, **same)
            cases += difference_case(f"{filters} filters", differences(results, ckn, other, "test_accuracy"), _ABOVE_ZERO)
        return cases, ""


_equal_time_claim("SGD from the paper's weights", optimizer="sgd", method="sgd", centering="feature")
_equal_time_claim("AdamW from He weights", optimizer="adamw")


# Few labels: the same labels for both learners, draw by draw


def _few_labels_claim(data: str, first: str, second: str) -> None:
    names = DATA_NAMES[data], *(LEARNER_NAMES[learner] for learner in (first, second))

    @_claim("Few labels, {}: *{}* is more accurate than *{}*".format(*names), EXTENSION)
    def _difference(results: Results) -> tuple[list[Case], str]:
        pairs = results.paired(*(results.of("few-labels", data=data, learner=learner) for learner in (first, second)))
        ours, others = (accuracies_by_labels([pair[i] for pair in pairs]) for i in (0, 1))
        cases: list[Case] = []
        for count in sorted(ours.keys() & others.keys()):
            by_draw = [a - b for a, b in zip(ours[count], others[count], strict=True)]
            cases += difference_case(f"{count:,} labels", by_draw, _ABOVE_ZERO, runs=0 if cases else None)
        return cases, ""


for _data in ("cifar10", "mnist"):
    for _first, _second in (
        ("ckn-augmented", "convnet-augmented"),
        ("ckn", "convnet"),
        ("ckn", "hog-svm"),
        ("ckn", "kmeans"),
    ):
        _few_labels_claim(_data, _first, _second)
_few_labels_claim("mnist", "ckn-ulr", "convnet")


# Not in the paper: one setting changed, same seeds


def _comparison(text: str, experiment: str, changed: dict[str, Any], baseline: dict[str, Any]) -> None:
    """The test accuracy of ``changed`` minus that of ``baseline`` is above zero, on every network of the experiment."""

    @_claim(text, EXTENSION)
    def _difference(results: Results) -> tuple[list[Case], str]:
        cases = []
        for network in dict.fromkeys(r["network"] for r in results.of(experiment)):
            first, second = (results.of(experiment, network=network, **variables) for variables in (changed, baseline))
            cases += difference_case(NAMES[network], differences(results, first, second, "test_accuracy"), _ABOVE_ZERO)
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
