r"""The ultimate layer on all the features: a linear classifier by quasi-Newton, its L2 penalty chosen on validation data.

.. math:: \min_{V, c} \; \frac1n \sum_{i=1}^n \mathcal L(y_i, V^T x_i + c) + \lambda \|V\|_F^2

Paper: section 5.1 (L-BFGS on all features, lambda from 2^-40 to 2^0), Algorithm 2. The bias c is not penalised.

Read first: :mod:`torchckn.fit.solvers`. Read next: :mod:`torchckn.fit.head`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, TypeVar

import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from ..choices import Loss, PenaltySearch
from ..distributed import total_of_numbers
from ..errors import ConfigError
from ..progress import progress as show_progress
from .solvers import Multinomial, Solution, Square
from .targets import PLAIN, Aim

State = TypeVar("State")

#: the penalties that the paper tries
LAMBDAS = tuple(2.0**exponent for exponent in range(0, -41, -1))


@dataclass(frozen=True)
class LambdaScore:
    """One value of the L2 penalty that was tried."""

    lam: float
    accuracy: float
    """on the validation data"""
    loss: float
    """mean over the validation data"""
    objective: float
    """on the training data"""
    evaluations: int

    @property
    def rank(self) -> tuple[float, float, float]:
        """Higher is better: accuracy, then the loss among equals, then the larger penalty."""
        return self.accuracy, -self.loss, self.lam


@dataclass(frozen=True)
class HeadFit:
    """What :func:`torchckn.fit_head` found. ``curve`` has the penalties that were tried, from large to small."""

    lam: float
    accuracy: float | None
    """of the chosen classifier on the validation data, before any refit; without such data, over the folds"""
    curve: tuple[LambdaScore, ...]
    refitted: bool
    folds: int = 0
    """of the cross-validation that ``curve`` is of; 0: it is of the validation data"""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(content: dict[str, Any]) -> HeadFit:
        return HeadFit(**{"accuracy": None} | content | {"curve": tuple(LambdaScore(**score) for score in content["curve"])})


#: a solution is precise if another round of iterations gains less than this fraction of the objective, and good enough to
#: compare penalties if it gains less than that
PRECISE, LOOSE = 1e-5, 1e-2
#: multiplications in one pass over the features: up to _FEW, every penalty is solved precisely; up to MANY, the best one until
#: it is the best when solved precisely; beyond, only once
_FEW, MANY = 2**19, 2**24


@threadpool_limits.wrap(limits=1, user_api="blas")  # scipy's threads would compete with torch's for the cores
def fit_classifier(
    x: Tensor,
    y: Tensor,
    classes: int,
    valid_x: Tensor | None = None,
    valid_y: Tensor | None = None,
    *,
    loss: Loss = "multinomial",
    lam: float | None = None,
    lambdas: Sequence[float] = LAMBDAS,
    search: PenaltySearch = "path",
    refit: bool = False,
    aim: Aim = PLAIN,
    max_iterations: int = 1000,
    progress: bool | None = None,
) -> tuple[Tensor, Tensor, HeadFit]:
    """The classifier V (d, classes), c (classes,) on features x (n, d), and how its L2 penalty was chosen.

    Of the penalties that were tried, the one with the best accuracy on the validation data is kept; of those with the same
    accuracy, the one with the lowest loss. The classifier that is returned has the accuracy that is reported, unless it is
    refitted: on few data every penalty is solved precisely; on many data loosely at first, and then the best one precisely.
    """
    solver = SOLVERS[loss](x, y, classes, max_iterations, aim)
    valid = None if valid_x is None or valid_y is None else (valid_x, valid_y)
    curve: tuple[LambdaScore, ...] = ()
    if lam is None:
        assert valid is not None
        lam, best, curve = search_penalty(HeldOut(solver, *valid), lambdas, search, progress)
    else:
        best = solver.solve(float(lam), None, PRECISE)[:2]
    accuracy = None if valid is None else _accuracy(best, *valid)
    if refit and valid is not None:
        both = type(solver)(torch.cat([x, valid[0]]), torch.cat([y, valid[1]]), classes, max_iterations, aim)
        best = both.solve(float(lam), best, PRECISE)[:2]
    return best[0], best[1], HeadFit(float(lam), accuracy, curve, refit and valid is not None)


SOLVERS: dict[str, type[Multinomial | Square]] = {"multinomial": Multinomial, "square": Square}


def _accuracy(solution: Solution, x: Tensor, y: Tensor) -> float:
    right, images = total_of_numbers(float(((x @ solution[0] + solution[1]).argmax(1) == y).sum()), len(y))
    return right / images


class Trial(Protocol[State]):
    """What a penalty is judged by."""

    @property
    def multiplications(self) -> int:
        """In one pass over the features."""
        ...

    def score(self, lam: float, start: State | None, precision: float) -> tuple[State, LambdaScore]:
        """The classifier of a penalty, to start the next one from, and how good it is."""
        ...


class HeldOut:
    """Penalties judged by validation data x (n, d), y (n,)."""

    def __init__(self, solver: Multinomial | Square, x: Tensor, y: Tensor) -> None:
        self.solver, self.x, self.y = solver, x, y
        self.multiplications = solver.multiplications

    def score(self, lam: float, start: Solution | None, precision: float) -> tuple[Solution, LambdaScore]:
        weight, bias, objective, evaluations = self.solver.solve(lam, start, precision)
        loss, images = total_of_numbers(self.solver.loss(self.x @ weight + bias, self.y), len(self.y))
        accuracy = _accuracy((weight, bias), self.x, self.y)
        return (weight, bias), LambdaScore(lam, accuracy, loss / images, objective, evaluations)


def search_penalty(
    trial: Trial[State], lambdas: Sequence[float], search: PenaltySearch, progress: bool | None
) -> tuple[float, State, tuple[LambdaScore, ...]]:
    """The penalty with the best rank, its classifier, and the scores of all."""
    states: dict[float, State] = {}
    scores: dict[float, LambdaScore] = {}
    loose: set[float] = set()

    def attempt(lam: float, start: State | None, precision: float) -> None:
        before = scores[lam].evaluations if lam in scores else 0
        states[lam], score = trial.score(lam, start, precision)
        scores[lam] = replace(score, evaluations=before + score.evaluations)
        (loose.discard if precision == PRECISE else loose.add)(lam)

    precise = search == "exhaustive" or trial.multiplications <= _FEW
    with show_progress("L2 penalty of the classifier", None, progress) as report:
        for lam in _candidates(lambdas, search, scores):
            near = min(states, key=lambda other: abs(math.log2((other + 1e-99) / (lam + 1e-99))), default=None)
            start = None if near is None or search == "exhaustive" else states[near]
            attempt(lam, start, PRECISE if precise else LOOSE)
            report(len(scores), f"lambda {lam:.1e}: validation accuracy {scores[lam].accuracy:.4f}")
        while (best := _best(scores)) in loose:
            attempt(best, states[best], PRECISE)
            if trial.multiplications > MANY:
                break  # it may no longer be the best, by as little as does not matter on many data
    return best, states[best], tuple(sorted(scores.values(), key=lambda score: -score.lam))


def _best(scores: Mapping[float, LambdaScore]) -> float:
    return max(scores.values(), key=lambda score: score.rank).lam


#: the path stops after so many penalties in a row that rank no better
_PATIENCE = 2


def _candidates(lambdas: Sequence[float], search: PenaltySearch, scores: Mapping[float, LambdaScore]) -> Iterable[float]:
    """Penalties to try, given the scores so far: all; or every fourth until accuracy falls, then ever nearer to the best."""
    ordered = sorted({float(value) for value in lambdas}, reverse=True)
    if not ordered or not all(0 <= value < float("inf") for value in ordered):
        raise ConfigError(f"lambdas expected numbers >= 0, at least one, got {list(lambdas)!r}")
    if search == "exhaustive":
        yield from ordered
        return
    for value in ordered[::4]:
        yield value
        if len(scores) - 1 - list(scores).index(_best(scores)) >= _PATIENCE:
            break
    for stride in (2, 1):
        place = ordered.index(_best(scores))
        for neighbour in (place - stride, place + stride):
            if 0 <= neighbour < len(ordered):
                yield ordered[neighbour]
