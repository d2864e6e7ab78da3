"""What rules work with: the network that is being built, and the step that is being translated.

A rule gets a :class:`Step` and returns a :class:`Value`. The kernel of a layer is not known at its convolution, but only at
its nonlinearity: until then the layer is *pending*. A pending layer that is followed by anything but a nonlinearity has the
linear kernel, and a nonlinearity that follows anything but a pending layer becomes a 1x1 layer with identity filters;
together these two give the paper's LeNets, which pool before their nonlinearities.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..choices import Correspondence
from ..correspondence import Part, Row
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
    """the layer that has no kernel yet"""
    flat: bool = False
    """whether the ConvNet has flattened it; the CKN's layers do that by themselves"""
    gaussian: bool = False
    """whether its units are linear ones, so that a nonlinearity on them has a kernel that is known exactly"""
    summed: bool = False
    """whether it is a direct sum, whose channels are not those of the ConvNet"""
    factor: float = 1.0
    """the constant that the ConvNet has multiplied it by; it matters where branches meet"""


@dataclass(frozen=True)
class Policy:
    """How to translate; see :func:`torchckn.translate`."""

    kernel: Kernel | None = None
    """one kernel for all nonlinear layers; None: the one that matches each activation"""
    linear_kernel: Kernel | None = None
    """the kernel of layers without a nonlinearity; None: the linear one"""
    scale: float = 1.0
    """of pre-activations, for activations that are not homogeneous"""
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    """eps, inverse_sqrt and init of every layer"""


class Builder:
    """The graph and the report so far."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.nodes: list[Node] = []
        self.rows: list[Row] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        #: whether the ConvNet uses the weights of a module twice: branches may then depend on each other
        self.shares_weights = False
        self._layer_of_module: dict[int, str] = {}
        self._settled: dict[str, Value] = {}

    def unique(self, name: str) -> str:
        """``name``, or a similar name that no node has yet."""
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
        kernel = Linear() if self.policy.linear_kernel is None else self.policy.linear_kernel
        is_linear = kernel.spec() == Linear().spec()
        settled = self.add(value.pending.with_kernel(kernel))
        settled = dataclasses.replace(value, pending=None, shape=settled.shape, gaussian=is_linear)
        self._settled[value.node] = settled
        if not is_linear:
            self._report_chosen_kernel(value.node, kernel)
        return settled

    def _report_chosen_kernel(self, layer: str, kernel: Kernel) -> None:
        for i, row in enumerate(self.rows):
            if row.layer == layer:
                reasons = (*row.reasons, chosen_kernel(kernel, Linear()))
                self.rows[i] = dataclasses.replace(row, correspondence="inexact", reasons=reasons)

    def uses_again(self, module: nn.Module | None, name: str) -> bool:
        """Whether the weights of a module have been used by an operation of another name."""
        again = module is not None and self._layer_of_module.setdefault(id(module), name) != name
        self.shares_weights |= again
        return again

    def flattened(self, value: Value, name: str) -> Value:
        """``value`` as a vector in the CKN as well."""
        value = self.settle(value)
        if not value.flat or len(value.shape) == 1:
            return value
        flat = self.add(Flatten(self.unique(name), inputs=(value.node,)))
        return dataclasses.replace(value, node=flat.node, shape=flat.shape)

    def finished_rows(self) -> tuple[Row, ...]:
        """The rows, with a description of every layer now that its kernel is known."""
        nodes = {node.name: node for node in self.nodes}
        return tuple(_described(row, nodes[row.layer]) if row.layer in nodes else row for row in self.rows)


def _described(row: Row, node: Node) -> Row:
    if row.kernel:  # a nonlinearity, which decides the kernel of a layer that another row is about
        return row
    if not isinstance(node, KernelNode):
        return dataclasses.replace(row, counterpart=node.label())
    return dataclasses.replace(
        row, counterpart=node.label(), filters=node.filters, kernel=str(node.kernel), trained=node.trainable
    )


def chosen_kernel(chosen: Kernel, matching: Kernel) -> str:
    """The reason why a layer whose kernel was chosen is not an exact counterpart."""
    return f"{chosen.spec()} was chosen where {matching.spec()} would match"


class Step:
    """One operation of the ConvNet, as its rule sees it."""

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
        values: list[Value] = []

        def collect(argument: Any) -> None:
            if isinstance(argument, Operation) and argument.name in self._values:
                values.append(self._values[argument.name])
            elif isinstance(argument, (tuple, list)):
                for item in argument:
                    collect(item)

        collect((*self.operation.args, *self.operation.kwargs.values()))
        return values

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

    def same_operands(self) -> bool:
        """Whether its two arguments are the same operation's result, as in ``x * x``."""
        operands = [a for a in (*self.operation.args, *self.operation.kwargs.values()) if isinstance(a, Operation)]
        return len(operands) == 2 and operands[0] is operands[1]

    def settled(self) -> Value:
        """The input, as an image or vector that the graph already gives."""
        return self.builder.settle(self.input)

    # What a rule can make of the operation.

    def emit(
        self,
        node: Node,
        correspondence: Correspondence = "exact",
        why: str | Sequence[str] = "",
        *,
        inputs: Sequence[Value] | None = None,
        gaussian: bool | None = None,
        faithful: bool | None = None,
        parts: Sequence[Part] = (),
    ) -> Value:
        """Put ``node`` into the CKN, on the operation's first input unless ``inputs`` has others."""
        sources = [self.builder.settle(v) for v in (self.inputs[:1] if inputs is None else inputs)]
        value = self.builder.add(dataclasses.replace(node, inputs=tuple(v.node for v in sources)))
        self.note(correspondence, why, layer=value.node, shape=value.shape, faithful=faithful, parts=parts)
        inherited = all(v.gaussian for v in sources) if gaussian is None else gaussian
        first = sources[0]
        return dataclasses.replace(value, gaussian=inherited, summed=first.summed, factor=first.factor)

    def layer(self, node: KernelNode, why: str, *, source: Value | None = None, inexact: Sequence[str] = ()) -> Value:
        """Begin a kernel layer; the nonlinearity that follows, if one does, decides its kernel.

        ``inexact`` has the reasons, if there are any, why it is not the exact counterpart.
        """
        source = self.builder.settle(self.input if source is None else source)
        inexact = list(inexact)
        if self.builder.uses_again(self.module, self.name):
            inexact.append("the ConvNet uses these weights twice; here they are two layers")
        node = dataclasses.replace(node, inputs=(source.node,), **self.builder.policy.options)
        shape = node.output_shape(source.shape)
        reasons = (why, *inexact)
        self.note("inexact" if inexact else "exact", reasons, layer=node.name, shape=shape, parts=self._bias())
        return Value(node.name, shape, pending=node, gaussian=True, factor=source.factor)

    def activation(self, kernel: Kernel, exact: bool, why: str, parts: Sequence[Part] = ()) -> Value:
        """Give the pending layer its kernel, or put an identity layer here if none is pending.

        ``parts`` has what is inexact about the kernel that matches; a kernel that was chosen is meant as it is.
        """
        value, chosen = self.input, self.builder.policy.kernel
        used = kernel if chosen is None else chosen
        reasons, decided = [why], ""
        if used.spec() != kernel.spec():
            exact, reasons, parts = False, [chosen_kernel(used, kernel)], ()
        elif not value.gaussian:
            exact = False
            reasons.append("exact for linear units only, and these are not linear")
        faithful = exact or chosen is not None  # a kernel that was chosen is meant
        if value.pending is not None:
            result = self.builder.add(value.pending.with_kernel(used))
            decided = str(used.spec())
        elif value.summed and len(value.shape) == 3:
            reasons.append("a 1x1 layer on the direct sum, as wide as the ConvNet is there")
            width = self.output_shape[0] if len(self.output_shape) == 3 else value.shape[0]
            layer = Conv(self.name, filters=width, inputs=(value.node,), **self.builder.policy.options)
            result = self.builder.add(layer.with_kernel(used))
        else:
            reasons.append("a layer of its own, with identity filters that are not trained")
            options = {**self.builder.policy.options, "init": "identity"}
            kind = Conv if len(value.shape) == 3 else Dense
            node = kind(self.name, filters=value.shape[0], trainable=False, inputs=(value.node,), **options)
            result = self.builder.add(node.with_kernel(used))
        correspondence: Correspondence = "exact" if exact else "inexact"
        told = {"layer": result.node, "kernel": decided, "shape": result.shape}
        self.note(correspondence, reasons, **told, faithful=faithful, parts=parts)
        return dataclasses.replace(result, flat=value.flat, factor=abs(value.factor) ** used.degree)

    def drop(self, why: str, *, faithful: bool) -> Value:
        """Leave the operation out; ``faithful`` if nothing is lost by it."""
        self.note("dropped", why, faithful=faithful)
        return self.input

    def keep(self, value: Value, why: str) -> Value:
        """The CKN does the same without a layer for it."""
        self.note("kept", why)
        return value

    def note(
        self,
        correspondence: Correspondence,
        why: str | Sequence[str],
        *,
        layer: str = "",
        kernel: str = "",
        shape: tuple[int, ...] | None = None,
        faithful: bool | None = None,
        parts: Sequence[Part] = (),
    ) -> None:
        """Add a row to the report. ``kernel`` is for a nonlinearity that only decides the kernel of ``layer``."""
        arguments = (*self.operation.args, *self.operation.kwargs.values())
        sources = [a.name for a in _flat(arguments) if isinstance(a, Operation) and a.is_tensor]
        reasons = (why,) if isinstance(why, str) else tuple(why)
        self.builder.rows.append(
            Row(
                self.operation.name,
                self.operation.source,
                self.operation.kind,
                correspondence,
                tuple(reason for reason in reasons if reason),
                correspondence in ("exact", "kept") if faithful is None else faithful,
                tuple(sources),
                tuple(parts),
                layer,
                kernel=kernel,
                output_shape=self.output_shape if shape is None else shape,
            )
        )

    def refuse(self, why: str, remedy: str) -> TranslationError:
        """The error that says why this operation cannot be translated, and what can be done about it."""
        where = f", at {self.operation.where}" if self.operation.where else ""
        return TranslationError(
            f"{self.operation.source!r} ({self.operation.kind}{where}) cannot be translated: {why}. {remedy}"
        )

    def _bias(self) -> list[Part]:
        bias = self.option("bias", 2)
        if bias is None or bias is False:
            return []
        return [Part("bias", "dropped", "kernel layers have no biases", faithful=False)]


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
