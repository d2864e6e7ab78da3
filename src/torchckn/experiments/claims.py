"""The paper's claims, the measurements, and whether the claims hold. To add a claim, decorate a function with ``@_claim``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..choices import Verdict
from ..formats import difference
from .results import Result, Results

#: in percentage points; about the difference between two seeds
MARGIN = 0.5
#: How verdicts are reached, for readers of the page.
VERDICT_RULES = (
    "Differences of accuracy are in percentage points, between runs with the same seed and thus the same images, averaged "
    "over seeds. A claim holds if it holds for every network and number of filters that was run. It holds in part if it holds "
    "for some of them, or if a difference is larger than the claimed range. If a claim gives no number, *more accurate* means "
    f"by more than {MARGIN} %, and *as accurate* and *equally accurate* mean within {MARGIN} %, which is about the difference "
    "between two seeds."
)
NAMES = {"lenet1": "LeNet-1", "lenet5": "LeNet-5", "allcnn": "All-CNN-C"}


@dataclass(frozen=True)
class JudgedClaim:
    """A claim with its verdict."""

    claim: str
    source: str
    """section of the paper, or another source"""
    measured: str
    runs: int
    """number of runs that the verdict is based on"""
    verdict: Verdict


Judge = Callable[[Results], tuple[str, int, Verdict] | None]
_CLAIMS: list[tuple[str, str, Judge]] = []
#: source of a claim that is not the paper's
EXTENSION = "not in the paper"


def judge_claims(results: Results) -> list[JudgedClaim]:
    """All claims, in the paper's order."""
    judged = []
    for claim, source, judge in _CLAIMS:
        measured, runs, verdict = judge(results) or ("", 0, "not run at this scale")
        judged.append(JudgedClaim(claim, source, measured, runs, verdict))
    return judged


def _claim(text: str, source: str) -> Callable[[Judge], Judge]:
    def add(judge: Judge) -> Judge:
        _CLAIMS.append((text, source, judge))
        return judge

    return add


def _verdict(outcomes: Sequence[bool]) -> Verdict:
    return "holds" if all(outcomes) else "holds in part" if any(outcomes) else "does not hold"


def _within(values: Sequence[float], low: float, high: float) -> Verdict:
    """Holds if all values are at least ``low``; in part if some are, or if one is larger than ``high``."""
    verdict = _verdict([value >= low for value in values])
    return "holds in part" if verdict == "holds" and max(values) > high else verdict


# Accuracy of the gradient


def _gradient_claim(text: str, source: str, worse: str, better: str, least: float, filters: Sequence[int] | None) -> None:
    @_claim(text, source)
    def _ratio(results: Results) -> tuple[str, int, Verdict] | None:
        selected = [r for r in results.of("gradient") if filters is None or r["filters"] in filters]
        if not selected:
            return None
        texts, outcomes = [], []
        for key, what in (("root_errors", "only the inverse root"), ("errors", "the whole network")):
            groups = {f: [r for r in selected if r["filters"] == f] for f in _filters(selected)}
            ratios = {f: _ratio_of_errors(group, key, worse, better) for f, group in groups.items()}
            outcomes += [value >= least for value in ratios.values()]
            texts.append(f"with {what} in float32 " + ", ".join(f"{value:.1f} ({f} filters)" for f, value in ratios.items()))
        return f"ratio of the errors: {'; '.join(texts)}", len(selected), _verdict(outcomes)


def _ratio_of_errors(results: Sequence[Result], key: str, numerator: str, denominator: str) -> float:
    """The geometric mean of ratios, which is symmetric in numerator and denominator."""
    return math.exp(_mean([math.log(result[key][numerator] / result[key][denominator]) for result in results]))


_gradient_claim(
    "The error of the gradient is 2.5 times smaller with 20 Newton iterations than with the SVD (All-CNN-C, 8 filters)",
    *("5.2", "svd", "newton-20", 2.5, [8]),
)
_gradient_claim(
    "The error of the gradient with the closed form (Gram matrix and root in float64) is at most that with 20 Newton iterations",
    *(EXTENSION, "newton-20", "eigh", 1.0, None),
)


@_claim("CKNs trained with Newton and with SVD are equally accurate with 8 filters (All-CNN-C)", "5.2")
def _newton_few(results: Results) -> tuple[str, int, Verdict] | None:
    differences = _newton_minus_svd(results, 8)
    if not differences:
        return None
    return difference(_mean(differences)), 2 * len(differences), _verdict([abs(_mean(differences)) <= MARGIN])


@_claim(
    "CKNs trained with Newton are 1.7 % more accurate than with SVD, with 128 filters, after 1,000 steps (All-CNN-C)", "5.2"
)
def _newton_many(results: Results) -> tuple[str, int, Verdict] | None:
    differences = _newton_minus_svd(results, 128)
    if differences:
        mean = _mean(differences)
        return difference(mean), 2 * len(differences), _verdict([mean > MARGIN, mean >= 1.7 - MARGIN])
    fewer = _newton_minus_svd(results, 32)
    if not fewer:
        return None
    return f"with 32 filters instead: {difference(_mean(fewer))}", 2 * len(fewer), "not run at this scale"


def _newton_minus_svd(results: Results, filters: int) -> list[float]:
    newton, svd = (results.of("inverse-root", filters=filters, inverse_sqrt=method) for method in ("newton:50", "svd"))
    return _differences(results, newton, svd, "valid_accuracy")


# Ultimate layer reversal


def _ulr_claim(network: str, filters: int, claimed: float | None) -> None:
    size = f" (paper: by {claimed:g} % after 1,000 steps)" if claimed else ""
    source = "5.2, app. G" if claimed else EXTENSION

    @_claim(
        f"{NAMES[network]}, {filters} filters: ULR is more accurate than SGO, after equal steps and after equal time{size}",
        source,
    )
    def _ulr(results: Results) -> tuple[str, int, Verdict] | None:
        selection = {"network": network, "filters": filters, "loss": "multinomial"}
        ulr, sgo = (results.of("ulr-sgo", method=method, **selection) for method in ("ulr", "sgo"))
        pairs = results.paired(ulr, sgo)
        if not pairs:
            return None
        by_steps = _mean(_differences(results, ulr, sgo, "valid_accuracy"))
        by_time = _mean([100 * _at_equal_time(*pair) for pair in pairs])
        steps = pairs[0][0].history[-1]["step"]
        measured = f"{difference(by_steps)} after {steps} steps, {difference(by_time)} after equal time"
        return measured, 2 * len(pairs), _verdict([by_steps > MARGIN, by_time > MARGIN])


def _at_equal_time(a: Result, b: Result) -> float:
    """Difference of the accuracies at the end of the shorter training."""
    end = min(a.training_seconds, b.training_seconds)
    last = [next(r["valid_accuracy"] for r in reversed(x.history) if r["seconds"] <= end) for x in (a, b)]
    return last[0] - last[1]


_ulr_claim("lenet5", 8, 0.5)
_ulr_claim("lenet5", 32, None)
_ulr_claim("lenet5", 128, 0.5)
_ulr_claim("allcnn", 8, 4)
_ulr_claim("allcnn", 32, None)
_ulr_claim("allcnn", 128, 40)


# Kernel networks compared with ConvNets


def _against_convnet(
    results: Results, experiment: str, both: dict[str, Any], **convnet_only: Any
) -> tuple[dict[int, float], list[tuple[Result, Result]]]:
    """Test accuracy of the CKN minus the ConvNet's, in percentage points, by number of filters; and the pairs of runs.

    ``both`` selects runs of CKNs and ConvNets, ``convnet_only`` those of ConvNets.
    """
    differences, pairs = {}, []
    for filters in _filters(results.of(experiment, **both)):
        ckn = results.of(experiment, filters=filters, kind="ckn", **both)
        convnet = results.of(experiment, filters=filters, kind="convnet", **both, **convnet_only)
        by_seed = _differences(results, ckn, convnet, "test_accuracy")
        if by_seed:
            differences[filters] = _mean(by_seed)
            pairs += results.paired(ckn, convnet)
    return differences, pairs


def _by_filters(values: dict[int, float], digits: int = 1) -> str:
    return ", ".join(f"{difference(value, digits)} ({filters} filters)" for filters, value in values.items())


def _lenet_claims(network: str) -> None:
    @_claim(f"{NAMES[network]}: the CKN is at most 0.1 % less accurate than the ConvNet (and at most 1 % more)", "5.3")
    def _difference(results: Results) -> tuple[str, int, Verdict] | None:
        differences, pairs = _against_convnet(results, "ckn-convnet", {"network": network}, budget="steps")
        if not differences:
            return None
        verdict = _within([round(value, 2) for value in differences.values()], -0.1, 1)
        return _by_filters(differences, 2), 2 * len(pairs), verdict

    @_claim(f"{NAMES[network]}: the test accuracies of CKN and ConvNet are above 97 %", "5.3")
    def _above(results: Results) -> tuple[str, int, Verdict] | None:
        runs = results.of("ckn-convnet", network=network)
        kinds = {kind: [100 * r["test_accuracy"] for r in runs if r["kind"] == kind] for kind in ("ckn", "convnet")}
        if not all(kinds.values()):
            return None
        measured = f"lowest: CKN {min(kinds['ckn']):.2f} %, ConvNet {min(kinds['convnet']):.2f} %"
        return measured, len(runs), _verdict([min(values) > 97 for values in kinds.values()])


_lenet_claims("lenet1")
_lenet_claims("lenet5")


def _allcnn_claim(source: str, experiment: str, setup: str, both: dict[str, Any], convnet: dict[str, Any]) -> None:
    @_claim(f"All-CNN-C: the CKN is 3 to 16 % more accurate than the ConvNet ({setup})", source)
    def _difference(results: Results) -> tuple[str, int, Verdict] | None:
        differences, pairs = _against_convnet(results, experiment, {"network": "allcnn", **both}, **convnet)
        if not differences:
            return None
        ratio = _mean([other.training_seconds / ckn.training_seconds for ckn, other in pairs])
        measured = f"{_by_filters(differences)}; training time of the ConvNet: {ratio:.1f} times the CKN's"
        return measured, 2 * len(pairs), _within(list(differences.values()), 3, 16)


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


def _unsupervised_claim(network: str, low: int, high: int | None = None) -> None:
    span = f"at least {low} %" if high is None else f"{low} to {high} %"

    @_claim(f"{NAMES[network]}: with unsupervised filters the CKN has {span} of its accuracy with trained filters", "5.3")
    def _fractions(results: Results) -> tuple[str, int, Verdict] | None:
        fractions, runs = {}, 0
        for filters in _filters(results.of("unsupervised", network=network)):
            unsupervised = results.of("unsupervised", network=network, filters=filters)
            trained = results.of("ckn-convnet", network=network, filters=filters, kind="ckn")
            pairs = results.paired(unsupervised, trained)
            if pairs:
                fractions[filters] = _mean([100 * a["test_accuracy"] / b["test_accuracy"] for a, b in pairs])
                runs += 2 * len(pairs)
        if not fractions:
            return None
        measured = ", ".join(f"{value:.0f} % ({filters} filters)" for filters, value in fractions.items())
        return measured, runs, _verdict([low <= round(value) <= (high or math.inf) for value in fractions.values()])


_unsupervised_claim("lenet1", 98)
_unsupervised_claim("lenet5", 64, 97)
_unsupervised_claim("allcnn", 44, 59)


# Connection schemes


def _connections_claim(network: str, incomplete: float, complete: float) -> None:
    claimed = (incomplete, complete)
    accuracies = f"{incomplete:.2f} % with the incomplete and {complete:.2f} % with the complete connection scheme"

    @_claim(f"{NAMES[network]} ConvNet: test accuracy of {accuracies} (within 0.3 %)", "app. B")
    def _values(results: Results) -> tuple[str, int, Verdict] | None:
        groups = _by_scheme(results)
        if not all(groups):
            return None
        means = [100 * _mean([r["test_accuracy"] for r in group]) for group in groups]
        close = [abs(mean - accuracy) <= 0.3 for mean, accuracy in zip(means, claimed, strict=True)]
        return f"{means[0]:.2f} % and {means[1]:.2f} %", sum(map(len, groups)), _verdict(close)

    @_claim(
        f"{NAMES[network]} ConvNet: the complete scheme is as accurate as the incomplete one (at most 0.1 % less)", "app. B"
    )
    def _order(results: Results) -> tuple[str, int, Verdict] | None:
        incomplete, complete = _by_scheme(results)
        differences = _differences(results, complete, incomplete, "test_accuracy")
        if not differences:
            return None
        mean = _mean(differences)
        return difference(mean, 2), 2 * len(differences), _verdict([round(mean, 2) >= -0.1])

    def _by_scheme(results: Results) -> list[list[Result]]:
        both = ("incomplete", "complete")
        return [results.of("connections", network=network, **{"options.connections": scheme}) for scheme in both]


_connections_claim("lenet1", 98.54, 98.55)
_connections_claim("lenet5", 98.68, 99.12)


# The released runs


def _released_claim(network: str, steps: int, accuracy: float) -> None:
    @_claim(
        f"Released run, {NAMES[network]} CKN, 32 filters: test accuracy of {accuracy:.1f} % after {steps:,} steps",
        "released code",
    )
    def _reached(results: Results) -> tuple[str, int, Verdict] | None:
        runs = [r for r in results.of("released", network=network, kind="ckn") if r.settings["steps"] == steps]
        if not runs:
            return None
        mean = 100 * _mean([r["test_accuracy"] for r in runs])
        return f"{mean:.1f} %", len(runs), _verdict([mean >= accuracy - MARGIN])


_released_claim("lenet5", 100, 98.8)
_released_claim("lenet5", 10_000, 99.1)
_released_claim("allcnn", 100, 55.6)
_released_claim("allcnn", 10_000, 76.3)


# Not in the paper: one setting changed, same seeds


def _comparison(
    text: str, experiment: str, changed: dict[str, Any], baseline: dict[str, Any], least: float = -MARGIN
) -> None:
    """The test accuracy of ``changed`` minus that of ``baseline`` is at least ``least``, on every network of the experiment."""

    @_claim(text, EXTENSION)
    def _difference(results: Results) -> tuple[str, int, Verdict] | None:
        texts, outcomes, runs = [], [], 0
        for network in dict.fromkeys(r["network"] for r in results.of(experiment)):
            first, second = (results.of(experiment, network=network, **variables) for variables in (changed, baseline))
            differences = _differences(results, first, second, "test_accuracy")
            if differences:
                texts.append(f"{NAMES[network]} {difference(_mean(differences))}")
                outcomes.append(_mean(differences) >= least)
                runs += 2 * len(differences)
        return (", ".join(texts), runs, _verdict(outcomes)) if texts else None


_comparison(
    "The arc-cosine kernel of order 1, which matches ReLU (All-CNN-C), is as accurate as the RBF kernel (16 filters)",
    *("kernels", {"kernel": "arccosine:1"}, {"kernel": "rbf:0.6"}),
)
_comparison(
    "Trained bandwidths are more accurate than fixed ones (16 filters)",
    *("bandwidths", {"bandwidths": True}, {"bandwidths": False}, MARGIN),
)
_comparison(
    "ConvNets trained with ULR are more accurate than with SGD (16 filters, equal number of steps)",
    *("convnet-ulr", {"method": "ulr"}, {"method": "sgd"}, MARGIN),
)
_comparison(
    "Slip: ULR with a diagonal Hessian is more accurate with the correct sign than with the opposite one (8 filters)",
    *("slips", {"slip": "none", "hessian": "diag"}, {"slip": "diagonal-sign"}, MARGIN),
)
_comparison(
    "Slip: SGO is more accurate with the L2 penalty that ULR has than without it (8 filters)",
    *("slips", {"slip": "none", "method": "sgo"}, {"slip": "sgo-without-penalty"}, MARGIN),
)
_comparison(
    "Slip: whitening is more accurate than half whitening, by the inverse fourth root (8 filters)",
    *("slips", {"slip": "none", "method": "ulr", "hessian": "auto"}, {"slip": "half-whitening"}, MARGIN),
)


def _differences(results: Results, first: list[Result], second: list[Result], key: str) -> list[float]:
    """In percentage points, seed by seed."""
    return [100 * (a[key] - b[key]) for a, b in results.paired(first, second)]


def _filters(results: Sequence[Result]) -> list[int]:
    return sorted({result["filters"] for result in results})


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
