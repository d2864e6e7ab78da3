"""What operations of the ConvNet have become: values of the kernel network, and views of them. Read next: ``assembly.py``."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from ..graph import KernelNode
from ..kernels import Kernel

Layout = Literal["chw", "hwc", "cp", "pc", "unordered"]
"""The order of the ConvNet's axes: c channels, h rows, w columns, p positions; unordered: a vector in an order of its own"""


@dataclass(frozen=True)
class Value:
    """What an operation of the ConvNet has become."""

    node: str
    """the name of the graph's node that gives it; of a pending layer, the name it will have"""
    shape: tuple[int, ...]
    """its shape in the CKN, without the batch, before flattening"""
    pending: KernelNode | None = None
    """the layer that has no kernel yet"""
    flat: bool = False
    """whether the ConvNet has flattened it; the CKN's layers do that by themselves"""
    gaussian: bool = False
    """whether its units are linear ones, so that a nonlinearity on them has a kernel that is known exactly"""
    summed: bool = False
    """whether it is a direct sum, whose channels are not those of the ConvNet"""
    factor: float = 1.0
    """the constant that the ConvNet has multiplied it by; it matters where branches meet"""
    width: int = 0
    """how many channels the ConvNet has there"""
    layout: Layout = "chw"
    """the order of the ConvNet's axes; the CKN has channels, rows, columns"""
    branches: tuple[Value, ...] = ()
    """the values whose channels it has side by side, if it is a concatenation"""
    statistic: bool = False
    """whether it is a norm or variance that the ConvNet divides by, which the CKN leaves out"""
    several: bool = False
    """whether several operations read it"""
    view: View | None = dataclasses.field(default=None, compare=False, repr=False)
    """for a value that only moves and selects numbers: which ones; node and shape are then not known yet"""


@dataclass(frozen=True, eq=False)
class View:
    """Numbers of some values, moved and selected.

    The channels of ``sources``, side by side, are an array (C, H, W); ``labels`` has, for a batch of two images, the place in
    that array of each number of the view, plus C H W in the second image.
    """

    sources: tuple[Value, ...]
    size: tuple[int, int]
    labels: Tensor
    step: Any
    """the step of the operation that made it, which errors are about"""

    @property
    def numbers(self) -> int:
        """How many numbers its sources have for one image."""
        return sum(source.width for source in self.sources) * self.size[0] * self.size[1]


@dataclass(frozen=True)
class Policy:
    """How to translate; see :func:`torchckn.translate`."""

    kernel: Kernel | None = None
    """one kernel for all nonlinear layers; None: the one that matches each activation"""
    linear_kernel: Kernel | None = None
    """the kernel of layers without a nonlinearity; None: the linear one"""
    scale: float = 1.0
    """of pre-activations, for activations that are not homogeneous"""
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    """eps, inverse_sqrt and init of every layer"""
    filters: int | None = None
    """the number of filters of every layer; None: as many as the ConvNet has"""
    width: float = 1.0
    """how many times as many filters every layer has"""

    def filters_for(self, original: int, part: int | None = None) -> int:
        """The number of filters of a layer of ``original`` ones in the ConvNet, or of ``part`` of those."""
        whole = original * self.width if self.filters is None else self.filters
        return max(1, round(whole if part is None else whole * part / original))
