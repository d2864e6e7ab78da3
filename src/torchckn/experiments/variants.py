"""What the library does not do, and experiments must: slips to measure, another number of Newton iterations.

A slip of the paper, or of the code released with it, is one function put in the place of the right one, while a cell runs in a
process of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from ..errors import unknown_name
from ..fit import methods, ulr
from ..nn import functional, whitening
from ..nn.invsqrt import inverse_sqrt


def _opposite_diagonal(batch: ulr._Batch, tau: float) -> Tensor:
    """The step of the diagonal model with its sign reversed."""
    return -ulr._diagonal(batch, tau)


def _without_penalty(self: methods.SGO, features: Tensor, labels: Tensor) -> tuple[Tensor, float]:
    """The loss alone, where ultimate layer reversal has loss and penalty."""
    scores = self.net.head(self.net.scaling(features))
    return self._loss(scores, labels), methods._accuracy(scores, labels)


def _fourth_root(covariance: Tensor, method: Any) -> Tensor:
    """C^(-1/4) instead of C^(-1/2): patches that are whitened half-way."""
    values, vectors = torch.linalg.eigh(covariance)
    return (vectors * values.pow(-0.25)[..., None, :]) @ vectors.mT


_SLIPS: dict[str, Callable[[], Any]] = {
    "none": lambda: mock.patch.dict({}),
    "diagonal-sign": lambda: mock.patch.dict(ulr._SOLVERS, {"diag": _opposite_diagonal}),
    "sgo-without-penalty": lambda: mock.patch.object(methods.SGO, "_objective", _without_penalty),
    "half-whitening": lambda: mock.patch.object(whitening, "inverse_sqrt", _fourth_root),
}


def with_newton_iterations(count: int) -> Any:
    """Within this context layers with ``inverse_sqrt="newton"`` make this many iterations."""
    return mock.patch.object(functional, "inverse_sqrt", functools.partial(inverse_sqrt, iters=count))


@contextmanager
def with_slip(name: str | None) -> Iterator[None]:
    """Within this context the library makes this slip."""
    if name is not None and name not in _SLIPS:
        raise unknown_name("slip", name, _SLIPS)
    with _SLIPS[name or "none"]():
        yield
