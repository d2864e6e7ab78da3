"""A graph: nodes in the order of computation, validated when it is built, and the shapes of their outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from torch import nn

from ..choices import as_integers
from ..errors import CKNError, ConfigError
from .layers import KernelNode
from .node import Node, Shape, numel

#: a network stores its layers in an nn.ModuleDict, whose attributes cannot be names of nodes
_MODULES = nn.ModuleDict()
#: numbers that a node may give per image: one GB in float32
_MOST_VALUES = 2**28


@dataclass(frozen=True)
class Graph:
    """An input shape (C, H, W) and nodes in the order of computation; the output of the last one is the features."""

    input_shape: tuple[int, int, int]
    nodes: tuple[Node, ...]

    #: the name under which nodes refer to the network's input
    input: ClassVar[str] = "input"

    def __init__(self, input_shape: Sequence[int], nodes: Iterable[Node]) -> None:
        shape = as_integers(input_shape, 1)
        if shape is None or len(shape) != 3:
            raise ConfigError(f"input_shape expected (channels, height, width), got {input_shape!r}")
        connected, previous = [], self.input
        for node in nodes:
            if not isinstance(node, Node):
                raise ConfigError(f"Graph expected nodes such as graph.Conv(...), got {type(node).__name__}")
            connected.append(node if node.inputs else dataclasses.replace(node, inputs=(previous,)))
            previous = node.name
        object.__setattr__(self, "input_shape", shape)
        object.__setattr__(self, "nodes", tuple(connected))
        if not connected:
            raise ConfigError("Graph expected at least one node, got none")
        self.shapes  # noqa: B018 - computing the shapes validates the graph

    @cached_property
    def shapes(self) -> dict[str, Shape]:
        """The shape, without the batch dimension, of the input and of every node's output."""
        shapes: dict[str, Shape] = {self.input: self.input_shape}
        pixels = {self.input}
        for node in self.nodes:
            name = node.name
            if not isinstance(name, str) or not name or name in shapes or "." in name or hasattr(_MODULES, name):
                raise ConfigError(
                    f"expected a new node name without dots, got {node.name!r}, which is already used, reserved or not valid"
                )
            missing = [name for name in node.inputs if name not in shapes]
            if missing:
                raise ConfigError(
                    f"node {node.name!r} expected earlier nodes as inputs, got {missing}; put these nodes before it"
                )
            if node.acts_on_pixels:
                if not pixels.issuperset(node.inputs):
                    raise ConfigError(
                        f"node {node.name!r} acts on pixels, but its input is a kernel layer; put it before all kernel layers"
                    )
                pixels.add(node.name)
            shapes[node.name] = node.output_shape(*(shapes[name] for name in node.inputs))
            if numel(shapes[node.name]) > _MOST_VALUES:
                raise ConfigError(
                    f"node {node.name!r} gives {numel(shapes[node.name])} numbers per image, expected at most {_MOST_VALUES}; "
                    "check its padding and its size"
                )
        used = {name for node in self.nodes for name in node.inputs}
        unused = [node.name for node in self.nodes[:-1] if node.name not in used]
        if unused:
            raise ConfigError(
                f"expected every node but the last to be an input of a later one, got unused nodes {unused}; remove them"
            )
        return shapes

    @property
    def output(self) -> str:
        return self.nodes[-1].name

    @property
    def features(self) -> int:
        """Number of features per image."""
        return numel(self.shapes[self.output])

    def consumers(self, name: str) -> list[Node]:
        return [node for node in self.nodes if name in node.inputs]

    def with_filters(self, filters: int) -> Graph:
        """The graph with this number of filters in every layer but identity layers."""
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
        """Rebuild a graph from data; no code from the file is executed."""
        try:
            return Graph(plain["input_shape"], [Node.from_json(node) for node in plain["nodes"]])
        except CKNError:
            raise
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"expected a graph written by Graph.to_json, got something else: {error!r}") from error
