r"""A plain transcription of the paper: the baseline of the benchmarks and a reference for the tests.

.. math:: F' = (\kappa(W W^T) + \epsilon I)^{-1/2}\; \kappa(W E N^{-1})\, N\, P

Every matrix of equation (ckn_layer) is formed explicitly: patches by ``unfold``, products as matrix products, the inverse
square root by 20 iterations of Algorithm 1, and all derivatives by autograd. It uses no code of torchckn.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def rbf(t: Tensor, sigma: float) -> Tensor:
    return torch.exp((t - 1) / sigma**2)


def newton_inverse_sqrt(matrix: Tensor, iterations: int = 20) -> Tensor:
    """Algorithm 1."""
    identity = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    norm = torch.linalg.matrix_norm(matrix)
    s, t = matrix / norm, identity
    for _ in range(iterations):
        product = 3 * identity - t @ s
        s, t = s @ product / 2, product @ t / 2
    return t / norm.sqrt()


class ReferenceConv(nn.Module):
    """A convolutional kernel layer with the RBF kernel on the sphere, with explicit matrices."""

    def __init__(
        self, channels: int, filters: int, size: int, stride: int, padding: int, pool: int, sigma: float, eps: float
    ):
        super().__init__()
        weight = torch.randn(filters, channels * size * size)
        self.weight = nn.Parameter(weight / weight.norm(dim=1, keepdim=True))
        self.size, self.stride, self.padding, self.pool = size, stride, padding, pool
        self.sigma, self.eps = sigma, eps

    def forward(self, x: Tensor) -> Tensor:
        patches = F.unfold(x, self.size, padding=self.padding, stride=self.stride)  # E: (N, s, p)
        norms = patches.norm(dim=1, keepdim=True).clamp(min=1e-12)  # the diagonal of N: (N, 1, p)
        gram = rbf(self.weight @ self.weight.T, self.sigma) + self.eps * torch.eye(len(self.weight), dtype=x.dtype)
        features = newton_inverse_sqrt(gram) @ rbf(self.weight @ (patches / norms), self.sigma) * norms
        side = (x.shape[2] + 2 * self.padding - self.size) // self.stride + 1
        features = features.unflatten(2, (side, -1))
        return F.avg_pool2d(features, self.pool) if self.pool > 1 else features


def ulr_step(network: nn.Module, images: Tensor, labels: Tensor, lam: float, tau: float, lr: float) -> None:
    """Algorithm 3: the full Hessian of the model is part of the graph, and gradients are backpropagated through the solve.

    ``network`` has ``features(x)`` and a linear ``head``.
    (The L2 penalty includes the bias here, which does not affect the time.)
    """
    filters = [m.weight for m in network.modules() if isinstance(m, ReferenceConv) and m.weight.requires_grad]
    for weight in filters:
        weight.grad = None
    head: nn.Linear = network.head  # type: ignore[assignment]
    value, _ = _reduced(network.features(images), labels, head, lam, tau)  # type: ignore[operator]
    value.backward()
    with torch.no_grad():
        for weight in filters:
            assert weight.grad is not None
            moved = weight - lr * weight.grad / weight.grad.norm(dim=1, keepdim=True)
            weight.copy_(moved / moved.norm(dim=1, keepdim=True))
        _, eta = _reduced(network.features(images), labels, head, lam, tau)  # type: ignore[operator]
        head.weight.add_(eta[:, :-1])
        head.bias.add_(eta[:, -1])


def _reduced(features: Tensor, labels: Tensor, head: nn.Linear, lam: float, tau: float) -> tuple[Tensor, Tensor]:
    centered = features - features.mean(1, keepdim=True)
    scaled = centered / centered.norm(dim=1).mean()
    x = torch.cat([scaled, torch.ones(len(scaled), 1)], 1)
    classifier = torch.cat([head.weight, head.bias[:, None]], 1).detach()
    p = torch.softmax(x @ classifier.T, 1)
    residual = p - F.one_hot(labels, p.shape[1])
    gradient = (residual.T @ x / len(x) + 2 * lam * classifier).flatten()
    spread = torch.diag_embed(p) - p[:, :, None] * p[:, None]  # (N, K, K)
    hessian = torch.einsum("nkl,ni,nj->kilj", spread, x, x).reshape(len(gradient), -1) / len(x)
    hessian = hessian + (2 * lam + tau) * torch.eye(len(gradient))
    eta = -torch.linalg.solve(hessian, gradient)
    loss = F.cross_entropy(x @ classifier.T, labels) + lam * classifier.square().sum()
    return loss + gradient @ eta + eta @ hessian @ eta / 2, eta.view_as(classifier)
