"""The product of two feature maps as a node, and copies of a vector at all positions. Read next: ``graph.py``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from ..errors import ConfigError
from ..kernels import Kernel, KernelSpec, Linear
from ..nn.geometry import Pair, pair
from ..nn.product import KernelProduct, RandomFeatureProduct
from .grams import PairGrams
from .layers import KernelNode
from .node import Node, Shape, only


@dataclass(frozen=True)
class Product(KernelNode):
    """The counterpart of multiplying two branches: :class:`torchckn.nn.KernelProduct`.

    Its kernel is the product of the kernels of its inputs: with one input twice, the polynomial kernel of degree 2.
    """

    kernel: KernelSpec | Kernel = field(default_factory=lambda: Linear().spec(), kw_only=True)

    def output_shape(self, *shapes: Shape) -> Shape:
        if self.kernel != Linear().spec():
            raise ConfigError(f"node {self.name!r} is a product, whose kernel is Linear() of both inputs, got {self.kernel}")
        if self.init == "identity":
            raise ConfigError(f"node {self.name!r} expected init 'kmeans', 'sample' or 'random', got 'identity'")
        positions = [shape[1:] or (1, 1) for shape in shapes]
        if len(shapes) != 2 or any(a != b and 1 not in (a, b) for a, b in zip(*positions, strict=True)):
            raise ConfigError(
                f"node {self.name!r} expected two inputs with the same positions, or one of them without, got {list(shapes)}"
            )
        if all(len(shape) == 1 for shape in shapes):
            return (self.filters,)
        return (self.filters, *(max(sizes) for sizes in zip(*positions, strict=True)))

    def module(self, *shapes: Shape, **factory: Any) -> nn.Module:
        options: dict[str, Any] = {name: getattr(self, name) for name in ("eps", "init", "inverse_sqrt", "root_block")}
        return self._set_trainable(KernelProduct((shapes[0][0], shapes[1][0]), self.filters, **options, **factory))

    def random_features(self, *shapes: Shape, **factory: Any) -> nn.Module:
        return RandomFeatureProduct((shapes[0][0], shapes[1][0]), self.filters, **factory)

    def exact(self, grams: Sequence[PairGrams], shapes: Sequence[Shape]) -> PairGrams:
        return grams[0] * grams[1]

    def label(self) -> str:
        return "product"


@dataclass(frozen=True)
class Broadcast(Node):
    """A vector, or an image of one position, copied to all positions of an image."""

    size: Pair = field(default=(1, 1), kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "size", pair(f"size of node {self.name!r}", self.size))

    def output_shape(self, *shapes: Shape) -> Shape:
        shape = only(self, shapes)
        if len(shape) not in (1, 3) or any(n not in (1, size) for n, size in zip(shape[1:], self.size, strict=False)):
            raise ConfigError(f"node {self.name!r} expected a vector or an image of one position, got {shape}")
        return (shape[0], *self.size)

    def module(self, *shapes: Shape, **factory: Any) -> nn.Module:
        return _Copies(self.size)

    def exact(self, grams: Sequence[PairGrams], shapes: Sequence[Shape]) -> PairGrams:
        return grams[0].linear(self.module())

    def label(self) -> str:
        return "copies at {}x{} positions".format(*self.size)


class _Copies(nn.Module):
    def __init__(self, size: Pair) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, :, None, None] if x.ndim == 2 else x
        return x.expand(-1, -1, *self.size)
