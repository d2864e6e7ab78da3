"""What the paper claims, what was measured, and whether it holds. One function a claim; a new one is added by writing it here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..choices import Verdict
from ..formats import difference
from .results import Result, Results

#: per cent; about what another seed changes
MARGIN = 0.5
#: How verdicts are come to, for readers of the page.
RULES = (
    "Differences are between runs of the same seeds and thus the same images, averaged over seeds. A claim holds if it does for "
    "every network and number of filters that was run, and in part if for some, or if a difference is larger than the span "
    f"that was claimed. Where no number stands in the claim, better and above mean by more than {MARGIN} %, as well and equally "
    f"well within {MARGIN} %, which is about what another seed changes."
)
NAMES = {"lenet1": "LeNet-1", "lenet5": "LeNet-5", "allcnn": "All-CNN-C"}


@dataclass(frozen=True)
class Judged:
    """A claim with its verdict."""

    claim: str
    where: str
    measured: str
    runs: int
    verdict: Verdict


Judge = Callable[[Results], tuple[str, int, Verdict] | None]
_CLAIMS: list[tuple[str, str, Judge]] = []


def judge(results: Results) -> list[Judged]:
    """All claims, in the paper's order."""
    found = []
    for claim, where, judge in _CLAIMS:
        measured, runs, verdict = judge(results) or ("", 0, "not run at this scale")
        found.append(Judged(claim, where, measured, runs, verdict))
    return found


def _claim(text: str, where: str) -> Callable[[Judge], Judge]:
    def add(judge: Judge) -> Judge:
        _CLAIMS.append((text, where, judge))
        return judge

    return add


def _verdict(outcomes: Sequence[bool]) -> Verdict:
    return "holds" if all(outcomes) else "holds in part" if any(outcomes) else "does not hold"


def _within(values: Sequence[float], low: float, high: float) -> Verdict:
    """Whether all of them are at least ``low``; in part if some are, or if one is larger than was claimed."""
    verdict = _verdict([value >= low for value in values])
    return "holds in part" if verdict == "holds" and max(values) > high else verdict


# The gradient.


def _gradient_claim(text: str, where: str, worse: str, better: str, least: float, filters: Sequence[int] | None) -> None:
    @_claim(text, where)
    def _ratio(results: Results) -> tuple[str, int, Verdict] | None:
        found = [r for r in results.of("gradient") if filters is None or r["filters"] in filters]
        if not found:
            return None
        shown, outcomes = [], []
        for key, what in (("root_errors", "the root's own"), ("errors", "a float32 network's")):
            groups = {f: [r for r in found if r["filters"] == f] for f in _filters(found)}
            ratios = {f: _ratio_of_errors(group, key, worse, better) for f, group in groups.items()}
            outcomes += [value >= least for value in ratios.values()]
            shown.append(f"{what} error: " + ", ".join(f"{value:.1f} times ({f} filters)" for f, value in ratios.items()))
        return f"{'; '.join(shown)} smaller", len(found), _verdict(outcomes)


def _ratio_of_errors(found: Sequence[Result], key: str, over: str, under: str) -> float:
    """The geometric mean, which is the same from both sides."""
    return math.exp(_mean([math.log(result[key][over] / result[key][under]) for result in found]))


_gradient_claim(
    "20 Newton iterations give a gradient with 2.5 times smaller errors than the SVD (All-CNN-C, 8 filters)",
    *("5.2", "svd", "newton-20", 2.5, [8]),
)
_gradient_claim(
    "The closed form (Gram matrix and root in float64, as the library has it) has no larger errors than 20 Newton iterations",
    *("beyond", "newton-20", "eigh", 1.0, None),
)


@_claim("Newton and SVD train equally well with 8 filters (All-CNN-C)", "5.2")
def _newton_few(results: Results) -> tuple[str, int, Verdict] | None:
    differences = _newton_minus_svd(results, 8)
    if not differences:
        return None
    return difference(_mean(differences)), 2 * len(differences), _verdict([abs(_mean(differences)) <= MARGIN])


@_claim("Newton is 1.7 % better than SVD with 128 filters, after 1,000 steps (All-CNN-C)", "5.2")
def _newton_many(results: Results) -> tuple[str, int, Verdict] | None:
    differences = _newton_minus_svd(results, 128)
    if differences:
        mean = _mean(differences)
        return difference(mean), 2 * len(differences), _verdict([mean > MARGIN, mean >= 1.7 - MARGIN])
    fewer = _newton_minus_svd(results, 32)
    shown = f"with 32 filters instead: {difference(_mean(fewer))}" if fewer else ""
    return (shown, 2 * len(fewer), "not run at this scale") if fewer else None


def _newton_minus_svd(results: Results, filters: int) -> list[float]:
    newton, svd = (results.of("inverse-root", filters=filters, inverse_sqrt=method) for method in ("newton:50", "svd"))
    return _differences(results, newton, svd, "valid_accuracy")


# Ultimate layer reversal.


def _ulr_claim(network: str, filters: int, claimed: float | None) -> None:
    size = f" (the paper: by {claimed:g} % after 1,000 steps)" if claimed else ""
    where = "5.2, app. G" if claimed else "beyond"

    @_claim(f"{NAMES[network]}, {filters} filters: ULR is above SGO, over steps and over time{size}", where)
    def _ulr(results: Results) -> tuple[str, int, Verdict] | None:
        wanted = {"network": network, "filters": filters, "loss": "multinomial"}
        ulr, sgo = (results.of("ulr-sgo", method=method, **wanted) for method in ("ulr", "sgo"))
        pairs = results.paired(ulr, sgo)
        if not pairs:
            return None
        by_steps = _mean(_differences(results, ulr, sgo, "valid_accuracy"))
        by_time = _mean([100 * _at_equal_time(*pair) for pair in pairs])
        steps = pairs[0][0].history[-1]["step"]
        shown = f"after {steps} steps {difference(by_steps)}, after the same time {difference(by_time)}"
        return shown, 2 * len(pairs), _verdict([by_steps > MARGIN, by_time > MARGIN])


def _at_equal_time(a: Result, b: Result) -> float:
    """Difference of the accuracies at the last moment that both have reached."""
    end = min(a.training_seconds, b.training_seconds)
    last = [next(r["valid_accuracy"] for r in reversed(x.history) if r["seconds"] <= end) for x in (a, b)]
    return last[0] - last[1]


_ulr_claim("lenet5", 8, 0.5)
_ulr_claim("lenet5", 32, None)
_ulr_claim("lenet5", 128, 0.5)
_ulr_claim("allcnn", 8, 4)
_ulr_claim("allcnn", 32, None)
_ulr_claim("allcnn", 128, 40)


# Kernel networks against ConvNets.


def _against_convnet(
    results: Results, experiment: str, both: dict[str, Any], **wanted: Any
) -> tuple[dict[int, float], list[tuple[Result, Result]]]:
    """Test accuracy of the CKN minus the ConvNet's, in per cent, by number of filters; and the pairs it comes from."""
    differences, pairs = {}, []
    for filters in _filters(results.of(experiment, **both)):
        ckn = results.of(experiment, filters=filters, kind="ckn", **both)
        convnet = results.of(experiment, filters=filters, kind="convnet", **both, **wanted)
        found = _differences(results, ckn, convnet, "test_accuracy")
        if found:
            differences[filters] = _mean(found)
            pairs += results.paired(ckn, convnet)
    return differences, pairs


def _by_filters(values: dict[int, float], digits: int = 1) -> str:
    return ", ".join(f"{difference(value, digits)} ({filters} filters)" for filters, value in values.items())


def _lenet_claims(network: str) -> None:
    @_claim(f"{NAMES[network]}: the CKN is at most 0.1 % below the ConvNet (and at most 1 % above)", "5.3")
    def _difference(results: Results) -> tuple[str, int, Verdict] | None:
        differences, pairs = _against_convnet(results, "ckn-convnet", {"network": network}, budget="steps")
        if not differences:
            return None
        verdict = _within([round(value, 2) for value in differences.values()], -0.1, 1)
        return _by_filters(differences, 2), 2 * len(pairs), verdict

    @_claim(f"{NAMES[network]}: CKN and ConvNet are both above 97 %", "5.3")
    def _above(results: Results) -> tuple[str, int, Verdict] | None:
        found = results.of("ckn-convnet", network=network)
        kinds = {kind: [100 * r["test_accuracy"] for r in found if r["kind"] == kind] for kind in ("ckn", "convnet")}
        if not all(kinds.values()):
            return None
        shown = f"the least of all: CKN {min(kinds['ckn']):.2f} %, ConvNet {min(kinds['convnet']):.2f} %"
        return shown, len(found), _verdict([min(values) > 97 for values in kinds.values()])


_lenet_claims("lenet1")
_lenet_claims("lenet5")


def _allcnn_claim(where: str, experiment: str, how: str, both: dict[str, Any], convnet: dict[str, Any]) -> None:
    @_claim(f"All-CNN-C: the CKN is 3 to 16 % above the ConvNet ({how})", where)
    def _difference(results: Results) -> tuple[str, int, Verdict] | None:
        differences, pairs = _against_convnet(results, experiment, {"network": "allcnn", **both}, **convnet)
        if not differences:
            return None
        ratio = _mean([other.training_seconds / ckn.training_seconds for ckn, other in pairs])
        shown = f"{_by_filters(differences)}; the ConvNet's steps took {ratio:.1f} times the CKN's"
        return shown, 2 * len(pairs), _within(list(differences.values()), 3, 16)


for _budget, _said in (("steps", "as many steps"), ("time", "as much time")):
    for _bias, _which in ((False, "ConvNet without biases"), (True, "ConvNet with biases")):
        _where = "5.3" if _budget == "steps" and not _bias else "beyond"
        _allcnn_claim(_where, "ckn-convnet", f"{_which}, {_said}", {}, {"budget": _budget, "options.bias": _bias})
for _budget, _said in (("steps", "as many steps"), ("time", "as much time")):
    _how = f"features of both centred per feature, {_said}"
    _allcnn_claim("beyond", "centering", _how, {"centering": "feature"}, {"budget": _budget})


# Without labels.


def _unsupervised_claim(network: str, low: int, high: int | None = None) -> None:
    span = f"at least {low} %" if high is None else f"{low} to {high} %"

    @_claim(f"{NAMES[network]}: without labels the CKN has {span} of its accuracy with labels", "5.3")
    def _fractions(results: Results) -> tuple[str, int, Verdict] | None:
        fractions, runs = {}, 0
        for filters in _filters(results.of("unsupervised", network=network)):
            without = results.of("unsupervised", network=network, filters=filters)
            with_labels = results.of("ckn-convnet", network=network, filters=filters, kind="ckn")
            pairs = results.paired(without, with_labels)
            if pairs:
                fractions[filters] = _mean([100 * a["test_accuracy"] / b["test_accuracy"] for a, b in pairs])
                runs += 2 * len(pairs)
        if not fractions:
            return None
        shown = ", ".join(f"{value:.0f} % ({filters} filters)" for filters, value in fractions.items())
        return shown, runs, _verdict([low <= round(value) <= (high or math.inf) for value in fractions.values()])


_unsupervised_claim("lenet1", 98)
_unsupervised_claim("lenet5", 64, 97)
_unsupervised_claim("allcnn", 44, 59)


# Connection schemes.


def _connections_claim(network: str, incomplete: float, complete: float) -> None:
    said = (incomplete, complete)
    schemes = f"{incomplete:.2f} % with the incomplete connection scheme, {complete:.2f} % with the complete one"

    @_claim(f"{NAMES[network]} ConvNet: {schemes} (within 0.3 %)", "app. B")
    def _values(results: Results) -> tuple[str, int, Verdict] | None:
        found = _schemes(results)
        if not all(found):
            return None
        means = [100 * _mean([r["test_accuracy"] for r in group]) for group in found]
        close = [abs(value - there) <= 0.3 for value, there in zip(means, said, strict=True)]
        return f"{means[0]:.2f} % and {means[1]:.2f} %", sum(map(len, found)), _verdict(close)

    @_claim(
        f"{NAMES[network]} ConvNet: the complete scheme does as well as the incomplete one (at most 0.1 % less)", "app. B"
    )
    def _order(results: Results) -> tuple[str, int, Verdict] | None:
        incomplete, complete = _schemes(results)
        differences = _differences(results, complete, incomplete, "test_accuracy")
        if not differences:
            return None
        return difference(_mean(differences), 2), 2 * len(differences), _verdict([round(_mean(differences), 2) >= -0.1])

    def _schemes(results: Results) -> list[list[Result]]:
        both = ("incomplete", "complete")
        return [results.of("connections", network=network, **{"options.connections": scheme}) for scheme in both]


_connections_claim("lenet1", 98.54, 98.55)
_connections_claim("lenet5", 98.68, 99.12)


# The released runs.


def _released_claim(network: str, steps: int, accuracy: float) -> None:
    @_claim(f"Released run, {NAMES[network]} CKN, 32 filters: {accuracy:.1f} % after {steps:,} steps (test)", "code")
    def _reached(results: Results) -> tuple[str, int, Verdict] | None:
        found = [r for r in results.of("released", network=network, kind="ckn") if r.settings["steps"] == steps]
        if not found:
            return None
        mean = 100 * _mean([r["test_accuracy"] for r in found])
        return f"{mean:.1f} %", len(found), _verdict([mean >= accuracy - MARGIN])


_released_claim("lenet5", 100, 98.8)
_released_claim("lenet5", 10_000, 99.1)
_released_claim("allcnn", 100, 55.6)
_released_claim("allcnn", 10_000, 76.3)


# Beyond the paper: one thing changed, the same seeds.


def _comparison(text: str, experiment: str, this: dict[str, Any], that: dict[str, Any], least: float = -MARGIN) -> None:
    """This minus that is at least so many per cent, on every network of the experiment. Differences are of test accuracies."""

    @_claim(text, "beyond")
    def _difference(results: Results) -> tuple[str, int, Verdict] | None:
        shown, outcomes, runs = [], [], 0
        for network in dict.fromkeys(r["network"] for r in results.of(experiment)):
            first, second = (results.of(experiment, network=network, **wanted) for wanted in (this, that))
            differences = _differences(results, first, second, "test_accuracy")
            if differences:
                shown.append(f"{NAMES[network]} {difference(_mean(differences))}")
                outcomes.append(_mean(differences) >= least)
                runs += 2 * len(differences)
        return (", ".join(shown), runs, _verdict(outcomes)) if shown else None


_comparison(
    "The arc-cosine kernel of order 1, which matches ReLU (All-CNN-C), does as well as RBF (16 filters)",
    *("kernels", {"kernel": "arccosine:1"}, {"kernel": "rbf:0.6"}),
)
_comparison(
    "Trained bandwidths do better than fixed ones (16 filters)",
    *("bandwidths", {"bandwidths": True}, {"bandwidths": False}, MARGIN),
)
_comparison(
    "ConvNets, too, are trained better by ULR than by SGD (16 filters, as many steps)",
    *("convnet-ulr", {"method": "ulr"}, {"method": "sgd"}, MARGIN),
)
_comparison(
    "Slip: with the diagonal Hessian of the right sign, ULR does better than with the opposite one (8 filters)",
    *("slips", {"slip": "none", "hessian": "diag"}, {"slip": "diagonal-sign"}, MARGIN),
)
_comparison(
    "Slip: with the penalty that ULR has, SGO does better than without one (8 filters)",
    *("slips", {"slip": "none", "method": "sgo"}, {"slip": "sgo-without-penalty"}, MARGIN),
)
_comparison(
    "Slip: whitening does better than half of it, the inverse fourth root (8 filters)",
    *("slips", {"slip": "none", "method": "ulr", "hessian": "auto"}, {"slip": "half-whitening"}, MARGIN),
)


def _differences(results: Results, first: list[Result], second: list[Result], key: str) -> list[float]:
    """In per cent, seed by seed."""
    return [100 * (a[key] - b[key]) for a, b in results.paired(first, second)]


def _filters(found: Sequence[Result]) -> list[int]:
    return sorted({result["filters"] for result in found})


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
