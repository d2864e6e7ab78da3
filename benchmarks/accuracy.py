"""Relative error of the float32 gradient through the inverse square root, for each method."""

from __future__ import annotations

from typing import Literal

import numpy as np
import scipy.linalg
import torch
from torch import Tensor

from torchckn.choices import RootMethod
from torchckn.kernels import RBFSphere
from torchckn.nn.functional import projection

Filters = Literal["random", "nearly parallel", "duplicated"]
KINDS: tuple[Filters, ...] = ("random", "nearly parallel", "duplicated")
METHODS: tuple[RootMethod, ...] = ("eigh", "newton", "svd")
COUNTS = (8, 32, 128, 512)
KERNEL = RBFSphere(0.6)
EPS = 1e-3


def make_filters(kind: Filters, count: int, generator: torch.Generator, size: int = 75) -> Tensor:
    """Filters of unit norm (count, size), float64: independent, in groups of four that differ by 1e-3, or in equal pairs."""
    rows = torch.randn(count, size, generator=generator, dtype=torch.float64)
    if kind == "nearly parallel":
        rows = rows[::4].repeat_interleave(4, 0)[:count] + 1e-3 * torch.randn(
            rows.shape, generator=generator, dtype=rows.dtype
        )
    elif kind == "duplicated":
        rows = rows[::2].repeat_interleave(2, 0)[:count]
    return rows / rows.norm(dim=1, keepdim=True)


def gradient_error(kind: Filters, count: int, method: RootMethod, seed: int = 0) -> float:
    """Relative error of the float32 gradient of <A(W), G> with respect to W, against :func:`reference_gradient`."""
    generator = torch.Generator().manual_seed(seed)
    weight = make_filters(kind, count, generator).float()  # the same filters in both precisions
    cotangent = torch.randn(count, count, generator=generator).float()
    w = weight.clone().requires_grad_()
    (gradient,) = torch.autograd.grad((projection(w, KERNEL, EPS, method) * cotangent).sum(), w)
    exact = reference_gradient(weight.double(), cotangent.double())
    return float((gradient.double() - exact).norm() / exact.norm())


def reference_gradient(weight: Tensor, cotangent: Tensor) -> Tensor:
    """The float64 gradient of <A(W), G> with respect to W, by scipy's matrix square root and Sylvester solver.

    With S = M^(1/2): S dS + dS S = dM and dA = -A dS A, so the gradient with respect to M solves S X + X S = -A G A.
    """
    w = weight.clone().requires_grad_()
    gram = KERNEL.kappa(w @ w.T) + EPS * torch.eye(len(w), dtype=w.dtype)
    square_root = scipy.linalg.sqrtm(gram.detach().numpy()).real
    root = np.linalg.inv(square_root)
    symmetric = (cotangent + cotangent.T).numpy() / 2
    solution = scipy.linalg.solve_sylvester(square_root, square_root, -root @ symmetric @ root)
    (gradient,) = torch.autograd.grad(gram, w, torch.from_numpy(solution))
    return gradient


def median_error(kind: Filters, count: int, method: RootMethod, seeds: int = 3) -> float:
    """The median of :func:`gradient_error` over seeds; NaN if one of them is NaN."""
    return float(torch.tensor([gradient_error(kind, count, method, seed) for seed in range(seeds)]).median())
