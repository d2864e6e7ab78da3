"""What depends on the device, in one place: dtypes, methods, layouts, and how often the host may wait for it.

Read next: :mod:`torchckn.nn.checks`.
"""

from __future__ import annotations

import torch

from ..choices import RootMethod

#: filters up to which ``method="auto"`` takes the closed form on an accelerator
CLOSED_FORM_UP_TO = 32
#: Iterations of conjugate gradients on an accelerator, where asking after each one whether it was the last would take longer than
#: the iteration. What has converged before does not change any more.
CG_ITERATIONS = 200


def wide_dtype(device: torch.device) -> torch.dtype:
    """The dtype of decompositions: float64 if the device supports it."""
    return torch.float32 if device.type == "mps" else torch.float64


def choose_method(device: torch.device, size: int) -> RootMethod:
    """The method of the inverse square root that ``method="auto"`` uses on this device.

    On a CPU the closed form is the most accurate and the fastest (``make bench`` prints the comparison). On an
    accelerator, eigendecompositions of more than a few dozen rows are slow and matrix products are fast.

    In training, Newton iterations do not start from the root of the step before, although the filters have moved little: there
    is little to gain, because on two CPU cores an eigendecomposition of 512 to 1,024 rows takes as long as 6 to 14 products, and
    the derivative needs it.
    """
    return "eigh" if device.type == "cpu" or size <= CLOSED_FORM_UP_TO else "newton"


def prefers_channels_last(device: torch.device) -> bool:
    """Whether elementwise operations are fastest with the channels last."""
    return device.type == "cpu"


def reads_are_free(device: torch.device) -> bool:
    """Whether Python can look at a value without waiting for a queue of operations."""
    return device.type == "cpu"
