r"""The layer equation, step by step, as pure functions.

.. math:: F' = A(W)\, \left[ \kappa(W E N^{-1})\, N^{\text{degree}} \right] P,
          \qquad A(W) = (\kappa(W W^T) + \epsilon I)^{-1/2}

Paper: equation (ckn_layer) in section 4.1, "Detailed CKN layer" in the appendix. E extracts patches, N holds their norms,
P pools. Read next: :mod:`torchckn.nn.layers`, which wraps these in modules.

Three implementation details differ from the paper's text, with equal results:

* E is never formed. ``W E`` is a convolution, and the patch norms are the square root of a box filter over squared pixels.
* P acts on positions and A on channels, so they commute: we pool first, and multiply fewer columns by A.
* On a CPU, :mod:`torchckn.nn.fused` does all that follows the convolution in one compiled pass; here it is in plain torch.

A root of f filters takes f^3 operations. Wide layers may have their filters in b blocks instead, each with its own root:

.. math:: A(W) = \frac{1}{\sqrt b} \operatorname{diag}(A(W_1), \dots, A(W_b))

so that the Gram matrix of the features is the average of b Nystrom approximations: the ensemble Nystrom method (Kumar, Mohri and
Talwalkar, "Ensemble Nystrom method", 2009).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..derivatives import first_only
from ..kernels import Kernel, Linear
from ..tracing import is_traced
from . import native
from .devices import computes_wide, is_mixed, own_precision, prefers_channels_last, wide_dtype
from .direct import Geometry, patches_of
from .fused import applies, fused_conv2d, weighted_average, window_of
from .geometry import Pair, convolve
from .invsqrt import Spectrum, inverse_sqrt, precomputed_inverse_sqrt, resolve_method
from .sums import conv2d, linear


def filter_gram(weight: Tensor, kernel: Kernel, eps: float) -> Tensor:
    """kappa(W W^T) + eps I for unit-norm filters (..., f, s), which is A(W)^-2. (..., f, f)"""
    # Filters of unit norm in float32 are off by 1e-7 in float64, which a kernel that is steep at 1 amplifies to 3e-4, so
    # they are normalized again in the working precision. (The derivative on the sphere is the same.)
    if kernel.is_steep:
        weight = weight / torch.linalg.vector_norm(weight, dim=-1, keepdim=True)
    return gram_of_cosines(weight @ weight.mT, kernel, eps)


def gram_of_cosines(cosines: Tensor, kernel: Kernel, eps: float) -> Tensor:
    """kappa(W W^T) + eps I from W W^T, of one layer or several. (..., f, f)"""
    # Rounding makes the matrix slightly asymmetric, which a steep kernel would amplify as well.
    gram = kernel.kappa((cosines + cosines.mT) / 2)
    return gram + eps * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)


def projection(
    weight: Tensor,
    kernel: Kernel,
    eps: float,
    method: str = "auto",
    block: int | None = None,
    spectrum: Spectrum | None = None,
) -> Tensor:
    """A(W), the symmetric matrix that turns kernel values with the filters into coordinates. (..., f, f)

    ``block``: filters per root, at most; A(W) is then block-diagonal, see above. ``spectrum``: of these filters, see
    :func:`~torchckn.nn.invsqrt.inverse_sqrt`.
    """
    return inverse_root((weight,), lambda rows: filter_gram(rows, kernel, eps), method, block, spectrum)


def inverse_root(
    factors: Sequence[Tensor],
    gram: Callable[..., Tensor],
    method: str = "auto",
    block: int | None = None,
    spectrum: Spectrum | None = None,
) -> Tensor:
    """``gram(*factors)^(-1/2)``, where the Gram matrix is that of filters with one or several factors, each (..., f, s).

    If the root is computed in float64, so is the Gram matrix: for nearly parallel filters, its rounding error would dominate
    the error of a float32 gradient.
    """
    blocks = _blocks_of_all(factors, block)
    if len(blocks) > 1:
        spectra = [spectrum and spectrum.part(i) for i in range(len(blocks))]
        pairs = zip(blocks, spectra, strict=True)
        return block_diagonal([inverse_root(part, gram, method, spectrum=own) for part, own in pairs])
    first = factors[0]
    method, iters = resolve_method(method, first.device)
    wide = wide_dtype(first.device) if computes_wide(method, first.device, first.shape[-2]) else first.dtype
    with own_precision(first.device):
        matrix = gram(*(factor.to(wide) for factor in factors))
        return inverse_sqrt(matrix, method, iters=iters, spectrum=spectrum).to(first.dtype)


def precomputed_root(
    factors: Sequence[Tensor], gram: Callable[..., Tensor], root: Tensor, block: int | None = None
) -> Tensor:
    """``root``, which equals :func:`inverse_root`, as a differentiable function of the factors; costs little until backward."""
    blocks = _blocks_of_all(factors, block)
    if len(blocks) == 1:
        return precomputed_inverse_sqrt(gram(*factors), root)
    roots, start = [], 0
    for part in blocks:
        here = slice(start, start := start + part[0].shape[-2])
        roots.append(precomputed_root(part, gram, root[..., here, here] * len(blocks) ** 0.5))
    return block_diagonal(roots)


def _blocks_of_all(factors: Sequence[Tensor], block: int | None) -> list[tuple[Tensor, ...]]:
    """The factors of the filters of each block."""
    return list(zip(*(filter_blocks(factor, block) for factor in factors), strict=True))


def block_count(filters: int, block: int | None) -> int:
    """The number of blocks of at most ``block`` filters each; None: one block."""
    return 1 if block is None else -(-filters // block)


def filter_blocks(weight: Tensor, block: int | None) -> tuple[Tensor, ...]:
    """Filters (..., f, s) in blocks of at most ``block``, as equal as can be."""
    filters = int(weight.shape[-2])  # torch.jit.trace gives sizes as tensors
    count = block_count(filters, block)
    if count == 1:
        return (weight,)
    size, larger = divmod(filters, count)
    return weight.split([size + (i < larger) for i in range(count)], -2)


def block_diagonal(roots: Sequence[Tensor]) -> Tensor:
    """The roots of b blocks, each (..., g, g), as the root of all filters: diag(roots) / sqrt(b), (..., f, f)"""
    sizes = [root.shape[-1] for root in roots]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    rows = [F.pad(root, (at, sum(sizes) - at - size)) for root, at, size in zip(roots, starts, sizes, strict=True)]
    return torch.cat(rows, -2) / len(roots) ** 0.5


def patch_squares(x: Tensor, kernel_size: Pair, stride: Pair, padding: Pair, dilation: Pair) -> Tensor:
    """The diagonal of N^2: the squared norm of every patch of (N, C, H, W), as (N, 1, H', W')."""
    with own_precision(x.device):  # rounded norms would distort every cosine of a patch alike
        if is_traced():
            return _box_of_squares(x, kernel_size, stride, padding, dilation)
        return _PatchSquares.apply(x, kernel_size, stride, padding, dilation)


def _box_of_squares(x: Tensor, kernel_size: Pair, stride: Pair, padding: Pair, dilation: Pair) -> Tensor:
    pixels = torch.linalg.vector_norm(x, dim=1, keepdim=True).square()
    if kernel_size == (1, 1) and padding == (0, 0):
        return pixels[:, :, :: stride[0], :: stride[1]]
    return convolve(pixels, x.new_ones(1, 1, *kernel_size), stride, padding, dilation)


class _PatchSquares(torch.autograd.Function):
    """Squares over channels, then a box filter. Backward is the transposed box filter, which torch has no fast code for."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel_size: Pair, stride: Pair, padding: Pair, dilation: Pair) -> Tensor:
        ctx.save_for_backward(x)
        ctx.geometry = kernel_size, stride, padding, dilation
        return _box_of_squares(x, kernel_size, stride, padding, dilation)

    @staticmethod
    @first_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        (x,) = ctx.saved_tensors
        pixels = _transposed_box(grad, (x.shape[2], x.shape[3]), *ctx.geometry)
        return x * pixels.mul_(2), None, None, None, None


def _transposed_box(grad: Tensor, size: Pair, kernel_size: Pair, stride: Pair, padding: Pair, dilation: Pair) -> Tensor:
    """Each pixel of an image of this size gets the sum of ``grad`` over the patches that contain it: (N, 1, H, W)"""
    spans = [d * (k - 1) for d, k in zip(dilation, kernel_size, strict=True)]
    starts = [n + 2 * p - s for n, p, s in zip(size, padding, spans, strict=True)]  # where a patch could begin, at stride 1
    spread = grad
    if stride != (1, 1) or list(grad.shape[2:]) != starts:
        spread = grad.new_zeros(len(grad), 1, *starts)
        spread[:, :, :: stride[0], :: stride[1]][:, :, : grad.shape[2], : grad.shape[3]] = grad
    padded = F.conv2d(spread, grad.new_ones(1, 1, *kernel_size), None, 1, spans, dilation)
    return padded[:, :, padding[0] : padding[0] + size[0], padding[1] : padding[1] + size[1]].clone()


def kernel_conv2d(
    x: Tensor,
    weight: Tensor | None,
    root: Tensor,
    kernel: Kernel,
    *,
    stride: Pair = (1, 1),
    padding: Pair = (0, 0),
    dilation: Pair = (1, 1),
    groups: int = 1,
    pool: Callable[[Tensor], Tensor] | None = None,
    uniform_root: bool = False,
) -> Tensor:
    """The layer equation: images (N, C, H, W), filters (f, C, kh, kw), root (f, f) -> (N, f, H', W').

    ``weight=None`` stands for the identity: 1x1 filters that are the channels themselves, which need no convolution.
    With ``groups``, channels and filters are divided into independent groups, as in ``torch.nn.Conv2d``: filters are
    (f, C / groups, kh, kw), and root (groups, f / groups, f / groups). A ``uniform_root`` has one number on its diagonal and
    another beside it, as that of the identity has: it is then multiplied by in f operations instead of f^2.
    """
    if weight is not None and weight.shape[2:] == (1, 1) and stride != (1, 1) and padding == (0, 0):
        # The same numbers without a stride, for which torch 2.13 on a CPU corrupts memory in the backward pass.
        x, stride = x[:, :, :: stride[0], :: stride[1]], (1, 1)
    x = fast_layout(_unrounded(x, root))
    geometry = Geometry(stride, padding, dilation)
    kernel_size = (1, 1) if weight is None else (weight.shape[2], weight.shape[3])
    norms_cancel = type(kernel).map is Linear.map and kernel.degree == 1  # |x| <w, x> / |x|
    is_fused = applies(x, kernel, groups)
    if is_fused:
        patches = patches_of(x.shape, kernel_size, geometry)
        window = window_of(pool, patches.output)
        uniform = uniform_root and not root.requires_grad
        if window and root.ndim == 2 and (uniform or len(root) <= native.WIDEST) and root.dtype == x.dtype:
            return fused_conv2d(x, weight, root, kernel, geometry, window, uniform)
        pooling = window or weighted_average(pool, weight, patches)
        is_fused = not norms_cancel or pooling not in (None, (1, 1))  # else nothing follows the convolution
    if is_fused:
        values = fused_conv2d(x, weight, None, kernel, geometry, pooling or (1, 1))
        pool = None if pooling else pool
    elif norms_cancel:
        values = x if weight is None else conv2d(x, weight, geometry, groups)
    else:
        responses = x if weight is None else conv2d(x, weight, geometry, groups)
        # Each group of channels is treated as a separate image: (N groups, C / groups, H, W)
        squares = patch_squares(_split(x, groups), kernel_size, *geometry)
        values = kernel.map(_split(responses, groups), squares, inplace=weight is not None)
        values = values if groups == 1 else values.unflatten(0, (-1, groups)).flatten(1, 2)
    if pool is not None:
        values = pool(values)
    # A root has large entries of both signs, which amplify the rounding of what they multiply.
    with own_precision(x.device):
        values = values.to(root.dtype)
        if root.ndim == 2 and (values.stride(1) == 1 or prefers_channels_last(x.device)):  # a product of matrices
            return linear(values.permute(0, 2, 3, 1), root).permute(0, 3, 1, 2)
        return F.conv2d(values, root.flatten(0, -2)[:, :, None, None], groups=groups)


def _unrounded(x: Tensor, root: Tensor) -> Tensor:
    """``x``, of which the norms are computed; in mixed precision, where a module before may have rounded it, as ``root`` is."""
    return x.to(root.dtype) if is_mixed(x.device) else x


def _split(x: Tensor, groups: int) -> Tensor:
    return x if groups == 1 else x.unflatten(1, (groups, -1)).flatten(0, 1)


def fast_layout(x: Tensor) -> Tensor:
    """Images in the memory layout with the fastest elementwise operations: on a CPU, channels last."""
    if not prefers_channels_last(x.device) or x.stride(1) == 1:
        return x
    # For one channel, `contiguous` makes no copy, but the convolution that follows needs the strides of channels last.
    return x.clone(memory_format=torch.channels_last)


def kernel_linear(x: Tensor, weight: Tensor, root: Tensor, kernel: Kernel) -> Tensor:
    """The layer equation for one patch that is the whole input: rows (N, s), filters (f, s) -> (N, f)."""
    x = _unrounded(x, root)
    squares = x.square().sum(1, keepdim=True)
    values = kernel.map(linear(x, weight), squares)
    with own_precision(x.device):
        return linear(values.to(root.dtype), root)  # which is symmetric


def kernel_local2d(patches: Tensor, weight: Tensor, root: Tensor, kernel: Kernel, region_of: Tensor) -> Tensor:
    """The layer equation with separate filters for every region.

    Args:
        patches: (N, s, L), the patches of L positions
        weight: (R, f, s), the filters of R regions
        root: (R, f, f)
        region_of: (L,), the region of every position

    Returns:
        (N, f, L)
    """
    patches = _unrounded(patches, root)
    squares = patches.square().sum(1)  # (N, L)
    responses = torch.einsum("lfs,nsl->nfl", weight[region_of], patches)
    values = kernel.map(responses, squares[:, None])
    with own_precision(values.device):
        return torch.einsum("lfg,ngl->nfl", root[region_of], values.to(root.dtype))
