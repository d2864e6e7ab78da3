r"""Convolutions W E of the compiled layer, and their gradients: by torch, or by our own code where that is faster.

Libraries for convolutions are made for many channels. For images of one channel, and for few channels and filters, the loops in
``native/conv.h`` are up to eight times faster; for the gradients of wide filters, those in ``native/conv.cpp`` are, too, by less.
The numbers are the same up to rounding.

Read first: :mod:`torchckn.nn.native`. Read next: :mod:`torchckn.nn.fused`.
"""

from __future__ import annotations

import ctypes
import functools
from typing import NamedTuple

import torch
from torch import Tensor

from . import native
from .geometry import Pair, conv_output_size

#: products of channels and filters up to which our own code is faster on any processor
FEW = 64
#: channels, and filters, up to which it is with registers of 8 or 16 numbers (AVX2, AVX-512), if the rows of outputs are not too
#: short: as fast as libraries, and what follows the convolution is in the same pass
FEW_WIDE, SHORT = 32, 4
#: For the gradients of wide filters: the number of channels must be a multiple of BLOCK, and from LONG positions of a map on, our
#: own code is faster with AVX2. With AVX-512 it was not measured.
BLOCK, LONG = 16, 4
#: numbers of a patch up to which responses are not kept for the backward pass
CHEAP = 32
#: filters are in blocks of this many
LANES = 8


class Geometry(NamedTuple):
    """Of a convolution."""

    stride: Pair
    padding: Pair
    dilation: Pair


class Patches(NamedTuple):
    """Where the patches of images are, and how native code is told."""

    size: Pair
    geometry: Geometry
    output: Pair
    numbers: ctypes.Array[ctypes.c_long]

    @property
    def are_pixels(self) -> bool:
        """Whether each pixel is a patch."""
        return (self.size, self.geometry.stride, self.geometry.padding) == ((1, 1), (1, 1), (0, 0))

    @property
    def are_images(self) -> bool:
        """Whether each image is one patch: then convolutions are products of matrices."""
        return self.output == (1, 1) and self.size == (self.numbers[1], self.numbers[2]) and self.geometry.padding == (0, 0)


@functools.lru_cache(256)
def patches_of(shape: torch.Size, size: Pair, geometry: Geometry) -> Patches:
    """The patches of images of this shape, (N, C, H, W)."""
    images, channels, height, width = shape
    output = conv_output_size((height, width), size, *geometry)
    numbers = (images, height, width, channels, *output, *size, *(n for pair in geometry for n in pair))
    return Patches(size, geometry, output, integers(*numbers))


def is_direct(weight: Tensor, patches: Patches) -> bool:
    """Whether our own code is faster with these filters (f, C, kh, kw), and can have their gradient."""
    if len(weight) % LANES:
        return False
    if native.register_width() and patches.output[1] >= SHORT and max(weight.shape[:2]) <= FEW_WIDE:
        return True
    return weight.shape[1] == 1 or _is_narrow(weight)


def is_cheap(weight: Tensor) -> bool:
    """Whether our own code computes responses to these filters again in less time than it takes to write and read them."""
    return weight[0].numel() <= CHEAP


def convolution_gradients(
    of_responses: Tensor, x: Tensor, weight: Tensor, geometry: Geometry, wanted: tuple[bool, bool], groups: int = 1
) -> tuple[Tensor, Tensor]:
    """Those of the images and of the filters, by torch; what is not wanted is not computed, and None."""
    of_x, of_weight, _ = torch.ops.aten.convolution_backward(
        of_responses, x, weight, None, *geometry, False, (0, 0), groups, (*wanted, False)
    )
    return of_x, of_weight


def images_are_direct(weight: Tensor, patches: Patches) -> bool:
    """Whether our own code is faster for the gradient of images, and can have it."""
    return len(weight) % LANES == 0 and _is_narrow(weight) and _padding_is_small(patches)


def direct_gradient_of_images(of_responses: Tensor, x: Tensor, weight: Tensor, patches: Patches) -> Tensor:
    """That of images, from that of the responses to filters (f, C, kh, kw); all of them channels last."""
    of_x = torch.empty_like(x)
    buffers = (of_responses.data_ptr(), weight.contiguous().data_ptr(), of_x.data_ptr())
    native.call("convolution_of_x", patches.numbers, *buffers, len(weight))
    return of_x


def filters_are_direct(weight: Tensor, patches: Patches) -> bool:
    """Whether our own code is faster for the gradient of wide filters, and can have it."""
    rows, columns = patches.output
    can = native.register_width() == 8 and weight.shape[1] % BLOCK == 0
    return can and rows * columns >= LONG and patches.size != (1, 1)


def direct_gradient_of_filters(of_responses: Tensor, x: Tensor, weight: Tensor, patches: Patches) -> Tensor:
    """That of wide filters (f, C, kh, kw), in double precision; images and gradient of the responses are channels last."""
    filters, channels, *size = weight.shape
    of_weight = x.new_zeros(filters, *size, channels, dtype=torch.float64)
    buffers = (x.data_ptr(), of_responses.data_ptr(), of_weight.data_ptr())
    native.call("convolution_of_filters", patches.numbers, *buffers, filters)
    return of_weight.permute(0, 3, 1, 2)


def _is_narrow(weight: Tensor) -> bool:
    return len(weight) * weight.shape[1] <= FEW


def _padding_is_small(patches: Patches) -> bool:
    spans = (d * (k - 1) for d, k in zip(patches.geometry.dilation, patches.size, strict=True))
    return all(p <= span for p, span in zip(patches.geometry.padding, spans, strict=True))


def dense(x: Tensor) -> Tensor:
    """Channels last, without gaps."""
    last = x.permute(0, 2, 3, 1)
    return x if last.is_contiguous() else last.contiguous().permute(0, 3, 1, 2)


@functools.lru_cache(256)
def integers(*numbers: int) -> ctypes.Array[ctypes.c_long]:
    return (ctypes.c_long * len(numbers))(*numbers)
