"""How accurate the gradient through the inverse square root is in float32, method by method."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from torchckn.kernels import RBFSphere
from torchckn.nn.functional import projection
from torchckn.nn.invsqrt import Method

Filters = Literal["random", "nearly parallel", "duplicated"]
KINDS: tuple[Filters, ...] = ("random", "nearly parallel", "duplicated")
METHODS: tuple[Method, ...] = ("eigh", "newton", "svd")
COUNTS = (8, 32, 128, 512)


def make_filters(kind: Filters, count: int, generator: torch.Generator, size: int = 75) -> Tensor:
    """Unit rows (count, size), float64: independent, within 1e-3 of one another in groups of four, or equal in pairs."""
    rows = torch.randn(count, size, generator=generator, dtype=torch.float64)
    if kind == "nearly parallel":
        rows = rows[::4].repeat_interleave(4, 0)[:count] + 1e-3 * torch.randn(
            rows.shape, generator=generator, dtype=rows.dtype
        )
    elif kind == "duplicated":
        rows = rows[::2].repeat_interleave(2, 0)[:count]
    return rows / rows.norm(dim=1, keepdim=True)


def gradient_error(kind: Filters, count: int, method: Method, seed: int = 0) -> float:
    """Relative error, in float32, of the gradient of <A(W), G> in W; against the closed form in float64."""
    generator = torch.Generator().manual_seed(seed)
    weight = make_filters(kind, count, generator).float()  # both precisions see the same filters
    cotangent = torch.randn(count, count, generator=generator).float()
    gradients = []
    runs: list[tuple[torch.dtype, Method]] = [(torch.float64, "eigh"), (torch.float32, method)]
    for dtype, by in runs:
        w = weight.to(dtype).requires_grad_()
        root = projection(w, RBFSphere(0.6), 1e-3, by)
        (gradient,) = torch.autograd.grad((root * cotangent.to(dtype)).sum(), w)
        gradients.append(gradient.double())
    exact, approximate = gradients
    return float((approximate - exact).norm() / exact.norm())


def median_error(kind: Filters, count: int, method: Method, seeds: int = 3) -> float:
    """The median of :func:`gradient_error` over seeds; NaN if any of them is."""
    return float(torch.tensor([gradient_error(kind, count, method, seed) for seed in range(seeds)]).median())
