"""The kernel network and the report so far. Read next: ``builder.py``, what a rule sees of it.

The kernel of a layer is not known at its convolution, but only at its nonlinearity: until then the layer is *pending*. A
pending layer that is followed by anything but a nonlinearity has the linear kernel, and a nonlinearity that follows anything
but a pending layer becomes a 1x1 layer with identity filters; together these two give the paper's LeNets, which pool before
their nonlinearities.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from torch import Size, Tensor

from ..choices import Correspondence
from ..correspondence import OtherNumber, Row
from ..errors import TranslationError
from ..graph import Conv, DirectSum, Flatten, Graph, KernelNode, Node, SelectChannels, ShuffleChannels
from ..kernels import Kernel, Linear
from .values import Policy, Value, View


class Builder:
    """The graph and the report so far."""

    def __init__(self, policy: Policy, look: Callable[[View], Value]) -> None:
        self.policy = policy
        self.look = look
        self.nodes: dict[str, Node] = {}
        self.rows: list[Row] = []
        self.other_numbers: list[OtherNumber] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        #: whether the ConvNet uses some weights twice: branches may then depend on each other
        self.shares_weights = False
        #: layers whose nonlinearity is bounded, such as a sigmoid
        self.bounded: set[str] = set()
        self._layer_of_weights: dict[int, str] = {}
        self._settled: dict[str, Value] = {}
        #: what each node was made from, before it was settled
        self.origins: dict[str, tuple[Value, ...]] = {}
        self._looked_at: dict[int, Value] = {}
        self._parts: dict[tuple[str, tuple[int, ...]], Value] = {}

    def unique(self, name: str) -> str:
        """``name``, or a similar name that no node has yet."""
        while name in self.shapes:
            name += "_"
        return name

    def add(self, node: Node) -> Value:
        shapes = [self.shapes[name] for name in node.inputs]
        self.nodes[node.name] = node
        self.shapes[node.name] = node.output_shape(*shapes)
        return Value(node.name, self.shapes[node.name])

    def settle(self, value: Value) -> Value:
        """``value`` as something that the graph already gives: a pending layer gets the linear kernel."""
        if value.pending is None:
            return value
        if value.node in self._settled:
            return self._settled[value.node]
        kernel = Linear() if self.policy.linear_kernel is None else self.policy.linear_kernel
        is_linear = kernel.spec() == Linear().spec()
        settled = self.add(value.pending.with_kernel(kernel))
        settled = dataclasses.replace(value, pending=None, shape=settled.shape, gaussian=is_linear)
        self._settled[value.node] = settled
        if not is_linear:
            self.add_reason(value.node, replaced_kernel(kernel, Linear()), "inexact")
        return settled

    def add_reason(self, layer: str, reason: str, correspondence: Correspondence | None = None) -> None:
        """Add to what the report says about the operation that begins ``layer``, and change its correspondence if given."""
        for i, row in enumerate(self.rows):
            if row.layer == layer and not row.kernel:
                changed = row.correspondence if correspondence is None else correspondence
                self.rows[i] = dataclasses.replace(row, correspondence=changed, reasons=(*row.reasons, reason))

    def notice(self, number: OtherNumber) -> str:
        """Add a number to the report. Returns what it says about operations that have another one."""
        if number not in self.other_numbers:
            self.other_numbers.append(number)
        return number.note

    def uses_again(self, weights: Sequence[Tensor], name: str) -> bool:
        """Whether any of these weights has been used by an operation of another name."""
        first = [self._layer_of_weights.setdefault(w.untyped_storage()._cdata, name) for w in weights]
        again = any(layer != name for layer in first)
        self.shares_weights |= again
        return again

    def flattened(self, value: Value, name: str) -> Value:
        """``value`` as a vector in the CKN as well."""
        value = self.settle(value)
        if not value.flat or len(value.shape) == 1:
            return value
        flat = self.add(Flatten(self.unique(name), inputs=(value.node,)))
        self.origins[flat.node] = (value,)
        return dataclasses.replace(value, node=flat.node, shape=flat.shape)

    def looked_at(self, value: Value) -> Value:
        """A value whose numbers are only moved and selected as one that the graph, or a pending layer, gives."""
        if value.view is None:
            return value
        key = id(value.view)
        if key not in self._looked_at:
            resolved = self.look(value.view)
            self._looked_at[key] = self.settle(resolved) if value.several else resolved
        return self._looked_at[key]

    def part(self, value: Value, channels: Sequence[int]) -> tuple[Value, list[str]]:
        """Some of the ConvNet's channels of ``value``, and the reasons why they are not exactly that.

        Half the filters of a layer are a layer of half as many filters, with a subspace of its own. What acts on every channel
        by itself acts on a part of its input.
        """
        if len(channels) == value.width:
            return value, []
        key = value.node, tuple(channels)
        if key in self._parts:
            return self._parts[key], []
        part, reasons = self._new_part(value, channels)
        part = dataclasses.replace(part, width=len(channels), layout=value.layout, several=False)
        if part.pending is None:
            self._parts[key] = part
        return part, reasons

    def _new_part(self, value: Value, channels: Sequence[int]) -> tuple[Value, list[str]]:
        name = self.unique(f"{value.node}_{channels[0]}_{channels[-1] + 1}")
        if value.node == Graph.input:
            selected = tuple(channels) if self.shapes[Graph.input][0] == value.width else tuple(range(value.shape[0]))
            node: Node = SelectChannels(name, channels=selected, inputs=(Graph.input,))
            return dataclasses.replace(value, node=name, shape=self.add(node).shape), []
        if value.branches:
            return self._part_of_branches(value, name, channels)
        node = self.nodes[value.node] if value.pending is None else value.pending
        sources = self.origins[value.node]
        if isinstance(node, ShuffleChannels):
            before = [node.order[c] for c in channels]  # where they were before the shuffle
            part, reasons = self.part(sources[0], sorted(before))
            return self.shuffled(name, part, ranks(before)), reasons
        if isinstance(node, KernelNode) and node.init != "identity":
            return self._fewer_filters(value, node, name, channels)
        reasons, inputs = [], []
        for source in sources:
            part, more = (source, []) if source.width == 1 < value.width else self.part(source, channels)
            inputs.append(self.settle(part))
            reasons += more
        if isinstance(node, KernelNode):
            node = dataclasses.replace(node, filters=inputs[0].shape[0])
        made = self.add(dataclasses.replace(node, name=name, inputs=tuple(v.node for v in inputs)))
        self.origins[name] = tuple(inputs)
        return dataclasses.replace(value, node=name, shape=made.shape, branches=()), reasons

    def _fewer_filters(self, value: Value, node: KernelNode, name: str, channels: Sequence[int]) -> tuple[Value, list[str]]:
        reasons: list[str] = []
        source = self.origins[value.node][0]
        filters = self.policy.filters_for(value.width, len(channels))
        node = dataclasses.replace(node, name=name, filters=filters)
        if isinstance(node, Conv) and node.groups > 1:
            node, source, reasons = self._fewer_groups(value, node, source, channels)
        self.origins[name] = (source,)
        if value.pending is not None:
            shape = node.output_shape(source.shape)
            return dataclasses.replace(value, node=name, shape=shape, pending=node), reasons
        return dataclasses.replace(value, node=name, shape=self.add(node).shape), reasons

    def _fewer_groups(
        self, value: Value, node: Conv, source: Value, channels: Sequence[int]
    ) -> tuple[Conv, Value, list[str]]:
        """Whole groups of a grouped layer act on a part of its input; parts of groups become one group."""
        if source.width == value.width and source.shape[0] == node.groups:  # one filter per channel
            part, reasons = self.part(source, channels)
            part = self.settle(part)
            size = part.shape[0]
            return dataclasses.replace(node, groups=size, filters=size, inputs=(part.node,)), part, reasons
        return (
            dataclasses.replace(node, groups=1),
            source,
            ["some filters of every group become one subspace for all channels"],
        )

    def _part_of_branches(self, value: Value, name: str, channels: Sequence[int]) -> tuple[Value, list[str]]:
        parts, reasons = self.parts(value.branches, channels)
        if value.flat:
            parts = [self.flattened(part, self.unique(f"{name}_flat{i}")) for i, part in enumerate(parts)]
        return dataclasses.replace(self.side_by_side(name, parts), flat=value.flat), reasons

    def parts(self, sources: Sequence[Value], channels: Sequence[int]) -> tuple[list[Value], list[str]]:
        """The chosen channels of values that are side by side, and the reasons why they are not exactly that.

        A part of a value has a share of its kernel: with several parts, that is their factor.
        """
        reasons, parts, start = [], [], 0
        shares: list[float] = []
        for source in sources:
            positions = Size(source.shape[1:]).numel() if source.flat else 1
            size = source.width * positions
            own = sorted(c - start for c in channels if start <= c < start + size)
            start += size
            if own:
                if positions > 1 and len(own) < size:
                    raise TranslationError(
                        "a part of a flattened feature map beside another one has no counterpart; select channels or positions "
                        "before flattening"
                    )
                part, more = (source, []) if positions > 1 else self.part(source, own)
                parts.append(self.settle(part) if source.several and part is source else part)
                shares.append(len(own) / size)
                reasons += more
        largest = max(shares)
        return [
            part
            if share == largest
            else dataclasses.replace(self.settle(part), factor=part.factor * (share / largest) ** 0.5)
            for part, share in zip(parts, shares, strict=True)
        ], reasons

    def side_by_side(self, name: str, values: Sequence[Value]) -> Value:
        """The direct sum of values; the value itself if there is only one."""
        if len(values) == 1:
            return values[0]
        settled = [self.settle(value) for value in values]
        weights = tuple(abs(value.factor) for value in settled)
        node = DirectSum(name, weights=None if set(weights) == {1.0} else weights, inputs=tuple(v.node for v in settled))
        made = self.add(node)
        self.origins[name] = tuple(settled)
        width = sum(value.width for value in settled)
        return dataclasses.replace(made, summed=True, branches=tuple(settled), width=width, layout=settled[0].layout)

    def shuffled(self, name: str, value: Value, order: Sequence[int]) -> Value:
        """The channels of a value in another order, for the groups of a later layer."""
        value = self.settle(value)
        self.add(ShuffleChannels(name, order=tuple(order), inputs=(value.node,)))
        self.origins[name] = (value,)
        return dataclasses.replace(value, node=name, branches=())

    def used_nodes(self, output: str) -> list[Node]:
        """The nodes that the output depends on, in their order: a layer of which only parts are read is not needed."""
        needed, waiting = {output}, [output]
        while waiting:
            for name in self.nodes[waiting.pop()].inputs:
                if name not in needed and name != Graph.input:
                    needed.add(name)
                    waiting.append(name)
        return [node for node in self.nodes.values() if node.name in needed]

    def finished_rows(self, used: Sequence[Node]) -> tuple[Row, ...]:
        """The rows, with a description of every layer now that its kernel is known."""
        nodes = {node.name: node for node in used}
        return tuple(self._finished(row, nodes) for row in self.rows)

    def _finished(self, row: Row, nodes: dict[str, Node]) -> Row:
        if row.layer in nodes:
            return _described(row, nodes[row.layer])
        if row.layer and row.layer != "head":  # the head is no node
            return dataclasses.replace(row, layer="", kernel="", reasons=(*row.reasons, "its parts are layers of their own"))
        return row


def _described(row: Row, node: Node) -> Row:
    if row.kernel:  # a nonlinearity, which decides the kernel of a layer that another row is about
        return row
    if not isinstance(node, KernelNode):
        return dataclasses.replace(row, counterpart=node.label())
    return dataclasses.replace(
        row, counterpart=node.label(), filters=node.filters, kernel=str(node.kernel), trained=node.trainable
    )


def ranks(numbers: Sequence[int]) -> list[int]:
    """The place of each number among all of them in order: [7, 3, 5] -> [2, 0, 1]"""
    place = {number: i for i, number in enumerate(sorted(numbers))}
    return [place[number] for number in numbers]


def replaced_kernel(used: Kernel, matching: Kernel) -> str:
    """The reason why a layer whose kernel was given is not an exact counterpart."""
    return f"{used.spec()} replaces {matching.spec()}, which would match"
