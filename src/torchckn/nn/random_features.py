r"""Layers with fixed Gaussian weights: the ConvNet whose kernel a kernel layer approximates in another way.

.. math:: k(x, y) = E_{w \sim \mathcal N(0, I)}[a(w, x)\, a(w, y)] \approx \frac1f \sum_{j=1}^f a(w_j, x)\, a(w_j, y)

Paper: section 3.2, "Convolution and activation function" (the first proposition). Nothing here is trained; it is there to be
compared with (:func:`torchckn.compare_kernels`).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..kernels import Kernel
from .functional import patch_squares
from .geometry import Pair, convolve, draw_normal, real_device


class _RandomFeatures(nn.Module):
    weight: Tensor
    phases: Tensor

    def __init__(
        self,
        units: tuple[int, ...],
        patch: tuple[int, ...],
        kernel: Kernel,
        generator: torch.Generator | None,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        """Draw the weights, one ``patch`` for each of the ``units``, and one phase for each of them."""
        super().__init__()
        self.kernel = kernel
        weight = draw_normal((*units, *patch), generator, device)
        phases = torch.rand(units, generator=generator, dtype=torch.float64) * 2 * math.pi
        dtype = dtype or torch.get_default_dtype()
        self.register_buffer("weight", weight.to(device=device, dtype=dtype))
        self.register_buffer("phases", phases.to(device=device, dtype=dtype))


class RandomFeatureConv2d(_RandomFeatures):
    """A convolution with Gaussian weights, the kernel's activation, and 1 / sqrt(filters)."""

    def __init__(
        self,
        in_channels: int,
        filters: int,
        kernel: Kernel,
        kernel_size: Pair,
        stride: Pair,
        padding: Pair,
        dilation: Pair,
        groups: int = 1,
        *,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__((filters,), (in_channels // groups, *kernel_size), kernel, generator, device, dtype)
        self.kernel_size = kernel_size
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups

    def forward(self, x: Tensor) -> Tensor:
        responses = convolve(x, self.weight, self.stride, self.padding, self.dilation, self.groups)
        n, groups = len(x), self.groups
        squares = patch_squares(
            x.unflatten(1, (groups, -1)).flatten(0, 1), self.kernel_size, self.stride, self.padding, self.dilation
        )
        squares = squares.unflatten(0, (n, groups)).flatten(1, 2).repeat_interleave(responses.shape[1] // groups, 1)
        features = self.kernel.random_features(responses, squares, self.phases[:, None, None])
        return features / responses.shape[1] ** 0.5


class RandomFeatureUnits(nn.Module):
    """The activation by itself, on units that are random features already: an identity layer's side of the ConvNet.

    Units u / sqrt(f) with u ~ N(0, K) become a(u) / sqrt(f).
    """

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, x: Tensor) -> Tensor:
        scale = x.shape[1] ** 0.5
        squares = x.square().sum(1, keepdim=True)
        return self.kernel.random_features(x * scale, squares, torch.zeros_like(squares)) / scale


class RandomFeatureLocal2d(_RandomFeatures):
    """Gaussian weights of their own for every region, the kernel's activation, and 1 / sqrt(filters)."""

    region_of: Tensor

    def __init__(
        self,
        in_channels: int,
        filters: int,
        kernel: Kernel,
        output_size: Pair,
        region_of: Tensor,
        kernel_size: Pair,
        stride: Pair,
        padding: Pair,
        dilation: Pair,
        *,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        regions = int(region_of.max()) + 1
        size = in_channels * kernel_size[0] * kernel_size[1]
        super().__init__((regions, filters), (size,), kernel, generator, device, dtype)
        self.register_buffer("region_of", region_of.to(real_device(device)), persistent=False)
        self.output_size, self.kernel_size = output_size, kernel_size
        self.stride, self.padding, self.dilation = stride, padding, dilation

    def forward(self, x: Tensor) -> Tensor:
        patches = F.unfold(x, self.kernel_size, self.dilation, self.padding, self.stride)  # (N, s, L)
        responses = torch.einsum("lfs,nsl->nfl", self.weight[self.region_of], patches)
        phases = self.phases[self.region_of].T  # (f, L): each filter of each region has its own
        features = self.kernel.random_features(responses, patches.square().sum(1, keepdim=True), phases)
        return (features / responses.shape[1] ** 0.5).unflatten(2, self.output_size)


class RandomFeatureLinear(_RandomFeatures):
    """A linear layer with Gaussian weights, the kernel's activation, and 1 / sqrt(filters)."""

    def __init__(
        self,
        in_features: int,
        filters: int,
        kernel: Kernel,
        *,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__((filters,), (in_features,), kernel, generator, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        squares = x.square().sum(1, keepdim=True)
        features = self.kernel.random_features(F.linear(x, self.weight), squares, self.phases)
        return features / len(self.weight) ** 0.5
