r"""The ultimate layer on all the features: a linear classifier by quasi-Newton, its penalty chosen on validation data.

.. math:: \min_{V, c} \; \frac1n \sum_{i=1}^n \mathcal L(y_i, V^T x_i + c) + \lambda \|V\|_F^2

Paper: section 5.1 (L-BFGS on all features, lambda from 2^-40 to 2^0), Algorithm 2. The bias c is not penalised.

Plain L-BFGS crawls here: features are strongly correlated. So it works in coordinates U with V = L^-T U, where ``L L^T = h C +
2 lambda I``, h C being the features' covariance weighted by how uncertain each image is: about the Hessian's own Cholesky
factor. The features themselves are never transformed, so that another lambda costs another factor and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
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


@dataclass(frozen=True)
class LambdaScore:
    """One penalty that was tried."""

    lam: float
    accuracy: float
    """on the validation data"""
    objective: float
    """on the training data"""
    evaluations: int


@dataclass(frozen=True)
class HeadFit:
    """What :func:`torchckn.fit_head` found. ``curve`` is what it tried, by falling lambda."""

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


@threadpool_limits.wrap(limits=1, user_api="blas")  # scipy's threads would fight with torch's over the cores
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
    """The classifier V (d, classes), c (classes,) on features x (n, d), and how its penalty was chosen."""
    solver = (_Multinomial if loss == "multinomial" else _Square)(x, y, classes, max_iterations)

    def accuracy(solution: Solution) -> float:
        assert valid_x is not None
        assert valid_y is not None
        return float(((valid_x @ solution[0] + solution[1]).argmax(1) == valid_y).double().mean())

    curve: list[LambdaScore] = []
    start: Solution | None = None
    if lam is None:
        solutions: dict[float, Solution] = {}
        solver.precision = 1e-2 if search == "path" else 1e-5  # to tell penalties apart; one is solved in earnest below
        with show_progress("penalty of the classifier", None, progress) as report:
            for candidate in _candidates(lambdas, search, curve):
                near = min(solutions, key=lambda known: abs(math.log2((known + 1e-99) / (candidate + 1e-99))), default=None)
                start = None if near is None or search == "exhaustive" else solutions[near]
                *solution, objective, evaluations = solver.solve(candidate, start)
                solutions[candidate] = solution[0], solution[1]
                curve.append(LambdaScore(candidate, accuracy(solutions[candidate]), objective, evaluations))
                report(len(curve), f"lambda {candidate:.1e}: validation accuracy {curve[-1].accuracy:.4f}")
        lam = max(curve, key=lambda score: (score.accuracy, score.lam)).lam
        start = solutions[lam]
    solver.precision = 1e-5
    best = solver.solve(float(lam), start)[:2]
    found = None if valid_x is None else accuracy(best)
    if refit and valid_x is not None and valid_y is not None:
        both = type(solver)(torch.cat([x, valid_x]), torch.cat([y, valid_y]), classes, max_iterations)
        best = both.solve(float(lam), best)[:2]
    ordered = tuple(sorted(curve, key=lambda score: -score.lam))
    return best[0], best[1], HeadFit(float(lam), found, ordered, refit and valid_x is not None)


#: the path stops after so many penalties in a row without a better accuracy
_PATIENCE = 2


def _candidates(lambdas: Sequence[float], search: PenaltySearch, curve: list[LambdaScore]) -> Iterable[float]:
    """Penalties to try, given the scores so far: all; or every fourth until accuracy falls, then ever nearer to the best."""
    ordered = sorted({float(value) for value in lambdas}, reverse=True)
    if not ordered or not all(0 <= value < float("inf") for value in ordered):
        raise ConfigError(f"lambdas expected numbers >= 0, at least one, got {list(lambdas)!r}")
    if search == "exhaustive":
        yield from ordered
        return
    for value in ordered[::4]:
        yield value
        scores = [score.accuracy for score in curve]
        if len(scores) - 1 - int(np.argmax(scores)) >= _PATIENCE:
            break
    for stride in (2, 1):
        place = ordered.index(max(curve, key=lambda score: (score.accuracy, score.lam)).lam)
        for neighbour in (place - stride, place + stride):
            if 0 <= neighbour < len(ordered):
                yield ordered[neighbour]


Solution = tuple[Tensor, Tensor]


class _Multinomial:
    """Multinomial logistic regression on fixed features."""

    #: how many products the matrix behind the preconditioner may cost; images beyond that are left out of it
    _BUDGET = 2e10
    #: iterations before the preconditioner is made anew
    _ROUND = 50

    def __init__(self, x: Tensor, y: Tensor, classes: int, max_iterations: int) -> None:
        self.x, self.y, self.classes, self.max_iterations = x, y, classes, max_iterations
        self.mean = x.mean(0)
        self.targets = F.one_hot(y, classes).to(x.dtype)
        #: stop when a round gains less than this share of the objective
        self.precision = 1e-5

    def solve(self, lam: float, start: Solution | None) -> tuple[Tensor, Tensor, float, int]:
        d, device = self.x.shape[1], self.x.device
        weight = torch.zeros(d, self.classes, dtype=torch.float64, device=device)
        bias = torch.zeros(self.classes, dtype=torch.float64, device=device)
        if start is not None:
            weight, bias = (part.double() for part in start)
            bias = bias + self.mean.double() @ weight
        objective, left, evaluations = float("inf"), self.max_iterations, 0
        while left > 0:  # in rounds, for the curvature changes on the way
            weight, bias, found = self._descend(weight, bias, lam, min(left, self._ROUND))
            left, evaluations = left - max(1, int(found.nit)), evaluations + int(found.nfev)
            gain, objective = objective - float(found.fun), float(found.fun)
            if gain < self.precision * abs(objective):
                break
        bias = bias - self.mean.double() @ weight  # features were centred on the way, which only moves the bias
        return weight.to(self.x.dtype), bias.to(self.x.dtype), objective, evaluations

    def _descend(self, weight: Tensor, bias: Tensor, lam: float, iterations: int) -> tuple[Tensor, Tensor, Any]:
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

        found = scipy.optimize.minimize(
            value_and_gradient,
            torch.cat([factor.T @ weight, bias[None]]).flatten().cpu().numpy(),
            jac=True,
            method="L-BFGS-B",
            options={
                "maxiter": iterations,
                "maxfun": 2 * iterations,
                "ftol": 1e-3 * self.precision,
                "gtol": 1e-7,
                "maxcor": 20,
            },
        )
        weight, bias = decode(found.x)
        return weight, bias, found

    def _curvature(self, weight: Tensor, bias: Tensor, lam: float) -> Tensor:
        """About the Hessian, the same for every class: the features' covariance weighted by the average of p (1 - p)."""
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
        """Mean loss and its gradient in weight and bias, with features centred on the fly."""
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
    """A Cholesky factor of the matrix, with as little added to its diagonal as it needs: it has the rounding of float32."""
    jitter = 1e-7 * float(matrix.diagonal().mean()) + torch.finfo(torch.float64).tiny
    while True:
        matrix.diagonal().add_(jitter)
        factor, failed = torch.linalg.cholesky_ex(matrix)
        if not failed:
            return factor
        if not math.isfinite(jitter) or not bool(torch.isfinite(matrix).all()):
            raise DataError(
                "the features are not finite, so no classifier can be fitted; look at the images and the filters"
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
            centred = part.double() - self.mean
            covariance += centred.T @ centred
            cross += centred.T @ (some - self.target_mean)
        self.values, self.vectors = torch.linalg.eigh(covariance / len(x))
        self.cross = self.vectors.T @ cross / len(x)
        self.total = float((targets - self.target_mean).square().sum() / len(x))
        self.precision = 0.0  # it is exact

    def solve(self, lam: float, start: Solution | None) -> tuple[Tensor, Tensor, float, int]:
        noise = len(self.values) * torch.finfo(torch.float64).eps * self.values[-1]
        shrink = 1 / (self.values.clamp(min=noise) + lam)
        weight = self.vectors @ (shrink[:, None] * self.cross)
        bias = self.target_mean - self.mean @ weight
        objective = self.total - float((shrink[:, None] * self.cross.square()).sum())
        return weight.to(self.dtype), bias.to(self.dtype), objective, 1
