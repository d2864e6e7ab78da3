"""Inner products between positions of pairs of images, from which the exact kernel is computed layer by layer.

Every node of a graph has a method ``exact`` that maps those of its inputs to those of its output.
Read next: :mod:`torchckn.exact`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kernels import Kernel, safe_norms
from ..nn.geometry import Pair


@dataclass(frozen=True)
class PairGrams:
    """Inner products between all positions of the two images of each of B pairs.

    Norms are computed from the pair of an image with itself, so the batch contains these pairs as well.
    """

    values: Tensor
    """(B, H, W, H, W): first two dimensions: position in the left image; last two: position in the right image"""
    left: Tensor
    """(B,): index in the batch of the pair (left image, left image)"""
    right: Tensor
    """(B,): index in the batch of the pair (right image, right image)"""

    @property
    def squared_norms(self) -> Tensor:
        """Squared norms of the features at each position, valid for pairs of an image with itself: (B, H, W)"""
        flat = self.values.flatten(1, 2).flatten(2, 3)  # (B, HW, HW)
        return flat.diagonal(dim1=1, dim2=2).unflatten(1, self.values.shape[1:3])

    def patches(self, kernel_size: Pair, stride: Pair, padding: Pair, dilation: Pair) -> PairGrams:
        """Inner products of patches: sums over the same offsets in both images."""
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
        """Inner products of the flattened features: one position."""
        flat = self.values.flatten(1, 2).flatten(2, 3)
        return replace(self, values=flat.diagonal(dim1=1, dim2=2).sum(1)[:, None, None, None, None])

    def kernel(self, kernel: Kernel) -> PairGrams:
        """Kernel values of the features at each pair of positions."""
        norms, inverse = safe_norms(self.squared_norms)
        cosines = self.values * _outer(inverse[self.left], inverse[self.right])
        values = kernel.kappa(cosines.clamp(-1, 1))
        if kernel.degree:
            values = values * _outer(norms[self.left], norms[self.right]) ** kernel.degree
        return replace(self, values=values)

    def divided_by_image_norm(self) -> PairGrams:
        """Features divided by the root of the mean over positions of their squared norm."""
        _, inverse = safe_norms(self.squared_norms.mean((1, 2), keepdim=True))
        return replace(self, values=self.values * _outer(inverse[self.left], inverse[self.right]))

    def linear(self, operation: Callable[[Tensor], Tensor]) -> PairGrams:
        """A linear operation on positions, such as pooling, applied to both images: P^T G P."""
        values = self.values
        for _ in range(2):
            flat = operation(values.flatten(0, 2)[:, None])[:, 0]  # the operation on the right image's positions
            values = flat.unflatten(0, values.shape[:3]).permute(0, 3, 4, 1, 2)  # then left and right are swapped
        return replace(self, values=values)

    def within(self, region_of: Tensor) -> PairGrams:
        """Keep inner products within regions. Features of different regions have no common coordinates, so the others are NaN."""
        same = region_of[:, None] == region_of[None, :]
        same = same.unflatten(1, self.values.shape[3:]).unflatten(0, self.values.shape[1:3])
        return replace(self, values=self.values.masked_fill(~same, torch.nan))

    def scaled(self, factor: float) -> PairGrams:
        return replace(self, values=self.values * factor)

    def __mul__(self, other: PairGrams) -> PairGrams:
        """Kernels multiply; one that has one position is shared by all positions of the other."""
        return replace(self, values=self.values * other.values)

    def __add__(self, other: PairGrams) -> PairGrams:
        return replace(self, values=self.values + other.values)


def _outer(left: Tensor, right: Tensor) -> Tensor:
    return left[:, :, :, None, None] * right[:, None, None, :, :]
