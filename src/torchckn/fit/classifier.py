r"""The ultimate layer on all the features: a linear classifier by quasi-Newton, its L2 penalty chosen on validation data.

.. math:: \min_{V, c} \; \frac1n \sum_{i=1}^n \mathcal L(y_i, V^T x_i + c) + \lambda \|V\|_F^2

Paper: section 5.1 (L-BFGS on all features, lambda from 2^-40 to 2^0), Algorithm 2. The bias c is not penalised.

Plain L-BFGS is slow here, because features are strongly correlated. So it is preconditioned: it works in coordinates U with
V = L^-T U, where ``L L^T = h C + 2 lambda I`` and h C is the features' covariance weighted by how uncertain each image is, which
approximates the Hessian. The features themselves are never transformed, so another lambda costs another Cholesky factor and
nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import scipy.optimize
import torch
import torch.nn.functional as F
from threadpoolctl import threadpool_limits
from torch import Tensor

from ..choices import Loss, PenaltySearch
from ..errors import ConfigError, DataError
from ..progress import progress as show_progress

#: the penalties that the paper tries
LAMBDAS = tuple(2.0**exponent for exponent in range(0, -41, -1))


Solution = tuple[Tensor, Tensor]


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
    """of the chosen classifier on the validation data, before any refit"""
    curve: tuple[LambdaScore, ...]
    refitted: bool

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(content: dict[str, Any]) -> HeadFit:
        return HeadFit(**content | {"curve": tuple(LambdaScore(**score) for score in content["curve"])})


#: a solution is precise if another round of iterations gains less than this fraction of the objective, and good enough to
#: compare penalties if it gains less than that
PRECISE, LOOSE = 1e-5, 1e-2
#: multiplications in one pass over the features up to which every penalty is solved precisely
_FEW = 2**23


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
    max_iterations: int = 1000,
    progress: bool | None = None,
) -> tuple[Tensor, Tensor, HeadFit]:
    """The classifier V (d, classes), c (classes,) on features x (n, d), and how its L2 penalty was chosen.

    Of the penalties that were tried, the one with the best accuracy on the validation data is kept; of those with the same
    accuracy, the one with the least loss. The classifier that is returned is the one that had this accuracy (unless it is
    refitted): on few data every penalty is solved precisely; on many data loosely at first, and precisely once it is the best.
    """
    solver = (_Multinomial if loss == "multinomial" else _Square)(x, y, classes, max_iterations)
    valid = None if valid_x is None or valid_y is None else (valid_x, valid_y)
    curve: tuple[LambdaScore, ...] = ()
    if lam is None:
        assert valid is not None
        lam, best, curve = _search(solver, *valid, lambdas, search, progress)
    else:
        best = solver.solve(float(lam), None, PRECISE)[:2]
    accuracy = None if valid is None else _accuracy(best, *valid)
    if refit and valid is not None:
        both = type(solver)(torch.cat([x, valid[0]]), torch.cat([y, valid[1]]), classes, max_iterations)
        best = both.solve(float(lam), best, PRECISE)[:2]
    return best[0], best[1], HeadFit(float(lam), accuracy, curve, refit and valid is not None)


def _accuracy(solution: Solution, x: Tensor, y: Tensor) -> float:
    return float(((x @ solution[0] + solution[1]).argmax(1) == y).double().mean())


def _search(
    solver: _Multinomial | _Square,
    x: Tensor,
    y: Tensor,
    lambdas: Sequence[float],
    search: PenaltySearch,
    progress: bool | None,
) -> tuple[float, Solution, tuple[LambdaScore, ...]]:
    """The penalty with the best rank on validation data x (n, d), y (n,), its classifier, and the scores of all."""
    solutions: dict[float, Solution] = {}
    scores: dict[float, LambdaScore] = {}
    loose: set[float] = set()

    def attempt(lam: float, start: Solution | None, precision: float) -> None:
        weight, bias, objective, evaluations = solver.solve(lam, start, precision)
        before = scores[lam].evaluations if lam in scores else 0
        solutions[lam] = weight, bias
        fit = _accuracy(solutions[lam], x, y), solver.loss(x @ weight + bias, y)
        scores[lam] = LambdaScore(lam, *fit, objective, before + evaluations)
        (loose.discard if precision == PRECISE else loose.add)(lam)

    few_data = solver.multiplications <= _FEW
    with show_progress("L2 penalty of the classifier", None, progress) as report:
        for lam in _candidates(lambdas, search, scores):
            near = min(solutions, key=lambda other: abs(math.log2((other + 1e-99) / (lam + 1e-99))), default=None)
            start = None if near is None or search == "exhaustive" else solutions[near]
            attempt(lam, start, PRECISE if few_data or search == "exhaustive" else LOOSE)
            report(len(scores), f"lambda {lam:.1e}: validation accuracy {scores[lam].accuracy:.4f}")
        while (best := _best(scores)) in loose:  # a precise solution may be worse: then another one is the best
            attempt(best, solutions[best], PRECISE)
    return best, solutions[best], tuple(sorted(scores.values(), key=lambda score: -score.lam))


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


class _Multinomial:
    """Multinomial logistic regression on fixed features."""

    #: multiplications that the preconditioner may cost; images beyond that are left out of it
    _BUDGET = 2e10
    #: iterations before the preconditioner is computed again
    _ROUND = 50

    def __init__(self, x: Tensor, y: Tensor, classes: int, max_iterations: int) -> None:
        self.x, self.y, self.classes, self.max_iterations = x, y, classes, max_iterations
        self.mean = x.mean(0)
        self.targets = F.one_hot(y, classes).to(x.dtype)
        #: in one pass over the features
        self.multiplications = x.numel() * classes

    def solve(self, lam: float, start: Solution | None, precision: float) -> tuple[Tensor, Tensor, float, int]:
        """Weight, bias, objective, evaluations; it ends with a round that gains less than ``precision`` of the objective."""
        d, device = self.x.shape[1], self.x.device
        weight = torch.zeros(d, self.classes, dtype=torch.float64, device=device)
        bias = torch.zeros(self.classes, dtype=torch.float64, device=device)
        if start is not None:
            weight, bias = (part.double() for part in start)
            bias = bias + self.mean.double() @ weight
        objective, left, evaluations = float("inf"), self.max_iterations, 0
        while left > 0:  # in rounds, because the curvature changes on the way
            weight, bias, result = self._descend(weight, bias, lam, min(left, self._ROUND), precision)
            left, evaluations = left - max(1, int(result.nit)), evaluations + int(result.nfev)
            gain, objective = objective - float(result.fun), float(result.fun)
            if gain <= precision * abs(objective):  # equal if both are 0, as with data of one class
                break
        bias = bias - self.mean.double() @ weight  # features were centered on the way, which only changes the bias
        return weight.to(self.x.dtype), bias.to(self.x.dtype), objective, evaluations

    @staticmethod
    def loss(scores: Tensor, y: Tensor) -> float:
        return float(F.cross_entropy(scores, y))

    def _descend(
        self, weight: Tensor, bias: Tensor, lam: float, iterations: int, precision: float
    ) -> tuple[Tensor, Tensor, Any]:
        """A round of L-BFGS in coordinates U with V = L^-T U, where L L^T is the curvature at the start."""
        d, classes, device = self.x.shape[1], self.classes, self.x.device
        factor = _factor(self._curvature(weight, bias, lam))

        def decode(flat: np.ndarray) -> tuple[Tensor, Tensor]:
            both = torch.from_numpy(flat).to(device).view(d + 1, classes)
            return torch.linalg.solve_triangular(factor.T, both[:-1], upper=True), both[-1]

        def value_and_gradient(flat: np.ndarray) -> tuple[float, np.ndarray]:
            weight, bias = decode(flat)
            loss, of_weight, of_bias = self._evaluate(weight, bias)
            loss += lam * float(weight.square().sum())
            of_weight += 2 * lam * weight
            of_flat = torch.linalg.solve_triangular(factor, of_weight, upper=False)  # L^-1 of the gradient in V
            return loss, torch.cat([of_flat, of_bias[None]]).flatten().cpu().numpy()

        result = scipy.optimize.minimize(
            value_and_gradient,
            torch.cat([factor.T @ weight, bias[None]]).flatten().cpu().numpy(),
            jac=True,
            method="L-BFGS-B",
            options={
                "maxiter": iterations,
                "maxfun": 2 * iterations,
                "ftol": 1e-3 * precision,
                "gtol": 1e-7,
                "maxcor": 20,
            },
        )
        weight, bias = decode(result.x)
        return weight, bias, result

    def _curvature(self, weight: Tensor, bias: Tensor, lam: float) -> Tensor:
        """Approximately the Hessian, the same for every class: the features' covariance weighted by the mean of p (1 - p)."""
        n, d = self.x.shape
        some = min(n, max(4 * d, int(self._BUDGET / d**2)))
        x = self.x[:: max(1, n // some)]
        p = torch.softmax(x @ weight.to(x.dtype) + (bias - self.mean.double() @ weight).to(x.dtype), 1)
        uncertain = (p * (1 - p)).mean(1, keepdim=True).clamp_(min=1e-5)
        weighted = (x - self.mean) * uncertain.sqrt()
        hessian = (weighted.T @ weighted).double() / len(x)
        hessian.diagonal().add_(2 * lam)
        return hessian

    def _evaluate(self, weight: Tensor, bias: Tensor) -> tuple[float, Tensor, Tensor]:
        """Mean loss and its gradient in weight and bias, with features centered on the fly."""
        mean = self.mean.double()
        scores = torch.addmm((bias - mean @ weight).to(self.x.dtype), self.x, weight.to(self.x.dtype))
        log_p = F.log_softmax(scores, 1)
        loss = -float(torch.dot(log_p.flatten(), self.targets.flatten())) / len(scores)
        residual = log_p.exp_().sub_(self.targets)
        total = residual.sum(0).double() / len(scores)
        # residual^T x, and not x^T residual: the same numbers, several times faster for few classes
        of_weight = (residual.T @ self.x).T.double() / len(scores) - mean[:, None] * total
        return loss, of_weight, total


def _factor(matrix: Tensor) -> Tensor:
    """A Cholesky factor of the matrix, with as little added to its diagonal as its rounding errors (of float32) require."""
    jitter = 1e-7 * float(matrix.diagonal().mean()) + torch.finfo(torch.float64).tiny
    while True:
        matrix.diagonal().add_(jitter)
        factor, failed = torch.linalg.cholesky_ex(matrix)
        if not failed:
            return factor
        if not math.isfinite(jitter) or not bool(torch.isfinite(matrix).all()):
            raise DataError(
                "the features are not finite, so no classifier can be fitted; check images and filters for NaN or infinity"
            )
        jitter *= 10


class _Square:
    """Ridge regression onto one-hot labels, in closed form for every penalty (proposition "simp_least_square")."""

    def __init__(self, x: Tensor, y: Tensor, classes: int, max_iterations: int) -> None:
        self.dtype = x.dtype
        self.mean = x.double().mean(0)
        targets = F.one_hot(y, classes).double()
        self.target_mean = targets.mean(0)
        d = x.shape[1]
        covariance = torch.zeros(d, d, dtype=torch.float64, device=x.device)
        cross = torch.zeros(d, classes, dtype=torch.float64, device=x.device)
        for part, some in zip(x.split(8192), targets.split(8192), strict=True):
            centered = part.double() - self.mean
            covariance += centered.T @ centered
            cross += centered.T @ (some - self.target_mean)
        self.values, self.vectors = torch.linalg.eigh(covariance / len(x))
        self.cross = self.vectors.T @ cross / len(x)
        self.total = float((targets - self.target_mean).square().sum() / len(x))
        self.multiplications = 0  # every solution is exact, and costs next to nothing

    def solve(self, lam: float, start: Solution | None, precision: float) -> tuple[Tensor, Tensor, float, int]:
        noise = len(self.values) * torch.finfo(torch.float64).eps * self.values[-1]
        shrink = 1 / (self.values.clamp(min=noise) + lam)
        weight = self.vectors @ (shrink[:, None] * self.cross)
        bias = self.target_mean - self.mean @ weight
        objective = self.total - float((shrink[:, None] * self.cross.square()).sum())
        return weight.to(self.dtype), bias.to(self.dtype), objective, 1

    @staticmethod
    def loss(scores: Tensor, y: Tensor) -> float:
        return float((scores - F.one_hot(y, scores.shape[1])).square().sum(1).mean())
