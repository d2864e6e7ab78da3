"""Claims are judged by the results of experiments: intervals, cases, verdicts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchckn.experiments.comparisons import difference_case
from torchckn.experiments.judging import Case, JudgedClaim, estimate, geometric_estimate
from torchckn.experiments.results import Result

from .results import result, seeds, verdicts


def test_the_interval_is_student_s() -> None:
    found = estimate([1.0, 2.0, 4.0])
    assert (found.mean, found.n) == (pytest.approx(7 / 3), 3)
    assert found.high - found.mean == pytest.approx(4.303 * (7 / 3) ** 0.5 / 3**0.5, rel=1e-3), "t of two degrees of freedom"
    assert found.mean - found.low == pytest.approx(found.high - found.mean)
    ratios = geometric_estimate([2.0, 8.0])
    assert ratios.mean == pytest.approx(4)
    assert ratios.low * ratios.high == pytest.approx(16)


@given(values=st.lists(st.floats(-5, 5), min_size=2, max_size=6), low=st.floats(-5, 5), width=st.floats(0, 5))
def test_an_interval_is_inside_a_span_or_outside_or_undecided(values: list[float], low: float, width: float) -> None:
    found, high = estimate(values), low + width
    inside = found.is_within(low, high)
    assert found.low <= found.mean <= found.high
    if inside:
        assert low <= found.mean <= high
    if inside is False:
        assert not low <= found.mean <= high
    assert estimate(values[:1]).is_within(low, high) is None, "one seed decides nothing"
    assert estimate(values).is_within(-math.inf, math.inf)


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        ([], "not run at this scale"),
        ([True, True], "holds"),
        ([False], "does not hold"),
        ([None, None], "undecided"),
        ([True, True, False], "holds for 2 of 3, does not hold for 1"),
        ([True, None], "holds for 1 of 2, undecided for 1"),
        ([False, None, None], "does not hold for 1 of 3, undecided for 2"),
        ([True, False, None], "holds for 1 of 3, does not hold for 1, undecided for 1"),
        (["above"], "above the claimed range"),
        (["above", False, True], "holds for 1 of 3, above the claimed range for 1, does not hold for 1"),
    ],
)
def test_a_verdict_counts_the_cases(outcomes: list[bool | str | None], verdict: str) -> None:
    cases = [Case("", False, 2, above=True) if outcome == "above" else Case("", outcome, 2) for outcome in outcomes]
    judged = JudgedClaim("a claim", "5.2", cases)
    assert judged.verdict == verdict
    assert judged.runs == 2 * len(outcomes)


def test_claims_are_judged_by_the_numbers() -> None:
    assert {judged.verdict for judged in verdicts().values()} == {"not run at this scale"}
    for ratio, verdict in ((3.0, "holds"), (0.5, "does not hold")):
        errors = {"svd": ratio * 1e-6, "newton-20": 1e-6, "eigh": 1e-7}
        runs = [result("gradient", seed, filters=8, errors=errors, root_errors=errors) for seed in range(2)]
        judged = next(j for c, j in verdicts(*runs).items() if "2.5 times" in c)
        assert judged.verdict == verdict
        assert f"only the inverse root in float32, 8 filters: ratio {ratio} ({ratio} to {ratio}, n = 2)" in judged.measured

    def networks(ckn: list[float], convnet: list[float]) -> list[Result]:
        common = {"network": "lenet5", "filters": 8, "options__bias": False, "budget": "steps"}
        return seeds("ckn-convnet", ckn, kind="ckn", **common) + seeds("ckn-convnet", convnet, kind="convnet", **common)

    claim = "LeNet-5: the CKN is at most 0.1 points less accurate than the ConvNet (and at most 1 point more)"
    for ckn, convnet, verdict in (
        ([0.990, 0.991, 0.992], [0.985, 0.986, 0.9871], "holds"),
        ([0.985, 0.985, 0.985], [0.990, 0.9901, 0.9899], "does not hold"),
        ([0.999, 0.998, 0.999], [0.98, 0.98, 0.98], "above the claimed range"),
        ([0.990, 0.980, 0.990], [0.985, 0.985, 0.985], "undecided"),
        ([0.990], [0.985], "undecided"),
    ):
        judged = verdicts(*networks(ckn, convnet))[claim]
        assert judged.verdict == verdict
        mean = 100 * (sum(ckn) - sum(convnet)) / len(ckn)
        assert judged.measured.startswith(f"8 filters, after training: {mean:+.2f} points (")
        assert f"n = {len(ckn)})" in judged.measured
        assert judged.runs == 2 * len(ckn)
    ckn, convnet = networks([0.99], [0.98])
    assert verdicts(ckn)[claim].verdict == "not run at this scale", "half of it is not enough"
    assert verdicts(ckn, replace(convnet, seed=1))[claim].runs == 0, "other images"
    above = verdicts(*networks([0.99, 0.99], [0.96, 0.96]))["LeNet-5: the test accuracies of CKN and ConvNet are above 97 %"]
    assert above.verdict == "holds for 1 of 2, does not hold for 1"


def test_methods_are_compared_after_equal_steps_and_at_the_end_of_the_shorter_training() -> None:
    def curve(*points: tuple[float, float], refitted: float = 0.0) -> list[dict[str, Any]]:
        records = [{"step": i, "seconds": s, "valid_accuracy": a} for i, (s, a) in enumerate(points)]
        return [
            record | ({"refitted_accuracy": record["valid_accuracy"] + refitted} if refitted else {}) for record in records
        ]

    def runs(sgo_normalizes: bool, refitted: float = 0.0) -> list[Result]:
        common = {"network": "lenet5", "filters": 8, "loss": "multinomial", "refit": bool(refitted)}
        ulr = curve((0, 0.5), (10, 0.7), (20, 0.98), refitted=refitted)
        sgo = curve((0, 0.5), (5, 0.6), (12, 0.9), refitted=refitted / 2)
        return [
            result("ulr-sgo", method="ulr", normalize=True, history=ulr, **common),
            result("ulr-sgo", method="sgo", normalize=sgo_normalizes, history=sgo, **common),
        ]

    for normalizes, how in ((True, "normalizes its gradients as"), (False, "does not normalize")):
        (judged,) = [j for c, j in verdicts(*runs(normalizes)).items() if j.cases]
        assert how in judged.claim
        assert judged.verdict == "undecided"
        assert (
            judged.measured
            == "classifier of the last step, after 2 steps: +8.0 points (n = 1)<br>after equal time: -14.4 points (n = 1)"
        )
        assert judged.runs == 2
    (judged,) = [j for c, j in verdicts(*runs(True, 0.01)).items() if j.cases]
    assert judged.measured.startswith(
        "refitted classifier, after 2 steps: +8.5 points (n = 1)<br>after equal time: -13.9 points (n = 1)"
    )


def test_further_claims_are_judged() -> None:
    def of(network: str, kind: str, accuracy: float, seconds: float, **others: Any) -> list[Result]:
        common = {"network": network, "kind": kind, "filters": 8, "test_accuracy": accuracy, **others}
        history = [{"step": 1, "seconds": seconds, "valid_accuracy": 0.5}]
        return [result("ckn-convnet", seed, history=history, **common) for seed in range(2)]

    judgements = ((0.05, "holds"), (0.3, "above the claimed range"), (0.01, "does not hold"), (-0.1, "does not hold"))
    for difference, verdict in judgements:
        common = {"options__bias": True, "budget": "time"}
        found = verdicts(*of("allcnn", "ckn", 0.5 + difference, 10.0), *of("allcnn", "convnet", 0.5, 12.0, **common))
        judged = found[
            "All-CNN-C: the CKN is 3 to 16 points more accurate than the ConvNet (ConvNet with biases, equal training time)"
        ]
        assert judged.verdict == verdict
        assert "training time of the ConvNet: 1.2 times the CKN's" in judged.measured
        assert not any(j.runs for claim, j in found.items() if "centering" in claim), "another experiment's"
    for centering, runs in (("feature", 2), ("image", 0)):
        common = {"network": "allcnn", "filters": 8, "centering": centering, "history": [{"seconds": 1.0}]}
        ckn = result("centering", kind="ckn", test_accuracy=0.6, **common)
        convnet = result("centering", kind="convnet", test_accuracy=0.5, budget="steps", **common)
        setup = "centering per feature for both, equal number of steps"
        claim = f"All-CNN-C: the CKN is 3 to 16 points more accurate than the ConvNet ({setup})"
        assert verdicts(ckn, convnet)[claim].runs == runs
    unsupervised = seeds("unsupervised", [0.97, 0.97], network="lenet1", filters=8)
    found = verdicts(*unsupervised, *of("lenet1", "ckn", 0.96, 1.0))
    judged = next(j for claim, j in found.items() if "with unsupervised filters" in claim and j.runs)
    assert judged.verdict == "holds", "a higher accuracy than with trained filters holds as well"
    for accuracy, verdict in ((0.5, "holds"), (0.9, "above the claimed range"), (0.3, "does not hold")):
        without = seeds("unsupervised", [accuracy, accuracy], network="allcnn", filters=8, kind="ckn")
        found = verdicts(*without, *of("allcnn", "ckn", 1.0, 1.0))
        assert (
            found["All-CNN-C: with unsupervised filters the CKN has 44 to 59 % of its accuracy with trained filters"].verdict
            == verdict
        )
    half_hour = {"kind": "ckn", "bandwidths": False, "augment": "none", "total_seconds": 1800, "centering": "feature"}
    runs = [
        result("equal-time", seed, filters=8, start_valid_accuracy=0.3, valid_accuracy=0.75, **half_hour)
        for seed in range(2)
    ]
    (judged,) = [j for claim, j in verdicts(*runs).items() if "after half an hour" in claim]
    assert (judged.verdict, judged.measured) == ("does not hold", "8 filters: 40.0 % (40.0 to 40.0, n = 2)")
    for incomplete, complete, verdict in ((0.9854, 0.985, "holds"), (0.98, 0.97, "does not hold")):
        pair = {"incomplete": incomplete, "complete": complete}
        connected = [
            run
            for scheme, accuracy in pair.items()
            for run in seeds(
                *("connections", [accuracy, accuracy]), network="lenet1", centering="image", options__connections=scheme
            )
        ]
        found = {c: j for c, j in verdicts(*connected).items() if c.startswith("LeNet-1 ConvNet")}
        assert [judged.verdict for judged in found.values()] == [verdict, verdict]
        assert [len(judged.cases) for judged in found.values()] == [2, 1], "a case for each centering that was run"


def test_released_runs_are_compared_after_as_many_steps() -> None:
    run = result("released", network="lenet5", kind="ckn", steps=100, test_accuracy=0.987)
    judged = [j.measured for c, j in verdicts(run).items() if c.startswith("Released run, LeNet-5 CKN")]
    assert judged == ["98.70 % (n = 1)", "", ""], "100 steps say nothing about 10,000"


def test_inverse_roots_are_judged_by_the_networks_trained_with_them() -> None:
    def judged(filters: int, newton: list[float], svd: list[float]) -> list[tuple[str, str]]:
        methods = {"newton:50": newton, "svd": svd}
        runs = [
            run
            for method, values in methods.items()
            for run in seeds("inverse-root", values, "valid_accuracy", filters=filters, inverse_sqrt=method)
        ]
        return [(j.verdict, j.measured) for c, j in verdicts(*runs).items() if "Newton" in c and "SVD" in c and j.measured]

    assert judged(8, [0.5, 0.501], [0.502, 0.503]) == [("holds", "after training: -0.2 points (-0.2 to -0.2, n = 2)")]
    assert judged(8, [0.5, 0.5], [0.48, 0.48]) == [
        ("above the claimed range", "after training: +2.0 points (+2.0 to +2.0, n = 2)")
    ], "equal is not better"
    assert judged(128, [0.72, 0.72], [0.70, 0.70]) == [("holds", "+2.0 points (+2.0 to +2.0, n = 2)")]
    assert judged(128, [0.71], [0.70]) == [("undecided", "+1.0 points (n = 1)")]
    assert judged(32, [0.72], [0.70]) == [("not run at this scale", "with 32 filters instead +2.0 points (n = 1)")]


def test_a_difference_whose_interval_ends_next_to_zero_shows_on_which_side() -> None:
    (case,) = difference_case("", [0.6, 0.9, 1.2], (0, math.inf))
    assert case.text == "+0.9 points (+0.2 to +1.6, n = 3)"
    (case,) = difference_case("", [0.5, 0.9, 1.214], (0, math.inf))
    assert (case.text, case.holds) == ("+0.87 points (-0.02 to +1.76, n = 3)", None)


def test_a_comparison_is_judged_on_every_network() -> None:
    def runs(lenet: float, allcnn: float) -> list[Result]:
        found = []
        for network, accuracy in (("lenet5", lenet), ("allcnn", allcnn)):
            found += seeds("kernels", [0.7, 0.7], network=network, kernel="rbf:0.6")
            found += seeds("kernels", [accuracy, accuracy], network=network, kernel="arccosine:1")
        return found

    for lenet, allcnn, verdict in (
        (0.71, 0.72, "holds"),
        (0.71, 0.6, "holds for 1 of 2, does not hold for 1"),
        (0.6, 0.6, "does not hold"),
    ):
        judged = next(j for c, j in verdicts(*runs(lenet, allcnn)).items() if "arc-cosine" in c)
        assert judged.verdict == verdict
        assert judged.measured.startswith(f"LeNet-5: {100 * lenet - 70:+.1f} points (")
        assert judged.runs == 8
