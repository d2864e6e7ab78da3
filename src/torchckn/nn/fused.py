r"""The layer equation in compiled passes, with its gradient by hand: what :func:`~torchckn.nn.functional.kernel_conv2d` uses
where :mod:`torchckn.nn.native` has the kernel.

.. math:: F' = A \left[ \kappa(R N^{-1})\, N^d \right] P, \qquad R = W E

Paper: equation (ckn_layer), and propositions "1layer_grad" and "2layer_grad_part1" for the gradient: with G the gradient of F'
and V the pooled values, that of A is G V^T, that of the values A^T G, spread over the windows of P; those of R and N^2 follow
elementwise from kappa and kappa'; and x gets its share through the convolution and through the norms of its patches.

A trained bandwidth (appendix "Bandwidths derivatives") needs no pass of its own. With g the gradient of the values
v = kappa(t) n^d, the sum of g v is that of G F', and the sum of g t kappa'(t) n^d is d times this sum, minus twice the sum of n^2
times its gradient, which is computed anyway.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch
from torch import Tensor, nn

from ..derivatives import first_only
from ..errors import DataError
from ..kernels import Kernel
from ..tracing import is_recorded
from . import native
from .convolution import convolution, gradient_of_filters, gradient_of_images
from .devices import precision_of_convolutions, wide_dtype
from .direct import Geometry, Patches, dense, integers, is_cheap, is_direct, patches_of
from .geometry import Pair
from .pooling import GaussianPool2d
from .sums import Sink, add_or_return, current_unit, sink_of
from .walk import is_trained, must_be_called


def applies(x: Tensor, kernel: Kernel, groups: int) -> bool:
    """Whether the compiled layer can take these images: ordinary float32 numbers on a CPU, and a kernel that it has.

    In mixed precision, too: its convolutions by a library are then in the lower precision, all else is as it was.
    """
    return (
        x.dtype == torch.float32
        and x.device.type == "cpu"
        and type(x) in (Tensor, nn.Parameter)  # not a tensor that only traces
        and x.numel() > 0
        and groups == 1
        and not is_recorded()
        and kernel.native() is not None
        and (not is_trained(kernel) or kernel.trained_number() is not None)
        and native.library() is not None
    )


def window_of(pool: object, size: Pair) -> Pair | None:
    """The window of a pooling that averages windows which do not overlap, of maps of this size; None for any other."""
    if pool is None:
        return 1, 1
    if type(pool) is nn.AdaptiveAvgPool2d:
        return size if pool.output_size in (1, (1, 1)) and not must_be_called(pool) else None
    if type(pool) is not nn.AvgPool2d or pool.ceil_mode or pool.divisor_override or must_be_called(pool):
        return None
    given = (pool.kernel_size, pool.stride, pool.padding)
    window, stride, padding = (tuple(v) if isinstance(v, (tuple, list)) else (v, v) for v in given)
    return (window[0], window[1]) if window == stride and padding == (0, 0) else None


def weighted_average(pool: object, weight: Tensor | None, patches: Patches) -> GaussianPool2d | None:
    """The pooling, if it can be in the same pass as the kernel values of wide layers; None for any other."""
    if type(pool) is not GaussianPool2d or must_be_called(pool) or (weight is not None and is_direct(weight, patches)):
        return None
    return pool


def require_window(size: Pair, window: Pair) -> None:
    """An error unless a map of this size has at least one window."""
    if size[0] < window[0] or size[1] < window[1]:
        raise DataError(
            f"pooling expected at least {window[0]}x{window[1]} positions for one of its windows, got {size[0]}x{size[1]}; use "
            "larger images or a smaller window"
        )


def _require_match(x: Tensor, weight: Tensor | None, root: Tensor | None, geometry: Geometry) -> None:
    """An error unless filters and root are of the size and type of the images: compiled code would read beyond their end."""
    filters = x.shape[1] if weight is None else len(weight)
    if weight is None and (geometry.stride, geometry.padding) != ((1, 1), (0, 0)):
        raise DataError(f"the identity expected no stride and no padding, got {geometry}; pass filters")
    if weight is not None and (weight.ndim != 4 or weight.shape[1] != x.shape[1] or not _is_like(weight, x)):
        raise DataError(
            f"kernel_conv2d expected filters (f, {x.shape[1]}, kh, kw) of {x.dtype} for images {tuple(x.shape)}, got "
            f"{tuple(weight.shape)} of {weight.dtype} on {weight.device}; use filters for these channels, and weight.to(x)"
        )
    if root is not None and (root.shape != (filters, filters) or not _is_like(root, x)):
        raise DataError(
            f"kernel_conv2d expected a root ({filters}, {filters}) of {x.dtype}, got {tuple(root.shape)} of {root.dtype} on "
            f"{root.device}; use the root of these filters, and root.to(x)"
        )


def _is_like(tensor: Tensor, x: Tensor) -> bool:
    return tensor.dtype == x.dtype and tensor.device == x.device


def fused_conv2d(
    x: Tensor,
    weight: Tensor | None,
    root: Tensor | None,
    kernel: Kernel,
    geometry: Geometry,
    window: Pair | GaussianPool2d,
    uniform: bool = False,
) -> Tensor:
    """A times the pooled kernel values, or the pooled values themselves without a root: (N, f, H', W')

    ``weight=None`` stands for filters that are the channels themselves. ``x`` is channels last. A ``uniform`` root has one number
    on its diagonal and another beside it, so that A v = a v + b sum(v); it has no gradient. ``window``: of a pooling with equal
    weights; or a pooling with others (:func:`weighted_average`), without a root.
    """
    assert root is None or isinstance(window, tuple)
    _require_match(x, weight, root, geometry)
    if torch.is_grad_enabled():
        sinks = sink_of(weight), sink_of(root)
        return _FusedConv.apply(x, weight, root, kernel.trained_number(), kernel, geometry, window, uniform, sinks)
    return _forward(None, x, weight, root, None, kernel, geometry, window, uniform)


def _forward(
    ctx: Any,
    x: Tensor,
    weight: Tensor | None,
    root: Tensor | None,
    number: Tensor | None,
    kernel: Kernel,
    geometry: Geometry,
    window: Pair | GaussianPool2d,
    uniform: bool,
    sinks: tuple[Sink | None, Sink | None] = (None, None),
) -> Tensor:
    """The layer; what its gradient needs is put into ``ctx``, if there is one.

    ``number``: the kernel's, if it is trained. ``sinks``: where the gradients of filters and root go; None: to autograd.
    """
    x = dense(x)
    patches = patches_of(x.shape, (1, 1) if weight is None else (weight.shape[2], weight.shape[3]), geometry)
    (rows, columns), filters = patches.output, x.shape[1] if weight is None else len(weight)
    average: tuple[object, ...] = ()
    if isinstance(window, GaussianPool2d):
        output = window.positions(rows), window.positions(columns)
        about_window = integers(window.kernel_size, window.stride, window.padding, *output)
        average, window = (about_window, floats(*window.window().tolist())), (1, 1)
    else:
        require_window((rows, columns), window)
        output = rows // window[0], columns // window[1]
    pixels = x.new_empty(len(x), *x.shape[2:])
    squares = pixels if patches.are_pixels else x.new_empty(len(x), rows, columns)
    description = kernel.native()
    assert description is not None
    name, numbers = description
    shape = integers(len(x), rows, columns, filters, *window, kernel.degree, uniform)
    kind, about = native.KERNELS.index(name), (floats(*numbers), shape)
    norms_cancel = kind == native.LINEAR
    root = None if root is None else root.contiguous()
    precision = precision_of_convolutions(x.device)
    out = x.new_empty(len(x), *output, filters)
    responses: Tensor | None
    if weight is not None and not average and is_direct(weight, patches):
        weight = weight.contiguous()
        kept = ctx is not None and not (ctx.needs_input_grad[1] and is_cheap(weight))  # else they are computed again
        responses = x.new_empty(len(x), rows, columns, filters).permute(0, 3, 1, 2) if kept else None
        buffers = (native.address(tensor) for tensor in (x, weight, root, pixels, squares, responses, out))
        native.call("direct_forward", kind, *about, patches.numbers, *buffers)
    else:
        if not norms_cancel:
            native.call("patch_squares", patches.numbers, x.data_ptr(), pixels.data_ptr(), squares.data_ptr())
        responses = x if weight is None else convolution(x, weight, patches, precision)
        kind += len(native.KERNELS) * native.RESPONSES.index(responses.dtype)
        given = responses.data_ptr(), squares.data_ptr()
        if average:
            native.call("weighted_forward", kind, *about, *average, *given, out.data_ptr())
        else:
            native.call("layer_forward", kind, *about, *given, native.address(root), out.data_ptr())
    result = out.permute(0, 3, 1, 2)
    if ctx is not None:
        needs_output = ctx.needs_input_grad[3] and not ctx.needs_input_grad[2]
        ctx.save_for_backward(x, weight, root, responses, squares, result if needs_output else None)
        ctx.about, ctx.average, ctx.patches, ctx.sinks = (kind, *about), average, patches, sinks
        ctx.norms_cancel, ctx.is_used, ctx.unit = norms_cancel, False, current_unit()
        ctx.kernel, ctx.number, ctx.precision = kernel, numbers[0] if numbers else 0.0, precision
    return result


@functools.lru_cache(256)
def floats(*numbers: float) -> ctypes.Array[ctypes.c_float]:
    return (ctypes.c_float * len(numbers))(*numbers)


class _FusedConv(torch.autograd.Function):
    forward = staticmethod(_forward)

    @staticmethod
    @first_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, root, responses, squares, out = ctx.saved_tensors
        need_x, need_weight, need_root, need_number = ctx.needs_input_grad[:4]
        direct = weight is not None and need_weight and not ctx.average and is_direct(weight, ctx.patches)
        wide = wide_dtype(x.device)  # of sums over images
        grad = dense(grad)
        of_responses = None
        if need_x or not direct:
            # A graph that adds to sums is gone through once, so that the responses' memory can be used again.
            used_again = responses is not None and weight is not None and any(ctx.sinks)
            if used_again and ctx.is_used:
                raise RuntimeError(
                    "a graph that adds to GradientSums can be gone through once; make it again for another pass"
                )
            ctx.is_used = used_again
            size = len(x), *ctx.patches.output, grad.shape[1]
            dtype = x.dtype if responses is None else responses.dtype
            of_responses = responses if used_again else x.new_empty(size, dtype=dtype).permute(0, 3, 1, 2)
        through_norms = need_x and not ctx.norms_cancel
        of_squares = torch.empty_like(squares) if through_norms or need_number else None
        of_root = torch.empty_like(root, dtype=wide) if need_root else None  # the roots of identity layers need none
        of_weight = torch.empty_like(weight, dtype=wide) if direct else None
        inputs = tuple(native.address(tensor) for tensor in (responses, squares, root, grad))
        results = tuple(native.address(tensor) for tensor in (of_responses, of_squares, of_root))
        if of_weight is not None:
            images = ctx.patches.numbers, x.data_ptr(), weight.data_ptr()
            native.call("direct_backward", *ctx.about, *images, *inputs, *results, of_weight.data_ptr())
        elif ctx.average:
            native.call("weighted_backward", *ctx.about, *ctx.average, *inputs[:2], inputs[3], *results[:2])
        else:
            native.call("layer_backward", *ctx.about, *inputs, *results)
        of_number = None
        if need_number:
            values = (grad * out).sum(dtype=wide) if of_root is None else (root * of_root).sum()
            slopes = ctx.kernel.degree * values - 2 * (squares.to(wide) * of_squares).sum()
            of_number = ctx.kernel.number_gradient(ctx.number, values, slopes).to(x.dtype)
        of_x = of_responses
        if weight is not None and of_responses is not None:
            given = of_responses, x, weight, ctx.patches, ctx.unit, ctx.precision
            if need_weight and not direct:
                of_weight = gradient_of_filters(*given)
            of_x = gradient_of_images(*given) if need_x else None
        if through_norms:
            assert of_squares is not None
            pixels = of_squares if ctx.patches.are_pixels else x.new_empty(len(x), *x.shape[2:])
            buffers = (native.address(tensor) for tensor in (x, of_squares, pixels, of_x))
            native.call("patch_squares_backward", ctx.patches.numbers, *buffers)
        sums = (add_or_return(sink, some, x.dtype) for sink, some in zip(ctx.sinks, (of_weight, of_root), strict=True))
        return of_x if need_x else None, *sums, of_number, *[None] * 5
