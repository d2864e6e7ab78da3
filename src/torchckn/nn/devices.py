"""What depends on the device, in one place: dtypes, methods, layouts, and how often the host may wait for it.

Read next: :mod:`torchckn.nn.checks`.
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

from ..choices import Precision, RootMethod

#: filters up to which an accelerator computes roots in float64, which takes it no longer than float32
WIDE_UP_TO = 32
#: Iterations of conjugate gradients on an accelerator, where asking after each one whether it was the last would take longer than
#: the iteration. What has converged before does not change any more.
CG_ITERATIONS = 200


def wide_dtype(device: torch.device) -> torch.dtype:
    """The dtype of decompositions: float64 if the device supports it."""
    return torch.float32 if device.type == "mps" else torch.float64


def choose_method(device: torch.device) -> RootMethod:
    """The method of the inverse square root that ``method="auto"`` uses on this device.

    On a CPU the closed form is the most accurate and the fastest (``make bench`` prints the comparison). On an accelerator,
    eigendecompositions are slow, the host waits for each of them to ask whether it has succeeded, and products are fast.

    In training, Newton iterations do not start from the root of the step before, although the filters have moved little. They
    would end elsewhere: every iterate has to commute with the matrix, and the root of another matrix does not. With 128
    filters, each moved by 2^-6, three iterations converge, but to a matrix T with |T M T - I| = 0.08; from the usual start, ten
    reach 1e-6. (Iterations for A M A, with A the former root, take seven, and give a root that is not the symmetric one.)
    """
    return "eigh" if device.type == "cpu" else "newton"


def computes_wide(method: str, device: torch.device, size: int) -> bool:
    """Whether the root of this many filters, and their Gram matrix, are computed in :func:`wide_dtype`."""
    return method == "eigh" or (device.type != "cpu" and size <= WIDE_UP_TO)


_AUTOCAST: dict[Precision, torch.dtype] = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[None]:
    """Within this context convolutions and kernel maps are computed in this precision."""
    return torch.autocast(device.type, _AUTOCAST[precision]) if precision in _AUTOCAST else nullcontext()


def is_mixed(device: torch.device) -> bool:
    """Whether :func:`autocast` is active."""
    return device.type != "meta" and torch.is_autocast_enabled(device.type)  # which knows no meta device


def precision_of_convolutions(device: torch.device) -> torch.dtype | None:
    """The dtype that :func:`autocast` asks for; None if it is not active."""
    return torch.get_autocast_dtype(device.type) if is_mixed(device) else None


def own_precision(device: torch.device) -> AbstractContextManager[None]:
    """Within this context everything is computed in the dtype of its tensors, whatever :func:`autocast` says around it."""
    return torch.autocast(device.type, enabled=False) if is_mixed(device) else nullcontext()


def prefers_channels_last(device: torch.device) -> bool:
    """Whether elementwise operations are fastest with the channels last."""
    return device.type == "cpu"


@functools.cache
def prefers_convolutions(device: torch.device) -> bool:
    """Whether a product of wide matrices is faster as a 1x1 convolution.

    It is, by half, on processors of AMD with AVX-512: there MKL, torch's library for products, uses half of a register.
    """
    if device.type != "cpu" or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False


def reads_are_free(device: torch.device) -> bool:
    """Whether Python can look at a value without waiting for a queue of operations."""
    return device.type == "cpu"


def sums_in_units(device: torch.device) -> bool:
    """Whether sums over images are computed in small units (:mod:`torchckn.nn.sums`): many small products are slow on a GPU."""
    return device.type == "cpu"
