r"""The layer equation in compiled passes, with its gradient by hand: what :func:`~torchckn.nn.functional.kernel_conv2d` uses
where :mod:`torchckn.nn.native` has the kernel.

.. math:: F' = A \left[ \kappa(R N^{-1})\, N^d \right] P, \qquad R = W E

Paper: equation (ckn_layer), and propositions "1layer_grad" and "2layer_grad_part1" for the gradient: with G the gradient of F'
and V the pooled values, that of A is G V^T, that of the values A^T G, spread over the windows of P; those of R and N^2 follow
elementwise from kappa and kappa'; and x gets its share through the convolution and through the norms of its patches.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..errors import DataError
from ..kernels import Kernel
from . import native
from .geometry import Pair


class Geometry(NamedTuple):
    """Of a convolution."""

    stride: Pair
    padding: Pair
    dilation: Pair


def applies(x: Tensor, kernel: Kernel, groups: int) -> bool:
    """Whether the compiled layer can take these images: ordinary float32 numbers on a CPU, and a kernel that it has."""
    return (
        x.dtype == torch.float32
        and x.device.type == "cpu"
        and type(x) in (Tensor, nn.Parameter)  # not a tensor that only traces
        and x.numel() > 0
        and groups == 1
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
        and kernel.native() is not None
        and native.library() is not None
    )


def window_of(pool: object) -> Pair | None:
    """The window of a pooling that averages windows which do not overlap; None for any other."""
    if pool is None:
        return 1, 1
    if type(pool) is not nn.AvgPool2d or pool.ceil_mode or pool.divisor_override:
        return None
    size, stride, padding = (v if isinstance(v, tuple) else (v, v) for v in (pool.kernel_size, pool.stride, pool.padding))
    return (size[0], size[1]) if size == stride and padding == (0, 0) else None


def fused_conv2d(
    x: Tensor, weight: Tensor | None, root: Tensor | None, kernel: Kernel, geometry: Geometry, window: Pair
) -> Tensor:
    """A times the pooled kernel values, or the pooled values themselves without a root: (N, f, H', W')

    ``weight=None`` stands for filters that are the channels themselves. ``x`` is channels last.
    """
    return _FusedConv.apply(x, weight, root, kernel, geometry, window)


class _FusedConv(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, root: Tensor | None, kernel: Kernel, geometry: Geometry, window: Pair
    ) -> Tensor:
        x = _dense(x)
        responses = x if weight is None else _dense(F.conv2d(x, weight, None, *geometry))
        images, channels, height, width = x.shape
        filters, rows, columns = responses.shape[1:]
        if rows < window[0] or columns < window[1]:
            raise DataError(
                f"pooling expected at least {window[0]}x{window[1]} positions for one of its windows, got {rows}x{columns}; use "
                "larger images or a smaller window"
            )
        size = (1, 1) if weight is None else (weight.shape[2], weight.shape[3])
        patches = _integers(images, height, width, channels, rows, columns, *size, *(n for pair in geometry for n in pair))
        pixels = x.new_empty(images, height, width)
        squares = pixels if _single(size, geometry) else x.new_empty(images, rows, columns)
        native.call("patch_squares", patches, x.data_ptr(), pixels.data_ptr(), squares.data_ptr())
        description = kernel.native()
        assert description is not None
        name, numbers = description
        about = (
            native.KERNELS.index(name),
            (ctypes.c_float * len(numbers))(*numbers),
            _integers(images, rows, columns, filters, *window, kernel.degree),
        )
        root = None if root is None else root.contiguous()
        out = x.new_empty(images, rows // window[0], columns // window[1], filters)
        native.call("layer_forward", *about, responses.data_ptr(), squares.data_ptr(), native.address(root), out.data_ptr())
        ctx.save_for_backward(x, weight, root, responses, squares)
        ctx.about, ctx.patches, ctx.geometry, ctx.size = about, patches, geometry, size
        return out.permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, root, responses, squares = ctx.saved_tensors
        need_x, need_weight = ctx.needs_input_grad[:2]
        grad = _dense(grad)
        of_responses = torch.empty_like(responses)
        of_squares = torch.empty_like(squares) if need_x else None
        of_root = None if root is None else torch.empty_like(root)
        results = (native.address(tensor) for tensor in (of_responses, of_squares, of_root))
        inputs = (native.address(tensor) for tensor in (responses, squares, root, grad))
        native.call("layer_backward", *ctx.about, *inputs, *results)
        of_x: Tensor | None = of_responses
        of_weight = None
        if weight is not None and (need_x or need_weight):
            wanted = (need_x, need_weight, False)
            of_x, of_weight, _ = torch.ops.aten.convolution_backward(
                of_responses, x, weight, None, *ctx.geometry, False, (0, 0), 1, wanted
            )
        if of_squares is None or of_x is None:
            return None, of_weight, of_root, None, None, None
        of_x = _dense(of_x)
        pixels = of_squares if _single(ctx.size, ctx.geometry) else x.new_empty(len(x), *x.shape[2:])
        buffers = (native.address(tensor) for tensor in (x, of_squares, pixels, of_x))
        native.call("patch_squares_backward", ctx.patches, *buffers)
        return of_x, of_weight, of_root, None, None, None


def _single(size: Pair, geometry: Geometry) -> bool:
    """Whether each pixel is a patch, so that their squared norms are the same numbers."""
    return (size, geometry.stride, geometry.padding) == ((1, 1), (1, 1), (0, 0))


def _dense(x: Tensor) -> Tensor:
    """Channels last, without gaps."""
    last = x.permute(0, 2, 3, 1)
    return x if last.is_contiguous() else last.contiguous().permute(0, 3, 1, 2)


def _integers(*numbers: int) -> ctypes.Array[ctypes.c_long]:
    return (ctypes.c_long * len(numbers))(*numbers)
