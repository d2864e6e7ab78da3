"""The operations a kernel network is made of: one dataclass each, with its readings. Read next: ``graph.py``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import nn

from ..errors import ConfigError
from ..exact import PairGrams
from ..kernels import Kernel, KernelSpec, RBFSphere
from ..nn.geometry import Pair, conv_output_size, pair
from ..nn.invsqrt import Method
from ..nn.layers import Init, KernelConv2d, KernelLinear, KernelLocal2d, KernelSum, region_index
from ..nn.pooling import GaussianPool2d
from ..nn.whitening import Whitening
from .node import Node, Shape, as_image, numel, only


@dataclass(frozen=True)
class KernelNode(Node):
    """What the nodes of kernel layers have in common. Not an operation by itself."""

    filters: int = field(default=0, kw_only=True)
    kernel: KernelSpec | Kernel = field(default_factory=lambda: RBFSphere(0.6).spec(), kw_only=True)
    eps: float = field(default=1e-3, kw_only=True)
    init: Init = field(default="kmeans", kw_only=True)
    inverse_sqrt: Method = field(default="auto", kw_only=True)
    trainable: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.filters, int) or self.filters < 1:
            raise ConfigError(f"node {self.name!r} expects at least one filter, came filters={self.filters!r}")
        if not isinstance(self.kernel, KernelSpec):
            raise ConfigError(f"node {self.name!r} expects a kernel such as RBFSphere(0.6), came {self.kernel!r}")

    def _options(self) -> dict[str, Any]:
        options = {"eps": self.eps, "init": self.init, "inverse_sqrt": self.inverse_sqrt}
        return {"kernel": self.build_kernel(), **options}

    def build_kernel(self) -> Kernel:
        assert isinstance(self.kernel, KernelSpec)
        return self.kernel.build()

    def with_kernel(self, kernel: Kernel) -> KernelNode:
        return dataclasses.replace(self, kernel=kernel.spec())

    def _trained(self, layer: nn.Module) -> nn.Module:
        return layer if self.trainable else layer.requires_grad_(False)


@dataclass(frozen=True)
class _Window(Node):
    """A window that slides over the image."""

    kernel_size: Pair = field(default=(1, 1), kw_only=True)
    stride: Pair = field(default=(1, 1), kw_only=True)
    padding: Pair = field(default=(0, 0), kw_only=True)
    dilation: Pair = field(default=(1, 1), kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("kernel_size", "stride", "padding", "dilation"):
            checked = pair(f"{name} of node {self.name!r}", getattr(self, name), least=int(name != "padding"))
            object.__setattr__(self, name, checked)

    def _geometry(self) -> tuple[Pair, Pair, Pair, Pair]:
        return self.kernel_size, self.stride, self.padding, self.dilation

    def _window(self) -> dict[str, Any]:
        return dict(zip(("kernel_size", "stride", "padding", "dilation"), self._geometry(), strict=True))

    def _output_size(self, shape: Shape) -> Pair:
        size = conv_output_size(as_image(self, shape)[1:], *self._geometry())
        if min(size) < 1:
            raise ConfigError(f"node {self.name!r}: its {self.kernel_size} window does not fit into {shape[1]}x{shape[2]}")
        return size

    def _window_label(self) -> str:
        text = "{}x{}".format(*self.kernel_size)
        for name, usual in (("stride", (1, 1)), ("padding", (0, 0)), ("dilation", (1, 1))):
            value = getattr(self, name)
            if value != usual:
                text += f", {name} {value[0]}" + ("" if value[0] == value[1] else f"x{value[1]}")
        return text


@dataclass(frozen=True)
class Conv(_Window, KernelNode):
    """Convolutional kernel layer: :class:`torchckn.nn.KernelConv2d`."""

    def output_shape(self, *shapes: Shape) -> Shape:
        return (self.filters, *self._output_size(only(self, shapes)))

    def module(self, *shapes: Shape, **factory: Any) -> nn.Module:
        layer = KernelConv2d(shapes[0][0], self.filters, **self._window(), **self._options(), **factory)
        return self._trained(layer)

    def exact(self, grams: Sequence[PairGrams], shapes: Sequence[Shape]) -> PairGrams:
        return grams[0].patches(*self._geometry()).kernel(self.build_kernel())

    def label(self) -> str:
        return f"{'identity' if self.init == 'identity' else 'convolution'} {self._window_label()}"


@dataclass(frozen=True)
class Local(_Window, KernelNode):
    """Partially connected kernel layer: :class:`torchckn.nn.KernelLocal2d`."""

    regions: Pair | None = field(default=None, kw_only=True)

    def output_shape(self, *shapes: Shape) -> Shape:
        return (self.filters, *self._output_size(only(self, shapes)))

    def module(self, *shapes: Shape, **factory: Any) -> nn.Module:
        channels, *size = shapes[0]
        where: dict[str, Any] = {"input_size": tuple(size), "regions": self.regions}
        return self._trained(KernelLocal2d(channels, self.filters, **where, **self._window(), **self._options(), **factory))

    def exact(self, grams: Sequence[PairGrams], shapes: Sequence[Shape]) -> PairGrams:
        features = grams[0].patches(*self._geometry()).kernel(self.build_kernel())
        region_of = region_index(self._output_size(shapes[0]), self.regions)
        return features.within(region_of.to(features.values.device))

    def label(self) -> str:
        return f"local {self._window_label()}"


@dataclass(frozen=True)
class Dense(KernelNode):
    """Fully connected kernel layer: :class:`torchckn.nn.KernelLinear`. Flattens what it gets."""

    def output_shape(self, *shapes: Shape) -> Shape:
        only(self, shapes)
        return (self.filters,)

    def module(self, *shapes: Shape, **factory: Any) -> nn.Module:
        return self._trained(KernelLinear(numel(shapes[0]), self.filters, **self._options(), **factory))

    def exact(self, grams: Sequence[PairGrams], shapes: Sequence[Shape]) -> PairGrams:
        return grams[0].whole().kernel(self.build_kernel())

    def label(self) -> str:
        return "fully connected"


@dataclass(frozen=True)
class _LinearPooling(Node):
    is_linear_pooling: ClassVar[bool] = True

    def exact(self, grams: Sequence[PairGrams], shapes: Sequence[Shape]) -> PairGrams:
        return grams[0].linear(self.module(*shapes))


@dataclass(frozen=True)
class AveragePool(_Window, _LinearPooling):
    """``nn.AvgPool2d``. Without dilation."""

    count_include_pad: bool = field(default=True, kw_only=True)

    def output_shape(self, *shapes: Shape) -> Shape:
        return (shapes[0][0], *self._output_size(only(self, shapes)))

    def module(self, *shapes: Shape, **factory: Any) -> nn.Module:
        if self.dilation != (1, 1):
            raise ConfigError(f"node {self.name!r}: average pooling has no dilation, came {self.dilation}")
        return nn.AvgPool2d(self.kernel_size, self.stride, self.padding, count_include_pad=self.count_include_pad)

    def label(self) -> str:
        return f"average pooling {self._window_label()}"


@dataclass(frozen=True)
class AdaptiveAveragePool(_LinearPooling):
    """``nn.AdaptiveAvgPool2d``; (1, 1) is global average pooling."""

    output_size: Pair = field(default=(1, 1), kw_only=True)

    def output_shape(self, *shapes: Shape) -> Shape:
        return (as_image(self, only(self, shapes))[0], *pair("output_size", self.output_size))

    def module(self, *shapes: Shape, **factory: Any) -> nn.Module:
        return nn.AdaptiveAvgPool2d(self.output_size)

    def label(self) -> str:
        return (
            "global average pooling" if self.output_size == (1, 1) else "average pooling to {}x{}".format(*self.output_size)
        )


@dataclass(frozen=True)
class GaussianPool(_LinearPooling):
    """:class:`torchckn.nn.GaussianPool2d`."""

    stride: int = field(default=2, kw_only=True)
    sigma: float | None = field(default=None, kw_only=True)
    kernel_size: int | None = field(default=None, kw_only=True)
    padding: int | None = field(default=None, kw_only=True)

    def output_shape(self, *shapes: Shape) -> Shape:
        channels, height, width = as_image(self, only(self, shapes))
        pool = self.module()
        return channels, len(pool.matrix(height)), len(pool.matrix(width))

    def module(self, *shapes: Shape, **factory: Any) -> GaussianPool2d:
        return GaussianPool2d(self.stride, self.sigma, self.kernel_size, self.padding)

    def label(self) -> str:
        return f"Gaussian pooling, stride {self.stride}"


@dataclass(frozen=True)
class MaxPool(_Window):
    """``nn.MaxPool2d``: kept as it is, for it has no counterpart among kernels, and no exact reading."""

    def output_shape(self, *shapes: Shape) -> Shape:
        return (shapes[0][0], *self._output_size(only(self, shapes)))

    def module(self, *shapes: Shape, **factory: Any) -> nn.Module:
        return nn.MaxPool2d(*self._geometry())

    def exact(self, grams: Sequence[PairGrams], shapes: Sequence[Shape]) -> PairGrams:
        raise ConfigError(
            f"node {self.name!r} is max pooling, which acts on coordinates and has no un-approximated kernel; "
            "use average or Gaussian pooling where you want the exact kernel"
        )

    def label(self) -> str:
        return f"max pooling {self._window_label()}"


@dataclass(frozen=True)
class DirectSum(Node):
    """The counterpart of adding or concatenating branches: :class:`torchckn.nn.KernelSum`."""

    def output_shape(self, *shapes: Shape) -> Shape:
        if not shapes or len({shape[1:] for shape in shapes}) > 1:
            raise ConfigError(f"node {self.name!r} expects inputs that differ in their channels only, came {list(shapes)}")
        return (sum(shape[0] for shape in shapes), *shapes[0][1:])

    def module(self, *shapes: Shape, **factory: Any) -> nn.Module:
        return KernelSum()

    def exact(self, grams: Sequence[PairGrams], shapes: Sequence[Shape]) -> PairGrams:
        total = grams[0]
        for gram in grams[1:]:
            total = total + gram
        return total

    def label(self) -> str:
        return "direct sum"


@dataclass(frozen=True)
class Whiten(Node):
    """Per-image patch whitening: :class:`torchckn.nn.Whitening`."""

    acts_on_pixels: ClassVar[bool] = True

    patch_size: Pair = field(default=(3, 3), kw_only=True)
    eps: float = field(default=1e-3, kw_only=True)

    def output_shape(self, *shapes: Shape) -> Shape:
        channels, *size = as_image(self, only(self, shapes))
        return (channels * self.patch_size[0] * self.patch_size[1], *size)

    def module(self, *shapes: Shape, **factory: Any) -> nn.Module:
        return Whitening(shapes[0][0], self.patch_size, self.eps)

    def label(self) -> str:
        return "whitening {}x{}".format(*self.patch_size)
