r"""The un-approximated kernel of a network: the truth that more and more filters approach.

.. math:: K(x, y) = \sum_p \langle \phi(x)_p, \phi(y)_p \rangle

Paper: section 3.1, "Network construction" and "Approximating the kernels": all that a layer needs of the features below it
is their inner products, so those alone are carried through the network. For two images they are a tensor G with
``G[p, q] = <F(x)_p, F(y)_q>`` for all positions p and q, and every layer is a map from G to the next G. That costs the
square of the number of positions: fine for images up to about 16x16, and why the paper approximates.
Read next: :mod:`torchckn.translate`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from .errors import ConfigError, DataError, NumericalError
from .kernels import Kernel, safe_norms
from .nn.geometry import Pair

if TYPE_CHECKING:
    from .graph import Graph
    from .nn.network import CKN

#: what one block of image pairs may take, in numbers (512 MB of float64)
_BLOCK = 2**26


@dataclass(frozen=True)
class PairGrams:
    """Inner products between all positions of the two images of each of B pairs.

    Norms come from the pair of an image with itself, so the batch holds those pairs as well.
    """

    values: Tensor
    """(B, H, W, H, W): the first two positions are the left image's, the last two the right one's"""
    left: Tensor
    """(B,): which pair of the batch is (left image, left image)"""
    right: Tensor
    """(B,): which pair of the batch is (right image, right image)"""

    @property
    def squared_norms(self) -> Tensor:
        """Squared norms of the features at each position, meaningful for pairs of an image with itself: (B, H, W)"""
        flat = self.values.flatten(1, 2).flatten(2, 3)  # (B, HW, HW)
        return flat.diagonal(dim1=1, dim2=2).unflatten(1, self.values.shape[1:3])

    def patches(self, kernel_size: Pair, stride: Pair, padding: Pair, dilation: Pair) -> PairGrams:
        """Inner products of patches: sums over equal offsets in both images."""
        (top, side), zeros = padding, F.pad(self.values, (padding[1], padding[1], padding[0], padding[0]) * 2)
        height, width = self.values.shape[1] + 2 * top, self.values.shape[2] + 2 * side
        total = torch.zeros((), dtype=zeros.dtype, device=zeros.device)
        for i in range(kernel_size[0]):
            rows = slice(i * dilation[0], height - dilation[0] * (kernel_size[0] - 1 - i), stride[0])
            for j in range(kernel_size[1]):
                columns = slice(j * dilation[1], width - dilation[1] * (kernel_size[1] - 1 - j), stride[1])
                total = total + zeros[:, rows, columns, rows, columns]
        return replace(self, values=total)

    def whole(self) -> PairGrams:
        """Inner products of the whole representations, as one position: flattening."""
        flat = self.values.flatten(1, 2).flatten(2, 3)
        return replace(self, values=flat.diagonal(dim1=1, dim2=2).sum(1)[:, None, None, None, None])

    def kernel(self, kernel: Kernel) -> PairGrams:
        """k of the features at each pair of positions."""
        norms, inverse = safe_norms(self.squared_norms)
        cosines = self.values * _outer(inverse[self.left], inverse[self.right])
        values = kernel.kappa(cosines.clamp(-1, 1))
        if kernel.degree:
            values = values * _outer(norms[self.left], norms[self.right]) ** kernel.degree
        return replace(self, values=values)

    def linear(self, operation: Callable[[Tensor], Tensor]) -> PairGrams:
        """A linear operation on positions, such as pooling, applied to both images: P^T G P."""
        values = self.values
        for _ in range(2):
            flat = operation(values.flatten(0, 2)[:, None])[:, 0]  # the operation on the right image's positions
            values = flat.unflatten(0, values.shape[:3]).permute(0, 3, 4, 1, 2)  # then right and left change places
        return replace(self, values=values)

    def within(self, region_of: Tensor) -> PairGrams:
        """Keep inner products within regions. Across regions the features have no common coordinates: NaN."""
        same = region_of[:, None] == region_of[None, :]
        same = same.unflatten(1, self.values.shape[3:]).unflatten(0, self.values.shape[1:3])
        return replace(self, values=self.values.masked_fill(~same, torch.nan))

    def scaled(self, factor: float) -> PairGrams:
        return replace(self, values=self.values * factor)

    def __add__(self, other: PairGrams) -> PairGrams:
        return replace(self, values=self.values + other.values)


def _outer(left: Tensor, right: Tensor) -> Tensor:
    return left[:, :, :, None, None] * right[:, None, None, :, :]


def exact_kernel(network: CKN | Graph, x: Tensor, y: Tensor | None = None) -> Tensor:
    """K(x, y) for all images of ``x`` (n, C, H, W) against all of ``y`` (m, C, H, W): (n, m), in float64.

    ``y=None`` stands for ``x``. What ``ckn.features(x) @ ckn.features(y).T`` tends to as every layer gets more filters.
    Of a network, its current bandwidths count; its filters do not matter. Not differentiable.
    """
    from .graph import Graph
    from .nn.functional import check_finite
    from .nn.network import CKN

    graph = network.current_graph() if isinstance(network, CKN) else network
    if not isinstance(graph, Graph):
        raise ConfigError(f"exact_kernel expects a torchckn.CKN or a torchckn.Graph, came {type(network).__name__}")
    for images in (x, x if y is None else y):
        if images.ndim != 4 or tuple(images.shape[1:]) != graph.input_shape:
            raise DataError(f"exact_kernel expects images (n, *{graph.input_shape}), came {tuple(images.shape)}")
        check_finite(images)
    positions = max(shape[1] * shape[2] for shape in graph.shapes.values() if len(shape) == 3)
    side = int((_BLOCK / positions**2) ** 0.5) - 1  # a block of side x side pairs, and the images with themselves
    if side < 1:
        raise DataError(
            f"exact_kernel carries {positions}^2 numbers for each pair of images, more than fits into memory; "
            "use smaller images, up to about 32x32"
        )
    with torch.no_grad():
        left = x.double()
        right = left if y is None else y.double()
        rows = [torch.cat([_block(graph, a, b) for b in right.split(side)], 1) for a in left.split(side)]
    result = torch.cat(rows) if rows else left.new_zeros(0, len(right))
    if not torch.isfinite(result).all():
        raise NumericalError(
            "the exact kernel is not defined here: a KernelLocal2d layer is followed by an operation that mixes its regions, "
            "whose features have no common coordinates; flatten after the local layer, or pool within its regions"
        )
    return result


def _block(graph: Graph, x: Tensor, y: Tensor) -> Tensor:
    n, m = len(x), len(y)
    images = torch.cat([x, y])
    own = torch.arange(n + m, device=x.device)
    left = torch.cat([own, own[:n].repeat_interleave(m)])
    right = torch.cat([own, own[n:].repeat(n)])
    pixels: dict[str, Tensor] = {graph.input: images}
    grams: dict[str, PairGrams] = {}

    def gram_of(name: str) -> PairGrams:
        if name not in grams:
            first, second = pixels[name][left], pixels[name][right]
            grams[name] = PairGrams(torch.einsum("bchw,bcij->bhwij", first, second), left, right)
        return grams[name]

    for node in graph.nodes:
        if node.acts_on_pixels:
            shapes = [graph.shapes[i] for i in node.inputs]
            pixels[node.name] = node.module(*shapes)(*(pixels[i] for i in node.inputs))
        else:
            shapes = [graph.shapes[i] for i in node.inputs]
            grams[node.name] = node.exact([gram_of(i) for i in node.inputs], shapes)
    return gram_of(graph.output).whole().values[n + m :].view(n, m)
