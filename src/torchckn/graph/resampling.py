"""Operations that move or mix positions: upsampling, fixed windows, patches as channels. Read next: ``graph.py``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import nn

from ..choices import Interpolation, check_choice
from ..errors import ConfigError
from ..nn.geometry import Pair, pair
from ..nn.resampling import FixedWindow, Resized, SelectedChannels, ShuffledChannels
from .grams import PairGrams
from .layers import WindowNode
from .node import Node, Shape, as_image, is_number, only
from .operations import OnPositions


@dataclass(frozen=True)
class Upsample(OnPositions):
    """``F.interpolate`` to ``output_size``: linear on positions."""

    output_size: Pair = field(default=(1, 1), kw_only=True)
    mode: Interpolation = field(default="nearest", kw_only=True)
    align_corners: bool | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "output_size", pair(f"output_size of node {self.name!r}", self.output_size))
        check_choice(f"mode of node {self.name!r}", self.mode, Interpolation)

    def output_shape(self, *shapes: Shape) -> Shape:
        return (as_image(self, only(self, shapes))[0], *self.output_size)

    def module(self, *shapes: Shape, **factory: Any) -> nn.Module:
        return Resized(self.output_size, self.mode, self.align_corners)

    def label(self) -> str:
        return "{} interpolation to {}x{}".format(self.mode, *self.output_size)


@dataclass(frozen=True)
class Window(WindowNode, OnPositions):
    """Every channel convolved with one fixed ``window``, such as a blur: linear on positions."""

    is_linear_pooling: ClassVar[bool] = True

    window: tuple[tuple[float, ...], ...] = field(default=((1.0,),), kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "window", tuple(tuple(row) for row in self.window))
        rows = {len(row) for row in self.window}
        if len(rows) != 1 or not all(is_number(value) for row in self.window for value in row):
            raise ConfigError(
                f"node {self.name!r} expected a window of numbers, with rows of one length, got {self.window!r}"
            )
        object.__setattr__(self, "kernel_size", (len(self.window), rows.pop()))
        super().__post_init__()
        if self.dilation != (1, 1):
            raise ConfigError(f"node {self.name!r} expected dilation 1, got {self.dilation}; put zeros into the window")

    def module(self, *shapes: Shape, **factory: Any) -> nn.Module:
        return FixedWindow(self.window, self.stride, self.padding)

    def label(self) -> str:
        return f"fixed window {self._window_label()}"


@dataclass(frozen=True)
class SpaceToDepth(Node):
    """``nn.PixelUnshuffle``: the patches of a grid as channels."""

    block: int = field(default=2, kw_only=True)

    def output_shape(self, *shapes: Shape) -> Shape:
        channels, height, width = as_image(self, only(self, shapes))
        if type(self.block) is not int or self.block < 1 or height % self.block or width % self.block:
            raise ConfigError(f"node {self.name!r} expected a block that divides {height}x{width}, got {self.block!r}")
        return (channels * self.block**2, height // self.block, width // self.block)

    def module(self, *shapes: Shape, **factory: Any) -> nn.Module:
        return nn.PixelUnshuffle(self.block)

    def exact(self, grams: Sequence[PairGrams], shapes: Sequence[Shape]) -> PairGrams:
        block = (self.block, self.block)
        return grams[0].patches(block, block, (0, 0), (1, 1))

    def label(self) -> str:
        return f"{self.block}x{self.block} blocks as channels"


@dataclass(frozen=True)
class AsImage(Node):
    """A vector as an image of one pixel: (C,) -> (C, 1, 1)"""

    def output_shape(self, *shapes: Shape) -> Shape:
        if len(only(self, shapes)) != 1:
            raise ConfigError(f"node {self.name!r} expected a vector, got shape {shapes[0]}")
        return (shapes[0][0], 1, 1)

    def module(self, *shapes: Shape, **factory: Any) -> nn.Module:
        return nn.Unflatten(1, (shapes[0][0], 1, 1))

    def exact(self, grams: Sequence[PairGrams], shapes: Sequence[Shape]) -> PairGrams:
        return grams[0]

    def label(self) -> str:
        return "vector as an image of one pixel"


@dataclass(frozen=True)
class SelectChannels(Node):
    """Some channels of the input image. (Of a layer, some channels are a layer with fewer filters.)"""

    acts_on_pixels: ClassVar[bool] = True

    channels: tuple[int, ...] = field(default=(), kw_only=True)

    def output_shape(self, *shapes: Shape) -> Shape:
        channels, *size = as_image(self, only(self, shapes))
        if not self.channels or not all(type(c) is int and 0 <= c < channels for c in self.channels):
            raise ConfigError(f"node {self.name!r} expected channels from 0 to {channels - 1}, got {self.channels!r}")
        return (len(self.channels), *size)

    def module(self, *shapes: Shape, **factory: Any) -> nn.Module:
        return SelectedChannels(self.channels)

    def label(self) -> str:
        first, last = self.channels[0], self.channels[-1]
        return f"channel {first}" if first == last else f"{len(self.channels)} channels, {first} to {last}"


@dataclass(frozen=True)
class ShuffleChannels(Node):
    """The channels in another order: no kernel changes, but the groups of a later layer have other channels.

    ``order`` is a permutation of any number of channels. More or fewer channels are shuffled alike: each goes where the channel
    at the same fraction of ``order`` goes.
    """

    order: tuple[int, ...] = field(default=(), kw_only=True)

    def output_shape(self, *shapes: Shape) -> Shape:
        if not all(type(c) is int for c in self.order) or sorted(self.order) != list(range(max(1, len(self.order)))):
            raise ConfigError(f"node {self.name!r} expected a permutation such as (0, 2, 1, 3), got {self.order!r}")
        return as_image(self, only(self, shapes))

    def module(self, *shapes: Shape, **factory: Any) -> nn.Module:
        channels, place = shapes[0][0], {c: i for i, c in enumerate(self.order)}
        return ShuffledChannels(sorted(range(channels), key=lambda c: place[c * len(self.order) // channels]))

    def exact(self, grams: Sequence[PairGrams], shapes: Sequence[Shape]) -> PairGrams:
        return grams[0]

    def label(self) -> str:
        return "channels in another order"
