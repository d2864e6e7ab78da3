"""What rules work with: the network that is being built, and the step that is being translated.

A rule gets a :class:`Step` and returns a :class:`Value`. The kernel of a layer is not known when its convolution is met, but
when its nonlinearity is: until then the layer is *pending*. A pending layer that meets anything else than a nonlinearity has
the linear kernel, and a nonlinearity that meets anything else than a pending layer becomes a 1x1 layer with identity
filters; together these two give the paper's LeNets, which pool before their nonlinearities.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..choices import Correspondence
from ..correspondence import Row
from ..errors import TranslationError
from ..graph import Conv, Dense, Flatten, KernelNode, Node
from ..kernels import Kernel, Linear
from .trace import Operation


@dataclass(frozen=True)
class Value:
    """What an operation of the ConvNet has become."""

    node: str
    """the name of the graph's node that gives it; of a pending layer, the name it will have"""
    shape: tuple[int, ...]
    """its shape in the CKN, without the batch, before flattening"""
    pending: KernelNode | None = None
    """the layer that still waits for its kernel"""
    flat: bool = False
    """whether the ConvNet has flattened it; the CKN's layers do that by themselves"""
    gaussian: bool = False
    """whether its units are linear ones, so that a nonlinearity on them has a kernel that is known exactly"""
    summed: bool = False
    """whether it is a direct sum, whose channels are not those of the ConvNet"""
    factor: float = 1.0
    """what the ConvNet has multiplied it by; it matters where branches meet"""


@dataclass(frozen=True)
class Policy:
    """How to translate; see :func:`torchckn.translate`."""

    kernel: Kernel | None = None
    """one kernel for all nonlinear layers; None: the one that matches each activation"""
    linear_kernel: Kernel | None = None
    """the kernel of layers without a nonlinearity; None: the linear one"""
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    """eps, inverse_sqrt and init of every layer"""


class Builder:
    """The graph and the report, as far as they have come."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.nodes: list[Node] = []
        self.rows: list[Row] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.modules: dict[int, str] = {}  # modules with weights that were met, and where
        self._settled: dict[str, Value] = {}

    def unique(self, name: str) -> str:
        """``name``, or one like it, that no node has yet."""
        while name in self.shapes:
            name += "_"
        return name

    def add(self, node: Node) -> Value:
        shapes = [self.shapes[name] for name in node.inputs]
        self.nodes.append(node)
        self.shapes[node.name] = node.output_shape(*shapes)
        return Value(node.name, self.shapes[node.name])

    def settle(self, value: Value) -> Value:
        """``value`` as something that the graph already gives: a pending layer gets the linear kernel."""
        if value.pending is None:
            return value
        if value.node in self._settled:
            return self._settled[value.node]
        chosen = self.policy.linear_kernel
        settled = self.add(value.pending.with_kernel(Linear() if chosen is None else chosen))
        settled = dataclasses.replace(value, pending=None, shape=settled.shape, gaussian=chosen is None)
        self._settled[value.node] = settled
        return settled

    def flattened(self, value: Value, name: str) -> Value:
        """``value`` as a vector in the CKN as well."""
        value = self.settle(value)
        if not value.flat or len(value.shape) == 1:
            return value
        flat = self.add(Flatten(self.unique(name), inputs=(value.node,)))
        return dataclasses.replace(value, node=flat.node, shape=flat.shape)

    def finished_rows(self) -> tuple[Row, ...]:
        """The rows, with every layer in words now that its kernel is known."""
        labels = {node.name: _describe(node) for node in self.nodes}
        return tuple(dataclasses.replace(row, label=row.label or labels.get(row.layer, "")) for row in self.rows)


def _describe(node: Node) -> str:
    if isinstance(node, KernelNode):
        fixed = "" if node.trainable else ", fixed"
        return f"{node.name}: {node.label()}, {node.filters} filters, {node.kernel}{fixed}"
    return f"{node.name}: {node.label()}"


class Step:
    """One operation of the ConvNet, seen from its rule."""

    def __init__(self, builder: Builder, operation: Operation, values: dict[str, Value]) -> None:
        self.builder = builder
        self.operation = operation
        self._values = values

    @property
    def name(self) -> str:
        """A name that the rule's node may take."""
        return self.operation.name

    @property
    def module(self) -> Any:
        """The module, if the operation is one."""
        return self.operation.module

    @property
    def inputs(self) -> list[Value]:
        """What the operation's tensor arguments have become, in their order."""
        found: list[Value] = []

        def collect(argument: Any) -> None:
            if isinstance(argument, Operation) and argument.name in self._values:
                found.append(self._values[argument.name])
            elif isinstance(argument, (tuple, list)):
                for item in argument:
                    collect(item)

        collect((*self.operation.args, *self.operation.kwargs.values()))
        return found

    @property
    def input(self) -> Value:
        """The first of the inputs."""
        return self.inputs[0]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape, without the batch, that the ConvNet's operation gets."""
        first = next(a for a in (*self.operation.args, *self.operation.kwargs.values()) if isinstance(a, Operation))
        return first.shape

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape, without the batch, that the ConvNet's operation gives."""
        return self.operation.shape

    def option(self, name: str, position: int, default: Any = None) -> Any:
        """An option of the operation: the module's attribute, or the function's argument by position or name."""
        if self.module is not None:
            return getattr(self.module, name, default)
        if name in self.operation.kwargs:
            return _sizes(self.operation.kwargs[name])
        return _sizes(self.operation.args[position]) if len(self.operation.args) > position else default

    def is_computed(self, argument: Any) -> bool:
        """Whether an argument depends on the images."""
        return isinstance(argument, Operation) and argument.name in self._values

    def settled(self) -> Value:
        """The input, as an image or vector that the graph already gives."""
        return self.builder.settle(self.input)

    # What a rule can make of the operation.

    def emit(
        self,
        node: Node,
        correspondence: Correspondence = "exact",
        why: str = "",
        *,
        inputs: Sequence[Value] | None = None,
        gaussian: bool | None = None,
    ) -> Value:
        """Put ``node`` into the CKN, on the operation's input unless told otherwise."""
        sources = [self.builder.settle(v) for v in (self.inputs[:1] if inputs is None else inputs)]
        value = self.builder.add(dataclasses.replace(node, inputs=tuple(v.node for v in sources)))
        self.note(correspondence, why, layer=value.node, shape=value.shape)
        inherited = all(v.gaussian for v in sources) if gaussian is None else gaussian
        first = sources[0]
        return dataclasses.replace(value, gaussian=inherited, summed=first.summed, factor=first.factor)

    def layer(self, node: KernelNode, why: str, *, source: Value | None = None, inexact: Sequence[str] = ()) -> Value:
        """Begin a kernel layer; the nonlinearity that follows, if one does, decides its kernel.

        ``inexact`` has the reasons, if there are any, why it is not the exact counterpart.
        """
        source = self.builder.settle(self.input if source is None else source)
        inexact = [*inexact, *self._shared_weights()]
        node = dataclasses.replace(node, inputs=(source.node,), **self.builder.policy.options)
        shape = node.output_shape(source.shape)
        self.note("inexact" if inexact else "exact", "; ".join((why, *inexact)), layer=node.name, shape=shape)
        self._report_bias()
        return Value(node.name, shape, pending=node, gaussian=True, factor=source.factor)

    def _shared_weights(self) -> list[str]:
        """The reason, if there is one, that comes from using a module's weights twice."""
        if self.module is None or self.builder.modules.setdefault(id(self.module), self.name) == self.name:
            return []
        return ["the ConvNet uses these weights twice; here they are two layers"]

    def activation(self, kernel: Kernel, exact: bool, why: str) -> Value:
        """Give the pending layer its kernel, or put an identity layer here if none is pending."""
        value, chosen = self.input, self.builder.policy.kernel
        used = kernel if chosen is None else chosen
        faithful = exact
        if not value.gaussian:
            exact = faithful = False
            why += ", exact for linear units only"
        if chosen is not None:
            exact, faithful, why = False, True, f"{chosen.spec()} by choice, where {kernel.spec()} would match"
        label = ""
        if value.pending is not None:
            result = self.builder.add(value.pending.with_kernel(used))
            label = f"{result.node}: {used.spec()}"
        elif value.summed and len(value.shape) == 3:
            why += "; a 1x1 layer on the direct sum, as wide as the ConvNet's"
            width = self.output_shape[0] if len(self.output_shape) == 3 else value.shape[0]
            layer = Conv(self.name, filters=width, inputs=(value.node,), **self.builder.policy.options)
            result = self.builder.add(layer.with_kernel(used))
        else:
            why += "; a layer by itself, of identity filters"
            options = {**self.builder.policy.options, "init": "identity"}
            kind = Conv if len(value.shape) == 3 else Dense
            node = kind(self.name, filters=value.shape[0], trainable=False, inputs=(value.node,), **options)
            result = self.builder.add(node.with_kernel(used))
        correspondence: Correspondence = "exact" if exact else "inexact"
        self.note(correspondence, why, layer=result.node, label=label, shape=result.shape, faithful=faithful)
        return dataclasses.replace(result, flat=value.flat, factor=abs(value.factor) ** used.degree)

    def drop(self, why: str, *, faithful: bool) -> Value:
        """Leave the operation out. ``faithful`` says that nothing is lost by it."""
        self.note("dropped", why, faithful=faithful)
        return self.input

    def keep(self, value: Value, why: str) -> Value:
        """The operation is there in the CKN as well, as something it does anyway."""
        self.note("kept", why)
        return value

    def note(
        self,
        correspondence: Correspondence,
        why: str,
        *,
        layer: str = "",
        label: str = "",
        shape: tuple[int, ...] | None = None,
        faithful: bool | None = None,
        source: str | None = None,
        operation: str | None = None,
    ) -> None:
        """Add a row to the report."""
        arguments = (*self.operation.args, *self.operation.kwargs.values())
        sources = [a.name for a in _flat(arguments) if isinstance(a, Operation) and a.is_tensor]
        self.builder.rows.append(
            Row(
                source or self.operation.source,
                operation or self.operation.kind,
                layer,
                label,
                self.output_shape if shape is None else shape,
                correspondence,
                why,
                correspondence in ("exact", "kept") if faithful is None else faithful,
                "" if source else self.operation.name,
                tuple(sources),
            )
        )

    def refuse(self, why: str, remedy: str) -> TranslationError:
        """The error that says why this operation cannot be translated, and what can be done about it."""
        where = f", at {self.operation.where}" if self.operation.where else ""
        return TranslationError(
            f"{self.operation.source!r} ({self.operation.kind}{where}) cannot be translated: {why}. {remedy}"
        )

    def _report_bias(self) -> None:
        bias = self.option("bias", 2)
        if bias is not None and bias is not False:
            self.note(
                "dropped",
                "kernel layers have no biases",
                faithful=False,
                source=f"{self.operation.source}.bias",
                operation="bias",
                shape=(),
            )


def _sizes(argument: Any) -> Any:
    """An argument with numbers in place of operations that give numbers, such as ``x.shape[-1]``."""
    if isinstance(argument, Operation) and not argument.is_tensor:
        return argument.value
    if isinstance(argument, (tuple, list)):
        return tuple(_sizes(item) for item in argument)
    return argument


def _flat(argument: Any) -> list[Any]:
    if isinstance(argument, (tuple, list)):
        return [leaf for item in argument for leaf in _flat(item)]
    return [argument]


def rule_module(module: nn.Module, known: dict[Any, Any]) -> type[nn.Module] | None:
    """The class whose rule applies to a module: its own, or one that it inherits its forward from."""
    for ancestor in type(module).__mro__:
        if ancestor in known and type(module).forward is ancestor.forward:  # type: ignore[attr-defined]
            return ancestor
    return None
