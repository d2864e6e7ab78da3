"""Products of feature maps: gates, squeeze-and-excitation, star operations.

Independent branches multiply their kernels, as they add them in a sum: :class:`torchckn.graph.Product`.
"""

from __future__ import annotations

import dataclasses

import torch

from ...graph import Broadcast, KernelNode, Node, Normalize, Product
from ...kernels import Polynomial
from ..builder import Builder, Step, Value
from .activations import own_kernel
from .dependence import layers_before, share_units
from .registry import rule

_WHY = "the kernels of independent branches multiply: filters are pairs of vectors"
_BOUNDED = "a gate of bounded units is divided by its norm"


def product_of_branches(step: Step) -> Value:
    """What ``u * v`` becomes, both of them computed from the image."""
    first, second = step.inputs[:2]
    if step.same_operands():
        return own_kernel(step, torch.square, "square")
    if _is_one_layer_twice(first, second) and not step.builder.shares_weights:
        return _polynomial(step, first, second)
    inexact = _dependence(step.builder, first, second)
    if 1 in (first.width, second.width) and max(first.width, second.width) > 1:
        inexact.append("the gate is one unit, and not infinitely many")
    factors = [step.builder.settle(value) for value in (first, second)]
    bounded = [layers_before(step.builder.nodes, value.node) <= step.builder.bounded for value in factors]
    factors = [_divided(step, value, i) if bounded[i] else value for i, value in enumerate(factors)]
    factor = abs(factors[0].factor * factors[1].factor)
    positions = [value.shape[1:] or (1, 1) for value in factors]
    if any(value.flat for value in factors) and positions[0] != positions[1]:
        factors = [step.builder.flattened(value, f"{step.name}_flat{i}") for i, value in enumerate(factors)]
    width = max(value.width for value in factors) or step.output_shape[0]
    filters = step.builder.policy.filters_for(width)
    node = Product(step.name, filters=filters, **step.builder.policy.options)
    why = (_WHY, _BOUNDED, *inexact) if any(bounded) else (_WHY, *inexact)
    value = step.emit(node, "inexact" if inexact else "exact", why, inputs=factors, gaussian=False)
    return dataclasses.replace(value, flat=len(step.output_shape) == 1, summed=False, factor=factor, width=width)


def _divided(step: Step, value: Value, i: int) -> Value:
    """A gate of bounded units divided by its norm, which is nearly the same for all images.

    The features of a kernel layer grow with the norm of its input. A product of two such layers has the square of that norm,
    which a dozen gates in a row would raise to a power that no floating-point number can hold.
    """
    builder = step.builder
    node = builder.add(Normalize(builder.unique(f"{step.name}_gate{i}"), inputs=(value.node,)))
    builder.origins[node.node] = (value,)
    return dataclasses.replace(value, node=node.node, factor=1.0)


def _is_one_layer_twice(first: Value, second: Value) -> bool:
    """Whether both factors are linear layers of one input and one geometry: they differ in their weights only."""
    a, b = first.pending, second.pending
    return a is not None and b is not None and dataclasses.replace(a, name=b.name, filters=b.filters) == b


def _polynomial(step: Step, first: Value, second: Value) -> Value:
    """Two linear layers of one input: <x, y>^2, the polynomial kernel of degree 2."""
    pending, other = first.pending, second.pending
    assert isinstance(pending, KernelNode)
    assert other is not None
    node = dataclasses.replace(pending, filters=max(pending.filters, other.filters)).with_kernel(Polynomial(2))
    value = step.builder.add(node)
    step.builder.rows = [
        dataclasses.replace(row, layer=node.name) if row.layer == other.name else row for row in step.builder.rows
    ]
    why = "two linear layers of one input multiply to its polynomial kernel of degree 2: one layer"
    step.note("exact", why, layer=node.name, kernel=str(node.kernel), shape=value.shape)
    step.builder.origins[node.name] = step.builder.origins[pending.name]
    factor = abs(first.factor * second.factor)
    return dataclasses.replace(value, flat=first.flat, factor=factor, width=first.width, layout=first.layout)


def _dependence(builder: Builder, first: Value, second: Value) -> list[str]:
    """The reasons, if there are any, why two branches are not independent."""
    pending = {value.node: value.pending for value in (first, second) if value.pending is not None}
    nodes: dict[str, Node] = {**builder.nodes, **pending}
    before = [_before(nodes, value.node) for value in (first, second)]
    if first.node in before[1] or second.node in before[0]:
        return ["the gate is computed from what it multiplies, so that the branches are not independent"]
    if share_units(builder, first, second):
        return ["both branches have the same units or weights, so that they are not independent"]
    return []


def _before(nodes: dict[str, Node], name: str) -> set[str]:
    """All nodes that a node is computed from."""
    upstream: set[str] = set()
    waiting = [name]
    while waiting:
        node = nodes.get(waiting.pop())
        new = [i for i in node.inputs if i not in upstream] if node is not None else []
        upstream.update(new)
        waiting += new
    return upstream


@rule("expand", "expand_as")
def expanding(step: Step) -> Value:
    before, after = step.input_shape, step.output_shape
    if len(after) != 3 or before[0] not in (1, after[0]) or len(before) != 3:
        raise step.refuse(f"it makes {before} into {after}", "Only copies of a vector at all positions have a counterpart.")
    if before[1:] == after[1:]:
        return step.keep(step.input, "copies of a channel change no direction")
    return step.emit(Broadcast(step.name, size=(after[1], after[2])), why="copies at all positions")
