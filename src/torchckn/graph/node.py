"""Base class of nodes: a name, inputs, and the methods listed in :mod:`torchckn.graph`. Read next: ``operations.py``."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, ClassVar

from torch import nn

from ..choices import as_integer
from ..errors import ConfigError, unknown_name
from ..kernels import Kernel, KernelSpec
from .grams import PairGrams

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Node:
    """One operation. Without ``inputs``, :class:`Graph` connects it to the previous node."""

    name: str
    inputs: tuple[str, ...] = field(default=(), kw_only=True)

    #: whether it is applied to pixels, before any kernel layer (whitening)
    acts_on_pixels: ClassVar[bool] = False
    #: whether it is linear and acts on positions, so that a layer can apply it before its projection
    is_linear_pooling: ClassVar[bool] = False

    _registry: ClassVar[dict[str, type[Node]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Node._registry[cls.__name__] = cls

    def __post_init__(self) -> None:
        if isinstance(self.inputs, str):
            object.__setattr__(self, "inputs", (self.inputs,))
        for attribute in dataclasses.fields(self):
            object.__setattr__(self, attribute.name, _plain(getattr(self, attribute.name)))
        if not isinstance(self.inputs, tuple) or not all(isinstance(name, str) for name in self.inputs):
            raise ConfigError(f"node {self.name!r} expected the names of nodes as inputs, got {self.inputs!r}")

    def output_shape(self, *shapes: Shape) -> Shape:
        raise TypeError(f"{type(self).__name__} must define output_shape")

    def module(self, *shapes: Shape, **factory: Any) -> nn.Module:
        """The operation as a module; ``factory`` may hold generator, device and dtype."""
        raise TypeError(f"{type(self).__name__} must define module")

    def random_features(self, *shapes: Shape, **factory: Any) -> nn.Module:
        """The operation in a network of random features; the same module if it has no filters."""
        return self.module(*shapes, **factory)

    def exact(self, grams: Sequence[PairGrams], shapes: Sequence[Shape]) -> PairGrams:
        raise TypeError(f"{type(self).__name__} must define exact")

    def label(self) -> str:
        return type(self).__name__

    def to_json(self) -> dict[str, Any]:
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        for name, value in plain.items():
            if isinstance(value, KernelSpec):
                plain[name] = {"name": value.name, **dict(value.arguments)}
        return {"op": type(self).__name__, **plain}

    @staticmethod
    def from_json(plain: dict[str, Any]) -> Node:
        fields = dict(plain)
        op = fields.pop("op", None)
        if op not in Node._registry:
            raise unknown_name("operation", op, Node._registry)
        kernel = fields.get("kernel")
        if isinstance(kernel, dict):
            arguments = tuple((k, v) for k, v in kernel.items() if k != "name")
            # Built and described again: validated, and in the order of the constructor's arguments.
            fields["kernel"] = KernelSpec(str(kernel.get("name")), arguments).build().spec()
        try:
            return Node._registry[op](**fields)
        except TypeError as error:
            raise ConfigError(f"operation {op} cannot be built from {fields}: {error}") from error


def _plain(value: Any) -> Any:
    """A field of a node: kernels as their descriptions, lists as tuples, numbers of NumPy as those of Python."""
    if isinstance(value, Kernel):
        return value.spec()
    if isinstance(value, (list, tuple)):
        return tuple(_plain(item) for item in value)
    number = as_integer(value)
    if number is None and isinstance(value, Real) and not isinstance(value, bool):
        return float(value)
    return value if number is None else number


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < LARGEST_NUMBER


#: of a weight or a mean; it is far from what overflows in float32
LARGEST_NUMBER = 1e18


def numel(shape: Shape) -> int:
    return math.prod(shape)


def only(node: Node, shapes: Sequence[Shape]) -> Shape:
    if len(shapes) != 1:
        raise ConfigError(f"node {node.name!r} expected one input, got {len(shapes)}")
    return shapes[0]


def as_image(node: Node, shape: Shape) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise ConfigError(f"node {node.name!r} expected an image (channels, height, width), got {shape}")
    channels, height, width = shape
    return channels, height, width
