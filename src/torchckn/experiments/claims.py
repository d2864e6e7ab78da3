"""What the paper claims, what was measured, and whether it holds. One function a claim; a new one is added by writing it here.

A difference counts as none if it is within ``MARGIN``, which is about what another seed changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from .results import Result, Results

Verdict = Literal["holds", "holds in part", "does not hold", "not run at this scale"]

#: per cent
MARGIN = 0.5
LENETS = ("lenet1", "lenet5")
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


def _verdict(outcomes: list[bool]) -> Verdict:
    return "holds" if all(outcomes) else "holds in part" if any(outcomes) else "does not hold"


@_claim("20 Newton iterations give a gradient with 2.5 times smaller errors than the SVD (All-CNN-C, 8 filters)", "5.2")
def _gradient(results: Results) -> tuple[str, int, Verdict] | None:
    return _ratio(results, "newton-20", 2.5)


@_claim("The closed form, which the paper does not have, is at least as accurate as 20 Newton iterations", "beyond")
def _closed_form(results: Results) -> tuple[str, int, Verdict] | None:
    found = results.of("gradient")
    if not found:
        return None
    ratios = {f: _mean_ratio([r for r in found if r["filters"] == f], "newton-20", "eigh") for f in _filters(found)}
    shown = ", ".join(f"{value:.1f} times ({f} filters)" for f, value in ratios.items())
    return f"Newton's error is {shown} the closed form's", len(found), _verdict([value >= 1 for value in ratios.values()])


def _ratio(results: Results, method: str, least: float) -> tuple[str, int, Verdict] | None:
    found = results.of("gradient", filters=8)
    if not found:
        return None
    ratio = _mean_ratio(found, "svd", method)
    return f"{ratio:.1f} times smaller", len(found), _verdict([ratio >= least])


def _mean_ratio(found: list[Result], over: str, under: str) -> float:
    return _mean([result["errors"][over] / result["errors"][under] for result in found])


@_claim("Newton and SVD train equally well with 8 filters (All-CNN-C)", "5.2")
def _newton_few(results: Results) -> tuple[str, int, Verdict] | None:
    found = _difference(results, "inverse-root", 8)
    return None if found is None else (f"{found[0]:+.1f} %", found[1], _verdict([abs(found[0]) <= 2 * MARGIN]))


@_claim("Newton is 1.7 % better than SVD with 128 filters, after 1,000 steps (All-CNN-C)", "5.2")
def _newton_many(results: Results) -> tuple[str, int, Verdict] | None:
    found = _difference(results, "inverse-root", 128)
    if found is not None:
        return f"{found[0]:+.1f} %", found[1], _verdict([found[0] > MARGIN])
    fewer = _difference(results, "inverse-root", 32)
    return None if fewer is None else (f"with 32 filters instead: {fewer[0]:+.1f} %", fewer[1], "not run at this scale")


def _difference(results: Results, experiment: str, filters: int) -> tuple[float, int] | None:
    newton, svd = (
        results.values(experiment, "valid_accuracy", filters=filters, inverse_sqrt=method) for method in ("newton", "svd")
    )
    return None if not newton or not svd else (100 * (_mean(newton) - _mean(svd)), len(newton) + len(svd))


def _ulr_claim(network: str, filters: int, claimed: str) -> None:
    text = f"ULR is above SGO: {claimed} after 1,000 steps ({NAMES[network]}, {filters} filters), also over time"

    @_claim(text, "5.2, app. D")
    def _ulr(results: Results) -> tuple[str, int, Verdict] | None:
        pairs = _pairs(results, network, filters)
        if not pairs:
            return None
        by_steps = [100 * (u["valid_accuracy"] - s["valid_accuracy"]) for u, s in pairs]
        by_time = [100 * difference for u, s in pairs if (difference := _at_equal_time(u, s)) is not None]
        steps = pairs[0][0].history[-1]["step"]
        shown = f"after {steps} steps {_mean(by_steps):+.1f} %, after the same time {_mean(by_time):+.1f} %"
        return shown, 2 * len(pairs), _verdict([_mean(by_steps) > 0, _mean(by_time) > 0])


def _pairs(results: Results, network: str, filters: int) -> list[tuple[Result, Result]]:
    """ULR and SGO, seed by seed, with the paper's loss."""
    wanted = {"network": network, "filters": filters, "loss": "multinomial"}
    sgo = {result.seed: result for result in results.of("ulr-sgo", method="sgo", **wanted)}
    return [(result, sgo[result.seed]) for result in results.of("ulr-sgo", method="ulr", **wanted) if result.seed in sgo]


def _at_equal_time(a: Result, b: Result) -> float | None:
    """Difference of the accuracies at the last moment that both have reached."""
    end = min(a.history[-1]["seconds"], b.history[-1]["seconds"])
    last = [[r["valid_accuracy"] for r in result.history if r["seconds"] <= end] for result in (a, b)]
    return last[0][-1] - last[1][-1] if all(last) else None


_ulr_claim("lenet5", 8, "+0.5 %")
_ulr_claim("lenet5", 32, "(the paper has 8 and 128 filters)")
_ulr_claim("lenet5", 128, "+0.5 %")
_ulr_claim("allcnn", 8, "+4 %")
_ulr_claim("allcnn", 32, "(the paper has 8 and 128 filters)")
_ulr_claim("allcnn", 128, "+40 %")


def _against_convnet(results: Results, network: str, **wanted: Any) -> dict[int, float]:
    """Test accuracy of the CKN minus the ConvNet's, in per cent, by number of filters."""
    found = {}
    for filters in _filters(results.of("ckn-convnet", network=network)):
        ckn = results.values("ckn-convnet", network=network, filters=filters, kind="ckn")
        convnet = results.values("ckn-convnet", network=network, filters=filters, kind="convnet", **wanted)
        if ckn and convnet:
            found[filters] = 100 * (_mean(ckn) - _mean(convnet))
    return found


def _by_filters(differences: dict[int, float], digits: int = 1) -> str:
    return ", ".join(f"{value:+.{digits}f} % ({filters} filters)" for filters, value in differences.items())


def _lenet_claim(network: str) -> None:
    @_claim(f"{NAMES[network]}: the CKN's accuracy is from 0.1 % below to 1 % above the ConvNet's", "5.3")
    def _difference(results: Results) -> tuple[str, int, Verdict] | None:
        differences = _against_convnet(results, network, budget="steps")
        runs = len(results.of("ckn-convnet", network=network))
        return (
            (_by_filters(differences, 2), runs, _verdict([v >= -0.1 for v in differences.values()])) if differences else None
        )

    @_claim(f"{NAMES[network]}: CKN and ConvNet are both above 97 %", "5.3")
    def _above(results: Results) -> tuple[str, int, Verdict] | None:
        found = results.of("ckn-convnet", network=network)
        if not found:
            return None
        least = {kind: min(100 * r["test_accuracy"] for r in found if r["kind"] == kind) for kind in ("ckn", "convnet")}
        shown = f"the least of all: CKN {least['ckn']:.2f} %, ConvNet {least['convnet']:.2f} %"
        return shown, len(found), _verdict([value > 97 for value in least.values()])


for _network in LENETS:
    _lenet_claim(_network)


def _allcnn_claim(budget: str, bias: bool) -> None:
    how = f"{'with' if bias else 'without'} biases, {'as many steps' if budget == 'steps' else 'as much time'}"

    where = "5.3" if (budget, bias) == ("steps", False) else "beyond"

    @_claim(f"All-CNN-C: the CKN is 3 to 16 % above the ConvNet (ConvNet {how})", where)
    def _difference(results: Results) -> tuple[str, int, Verdict] | None:
        differences = _against_convnet(results, "allcnn", budget=budget, **{"options.bias": bias})
        if not differences:
            return None
        runs = len(results.of("ckn-convnet", network="allcnn", kind="ckn")) + len(
            results.of("ckn-convnet", network="allcnn", kind="convnet", budget=budget, **{"options.bias": bias})
        )
        return _by_filters(differences), runs, _verdict([value >= 3 for value in differences.values()])


for _budget in ("steps", "time"):
    for _bias in (False, True):
        _allcnn_claim(_budget, _bias)


def _unsupervised_claim(network: str, low: int, high: int) -> None:
    span = f"at least {low} %" if high == 100 else f"{low} to {high} %"

    @_claim(f"{NAMES[network]}: without labels the CKN has {span} of its accuracy with labels", "5.3")
    def _fractions(results: Results) -> tuple[str, int, Verdict] | None:
        fractions, runs = {}, 0
        for filters in _filters(results.of("unsupervised", network=network)):
            without = results.values("unsupervised", network=network, filters=filters)
            with_labels = results.values("ckn-convnet", network=network, filters=filters, kind="ckn")
            if without and with_labels:
                fractions[filters] = 100 * _mean(without) / _mean(with_labels)
                runs += len(without) + len(with_labels)
        if not fractions:
            return None
        shown = ", ".join(f"{value:.0f} % ({filters} filters)" for filters, value in fractions.items())
        return shown, runs, _verdict([low - 0.5 <= value <= high + 0.5 for value in fractions.values()])


_unsupervised_claim("lenet1", 98, 100)
_unsupervised_claim("lenet5", 64, 97)
_unsupervised_claim("allcnn", 44, 59)


def _connections_claim(network: str, incomplete: float, complete: float) -> None:
    text = f"{NAMES[network]} ConvNet: {incomplete:.2f} % with the incomplete scheme, {complete:.2f} % with the complete one"

    @_claim(text, "app. B")
    def _schemes(results: Results) -> tuple[str, int, Verdict] | None:
        found = [
            results.values("connections", network=network, **{"options.connections": scheme})
            for scheme in ("incomplete", "complete")
        ]
        if not all(found):
            return None
        means = [100 * _mean(values) for values in found]
        close = [abs(value - said) <= 0.3 for value, said in zip(means, (incomplete, complete), strict=True)]
        return f"{means[0]:.2f} % and {means[1]:.2f} %", sum(map(len, found)), _verdict(close)


_connections_claim("lenet1", 98.54, 98.55)
_connections_claim("lenet5", 98.68, 99.12)


def _filters(found: list[Result]) -> list[int]:
    return sorted({result["filters"] for result in found})


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
