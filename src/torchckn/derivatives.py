"""Derivatives that are written by hand: first ones only, in backward mode, and nobody gets a wrong one of another kind."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

from .errors import DerivativeError


def is_transformed() -> bool:
    """Within transformations of ``torch.func``, and in forward mode: hand-written derivatives do not know these."""
    return torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def require_plain_autograd(what: str) -> None:
    if is_transformed():
        raise DerivativeError(
            f"{what} expected backward() or torch.autograd.grad, got a transformation of torch.func (grad, vmap, jvp, ...) or "
            "derivatives in forward mode; call torch.autograd.grad, image by image for gradients of single images"
        )


def first_only(backward: Callable[..., Any]) -> Callable[..., Any]:
    """The ``backward`` of a ``torch.autograd.Function``, which refuses to be differentiated itself.

    ``torch.autograd.function.once_differentiable`` raises no error if the incoming gradient is a constant, as that of a loss is:
    second derivatives through the saved tensors would be 0.
    """

    @functools.wraps(backward)
    def checked(ctx: Any, *gradients: Any) -> Any:
        # Gradients are enabled here for `create_graph=True` only. What is compiled has an error of torch's own for it.
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise DerivativeError(
                "expected a first derivative, got create_graph=True, which is for second ones: kernel layers have none; "
                "leave create_graph out, and compute Hessian-vector products by finite differences of gradients"
            )
        return backward(ctx, *gradients)

    return checked
