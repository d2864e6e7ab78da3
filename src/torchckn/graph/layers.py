"""The kernel layers as nodes: convolutional, partially connected, fully connected. Read next: ``operations.py``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import nn

from ..choices import Init, as_integer, check_choice
from ..errors import ConfigError
from ..kernels import Kernel, KernelSpec, RBFSphere
from ..nn.base import KernelLayer, checked_eps, checked_root_block
from ..nn.functional import block_count
from ..nn.geometry import Pair, conv_output_size, pair
from ..nn.invsqrt import check_method
from ..nn.layers import KernelConv2d, KernelLinear, KernelLocal2d, region_index
from ..nn.random_features import (
    RandomFeatureConv2d,
    RandomFeatureLinear,
    RandomFeatureLocal2d,
    RandomFeatureUnits,
)
from .grams import PairGrams
from .node import Node, Shape, as_image, numel, only


@dataclass(frozen=True)
class KernelNode(Node):
    """Base class of the nodes of kernel layers."""

    filters: int = field(default=0, kw_only=True)
    kernel: KernelSpec | Kernel = field(default_factory=lambda: RBFSphere(0.6).spec(), kw_only=True)
    eps: float = field(default=1e-3, kw_only=True)
    init: Init = field(default="kmeans", kw_only=True)
    inverse_sqrt: str = field(default="auto", kw_only=True)
    root_block: int | None = field(default=None, kw_only=True)
    trainable: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if as_integer(self.filters, 1) is None:
            raise ConfigError(f"node {self.name!r} expected at least one filter, got filters={self.filters!r}")
        if not isinstance(self.kernel, KernelSpec):
            raise ConfigError(f"node {self.name!r} expected a kernel such as RBFSphere(0.6), got {self.kernel!r}")
        checked_eps(f"eps of node {self.name!r}", self.eps)
        check_choice(f"init of node {self.name!r}", self.init, Init)
        check_method(self.inverse_sqrt)
        checked_root_block(f"root_block of node {self.name!r}", self.root_block)

    def _check_identity(self, channels: int) -> None:
        if self.init == "identity" and self.filters != channels:
            raise ConfigError(
                f"node {self.name!r} expected {channels} filters, as an identity on {channels} channels, got {self.filters}"
            )

    def _options(self) -> dict[str, Any]:
        names = ("eps", "init", "inverse_sqrt", "root_block")
        return {"kernel": self.build_kernel(), **{name: getattr(self, name) for name in names}}

    @property
    def root_width(self) -> int:
        """The number of filters that one inverse root is made of, unless they are in blocks."""
        return self.filters

    @property
    def root_blocks(self) -> int:
        """The number of blocks that these filters are in, each with an inverse root of its own."""
        return block_count(self.root_width, self.root_block)

    def _blocks_label(self) -> str:
        return f", {self.root_blocks} root blocks" if self.root_blocks > 1 else ""

    def to_json(self) -> dict[str, Any]:
        plain = super().to_json()
        if self.root_block is None:  # as in files of version 0.1.0, which has no blocks
            del plain["root_block"]
        return plain

    def build_kernel(self) -> Kernel:
        assert isinstance(self.kernel, KernelSpec)
        return self.kernel.build()

    def with_kernel(self, kernel: Kernel) -> KernelNode:
        return dataclasses.replace(self, kernel=kernel.spec())

    def as_in(self, layer: KernelLayer) -> KernelNode:
        """The node with the current values of its layer: trained bandwidths, changed options."""
        options = {name: getattr(layer, name) for name in ("eps", "inverse_sqrt", "root_block")}
        return dataclasses.replace(self.with_kernel(layer.kernel), **options, trainable=layer.weight.requires_grad)

    def with_filters(self, filters: int, shape: Shape) -> KernelNode:
        """The node with another number of filters; an identity layer has as many filters as its input ``shape`` has channels."""
        return dataclasses.replace(self, filters=shape[0] if self.init == "identity" else filters)

    def _set_trainable(self, layer: nn.Module) -> nn.Module:
        return layer if self.trainable else layer.requires_grad_(False)


@dataclass(frozen=True)
class WindowNode(Node):
    """A window that slides over the image."""

    #: whether the default stride is the window size, as for torch's pooling layers
    stride_is_size: ClassVar[bool] = False

    kernel_size: Pair = field(default=(1, 1), kw_only=True)
    stride: Pair = field(default=None, kw_only=True)  # type: ignore[assignment]
    padding: Pair = field(default=(0, 0), kw_only=True)
    dilation: Pair = field(default=(1, 1), kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stride is None:
            object.__setattr__(self, "stride", self.kernel_size if self.stride_is_size else (1, 1))
        for name in ("kernel_size", "stride", "padding", "dilation"):
            value = pair(f"{name} of node {self.name!r}", getattr(self, name), least=int(name != "padding"))
            object.__setattr__(self, name, value)

    def _geometry(self) -> tuple[Pair, Pair, Pair, Pair]:
        return self.kernel_size, self.stride, self.padding, self.dilation

    def _geometry_options(self) -> dict[str, Any]:
        return dict(zip(("kernel_size", "stride", "padding", "dilation"), self._geometry(), strict=True))

    def _output_size(self, shape: Shape) -> Pair:
        size = conv_output_size(as_image(self, shape)[1:], *self._geometry())
        if min(size) < 1:
            raise ConfigError(
                f"node {self.name!r} expected images of at least one {self.kernel_size} window, got {shape[1]}x{shape[2]}"
            )
        return size

    def _window_label(self) -> str:
        text = "{}x{}".format(*self.kernel_size)
        parts = ("stride", self.stride, (1, 1)), ("pad", self.padding, (0, 0)), ("dilation", self.dilation, (1, 1))
        for name, value, usual in parts:
            if value != usual:
                text += f", {name} {value[0]}" + ("" if value[0] == value[1] else f"x{value[1]}")
        return text


@dataclass(frozen=True)
class Conv(WindowNode, KernelNode):
    """Convolutional kernel layer: :class:`torchckn.nn.KernelConv2d`."""

    groups: int = field(default=1, kw_only=True)

    def output_shape(self, *shapes: Shape) -> Shape:
        size, channels = self._output_size(only(self, shapes)), shapes[0][0]
        self._check_identity(channels)
        if self.init == "identity" and (*self._geometry(), self.groups) != ((1, 1), (1, 1), (0, 0), (1, 1), 1):
            raise ConfigError(
                f"node {self.name!r} expected 1x1 filters, stride 1, no padding and one group, as an identity, got "
                f"{self._window_label()}, groups={self.groups}"
            )
        if type(self.groups) is not int or self.groups < 1 or channels % self.groups or self.filters % self.groups:
            raise ConfigError(
                f"node {self.name!r} expected a number of groups that divides {channels} channels and {self.filters} filters, "
                f"got {self.groups}"
            )
        return (self.filters, *size)

    def module(self, *shapes: Shape, **factory: Any) -> nn.Module:
        options = {**self._geometry_options(), **self._options(), "groups": self.groups}
        return self._set_trainable(KernelConv2d(shapes[0][0], self.filters, **options, **factory))

    def random_features(self, *shapes: Shape, **factory: Any) -> nn.Module:
        if self.init == "identity" and self.build_kernel().is_pointwise:
            return RandomFeatureUnits(self.build_kernel())
        options = {**self._geometry_options(), "groups": self.groups}
        return RandomFeatureConv2d(shapes[0][0], self.filters, self.build_kernel(), **options, **factory)

    def exact(self, grams: Sequence[PairGrams], shapes: Sequence[Shape]) -> PairGrams:
        if self.groups > 1:
            raise ConfigError(
                f"node {self.name!r} has {self.groups} groups of channels, for which there is no exact kernel; "
                "use groups=1 to compute the exact kernel"
            )
        return grams[0].patches(*self._geometry()).kernel(self.build_kernel())

    def label(self) -> str:
        kind = "identity" if self.init == "identity" else "conv"
        groups = f", {self.groups} groups" if self.groups > 1 else ""
        return f"{kind} {self._window_label()}{groups}{self._blocks_label()}"

    @property
    def root_width(self) -> int:
        return self.filters // self.groups


@dataclass(frozen=True)
class Local(WindowNode, KernelNode):
    """Partially connected kernel layer: :class:`torchckn.nn.KernelLocal2d`."""

    regions: Pair | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.regions is not None:
            object.__setattr__(self, "regions", pair(f"regions of node {self.name!r}", self.regions))

    def output_shape(self, *shapes: Shape) -> Shape:
        size = self._output_size(only(self, shapes))
        if self.regions is not None and (self.regions[0] > size[0] or self.regions[1] > size[1]):
            raise ConfigError(
                f"node {self.name!r} expected at most as many regions as output positions, {size}, got {self.regions}"
            )
        return (self.filters, *size)

    def module(self, *shapes: Shape, **factory: Any) -> nn.Module:
        channels, *size = shapes[0]
        location: dict[str, Any] = {"input_size": tuple(size), "regions": self.regions}
        return self._set_trainable(
            KernelLocal2d(channels, self.filters, **location, **self._geometry_options(), **self._options(), **factory)
        )

    def random_features(self, *shapes: Shape, **factory: Any) -> nn.Module:
        size = self._output_size(shapes[0])
        return RandomFeatureLocal2d(
            shapes[0][0],
            self.filters,
            self.build_kernel(),
            size,
            region_index(size, self.regions),
            **self._geometry_options(),
            **factory,
        )

    def exact(self, grams: Sequence[PairGrams], shapes: Sequence[Shape]) -> PairGrams:
        features = grams[0].patches(*self._geometry()).kernel(self.build_kernel())
        region_of = region_index(self._output_size(shapes[0]), self.regions)
        return features.within(region_of.to(features.values.device))

    def label(self) -> str:
        return f"local {self._window_label()}{self._blocks_label()}"


@dataclass(frozen=True)
class Dense(KernelNode):
    """Fully connected kernel layer: :class:`torchckn.nn.KernelLinear`. Flattens its input."""

    def output_shape(self, *shapes: Shape) -> Shape:
        self._check_identity(numel(only(self, shapes)))
        return (self.filters,)

    def module(self, *shapes: Shape, **factory: Any) -> nn.Module:
        return self._set_trainable(KernelLinear(numel(shapes[0]), self.filters, **self._options(), **factory))

    def random_features(self, *shapes: Shape, **factory: Any) -> nn.Module:
        if self.init == "identity" and self.build_kernel().is_pointwise:
            return RandomFeatureUnits(self.build_kernel())
        return RandomFeatureLinear(numel(shapes[0]), self.filters, self.build_kernel(), **factory)

    def exact(self, grams: Sequence[PairGrams], shapes: Sequence[Shape]) -> PairGrams:
        return grams[0].whole().kernel(self.build_kernel())

    def label(self) -> str:
        return ("identity" if self.init == "identity" else "fully connected") + self._blocks_label()
