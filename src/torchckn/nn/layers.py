r"""The layers of a convolutional kernel network, as ordinary modules.

.. math:: F' = A(W)\, \left[ \kappa(W E N^{-1})\, N^{\text{degree}} \right] P

Paper: section 3.1 (the layer), section 3.2 "Layer type" (convolutional, partially connected, fully connected).
Read first: :mod:`torchckn.nn.base`. Read next: :mod:`torchckn.graph`.

The filters of a layer are its ``weight``, a ``Parameter`` with rows of unit norm: random when the layer is built, until fitted.
They must stay on the sphere during training: use :class:`torchckn.fit.SphereSGD`, or call ``layer.normalize_()`` after each
step of any other optimizer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..choices import Init, as_integer, as_integers
from ..errors import ConfigError, DataError
from ..kernels import Kernel
from ..kernels.base import require_tensor
from .base import KernelLayer
from .devices import is_mixed
from .functional import block_count, kernel_conv2d, kernel_linear, kernel_local2d
from .geometry import Pair, conv_output_size, pair, real_device
from .pooling import require_linear


class KernelConv2d(KernelLayer):
    """Convolutional kernel layer: one subspace for the patches at all positions. (N, C, H, W) -> (N, filters, H', W')

    Args:
        in_channels, filters, kernel_size, stride, padding, dilation, groups: as for ``torch.nn.Conv2d``; zero
            padding, and a separate subspace for every group of filters.
        kernel: a :class:`torchckn.kernels.Kernel`; default ``RBFSphere(0.6)``.
        pool: a module that acts on positions and is linear, such as ``nn.AvgPool2d(2)``; applied before the projection,
            which gives the same result with fewer operations.
        eps: added to the diagonal of the filters' Gram matrix.
        init: how ``fit_filters`` chooses the filters: ``"kmeans"``, ``"sample"`` or ``"random"``; or ``"identity"``: 1x1
            filters that are the input channels, never trained, computed without a convolution.
        inverse_sqrt: method of :func:`torchckn.inverse_sqrt`.
        root_block: for wide layers: filters in equal blocks of at most this many, each block with an inverse root of its own;
            their features are the average of the blocks' Nystrom approximations. ``None``: one root of all filters (of a group).

    Example:
        >>> layer = KernelConv2d(1, 32, 5, padding=2, pool=nn.AvgPool2d(2))
        >>> layer(torch.rand(8, 1, 28, 28)).shape
        torch.Size([8, 32, 14, 14])
    """

    def __init__(
        self,
        in_channels: int,
        filters: int,
        kernel_size: int | Pair,
        stride: int | Pair = 1,
        padding: int | Pair = 0,
        kernel: Kernel | None = None,
        pool: nn.Module | None = None,
        eps: float = 1e-3,
        init: Init = "kmeans",
        inverse_sqrt: str = "auto",
        *,
        dilation: int | Pair = 1,
        groups: int = 1,
        root_block: int | None = None,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        sizes = pair("kernel_size", kernel_size)
        if (numbers := as_integers((in_channels, filters), 1)) is None:
            raise ConfigError(f"KernelConv2d expected integer sizes >= 1, got {in_channels!r} channels, {filters!r} filters")
        in_channels, filters = numbers
        if (count := as_integer(groups, 1)) is None or in_channels % count or filters % count:
            raise ConfigError(
                f"groups expected an integer that divides in_channels ({in_channels}) and filters ({filters}), got {groups!r}"
            )
        groups = count
        shape = (filters, in_channels // groups, *sizes)
        super().__init__(shape, 3, kernel, eps, init, inverse_sqrt, root_block, generator, device, dtype)
        self.in_channels = in_channels
        self.groups = groups
        self.kernel_size = sizes
        self.stride = pair("stride", stride)
        self.padding = pair("padding", padding, least=0)
        self.dilation = pair("dilation", dilation)
        self.pool = require_linear(pool)
        if init == "identity":
            geometry = (sizes, self.stride, self.padding, groups)
            if filters != in_channels or geometry != ((1, 1), (1, 1), (0, 0), 1):
                raise ConfigError(
                    "init='identity' expected as many filters as input channels, kernel_size 1, stride 1, padding 0, one group, "
                    f"got {filters} filters on {in_channels} channels, kernel_size {sizes}, stride {self.stride}, "
                    f"padding {self.padding}, {groups} groups"
                )
            self._set_identity()

    def filter_matrix(self) -> Tensor:
        """The filters as rows, W of the paper: (f, s), or (groups, f / groups, s)."""
        rows = super().filter_matrix()
        return rows if self.groups == 1 else rows.unflatten(0, (self.groups, -1))

    @property
    def sums_in_units(self) -> bool:
        return self.groups == 1

    @property
    def has_uniform_root(self) -> bool:
        """Whether A(W) has one number on its diagonal and another beside it: all cosines between channels are the same."""
        return self.init == "identity" and block_count(self.filters, self.root_block) == 1

    def forward(self, x: Tensor) -> Tensor:
        require_images(type(self).__name__, x, self.in_channels, self.weight)
        span = [d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel_size, strict=True)]
        if any(n + 2 * p < s for n, p, s in zip(x.shape[2:], self.padding, span, strict=True)):
            raise DataError(
                f"KernelConv2d expected images of at least {span[0]}x{span[1]} pixels for its patches, got "
                f"{x.shape[2]}x{x.shape[3]} with padding {self.padding}; use a smaller kernel_size or a larger padding"
            )
        weight = None if self.init == "identity" else self.weight
        return kernel_conv2d(
            x,
            weight,
            self.own_projection(),
            self.kernel,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
            pool=self.pool,
            uniform_root=self.has_uniform_root,
        )

    def extra_repr(self) -> str:
        geometry = ((n, getattr(self, n), d) for n, d in (("stride", (1, 1)), ("padding", (0, 0)), ("dilation", (1, 1))))
        return super().extra_repr() + "".join(f", {name}={value}" for name, value, default in geometry if value != default)


class KernelLinear(KernelLayer):
    """Fully connected kernel layer: one subspace for the whole input. (N, ...) -> (N, filters)

    Inputs of more than two dimensions are flattened. Arguments as for :class:`KernelConv2d`; ``weight`` is (filters,
    in_features).
    """

    def __init__(
        self,
        in_features: int,
        filters: int,
        kernel: Kernel | None = None,
        eps: float = 1e-3,
        init: Init = "kmeans",
        inverse_sqrt: str = "auto",
        *,
        root_block: int | None = None,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__((filters, in_features), 1, kernel, eps, init, inverse_sqrt, root_block, generator, device, dtype)
        self.in_features = in_features
        if init == "identity":
            if filters != in_features:
                raise ConfigError(
                    f"init='identity' expected as many filters as in_features, got {filters} and {in_features}"
                )
            self._set_identity()

    @property
    def sums_in_units(self) -> bool:
        return True

    def forward(self, x: Tensor) -> Tensor:
        require_tensor("KernelLinear", x)
        if x.ndim < 2 or x.flatten(1).shape[1] != self.in_features:
            raise DataError(
                f"KernelLinear expected a batch of inputs with {self.in_features} numbers each, got {tuple(x.shape)}"
            )
        require_same_type("KernelLinear", x, self.weight)
        return kernel_linear(x.flatten(1), self.weight, self.own_projection(), self.kernel)


class KernelLocal2d(KernelLayer):
    """Partially connected kernel layer: a subspace for each region of the image. (N, C, H, W) -> (N, filters, H', W')

    The output positions are divided into a grid of ``regions`` (rows, columns), each with separate filters; by default every
    position is a region, as in a locally connected layer. ``weight`` is (regions, filters, C, kh, kw), regions row
    by row. Coordinates of different regions belong to different subspaces: pool within regions, not across them.

    Args:
        input_size: height and width of the input, which determine the number of positions.
        regions: rows and columns of the grid of regions; ``None``: one region per position.
        others: as for :class:`KernelConv2d`.
    """

    region_of: Tensor

    def __init__(
        self,
        in_channels: int,
        filters: int,
        kernel_size: int | Pair,
        input_size: int | Pair,
        stride: int | Pair = 1,
        padding: int | Pair = 0,
        regions: int | Pair | None = None,
        kernel: Kernel | None = None,
        pool: nn.Module | None = None,
        eps: float = 1e-3,
        init: Init = "kmeans",
        inverse_sqrt: str = "auto",
        *,
        dilation: int | Pair = 1,
        root_block: int | None = None,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if init == "identity":
            raise ConfigError("KernelLocal2d has no init='identity'; use a 1x1 KernelConv2d for an identity layer")
        sizes = pair("kernel_size", kernel_size)
        geometry = pair("stride", stride), pair("padding", padding, least=0), pair("dilation", dilation)
        input_size = pair("input_size", input_size)
        output_size = conv_output_size(input_size, sizes, *geometry)
        if min(output_size) < 1:
            raise ConfigError(
                f"KernelLocal2d expected an input_size of at least one {sizes[0]}x{sizes[1]} patch, got {input_size}"
            )
        grid = output_size if regions is None else pair("regions", regions)
        if grid[0] > output_size[0] or grid[1] > output_size[1]:
            raise ConfigError(
                f"KernelLocal2d expected at most as many regions as output positions, {output_size}, got {grid}"
            )
        shape = (grid[0] * grid[1], filters, in_channels, *sizes)
        super().__init__(shape, 3, kernel, eps, init, inverse_sqrt, root_block, generator, device, dtype)
        self.in_channels = in_channels
        self.kernel_size = sizes
        self.stride, self.padding, self.dilation = geometry
        self.input_size = input_size
        self.output_size = output_size
        self.regions = grid
        self.pool = require_linear(pool)
        self.register_buffer("region_of", region_index(output_size, grid).to(real_device(device)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        require_images("KernelLocal2d", x, self.in_channels, self.weight)
        if tuple(x.shape[2:]) != self.input_size:
            raise DataError(f"KernelLocal2d expected images of {self.input_size} pixels, got {tuple(x.shape[2:])}")
        patches = F.unfold(x, self.kernel_size, self.dilation, self.padding, self.stride)  # (N, s, L)
        features = kernel_local2d(patches, self.filter_matrix(), self.own_projection(), self.kernel, self.region_of)
        features = features.unflatten(2, self.output_size)  # (N, f, H', W')
        # Unlike in KernelConv2d, the projection differs between regions, so pooling comes after it.
        return features if self.pool is None else self.pool(features)


def region_index(output_size: Pair, regions: Pair | None) -> Tensor:
    """The region of each output position, both counted row by row: (H' W',)"""
    grid = output_size if regions is None else regions
    rows, columns = (torch.arange(n) * g // n for n, g in zip(output_size, grid, strict=True))
    return (rows[:, None] * grid[1] + columns).flatten()


class KernelSum(nn.Module):
    """Direct sum of branches: their kernels add up, so their feature maps are concatenated along the channels.

    The counterpart of both ``a + b`` and ``torch.cat([a, b], 1)`` in a ConvNet. With ``weights``, branches are multiplied by
    these first.
    """

    def __init__(self, weights: Sequence[float] | None = None) -> None:
        super().__init__()
        self.weights = None if weights is None else tuple(float(w) for w in weights)

    def forward(self, *branches: Tensor) -> Tensor:
        if not branches or any(
            b.shape[:1] != branches[0].shape[:1] or b.shape[2:] != branches[0].shape[2:] for b in branches
        ):
            shapes = [tuple(b.shape) for b in branches]
            raise DataError(f"KernelSum expected branches that differ in their channels only, got {shapes}")
        if self.weights is not None and len(self.weights) != len(branches):
            raise DataError(f"KernelSum expected {len(self.weights)} branches, one for each weight, got {len(branches)}")
        if self.weights is not None:
            branches = tuple(b * w for b, w in zip(branches, self.weights, strict=True))
        return torch.cat(branches, 1)


def require_images(layer: str, x: Tensor, channels: int, weight: Tensor) -> None:
    require_tensor(layer, x)
    if x.ndim != 4 or x.shape[1] != channels:
        raise DataError(
            f"{layer} expected a batch of images (N, {channels}, H, W), got {tuple(x.shape)}; "
            "a single image needs x[None], grey images a channel dimension"
        )
    require_same_type(layer, x, weight)


def require_same_type(layer: str, x: Tensor, weight: Tensor) -> None:
    mixed = x.dtype != weight.dtype and not is_mixed(x.device)
    if mixed or x.device != weight.device:
        raise DataError(
            f"{layer} has {weight.dtype} filters on {weight.device}, got {x.dtype} input on {x.device}; "
            "use x.to(layer.weight) or layer.to(x), and divide uint8 images by 255"
        )
