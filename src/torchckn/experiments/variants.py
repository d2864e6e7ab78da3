"""Slips of the paper, or of the code released with it, as arguments of what the library does: their effect is measured.

A slip is either a training step of its own, a subclass of the right one, or another preprocessing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..data import Preprocessing
from ..fit.methods import SGO, ULR, Method
from ..fit.ulr import diagonal_step


class OppositeDiagonal(ULR):
    """Ultimate layer reversal with the diagonal Hessian, its step with the sign reversed."""

    def _model(self) -> dict[str, Any]:
        return super()._model() | {"hessian": "diag", "solver": lambda batch, tau: -diagonal_step(batch, tau)}


class SGOWithoutPenalty(SGO):
    """Gradient steps on the loss alone, where ultimate layer reversal has loss and L2 penalty."""

    penalized = False


_METHODS: dict[str, type[Method]] = {"diagonal-sign": OppositeDiagonal, "sgo-without-penalty": SGOWithoutPenalty}


def method_class(slip: str | None) -> type[Method] | None:
    """The training step that makes this slip; None: the right one."""
    return _METHODS.get(slip or "none")


def preprocessing(pixels: Preprocessing, slip: str | None) -> Preprocessing:
    """Preprocessing that makes this slip: C^(-1/4) instead of C^(-1/2), so that patches are whitened half-way."""
    return replace(pixels, whiten_root=4) if slip == "half-whitening" else pixels
