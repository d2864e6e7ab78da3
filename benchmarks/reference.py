r"""The paper transcribed plainly, as the baseline of the benchmarks and a second opinion for the tests.

.. math:: F' = (\kappa(W W^T) + \epsilon I)^{-1/2}\; \kappa(W E N^{-1})\, N\, P

Every matrix of equation (ckn_layer) is formed as it is written: patches by ``unfold``, products as matrix products, the
inverse square root by 20 iterations of Algorithm 1, and every derivative by autodiff. Nothing is taken from torchckn.
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
    """A convolutional kernel layer with the RBF kernel on the sphere, matrix by matrix."""

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
