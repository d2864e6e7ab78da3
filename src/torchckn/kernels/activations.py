"""Activations by name, for the kernels that are made of them (:class:`torchckn.kernels.Dual`)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .hermite import Function


def _step(u: Tensor) -> Tensor:
    return (u > 0).to(u.dtype)


def _gelu_tanh(u: Tensor) -> Tensor:
    return F.gelu(u, approximate="tanh")


#: name -> function; the names are those of torch.nn.functional where it has one
ACTIVATIONS: dict[str, Function] = {
    "abs": torch.abs,
    "celu": F.celu,
    "elu": F.elu,
    "erf": torch.erf,
    "gelu": F.gelu,
    "gelu_tanh": _gelu_tanh,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "hardtanh": F.hardtanh,
    "leaky_relu": F.leaky_relu,
    "logsigmoid": F.logsigmoid,
    "mish": F.mish,
    "relu": torch.relu,
    "relu6": F.relu6,
    "selu": F.selu,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "sine": torch.sin,
    "softplus": F.softplus,
    "softsign": F.softsign,
    "square": torch.square,
    "step": _step,
    "tanh": torch.tanh,
}
