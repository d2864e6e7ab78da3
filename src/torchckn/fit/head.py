r"""The ultimate layer on all the features: a linear classifier by quasi-Newton, its penalty chosen on validation data.

.. math:: \min_{V, c} \; \frac1n \sum_{i=1}^n \mathcal L(y_i, V^T x_i + c) + \lambda \|V\|_F^2

Paper: section 5.1 (L-BFGS on all features, lambda from 2^-40 to 2^0), Algorithm 2. The bias c is not penalised.

Plain L-BFGS crawls here: features are strongly correlated. So it works in coordinates U with V = L^-T U, where ``L L^T = h C +
2 lambda I``, h C being the features' covariance weighted by how uncertain each image is: about the Hessian's own Cholesky
factor. The features themselves are never transformed, so that another lambda costs another factor and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
import scipy.optimize
import torch
import torch.nn.functional as F
from threadpoolctl import threadpool_limits
from torch import Tensor

from ..errors import ConfigError, DataError, unknown_name
from ..nn.network import CKN
from .features import check_labels, extract_features

Loss = Literal["multinomial", "square"]
Search = Literal["path", "exhaustive"]

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
    """What :func:`fit_head` found. ``curve`` is what it tried, by falling lambda."""

    lam: float
    accuracy: float | None
    """of the chosen classifier on the validation data, before any refit"""
    curve: tuple[LambdaScore, ...]
    refitted: bool

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def fit_head(
    ckn: CKN,
    train_data: Any,
    valid_data: Any = None,
    *,
    loss: Loss = "multinomial",
    lam: float | None = None,
    lambdas: Sequence[float] = LAMBDAS,
    search: Search = "path",
    refit: bool = False,
    max_iterations: int = 1000,
) -> HeadFit:
    """Fit the head of a network, whose filters stay as they are; sets ``ckn.head`` and calibrates ``ckn.scaling``.

    Args:
        train_data, valid_data: images with labels, in any form that :func:`torchckn.data.batches` takes. The scaling of the
            features comes from the training data.
        loss: ``"multinomial"`` or ``"square"``.
        lam: the penalty; by default the one of ``lambdas`` with the best accuracy on the validation data.
        search: ``"path"`` goes from large to small penalties, each from the solution of the last, and stops when accuracy has
            long been falling; ``"exhaustive"`` tries all of them, each from zero, as the paper does.
        refit: fit once more on training and validation data together, with the chosen penalty.
    """
    if loss not in get_args(Loss):
        raise unknown_name("loss", loss, get_args(Loss))
    if search not in get_args(Search):
        raise unknown_name("search", search, get_args(Search))
    if lam is None and valid_data is None:
        raise ConfigError("fit_head chooses lambda on validation data: pass valid_data, or the penalty itself as lam=...")
    train, train_labels = _labelled(ckn, train_data, "train_data")
    valid = None if valid_data is None else _labelled(ckn, valid_data, "valid_data")
    ckn.scaling.calibrate(train)
    raw = [train, *([valid[0]] if valid else [])]
    with torch.no_grad():
        ckn.scaling.eval()
        parts = [ckn.scaling(part) for part in raw]
        ckn.scaling.train(ckn.training)
    labels = [train_labels, *([valid[1]] if valid else [])]
    fitted = fit_classifier(
        parts[0],
        labels[0],
        ckn.head.out_features,
        parts[1] if valid else None,
        labels[1] if valid else None,
        loss=loss,
        lam=lam,
        lambdas=lambdas,
        search=search,
        refit=refit,
        max_iterations=max_iterations,
    )
    weight, bias, result = fitted
    with torch.no_grad():
        ckn.head.weight.copy_(weight.T)
        if ckn.head.bias is not None:
            ckn.head.bias.copy_(bias)
    return result


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
    search: Search = "path",
    refit: bool = False,
    max_iterations: int = 1000,
) -> tuple[Tensor, Tensor, HeadFit]:
    """The classifier V (d, classes), c (classes,) on features x (n, d), and how its penalty was chosen."""
    # scipy's own threads would fight with torch's over the cores, and make small problems a hundred times slower.
    with threadpool_limits(1, user_api="blas"):
        return _fit_classifier(x, y, classes, valid_x, valid_y, loss, lam, lambdas, search, refit, max_iterations)


def _fit_classifier(
    x: Tensor,
    y: Tensor,
    classes: int,
    valid_x: Tensor | None,
    valid_y: Tensor | None,
    loss: Loss,
    lam: float | None,
    lambdas: Sequence[float],
    search: Search,
    refit: bool,
    max_iterations: int,
) -> tuple[Tensor, Tensor, HeadFit]:
    solver = (_Multinomial if loss == "multinomial" else _Square)(x, y, classes, max_iterations)
    curve: list[LambdaScore] = []
    best: tuple[Tensor, Tensor] | None = None
    if lam is None:
        assert valid_x is not None
        assert valid_y is not None
        best_accuracy, lam = -1.0, 0.0
        if search == "path":
            solver.precision = 1e-2  # to tell penalties apart; the chosen one is solved in earnest below
        for candidate in _candidates(lambdas, search, curve):
            start = None if search == "exhaustive" else solver.last
            weight, bias, objective, evaluations = solver.solve(candidate, start)
            accuracy = float(((valid_x @ weight + bias).argmax(1) == valid_y).double().mean())
            curve.append(LambdaScore(candidate, accuracy, objective, evaluations))
            if accuracy > best_accuracy or (accuracy == best_accuracy and candidate > lam):
                best_accuracy, lam, best = accuracy, candidate, (weight, bias)
    if best is None or search == "path":
        solver.precision = 1e-5
        weight, bias, *_ = solver.solve(float(lam), best)
        best = weight, bias
    accuracy_found = None
    if valid_x is not None and valid_y is not None:
        accuracy_found = float(((valid_x @ best[0] + best[1]).argmax(1) == valid_y).double().mean())
        if refit:
            both = type(solver)(torch.cat([x, valid_x]), torch.cat([y, valid_y]), classes, max_iterations)
            weight, bias, *_ = both.solve(float(lam), best)
            best = weight, bias
    ordered = tuple(sorted(curve, key=lambda score: -score.lam))
    return best[0], best[1], HeadFit(float(lam), accuracy_found, ordered, refit and valid_x is not None)


#: the path stops after so many penalties in a row without a better accuracy
_PATIENCE = 4


def _candidates(lambdas: Sequence[float], search: Search, curve: list[LambdaScore]) -> Iterable[float]:
    """Penalties to try, given the scores so far: all; or every other one until accuracy falls, then the best one's neighbours."""
    ordered = sorted({float(value) for value in lambdas}, reverse=True)
    if not ordered or not all(0 <= value < float("inf") for value in ordered):
        raise ConfigError(f"lambdas expects numbers >= 0, at least one, came {list(lambdas)!r}")
    if search == "exhaustive":
        yield from ordered
        return
    for value in ordered[::2]:
        yield value
        scores = [score.accuracy for score in curve]
        if len(scores) - 1 - int(np.argmax(scores)) >= _PATIENCE:
            break
    best = max(curve, key=lambda score: (score.accuracy, score.lam)).lam
    place = ordered.index(best)
    for neighbour in (place - 1, place + 1):
        if 0 <= neighbour < len(ordered):
            yield ordered[neighbour]


Start = tuple[Tensor, Tensor] | None


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
        self.last: Start = None
        #: stop when a round gains less than this share of the objective
        self.precision = 1e-5

    def solve(self, lam: float, start: Start) -> tuple[Tensor, Tensor, float, int]:
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
        self.last = weight, bias
        return weight.to(self.x.dtype), bias.to(self.x.dtype), objective, evaluations

    def _descend(self, weight: Tensor, bias: Tensor, lam: float, iterations: int) -> tuple[Tensor, Tensor, Any]:
        """A round of L-BFGS in coordinates U with V = L^-T U, where L L^T is the curvature at the start."""
        d, classes, device = self.x.shape[1], self.classes, self.x.device
        factor = torch.linalg.cholesky(self._curvature(weight, bias, lam))

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
            options={"maxiter": iterations, "maxfun": 2 * iterations, "ftol": 1e-8, "gtol": 1e-7, "maxcor": 20},
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
        hessian.diagonal().add_(2 * lam + 1e-7 * hessian.diagonal().mean() + torch.finfo(torch.float64).tiny)
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
        self.last: Start = None
        self.precision = 0.0  # it is exact

    def solve(self, lam: float, start: Start) -> tuple[Tensor, Tensor, float, int]:
        noise = len(self.values) * torch.finfo(torch.float64).eps * self.values[-1]
        shrink = 1 / (self.values.clamp(min=noise) + lam)
        weight = self.vectors @ (shrink[:, None] * self.cross)
        bias = self.target_mean - self.mean @ weight
        objective = self.total - float((shrink[:, None] * self.cross.square()).sum())
        return weight.to(self.dtype), bias.to(self.dtype), objective, 1


def _labelled(ckn: CKN, data: Any, what: str) -> tuple[Tensor, Tensor]:
    features, labels = extract_features(ckn, data)
    if labels is None:
        raise DataError(
            f"fit_head needs labels in {what}: pass a pair (images, labels), or a Dataset or DataLoader of such pairs"
        )
    return features, check_labels(labels, ckn.head.out_features).to(features.device)
