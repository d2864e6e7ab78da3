r"""Linear classifiers on fixed features, for one L2 penalty after the other.

.. math:: \min_{V, c} \; \frac1n \sum_{i=1}^n \mathcal L(y_i, V^T x_i + c) + \lambda \|V\|_F^2

Paper: section 5.1 (L-BFGS on all features); proposition "simp_least_square" for the square loss. The bias c is not penalised.

Plain L-BFGS is slow here, because features are strongly correlated. So it is preconditioned: it works in coordinates U with
V = L^-T U in which the Hessian is approximately the identity. For few features ``L L^T`` is the Hessian itself; for many, it is
``h C + 2 lambda I`` for each class, where h C is the features' covariance weighted by how uncertain each image is. The features
themselves are never transformed, so another lambda costs another Cholesky factor and nothing else.

Read next: :mod:`torchckn.fit.classifier`, which chooses the penalty.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg.lapack
import scipy.optimize
import torch
import torch.nn.functional as F
from torch import Tensor

from ..distributed import total_of_numbers, totals
from ..errors import DataError
from ..memory import require_memory
from .features import UNIT
from .targets import PLAIN, Aim

#: bytes that OpenBLAS works in: twice what was seen
_OPENBLAS = 2**26


@functools.cache
def _reserve_memory_of_scipy() -> None:
    """What scipy's OpenBLAS works in, once per process: where it does not get that, it does not fail but asks again, forever."""
    require_memory(_OPENBLAS)
    scipy.linalg.lapack.dpotrf(np.eye(2))


#: weights (d, classes) and biases (classes,)
Solution = tuple[Tensor, Tensor]


class Multinomial:
    """Multinomial logistic regression on fixed features."""

    #: weights of all classes up to which the preconditioner is the whole Hessian
    _MOST = 2**10
    #: multiplications that the preconditioner may cost, of all classes and of each class; images beyond that are left out of it
    _BUDGETS = 2.5e8, 2e10
    #: iterations before the preconditioner is computed again
    _ROUNDS = 12, 50

    def __init__(self, x: Tensor, y: Tensor, classes: int, max_iterations: int, aim: Aim = PLAIN) -> None:
        self.x, self.y, self.classes, self.max_iterations, self.is_plain = x, y, classes, max_iterations, aim.is_plain
        self.images = int(total_of_numbers(len(x))[0])
        self.mean = (totals(x.sum(0, dtype=torch.float64))[0] / self.images).to(x.dtype)
        self.targets = aim.targets(y, classes).T.to(x.dtype, memory_format=torch.contiguous_format)  # (classes, n)
        weights = aim.weights(y)
        self.weights = None if weights is None else weights.to(x.dtype)  # (n,)
        #: in one pass over the features
        self.multiplications = self.images * x.shape[1] * classes
        self.is_large = (x.shape[1] + 1) * classes > self._MOST

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
            weight, bias, result = self._descend(weight, bias, lam, min(left, self._ROUNDS[self.is_large]), precision)
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
        """A round of L-BFGS in coordinates in which the curvature at the start is the identity."""
        coordinates = self._coordinates(weight, bias, lam)

        def solution(flat: np.ndarray) -> tuple[Tensor, Tensor]:
            both = coordinates.decode(torch.from_numpy(flat).to(weight.device).view(-1, self.classes))
            return both[:-1], both[-1]

        def value_and_gradient(flat: np.ndarray) -> tuple[float, np.ndarray]:
            weight, bias = solution(flat)
            loss, of_weight, of_bias = self._evaluate(weight, bias)
            loss += lam * float(weight.square().sum())
            of_weight += 2 * lam * weight
            of_flat = coordinates.gradient(torch.cat([of_weight, of_bias[None]]))
            return loss, of_flat.flatten().cpu().numpy()

        _reserve_memory_of_scipy()
        result = scipy.optimize.minimize(
            value_and_gradient,
            coordinates.encode(torch.cat([weight, bias[None]])).flatten().cpu().numpy(),
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
        return *solution(result.x), result

    def _coordinates(self, weight: Tensor, bias: Tensor, lam: float) -> _Coordinates:
        d = self.x.shape[1]
        size = d if self.is_large else (d + 1) * self.classes
        some = min(self.images, max(4 * size, int(self._BUDGETS[self.is_large] / size**2)))
        stride = min(UNIT, max(1, self.images // some))
        x = _every(self.x, stride)
        rows = -(-UNIT // stride)  # of a unit, which one process has: sums over it are the same with any number of processes
        p = torch.softmax(x @ weight.to(x.dtype) + (bias - self.mean.double() @ weight).to(x.dtype), 1)
        x = x - self.mean
        x = x if self.is_large else torch.cat([x, torch.ones_like(x[:, :1])], 1)
        if self.weights is not None:
            x = _every(self.weights, stride).sqrt()[:, None] * x
        return (_OfEachClass if self.is_large else _OfAll)(x, p, lam, rows)

    def _evaluate(self, weight: Tensor, bias: Tensor) -> tuple[float, Tensor, Tensor]:
        """Mean loss and its gradient in weight and bias, with features centered on the fly."""
        mean = self.mean.double()
        shift = (bias - mean @ weight).to(self.x.dtype)
        # (classes, n), and not (n, classes): the same numbers, several times faster for few classes
        log_p = F.log_softmax(torch.addmm(shift[:, None], weight.T.to(self.x.dtype), self.x.T), 0)
        # summed in float64: rounding errors of the loss are what line searches stumble over
        if self.is_plain:
            loss = -log_p.gather(0, self.y[None]).sum(dtype=torch.float64)
        else:
            per_image = (self.targets * log_p).sum(0)
            loss = -(per_image if self.weights is None else self.weights * per_image).sum(dtype=torch.float64)
        residual = log_p.exp_().sub_(self.targets)
        if self.weights is not None:
            residual *= self.weights
        parts = loss, residual.sum(1, dtype=torch.float64), _product_in_units(residual, self.x)
        loss, of_bias, of_weight = (part / self.images for part in totals(*parts))
        return float(loss), of_weight.T - mean[:, None] * of_bias, of_bias


def _every(rows: Tensor, stride: int) -> Tensor:
    """Every so many rows of each unit of images."""
    return rows if stride == 1 else torch.cat([unit[::stride] for unit in rows.split(UNIT)])


def _product_in_units(left: Tensor, right: Tensor) -> Tensor:
    """left right: (a, n) and (n, b) to (a, b); of units of images, which are added up in double precision, in any order."""
    whole = len(right) // UNIT * UNIT
    product = (left[:, whole:] @ right[whole:]).double()
    if whole:
        units = left[:, :whole].unflatten(1, (-1, UNIT)).transpose(0, 1)  # (units, a, UNIT)
        product += torch.bmm(units, right[:whole].unflatten(0, (-1, UNIT))).sum(0, dtype=torch.float64)
    return product


class _Coordinates:
    """V = L^-T U for weights V (d + 1, classes), whose last row is the bias. L L^T: the curvature, of each class or of all."""

    factor: Tensor

    def encode(self, v: Tensor) -> Tensor:
        """U = L^T V"""
        return self._map(v, lambda rows: self.factor.T @ rows)

    def decode(self, u: Tensor) -> Tensor:
        """V = L^-T U"""
        return self._map(u, lambda rows: torch.linalg.solve_triangular(self.factor.T, rows, upper=True))

    def gradient(self, of_v: Tensor) -> Tensor:
        """L^-1 of the gradient in V: the gradient in U."""
        return self._map(of_v, lambda rows: torch.linalg.solve_triangular(self.factor, rows, upper=False))

    def _map(self, v: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        raise NotImplementedError


class _OfEachClass(_Coordinates):
    """The same curvature for every class: the features' covariance weighted by the mean of p (1 - p). The bias has none."""

    def __init__(self, x: Tensor, p: Tensor, lam: float, rows: int = UNIT) -> None:
        uncertain = (p * (1 - p)).mean(1, keepdim=True).clamp_(min=1e-5)
        hessian = torch.zeros(x.shape[1], x.shape[1], dtype=torch.float64, device=x.device)
        for some in (x * uncertain.sqrt()).split(rows):
            hessian += some.T @ some
        hessian = _mean_of_all(hessian, len(x))
        hessian.diagonal().add_(2 * lam)
        self.factor = _factor(hessian)

    def _map(self, v: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        return torch.cat([function(v[:-1]), v[-1:]])


class _OfAll(_Coordinates):
    """The Hessian: sum_i (diag(p_i) - p_i p_i^T) (x) x_i x_i^T / n + 2 lambda, of features x with a last column of ones."""

    def __init__(self, x: Tensor, p: Tensor, lam: float, rows: int = UNIT) -> None:
        d, classes = x.shape[1], p.shape[1]
        hessian = torch.zeros(d, classes, d, classes, dtype=torch.float64, device=x.device)
        for some, weights in zip(x.split(rows), p.split(rows), strict=True):
            outer = (some[:, :, None] * weights[:, None]).flatten(1)  # (rows, d classes)
            hessian -= (outer.T @ outer).view_as(hessian)
            of_class = (outer.T @ some).view(d, classes, d)
            hessian.diagonal(dim1=1, dim2=3).add_(of_class.transpose(1, 2))
        hessian = _mean_of_all(hessian, len(x))
        hessian[:-1].diagonal(dim1=0, dim2=2).diagonal(dim1=0, dim2=1).add_(2 * lam)
        # The same bias for every class changes no probability: a direction without curvature, in which rounding errors would
        # decide. The gradient has no part in it.
        hessian[-1, :, -1] += 1 / classes
        self.factor = _factor(hessian.view(d * classes, d * classes))

    def _map(self, v: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        return function(v.reshape(-1, 1)).view_as(v)


def _mean_of_all(sums: Tensor, images: int) -> Tensor:
    """The mean over the images of all processes, of sums over those that this one has."""
    return totals(sums)[0] / total_of_numbers(images)[0]


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


class Square:
    """Ridge regression onto one-hot labels, in closed form for every penalty (proposition "simp_least_square")."""

    def __init__(self, x: Tensor, y: Tensor, classes: int, max_iterations: int, aim: Aim = PLAIN) -> None:
        self.dtype = x.dtype
        images = total_of_numbers(len(x))[0]
        targets = aim.targets(y, classes).double()
        weights = aim.weights(y)
        if weights is None:
            self.mean, self.target_mean = (part / images for part in totals(x.sum(0, dtype=torch.float64), targets.sum(0)))
        else:
            sums = totals(weights @ x.double(), weights @ targets, weights.sum())
            self.mean, self.target_mean = sums[0] / sums[2], sums[1] / sums[2]
        roots = torch.ones(len(x), 1, dtype=torch.float64, device=x.device) if weights is None else weights.sqrt()[:, None]
        d = x.shape[1]
        covariance = torch.zeros(d, d, dtype=torch.float64, device=x.device)
        cross = torch.zeros(d, classes, dtype=torch.float64, device=x.device)
        for part, some, root in zip(x.split(8192), targets.split(8192), roots.split(8192), strict=True):
            centered = root * (part.double() - self.mean)
            covariance += centered.T @ centered
            cross += centered.T @ (root * (some - self.target_mean))
        covariance, cross = totals(covariance, cross)
        self.values, self.vectors = torch.linalg.eigh(covariance / images)
        self.cross = self.vectors.T @ cross / images
        self.spread = total_of_numbers(float((roots * (targets - self.target_mean)).square().sum()))[0] / images
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
