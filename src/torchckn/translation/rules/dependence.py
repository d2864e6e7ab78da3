"""Whether branches are independent, as their kernels are added or multiplied as if they were."""

from __future__ import annotations

from itertools import combinations

from ...graph import KernelNode, Node
from ..builder import Builder, Value


def share_units(builder: Builder, *values: Value) -> bool:
    """Whether two of the values are computed from the same units, or from units with the same weights."""
    # Layers with identity filters have no random weights of their own.
    units = [layers_before(builder.nodes, value.node, identity=False) for value in values]
    return builder.shares_weights or any(first & second for first, second in combinations(units, 2))


def layers_before(nodes: dict[str, Node], name: str, *, identity: bool = True) -> set[str]:
    """The last layers before a node, itself included; ``identity``: also those with identity filters."""
    node = nodes.get(name)  # a pending layer is none yet
    if node is None or (isinstance(node, KernelNode) and (identity or node.init != "identity")):
        return {name}
    return set().union(*(layers_before(nodes, i, identity=identity) for i in node.inputs))
