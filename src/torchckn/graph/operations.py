"""The operations without filters: pooling, sums, reshaping, normalization. One dataclass each. Read next: ``graph.py``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import nn

from ..choices import Border, NormOver, check_choice
from ..errors import ConfigError
from ..kernels import Kernel
from ..nn.geometry import Pair, conv_output_size, pair
from ..nn.layers import KernelSum
from ..nn.normalize import Normalization, Standardization
from ..nn.pooling import GaussianPool2d
from ..nn.whitening import Whitening
from .grams import PairGrams
from .layers import WindowNode
from .node import Node, Shape, as_image, is_number, numel, only

#: side of the window of a Gaussian pooling
_LARGEST_WINDOW = 2**14


@dataclass(frozen=True)
class OnPositions(Node):
    """A linear operation on positions, the same for every channel. The output shape is that of its module."""

    def output_shape(self, *shapes: Shape) -> Shape:
        try:
            return tuple(self.module(*shapes)(torch.empty(1, *as_image(self, only(self, shapes)), device="meta")).shape[1:])
        except RuntimeError as error:
            raise ConfigError(f"node {self.name!r} cannot be applied to an input of shape {shapes[0]}: {error}") from error

    def exact(self, grams: Sequence[PairGrams], shapes: Sequence[Shape]) -> PairGrams:
        return grams[0].linear(self.module(*shapes))


@dataclass(frozen=True)
class AveragePool(WindowNode, OnPositions):
    """``nn.AvgPool2d``. Without dilation."""

    is_linear_pooling: ClassVar[bool] = True
    stride_is_size: ClassVar[bool] = True

    ceil_mode: bool = field(default=False, kw_only=True)
    count_include_pad: bool = field(default=True, kw_only=True)

    def module(self, *shapes: Shape, **factory: Any) -> nn.Module:
        if self.dilation != (1, 1):
            raise ConfigError(
                f"node {self.name!r} expected dilation 1, because average pooling has no dilation, got {self.dilation}"
            )
        return nn.AvgPool2d(self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)

    def label(self) -> str:
        if self.kernel_size == (1, 1):
            return f"subsampling {self._window_label()}"
        return f"average pooling {self._window_label()}"


@dataclass(frozen=True)
class AdaptiveAveragePool(OnPositions):
    """``nn.AdaptiveAvgPool2d``; (1, 1) is global average pooling."""

    is_linear_pooling: ClassVar[bool] = True

    output_size: Pair = field(default=(1, 1), kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "output_size", pair(f"output_size of node {self.name!r}", self.output_size))

    def module(self, *shapes: Shape, **factory: Any) -> nn.Module:
        return nn.AdaptiveAvgPool2d(self.output_size)

    def label(self) -> str:
        if self.output_size == (1, 1):
            return "global average pooling"
        return "average pooling to {}x{}".format(*self.output_size)


@dataclass(frozen=True)
class GaussianPool(OnPositions):
    """:class:`torchckn.nn.GaussianPool2d`."""

    is_linear_pooling: ClassVar[bool] = True

    stride: int = field(default=2, kw_only=True)
    sigma: float | None = field(default=None, kw_only=True)
    kernel_size: int | None = field(default=None, kw_only=True)
    padding: int | None = field(default=None, kw_only=True)

    def output_shape(self, *shapes: Shape) -> Shape:
        channels, *size = as_image(self, only(self, shapes))
        pool = GaussianPool2d(self.stride, self.sigma, self.kernel_size, self.padding)
        window, stride, padding = ((n, n) for n in (pool.kernel_size, pool.stride, pool.padding))
        rows, columns = conv_output_size((size[0], size[1]), window, stride, padding, (1, 1))
        if min(rows, columns) < 1 or pool.kernel_size > _LARGEST_WINDOW:
            raise ConfigError(
                f"node {self.name!r} expected images of at least one {window} window, and windows of at most {_LARGEST_WINDOW} "
                f"pixels, got {size[0]}x{size[1]}"
            )
        return (channels, rows, columns)

    def module(self, *shapes: Shape, **factory: Any) -> nn.Module:
        return GaussianPool2d(self.stride, self.sigma, self.kernel_size, self.padding)

    def label(self) -> str:
        return f"Gaussian pooling, stride {self.stride}"


@dataclass(frozen=True)
class Pad(OnPositions):
    """A border around the image: left, right, top, bottom; negative numbers crop. Zeros, or pixels of the image (``mode``)."""

    padding: tuple[int, int, int, int] = field(default=(0, 0, 0, 0), kw_only=True)
    mode: Border = field(default="zeros", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.padding, tuple) or len(self.padding) != 4 or not all(type(n) is int for n in self.padding):
            raise ConfigError(f"node {self.name!r} expected four integers as padding, got {self.padding!r}")
        check_choice(f"mode of node {self.name!r}", self.mode, Border)

    def module(self, *shapes: Shape, **factory: Any) -> nn.Module:
        return _BORDERS[self.mode](self.padding)

    def label(self) -> str:
        if max(self.padding) <= 0:
            return "cropping {}, {}, {}, {}".format(*(-n for n in self.padding))
        return "{} padding {}, {}, {}, {}".format(self.mode.removesuffix("s"), *self.padding)


_BORDERS: dict[str, Callable[[tuple[int, int, int, int]], nn.Module]] = {
    "zeros": nn.ZeroPad2d,
    "reflect": nn.ReflectionPad2d,
    "replicate": nn.ReplicationPad2d,
    "circular": nn.CircularPad2d,
}


@dataclass(frozen=True)
class MaxPool(WindowNode, OnPositions):
    """``nn.MaxPool2d``: kept as it is, because it has no kernel counterpart and no exact kernel."""

    stride_is_size: ClassVar[bool] = True

    ceil_mode: bool = field(default=False, kw_only=True)

    def module(self, *shapes: Shape, **factory: Any) -> nn.Module:
        return nn.MaxPool2d(*self._geometry(), ceil_mode=self.ceil_mode)

    def exact(self, grams: Sequence[PairGrams], shapes: Sequence[Shape]) -> PairGrams:
        raise ConfigError(
            f"node {self.name!r} is max pooling, which acts on coordinates and has no exact kernel; "
            "use average or Gaussian pooling to compute the exact kernel"
        )

    def label(self) -> str:
        return f"max pooling {self._window_label()}"


@dataclass(frozen=True)
class Normalize(Node):
    """Divide the features at each position by their norm: the counterpart of normalization over channels.

    ``over="image"`` divides by the root of the mean over positions of the squared norm.
    """

    over: NormOver = field(default="position", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(f"over of node {self.name!r}", self.over, NormOver)

    def output_shape(self, *shapes: Shape) -> Shape:
        shape = only(self, shapes)
        return shape if len(shape) == 1 else as_image(self, shape)

    def module(self, *shapes: Shape, **factory: Any) -> nn.Module:
        return Normalization(self.over)

    def exact(self, grams: Sequence[PairGrams], shapes: Sequence[Shape]) -> PairGrams:
        return grams[0].kernel(_Cosine()) if self.over == "position" else grams[0].divided_by_image_norm()

    def label(self) -> str:
        return "division by the norm" + (" of the image" if self.over == "image" else "")


class _Cosine(Kernel):
    """k(x, y) = <x, y> / |x| |y|"""

    degree = 0

    def kappa(self, t: torch.Tensor) -> torch.Tensor:
        return t


@dataclass(frozen=True)
class Flatten(Node):
    """The features of an image as one vector."""

    def output_shape(self, *shapes: Shape) -> Shape:
        return (numel(only(self, shapes)),)

    def module(self, *shapes: Shape, **factory: Any) -> nn.Module:
        return nn.Flatten()

    def exact(self, grams: Sequence[PairGrams], shapes: Sequence[Shape]) -> PairGrams:
        return grams[0].whole()

    def label(self) -> str:
        return "flatten"


@dataclass(frozen=True)
class DirectSum(Node):
    """The counterpart of adding or concatenating branches: :class:`torchckn.nn.KernelSum`."""

    weights: tuple[float, ...] | None = field(default=None, kw_only=True)

    def output_shape(self, *shapes: Shape) -> Shape:
        if not shapes or len({shape[1:] for shape in shapes}) > 1:
            raise ConfigError(f"node {self.name!r} expected inputs that differ in their channels only, got {list(shapes)}")
        if self.weights is not None and (len(self.weights) != len(shapes) or not all(map(is_number, self.weights))):
            raise ConfigError(
                f"node {self.name!r} expected one weight per input, {len(shapes)} in total, got {self.weights}"
            )
        return (sum(shape[0] for shape in shapes), *shapes[0][1:])

    def module(self, *shapes: Shape, **factory: Any) -> nn.Module:
        return KernelSum(self.weights)

    def exact(self, grams: Sequence[PairGrams], shapes: Sequence[Shape]) -> PairGrams:
        weights = self.weights or (1.0,) * len(grams)
        total = grams[0].scaled(weights[0] ** 2)
        for gram, weight in zip(grams[1:], weights[1:], strict=True):
            total = total + gram.scaled(weight**2)
        return total

    def label(self) -> str:
        return "direct sum"


@dataclass(frozen=True)
class Standardize(Node):
    """(pixels - mean) / std for each channel."""

    acts_on_pixels: ClassVar[bool] = True

    mean: tuple[float, ...] = field(default=(), kw_only=True)
    std: tuple[float, ...] = field(default=(), kw_only=True)

    def output_shape(self, *shapes: Shape) -> Shape:
        channels = as_image(self, only(self, shapes))[0]
        numbers = all(map(is_number, (*self.mean, *self.std))) and all(s > 0 for s in self.std)
        if len(self.mean) != channels or len(self.std) != channels or not numbers:
            raise ConfigError(
                f"node {self.name!r} expected a mean and a positive std for each of {channels} channels, got mean {self.mean} "
                f"and std {self.std}"
            )
        return shapes[0]

    def module(self, *shapes: Shape, **factory: Any) -> nn.Module:
        return Standardization(self.mean, self.std)

    def label(self) -> str:
        return "standardization"


@dataclass(frozen=True)
class Whiten(Node):
    """Per-image patch whitening: :class:`torchckn.nn.Whitening`."""

    acts_on_pixels: ClassVar[bool] = True

    patch_size: Pair = field(default=(3, 3), kw_only=True)
    eps: float = field(default=1e-3, kw_only=True)
    root: int = field(default=2, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "patch_size", pair(f"patch_size of node {self.name!r}", self.patch_size))

    def output_shape(self, *shapes: Shape) -> Shape:
        channels, *size = as_image(self, only(self, shapes))
        return (channels * self.patch_size[0] * self.patch_size[1], *size)

    def module(self, *shapes: Shape, **factory: Any) -> nn.Module:
        return Whitening(shapes[0][0], self.patch_size, self.eps, self.root)

    def label(self) -> str:
        return "whitening {}x{}".format(*self.patch_size)
