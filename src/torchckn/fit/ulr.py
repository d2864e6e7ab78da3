r"""Ultimate layer reversal: the objective of the filters alone, minimized over the classifier.

.. math:: \tilde f(W) = \min_{\eta} \; f(V) + \langle \nabla f(V), \eta \rangle + \tfrac12 \eta^T H \eta
                        + \tfrac{\tau}{2} \|\eta\|^2, \qquad
          f(V) = \frac1n \sum_{i=1}^n \mathcal L(y_i, V x_i(W)) + \lambda \|V\|^2

Paper: section 4.3, Algorithm 3 and appendix "Ultimate Layer Reversal". For the square loss the minimum over the classifier is
exact (proposition "simp_least_square"); for the multinomial loss it is that of the quadratic model above. The bias, a last
column of V and eta, is not penalized by lambda.

At the minimizer the objective is stationary in eta, so the gradient in the features needs no derivative of the solve (envelope
theorem): eta is detached and the model differentiated as it stands. With u = eta x and p the class probabilities of an image,

.. math:: \eta^T H \eta = \frac1n \sum_i \Big( \sum_k p_{ik} u_{ik}^2 - \big( \sum_k p_{ik} u_{ik} \big)^2 \Big)
          + 2 \lambda \|\eta\|^2

so the Hessian is never part of the graph. Read first: :mod:`torchckn.fit.batch_model`. Read next:
:mod:`torchckn.fit.chunks`, a step of any batch size in bounded memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..choices import Hessian, Loss, check_choice
from ..distributed import gathered
from ..distributed import total as over_processes
from ..errors import ConfigError, DataError, NumericalError
from ..network import Total, of_this_process
from ..nn.checks import require
from ..nn.devices import CG_ITERATIONS, reads_are_free
from .batch_model import Batch
from .features import check_labels
from .targets import PLAIN, Aim

#: ``hessian="auto"`` takes the full matrix up to this many rows, conjugate gradients beyond
FULL_UP_TO = 1000


#: the step from the head to the minimum of a batch's model, with the weight tau of the proximal term
Solver = Callable[["Batch", float], Tensor]


class Reduced(NamedTuple):
    objective: Tensor
    """the reduced objective, differentiable in the features"""
    eta: Tensor
    """the step from the head to its minimizer: (classes, d + 1), the last column for the bias; (classes, d) without one"""


def reduced_objective(
    features: Tensor,
    targets: Tensor,
    head: nn.Linear,
    lam: float,
    tau: float = 2**-5,
    loss: Loss = "multinomial",
    hessian: Hessian = "auto",
    *,
    total: Total = of_this_process,
    solver: Solver | None = None,
    images: float | None = None,
    aim: Aim = PLAIN,
) -> Reduced:
    """The objective of a batch, minimized over its classifier, and the step to that classifier.

    Args:
        features: (n, d), scaled; from any feature extractor.
        targets: (n,), integers.
        head: the current classifier; a constant here.
        lam: penalty of the classifier's weights.
        tau: weight of the proximal term that keeps the step where the quadratic model can be trusted (2^-5 for the LeNets of the
            paper, 2^-4 for All-CNN-C). The square loss is minimized exactly and needs none.
        hessian: of the multinomial model: ``"full"`` (Cholesky), ``"diag"`` (its diagonal), ``"cg"`` (conjugate gradients, which
            never form it), or ``"auto"``.
        solver: another solver of the multinomial model, a function of the batch and tau that gives the step.
        aim: class weights and label smoothing.
        total: for several processes, see :data:`torchckn.network.Total`; the objective is then this process's part of a sum.
        images: of the batch in all processes; by default they are counted by ``total``.

    Example:
        >>> features, targets = torch.randn(20, 5, requires_grad=True), torch.arange(20) % 3
        >>> head = nn.Linear(5, 3)
        >>> objective, eta = reduced_objective(features, targets, head, lam=2**-10)
        >>> objective.backward()
        >>> features.grad.shape, eta.shape
        (torch.Size([20, 5]), torch.Size([3, 6]))
    """
    _check(features, targets, head, lam, tau, loss, hessian)
    targets = check_labels(targets, head.out_features)
    batch = Batch(features, targets, head, lam, total, aim, images)
    if loss == "square":
        eta = _square_minimizer(batch) - batch.classifier
        return Reduced(batch.square_loss(batch.classifier + eta) + batch.penalty(batch.classifier + eta), eta)
    if hessian == "auto":
        hessian = "full" if batch.classifier.numel() <= FULL_UP_TO else "cg"
    with torch.no_grad():
        eta = (solver or _SOLVERS[hessian])(batch, tau)
    proximal = batch.share * tau / 2 * eta.square().sum()
    return Reduced(batch.model(eta, diagonal=hessian == "diag") + proximal, eta)


@torch.no_grad()
def step_head(head: nn.Linear, eta: Tensor) -> None:
    """Take the step eta: ``head`` becomes the classifier that minimizes the model."""
    head.weight.add_(eta[:, : head.in_features])
    if head.bias is not None:
        head.bias.add_(eta[:, -1])


def _check(features: Tensor, targets: Tensor, head: nn.Linear, lam: float, tau: float, loss: str, hessian: str) -> None:
    if features.ndim != 2 or features.shape[1] != head.in_features or len(features) != len(targets) or not len(features):
        raise DataError(
            f"reduced_objective expected features (n, {head.in_features}) and n targets, n >= 1, got "
            f"{tuple(features.shape)} and {tuple(targets.shape)}"
        )
    if not lam >= 0 or not tau >= 0:
        raise ConfigError(f"lam and tau expect numbers >= 0, got {lam!r} and {tau!r}")
    check_choice("loss", loss, Loss)
    check_choice("hessian", hessian, Hessian)


def _full(batch: Batch, tau: float) -> Tensor:
    gradient, matrix = batch.gradient_and_hessian()
    matrix.diagonal().add_(tau)
    # Scores do not change their probabilities if the same is added for every class. Where nothing else holds such a shift
    # back (the bias, with tau = 0), this does; the gradient has no part in it.
    classes, size = batch.classifier.shape
    free = batch.curvature_of_penalty + tau == 0
    blocks = matrix.view(classes, size, classes, size).diagonal(dim1=1, dim2=3)  # (K, K, d + 1)
    blocks += free / classes
    factor, failed = torch.linalg.cholesky_ex(matrix)
    require(
        failed == 0,
        lambda: NumericalError(
            "the Hessian of the batch is singular or not finite: the classifier has no unique minimum on it; "
            "use tau > 0 (2**-5 is usual), a larger lam, or a smaller learning rate if the features have become NaN"
        ),
    )
    return -torch.cholesky_solve(gradient.flatten()[:, None], factor).view_as(batch.classifier)


def diagonal_step(batch: Batch, tau: float) -> Tensor:
    gradient, diagonal = batch.gradient_and_diagonal()
    return -gradient / (diagonal + tau).clamp(min=torch.finfo(batch.x.dtype).tiny)


def _conjugate_gradients(batch: Batch, tau: float) -> Tensor:
    """Preconditioned by the diagonal, up to a residual of rounding's size."""
    tolerance = 2**11 * torch.finfo(batch.dtype).eps  # 2e-4 in single precision, 5e-13 in double
    gradient, diagonal = batch.gradient_and_diagonal()
    scale = (diagonal + tau).clamp(min=torch.finfo(batch.x.dtype).tiny)
    eta = torch.zeros_like(batch.classifier)
    residual = -gradient
    direction = residual / scale
    size = (residual * direction).sum()
    aim = tolerance**2 * size
    reads = reads_are_free(eta.device)
    for _ in range(10 * eta.numel() if reads else CG_ITERATIONS):
        running = size > aim  # false for NaN
        if reads and not bool(running):
            break
        image = batch.product(direction) + tau * direction
        # Without reads the loop goes on when the minimum is found: then nothing moves any more.
        length = torch.where(running, size / (direction * image).sum(), 0)
        eta = eta + length * direction
        residual = residual - length * image
        before, scaled = size, residual / scale
        size = torch.where(running, (residual * scaled).sum(), size)
        direction = torch.where(running, scaled + (size / before) * direction, direction)
    require(
        size <= aim,
        lambda: NumericalError(
            "conjugate gradients did not find the minimum of the batch's classifier; use tau > 0 (2**-5 is usual), a larger "
            "lam, or a smaller learning rate if the features have become NaN"
        ),
    )
    return eta


_SOLVERS: dict[str, Solver] = {
    "full": _full,
    "diag": diagonal_step,
    "cg": _conjugate_gradients,
}


@torch.no_grad()
def _square_minimizer(batch: Batch) -> Tensor:
    """The classifier of least penalized squares: (K, d + 1); by a factorization of the smaller of n and d."""
    x, y, n, weights = batch.x, batch.targets, batch.images, batch.weights
    x_mean, y_mean = x.new_zeros(x.shape[1]), y.new_zeros(y.shape[1])
    if batch.has_bias:
        x = x[:, :-1]
        all_weights = n if weights is None else batch.total(weights.sum())
        x_mean, y_mean = (part / all_weights for part in batch.totals(*(batch.weighted(part).sum(0) for part in (x, y))))
        x, y = x - x_mean, y - y_mean
    if weights is not None:
        x, y = weights.sqrt() * x, weights.sqrt() * y
    images = len(x) if batch.total is of_this_process else float(n)
    if images < x.shape[1] and batch.total in (of_this_process, over_processes):
        x, y = gathered(x), gathered(y)  # the images are the smaller side, and every process solves for all of them
        weight = x.T @ torch.cholesky_solve(y, _ridge_factor(x @ x.T, n * batch.lam))
    else:
        gram, products = batch.totals(x.T @ x, x.T @ y)
        weight = torch.cholesky_solve(products, _ridge_factor(gram, n * batch.lam))
    if not batch.has_bias:
        return weight.T
    bias = y_mean - x_mean @ weight
    return torch.cat([weight, bias[None]]).T


def _ridge_factor(gram: Tensor, ridge: Tensor) -> Tensor:
    gram.diagonal().add_(ridge)
    factor, failed = torch.linalg.cholesky_ex(gram)
    require(
        failed == 0,
        lambda: NumericalError(
            "the classifier of least squares is not unique on this batch, or the features are not finite; use lam > 0"
        ),
    )
    return factor
