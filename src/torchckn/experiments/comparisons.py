"""What the claims compare: accuracies of runs, and their differences seed by seed.

Read first: :mod:`torchckn.experiments.judging`. Read next: :mod:`torchckn.experiments.claims`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from .judging import Case, Estimate, estimate
from .results import Result, Results, accuracies_by_labels, paired


def difference_case(
    label: str, differences: Sequence[float], span: tuple[float, float], digits: int = 1, runs: int | None = None
) -> list[Case]:
    """The case of a difference, in percentage points by seed; none if there is no pair of runs."""
    if not differences:
        return []
    interval = estimate(differences)
    if any(round(end, digits) == 0 for end in (interval.low, interval.high) if math.isfinite(end)):
        digits += 1  # on which side of zero it ends decides
    text = interval.text(digits, unit=" points")
    return [_case(label, interval, text, span, 2 * len(differences) if runs is None else runs)]


def _case(label: str, interval: Estimate, text: str, span: tuple[float, float], runs: int) -> Case:
    low, high = span
    return Case(f"{label}: {text}" if label else text, interval.is_within(low, high), runs, above=interval.low > high)


def fraction_case(label: str, percentages: Sequence[float], span: tuple[float, float], runs: int) -> Case:
    """The case of a fraction (%) by seed."""
    interval = estimate(percentages)
    return _case(label, interval, interval.text(signed=False), span, runs)


def against_convnet(
    results: Results,
    experiment: str,
    both: dict[str, Any],
    span: tuple[float, float],
    digits: int = 1,
    **convnet_only: Any,
) -> tuple[list[Case], list[tuple[Result, Result]]]:
    """Test accuracy of the CKN minus the ConvNet's, a case for each number of filters; and the pairs of runs.

    ``both`` selects runs of CKNs and ConvNets, ``convnet_only`` those of ConvNets.
    """
    cases, pairs = [], []
    for filters in filters_of(results.of(experiment, **both)):
        ckn = results.of(experiment, filters=filters, kind="ckn", **both)
        convnet = results.of(experiment, filters=filters, kind="convnet", **both, **convnet_only)
        by_seed = differences(ckn, convnet, "test_accuracy")
        cases += difference_case(f"{filters} filters, {after_steps(ckn)}", by_seed, span, digits)
        pairs += paired(ckn, convnet)
    return cases, pairs


def accuracy_case(label: str, runs: Sequence[Result], span: tuple[float, float]) -> list[Case]:
    """The case of the mean test accuracy of some runs; none if there are no runs."""
    if not runs:
        return []
    interval = estimate([100 * run["test_accuracy"] for run in runs])
    return [_case(label, interval, interval.text(2, signed=False), span, len(runs))]


def at_equal_time(a: Result, b: Result, key: str) -> float:
    """Difference of the accuracies at the end of the shorter training, between validations by a straight line."""
    end = min(a.training_seconds, b.training_seconds)
    return _accuracy_at(a, end, key) - _accuracy_at(b, end, key)


def _accuracy_at(result: Result, seconds: float, key: str) -> float:
    history = [record for record in result.history if key in record]
    for before, after in pairwise(history):
        if before["seconds"] <= seconds < after["seconds"]:
            share = (seconds - before["seconds"]) / (after["seconds"] - before["seconds"])
            return float(before[key] + share * (after[key] - before[key]))
    return float(history[-1][key])


def differences(first: list[Result], second: list[Result], key: str) -> list[float]:
    """In percentage points, seed by seed."""
    return [100 * (a[key] - b[key]) for a, b in paired(first, second)]


def time_ratio(first: list[Result], second: list[Result]) -> str:
    """The total time of the first runs relative to that of the second, of the seeds that both have."""
    ours, others = (sum(run.total_seconds for run in runs) for runs in zip(*paired(first, second), strict=True))
    return f"{ours / others:.2f}"


def are_of_one_machine(first: list[Result], second: list[Result]) -> bool:
    """Whether both runs of each seed are from machines of the same kind, so that the times of equal steps can be compared."""
    return all(a.machine == b.machine for a, b in paired(first, second))


def on_one_machine(first: list[Result], second: list[Result]) -> tuple[list[Result], list[Result]]:
    """The runs of the seeds whose two runs are from machines of the same kind: on others, equal times are not equal work."""
    pairs = [(a, b) for a, b in paired(first, second) if a.machine == b.machine]
    return [a for a, _ in pairs], [b for _, b in pairs]


def differences_by_labels(first: list[Result], second: list[Result]) -> dict[int, list[float]]:
    """By the number of labels, in percentage points, draw by draw: both learners have the same labels in a draw."""
    pairs = paired(first, second)
    ours, others = (accuracies_by_labels([pair[i] for pair in pairs]) for i in (0, 1))
    return {
        count: [a - b for a, b in zip(ours[count], others[count], strict=True)]
        for count in sorted(ours.keys() & others.keys())
    }


def with_regularization_of_own_labels(results: Results, data: str, learner: str) -> list[Result]:
    """With one of two regularizations, for each number of labels the one that is more accurate in cross-validation on them."""
    kinds = (results.of(experiment, data=data, learner=learner) for experiment in ("untuned", "few-labels"))
    return [replace(first, history=_better(first.history, second.history)) for first, second in paired(*kinds)]


def _better(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> list[dict[str, Any]]:
    other = {record["labels"]: record for record in second}
    both = [(record, other[record["labels"]]) for record in first if record["labels"] in other]
    return [max(pair, key=lambda record: record["valid_accuracy"]) for pair in both]


def after_steps(runs: Sequence[Result]) -> str:
    """``after 300 steps``, of runs that were all trained for as many, or nearly."""
    steps = runs[0].history[-1].get("step") if runs and runs[0].history else None
    return "after training" if steps is None else f"after {steps:,} steps"


def filters_of(results: Sequence[Result]) -> list[int]:
    """The numbers of filters that the results are of, the smallest first."""
    return sorted({result["filters"] for result in results})
