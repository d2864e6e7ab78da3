"""The kernels that all contract tests run on. To test a new kernel, add it to ``KERNELS``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from torchckn import kernels

#: tolerances for results that are exact up to rounding, by dtype
EXACT = {torch.float64: 1e-10, torch.float32: 2e-4}


@dataclass(frozen=True)
class Case:
    build: Callable[[], kernels.Kernel]
    name: str
    arguments: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.name}{tuple(self.arguments.values())}"


KERNELS = [
    Case(kernels.Linear, "Linear", {}),
    Case(lambda: kernels.RBFSphere(0.6), "RBFSphere", {"sigma": 0.6}),
    Case(lambda: kernels.RBFSphere(0.6, trainable=True), "RBFSphere", {"sigma": 0.6}),
    Case(lambda: kernels.RBFSphere(0.1), "RBFSphere", {"sigma": 0.1}),  # exp(1 / sigma^2) overflows float32
    Case(lambda: kernels.ArcCosine(0), "ArcCosine", {"order": 0}),
    Case(lambda: kernels.ArcCosine(1), "ArcCosine", {"order": 1}),
    Case(lambda: kernels.ArcCosine(2), "ArcCosine", {"order": 2}),
    Case(lambda: kernels.Polynomial(2), "Polynomial", {"degree": 2, "offset": 0.0}),
    Case(lambda: kernels.Polynomial(3, offset=0.5), "Polynomial", {"degree": 3, "offset": 0.5}),
    Case(lambda: kernels.Matern(0.5, 0.6), "Matern", {"nu": 0.5, "sigma": 0.6}),
    Case(lambda: kernels.Matern(1.5, 0.6), "Matern", {"nu": 1.5, "sigma": 0.6}),
    Case(lambda: kernels.Matern(2.5, 1.2), "Matern", {"nu": 2.5, "sigma": 1.2}),
    Case(lambda: kernels.Matern(4.5, 0.8), "Matern", {"nu": 4.5, "sigma": 0.8}),
    Case(lambda: dual("erf", 0.5), "Dual", {"activation": "erf", "scale": 0.5, "degree": 1}),
    Case(lambda: dual("sine", 2.0), "Dual", {"activation": "sine", "scale": 2.0, "degree": 0}),
    Case(lambda: dual("gelu", 0.8), "Dual", {"activation": "gelu", "scale": 0.8, "degree": 1}),
]

every_kernel = pytest.mark.parametrize("case", KERNELS, ids=str)


def dual(activation: str, scale: float) -> kernels.Dual:
    """With all powers that make a difference in float64."""
    return kernels.Dual(activation, scale, tolerance=1e-14)


#: kernels whose derivative is unbounded at t = 1 (and, for ArcCosine(0), at t = -1)
ROUGH = {("ArcCosine", 0), ("Matern", 0.5)}


def is_rough(case: Case) -> bool:
    return (case.name, case.arguments.get("order", case.arguments.get("nu"))) in ROUGH


def unit_rows(*shape: int, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    rows = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return (rows / rows.flatten(1).norm(dim=1).reshape(-1, *[1] * (len(shape) - 1))).to(dtype)
