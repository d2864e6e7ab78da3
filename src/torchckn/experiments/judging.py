"""How a claim is judged: by the mean over seeds and its 95 % confidence interval.

The interval is Student's, ``mean ± t(n - 1) s / sqrt(n)`` for n seeds with standard deviation s; differences are taken between
runs of the same seed. A claim gives a span. It holds for a network if the whole interval is inside the span, it does not hold if
the whole interval is outside, and else it is undecided. One run has no interval. Read next:
:mod:`torchckn.experiments.comparisons`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from scipy.special import stdtrit

#: How verdicts are reached, for readers of the page.
VERDICT_RULES = (
    "Each number is a mean over n seeds with its 95 % confidence interval (Student's t). Differences of accuracy are in "
    "percentage points, between runs with the same seed and thus the same images; they are differences of test accuracies "
    "unless a claim says otherwise. A claim gives a range for a difference, a fraction or an accuracy. It *holds* for a "
    "network and a number of filters if the whole interval is inside the range; if the whole interval is outside, it is "
    "*above the claimed range*, or it *does not hold*; it is *undecided* if the interval is partly inside or if there is "
    "only one seed, and thus no interval. *More accurate* and *smaller* are judged by the sign alone: the size that the "
    "paper has, if any, is in parentheses. The intervals cover the choice of the seed only (initial filters, batches, which"
    " images are validation images; with few labels, which labels are drawn, but not the unsupervised filters, which are "
    "the same in all draws), because the test images are always the same. They are not corrected for their number: of a "
    "hundred such intervals, about five do not contain what they should."
)

#: source of a claim that is not the paper's
EXTENSION = "not in the paper"
#: source of a claim on the authors' released curves
RELEASED = "released curves"
#: the range of a claim that something is larger
ABOVE_ZERO = (math.ulp(0.0), math.inf)


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its confidence interval, which is infinite for one seed."""

    mean: float
    low: float
    high: float
    n: int

    def is_within(self, low: float, high: float) -> bool | None:
        """Whether the interval is inside the span, or outside; None if it is neither."""
        if low <= self.low and self.high <= high:
            return True
        return False if self.high < low or self.low > high else None

    def text(self, digits: int = 1, unit: str = " %", signed: bool = True) -> str:
        """As in "+1.2 % (+0.9 to +1.5, n = 3)"; without an interval "+1.2 % (n = 1)".

        Example:
            >>> estimate([1.0, 1.2, 1.4]).text()
            '+1.2 % (+0.7 to +1.7, n = 3)'
            >>> estimate([2.5]).text(unit="", signed=False)
            '2.5 (n = 1)'
        """

        def written(value: float) -> str:
            return f"{value:{'+' if signed else ''}z.{digits}f}"

        interval = f"{written(self.low)} to {written(self.high)}, " if self.n > 1 else ""
        return f"{written(self.mean)}{unit} ({interval}n = {self.n})"


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of values, one per seed, with its 95 % confidence interval."""
    mean, n = statistics.fmean(values), len(values)
    if n == 1:
        return Estimate(mean, -math.inf, math.inf, 1)
    half = float(stdtrit(n - 1, 0.975)) * statistics.stdev(values) / math.sqrt(n)
    return Estimate(mean, mean - half, mean + half, n)


def geometric_estimate(values: Sequence[float]) -> Estimate:
    """The geometric mean of ratios, which is symmetric in numerator and denominator, with its interval."""
    logs = estimate([math.log(value) for value in values])
    return Estimate(math.exp(logs.mean), math.exp(logs.low) if logs.n > 1 else 0.0, math.exp(min(logs.high, 700.0)), logs.n)


@dataclass(frozen=True)
class Case:
    """A claim on one network and number of filters."""

    text: str
    holds: bool | None
    runs: int
    above: bool = False
    """whether it does not hold because it is above a range that has an upper end"""

    @property
    def outcome(self) -> str:
        if self.above:
            return _ABOVE
        return {True: _HOLDS, False: _FAILS, None: _UNDECIDED}[self.holds]


_HOLDS, _ABOVE, _FAILS, _UNDECIDED = "holds", "above the claimed range", "does not hold", "undecided"
_NOT_RUN = "not run at this scale"


@dataclass(frozen=True)
class JudgedClaim:
    """A claim with its cases and its verdict."""

    claim: str
    source: str
    """section of the paper, or another source"""
    cases: Sequence[Case] = ()
    remark: str = ""
    """what else was measured"""

    @property
    def measured(self) -> str:
        return "<br>".join([*(case.text for case in self.cases), *([self.remark] if self.remark else [])])

    @property
    def runs(self) -> int:
        """Number of runs that the verdict is based on."""
        return sum(case.runs for case in self.cases)

    @property
    def verdict(self) -> str:
        """``"holds"``, ``"holds for 2 of 3, undecided for 1"`` and the like.

        Example:
            >>> JudgedClaim("", "", [Case("", True, 2), Case("", None, 2)]).verdict
            'holds for 1 of 2, undecided for 1'
        """
        if not self.cases:
            return _NOT_RUN
        outcomes = [case.outcome for case in self.cases]
        counts = [(word, outcomes.count(word)) for word in (_HOLDS, _ABOVE, _FAILS, _UNDECIDED) if word in outcomes]
        (word, count), *others = counts
        if not others:
            return word
        return ", ".join([f"{word} for {count} of {len(outcomes)}", *(f"{word} for {count}" for word, count in others)])


#: what a judge finds in the results; a remark is what else was measured
Judge = Callable[..., tuple[list[Case], str]]


@dataclass
class Claims:
    """Claims in the order in which they were added."""

    judges: list[tuple[JudgedClaim, Judge]] = field(default_factory=list)

    def add(self, text: str, source: str) -> Callable[[Judge], Judge]:
        """A decorator for the function that judges the claim."""

        def register(judge: Judge) -> Judge:
            self.judges.append((JudgedClaim(text, source), judge))
            return judge

        return register

    def judged(self, results: object) -> list[JudgedClaim]:
        claims = []
        for claim, judge in self.judges:
            cases, remark = judge(results)
            claims.append(replace(claim, cases=tuple(cases), remark=remark))
        return claims
