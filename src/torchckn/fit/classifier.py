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
from ..distributed import total_of_numbers, totals
from ..errors import ConfigError, DataError
from ..progress import progress as show_progress
from .features import UNIT

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
#: multiplications in one pass over the features: up to _FEW, every penalty is solved precisely; up to _MANY, the best one until
#: it is the best when solved precisely; beyond, only once
_FEW, _MANY = 2**19, 2**24


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
    accuracy, the one with the lowest loss. The classifier that is returned has the accuracy that is reported, unless it is
    refitted: on few data every penalty is solved precisely; on many data loosely at first, and then the best one precisely.
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
    right, images = total_of_numbers(float(((x @ solution[0] + solution[1]).argmax(1) == y).sum()), len(y))
    return right / images


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
        loss, images = total_of_numbers(solver.loss(x @ weight + bias, y), len(y))
        fit = _accuracy(solutions[lam], x, y), loss / images
        scores[lam] = LambdaScore(lam, *fit, objective, before + evaluations)
        (loose.discard if precision == PRECISE else loose.add)(lam)

    precise = search == "exhaustive" or solver.multiplications <= _FEW
    with show_progress("L2 penalty of the classifier", None, progress) as report:
        for lam in _candidates(lambdas, search, scores):
            near = min(solutions, key=lambda other: abs(math.log2((other + 1e-99) / (lam + 1e-99))), default=None)
            start = None if near is None or search == "exhaustive" else solutions[near]
            attempt(lam, start, PRECISE if precise else LOOSE)
            report(len(scores), f"lambda {lam:.1e}: validation accuracy {scores[lam].accuracy:.4f}")
        while (best := _best(scores)) in loose:
            attempt(best, solutions[best], PRECISE)
            if solver.multiplications > _MANY:
                break  # it may no longer be the best, by as little as does not matter on many data
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
        self.images = total_of_numbers(len(x))[0]
        self.mean = (totals(x.sum(0, dtype=torch.float64))[0] / self.images).to(x.dtype)
        self.targets = F.one_hot(y, classes).to(x.dtype)
        #: in one pass over the features
        self.multiplications = self.images * x.shape[1] * classes

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
        """The sum over images."""
        return float(F.cross_entropy(scores.double(), y, reduction="sum"))

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
        d = self.x.shape[1]
        some = min(self.images, max(4 * d, int(self._BUDGET / d**2)))
        offset = (bias - self.mean.double() @ weight).to(self.x.dtype)
        hessian, images = weight.new_zeros(d, d), 0
        for unit in self.x.split(UNIT):
            x = unit[:: max(1, int(self.images // some))]
            p = torch.softmax(x @ weight.to(x.dtype) + offset, 1)
            uncertain = (p * (1 - p)).mean(1, keepdim=True).clamp_(min=1e-5)
            weighted = (x - self.mean) * uncertain.sqrt()
            hessian += weighted.T @ weighted
            images += len(x)
        hessian = totals(hessian)[0] / total_of_numbers(images)[0]
        hessian.diagonal().add_(2 * lam)
        return hessian

    def _evaluate(self, weight: Tensor, bias: Tensor) -> tuple[float, Tensor, Tensor]:
        """Mean loss and its gradient in weight and bias, with features centered on the fly."""
        mean = self.mean.double()
        scores = torch.addmm((bias - mean @ weight).to(self.x.dtype), self.x, weight.to(self.x.dtype))
        log_p = F.log_softmax(scores, 1)
        loss = -(log_p * self.targets).sum(dtype=torch.float64)
        residual = log_p.exp_().sub_(self.targets)
        # residual^T x, and not x^T residual: the same numbers, several times faster for few classes
        of_weight = _product_in_units(residual, self.x)
        sums = totals(torch.cat([of_weight.flatten(), residual.sum(0, dtype=torch.float64), loss[None]]))[0] / self.images
        of_bias = sums[-1 - self.classes : -1]
        return float(sums[-1]), sums[: of_weight.numel()].view_as(of_weight).T - mean[:, None] * of_bias, of_bias


def _product_in_units(left: Tensor, right: Tensor) -> Tensor:
    """left^T right: (a, b), in double precision; products of units of rows, added up in double precision."""
    whole = len(left) // UNIT * UNIT
    product = (left[whole:].T @ right[whole:]).double()
    if whole:
        units = [part[:whole].unflatten(0, (-1, UNIT)) for part in (left, right)]  # (units, UNIT, a) and (units, UNIT, b)
        product += torch.bmm(units[0].mT, units[1]).sum(0, dtype=torch.float64)
    return product


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
        images = total_of_numbers(len(x))[0]
        targets = F.one_hot(y, classes).double()
        self.mean, self.target_mean = (mean / images for mean in totals(x.sum(0, dtype=torch.float64), targets.sum(0)))
        d = x.shape[1]
        covariance = torch.zeros(d, d, dtype=torch.float64, device=x.device)
        cross = torch.zeros(d, classes, dtype=torch.float64, device=x.device)
        for part, some in zip(x.split(8192), targets.split(8192), strict=True):
            centered = part.double() - self.mean
            covariance += centered.T @ centered
            cross += centered.T @ (some - self.target_mean)
        covariance, cross = totals(covariance, cross)
        self.values, self.vectors = torch.linalg.eigh(covariance / images)
        self.cross = self.vectors.T @ cross / images
        self.spread = total_of_numbers(float((targets - self.target_mean).square().sum()))[0] / images
        self.multiplications = 0  # every solution is exact, and costs next to nothing

    def solve(self, lam: float, start: Solution | None, precision: float) -> tuple[Tensor, Tensor, float, int]:
        noise = len(self.values) * torch.finfo(torch.float64).eps * self.values[-1]
        shrink = 1 / (self.values.clamp(min=noise) + lam)
        weight = self.vectors @ (shrink[:, None] * self.cross)
        bias = self.target_mean - self.mean @ weight
        objective = self.spread - float((shrink[:, None] * self.cross.square()).sum())
        return weight.to(self.dtype), bias.to(self.dtype), objective, 1

    @staticmethod
    def loss(scores: Tensor, y: Tensor) -> float:
        """The sum over images."""
        return float((scores - F.one_hot(y, scores.shape[1])).square().sum(dtype=torch.float64))
