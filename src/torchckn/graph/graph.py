"""A graph: nodes in the order of computation, checked once, with the shapes that flow between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from torch import nn

from ..errors import CKNError, ConfigError
from .layers import KernelNode
from .node import Node, Shape, numel

#: where a network keeps its layers; its own attributes cannot be names of nodes
_MODULES = nn.ModuleDict()


@dataclass(frozen=True)
class Graph:
    """An input shape (C, H, W) and nodes in the order of computation; the last one gives the features."""

    input_shape: tuple[int, int, int]
    nodes: tuple[Node, ...]

    #: the name under which nodes refer to the network's input
    input: ClassVar[str] = "input"

    def __init__(self, input_shape: Sequence[int], nodes: Iterable[Node]) -> None:
        shape = tuple(input_shape)
        if len(shape) != 3 or not all(isinstance(n, int) and n > 0 for n in shape):
            raise ConfigError(f"input_shape expected (channels, height, width), got {input_shape!r}")
        filled, before = [], self.input
        for node in nodes:
            if not isinstance(node, Node):
                raise ConfigError(f"a graph expected nodes such as graph.Conv(...), got {type(node).__name__}")
            filled.append(node if node.inputs else dataclasses.replace(node, inputs=(before,)))
            before = node.name
        object.__setattr__(self, "input_shape", shape)
        object.__setattr__(self, "nodes", tuple(filled))
        if not filled:
            raise ConfigError("a graph expected at least one node, got none")
        self.shapes  # noqa: B018 - computing the shapes is the validation

    @cached_property
    def shapes(self) -> dict[str, Shape]:
        """The shape, without the batch, of the input and of every node's output."""
        shapes: dict[str, Shape] = {self.input: self.input_shape}
        pixels = {self.input}
        for node in self.nodes:
            name = node.name
            if not isinstance(name, str) or not name or name in shapes or "." in name or hasattr(_MODULES, name):
                raise ConfigError(f"nodes expect names of their own, without dots; {node.name!r} is taken or not one")
            missing = [name for name in node.inputs if name not in shapes]
            if missing:
                raise ConfigError(f"node {node.name!r} has inputs {missing}, which no earlier node gives")
            if node.acts_on_pixels:
                if not pixels.issuperset(node.inputs):
                    raise ConfigError(f"node {node.name!r} acts on pixels and cannot follow a kernel layer")
                pixels.add(node.name)
            shapes[node.name] = node.output_shape(*(shapes[name] for name in node.inputs))
        used = {name for node in self.nodes for name in node.inputs}
        idle = [node.name for node in self.nodes[:-1] if node.name not in used]
        if idle:
            raise ConfigError(f"nodes {idle} are not used by any later node; the last node gives the features")
        return shapes

    @property
    def output(self) -> str:
        return self.nodes[-1].name

    @property
    def features(self) -> int:
        """How many numbers the features of one image are."""
        return numel(self.shapes[self.output])

    def consumers(self, name: str) -> list[Node]:
        return [node for node in self.nodes if name in node.inputs]

    def with_filters(self, filters: int) -> Graph:
        """The graph with this many filters in every layer that has a choice."""
        nodes: list[Node] = []
        shapes: dict[str, Shape] = {self.input: self.input_shape}
        for node in self.nodes:
            inputs = [shapes[name] for name in node.inputs]
            nodes.append(node.with_filters(filters, inputs[0]) if isinstance(node, KernelNode) else node)
            shapes[node.name] = nodes[-1].output_shape(*inputs)
        return Graph(self.input_shape, nodes)

    def to_json(self) -> dict[str, Any]:
        return {"input_shape": list(self.input_shape), "nodes": [node.to_json() for node in self.nodes]}

    @staticmethod
    def from_json(plain: Any) -> Graph:
        """Rebuild a graph; reads data only and executes nothing."""
        try:
            return Graph(plain["input_shape"], [Node.from_json(node) for node in plain["nodes"]])
        except CKNError:
            raise
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"this is not a graph that Graph.to_json wrote: {error!r}") from error
