"""What rules work with: the step that is being translated.

A rule gets a :class:`Step` and returns a :class:`~torchckn.translation.values.Value`. Read next: ``rules/``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ..choices import Correspondence
from ..correspondence import Part, Row
from ..errors import TranslationError
from ..graph import Conv, Dense, KernelNode, Node
from ..kernels import Kernel
from .assembly import Builder, replaced_kernel
from .operation import Operation, parameters_in
from .values import Value

__all__ = ["Builder", "Step", "Value"]


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
        return [self.builder.looked_at(value) for value in self.raw_inputs]

    @property
    def raw_inputs(self) -> list[Any]:
        """As :attr:`inputs`, but values that only move and select numbers are not yet looked at."""
        values: list[Any] = []

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
        arguments = _flat((*self.operation.args, *self.operation.kwargs.values()))
        return next(a for a in arguments if isinstance(a, Operation) and a.is_tensor).shape

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape, without the batch, that the ConvNet's operation gives."""
        return self.operation.shape

    def option(self, name: str, position: int, default: Any = None) -> Any:
        """An option of the operation: the module's attribute, or the function's argument by position or name."""
        value = self.operation.option(name, position, default)
        return value if self.module is not None else _sizes(value)

    @property
    def weights(self) -> Sequence[Tensor]:
        """The parameters and buffers of a module, or the parameters that a weight is computed from; without the bias."""
        if self.module is None:
            return parameters_in(self.option("weight", 1))
        return [
            t for t in (*self.module.parameters(), *self.module.buffers()) if t is not getattr(self.module, "bias", None)
        ]

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
        self.builder.origins[value.node] = tuple(sources)
        self.note(correspondence, why, layer=value.node, shape=value.shape, faithful=faithful, parts=parts)
        inherited = all(v.gaussian for v in sources) if gaussian is None else gaussian
        first = sources[0]
        return dataclasses.replace(
            value, gaussian=inherited, summed=first.summed, factor=first.factor, layout=first.layout, width=first.width
        )

    def layer(self, node: KernelNode, why: str, *, source: Value | None = None, inexact: Sequence[str] = ()) -> Value:
        """Begin a kernel layer; the nonlinearity that follows, if one does, decides its kernel.

        ``inexact`` has the reasons, if there are any, why it is not the exact counterpart.
        """
        source = self.builder.settle(self.input if source is None else source)
        inexact = list(inexact)
        if self.builder.uses_again(self.weights, self.name):
            inexact.append("the ConvNet uses these weights twice; here they are two layers")
        filters = self.builder.policy.filters_for(node.filters)
        node = dataclasses.replace(node, filters=filters, inputs=(source.node,), **self.builder.policy.options)
        if isinstance(node, Conv) and node.groups > 1:
            node, lost = _fitting_groups(node, source)
            inexact += lost
        shape = node.output_shape(source.shape)
        self.builder.origins[node.name] = (source,)
        reasons = (why, *inexact)
        self.note("inexact" if inexact else "exact", reasons, layer=node.name, shape=shape, parts=self.bias_part())
        return Value(node.name, shape, pending=node, gaussian=True, factor=source.factor, layout=source.layout)

    def activation(self, kernel: Kernel, exact: bool, why: str, parts: Sequence[Part] = ()) -> Value:
        """Give the pending layer its kernel, or put an identity layer here if none is pending.

        ``parts`` has what is inexact about the kernel that matches; a kernel that was chosen is meant as it is.
        """
        value, override = self.input, self.builder.policy.kernel
        used = kernel if override is None else override
        reasons, decided = [why], ""
        if used.spec() != kernel.spec():
            exact, reasons, parts = False, [replaced_kernel(used, kernel)], ()
        elif not value.gaussian:
            exact = False
            reasons.append("exact for linear units only, and these are not linear")
        faithful = exact or override is not None  # a kernel that was chosen is meant
        if value.pending is not None:
            result = self.builder.add(value.pending.with_kernel(used))
            decided = str(used.spec())
        elif value.summed and len(value.shape) == 3:
            reasons.append("a 1x1 layer on the direct sum, as wide as the ConvNet is there")
            width = self.builder.policy.filters_for(value.width)
            layer = Conv(self.name, filters=width, inputs=(value.node,), **self.builder.policy.options)
            result = self.builder.add(layer.with_kernel(used))
        else:
            reasons.append("a separate layer, with identity filters that are not trained")
            options = {**self.builder.policy.options, "init": "identity"}
            kind = Conv if len(value.shape) == 3 else Dense
            node = kind(self.name, filters=value.shape[0], trainable=False, inputs=(value.node,), **options)
            result = self.builder.add(node.with_kernel(used))
        if value.pending is None:
            self.builder.origins[result.node] = (value,)
        correspondence: Correspondence = "exact" if exact else "inexact"
        told: dict[str, Any] = {"layer": result.node, "kernel": decided, "shape": result.shape}
        self.note(correspondence, reasons, **told, faithful=faithful, parts=parts)
        return dataclasses.replace(
            result, flat=value.flat, factor=abs(value.factor) ** used.degree, layout=value.layout, width=value.width
        )

    def require_channels_first(self) -> None:
        """Refuse windows and patches on images whose channels are not the first axis in the ConvNet."""
        if any(value.layout != "chw" for value in self.inputs):
            raise self.refuse("it acts on the channels as if they were positions", "Move the channels to the front first.")

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
                module=self.operation.inside,
            )
        )

    def refuse(self, why: str, remedy: str) -> TranslationError:
        """The error that says why this operation cannot be translated, and what can be done about it."""
        where = f", at {self.operation.where}" if self.operation.where else ""
        return TranslationError(
            f"{self.operation.source!r} ({self.operation.kind}{where}) cannot be translated: {why}. {remedy}"
        )

    def bias_part(self) -> list[Part]:
        """What the report says about the bias of a layer, if it has one."""
        bias = self.option("bias", 2)
        if bias is None or bias is False:
            return []
        return [Part("bias", "dropped", "kernel layers have no biases", faithful=False)]


def _fitting_groups(node: Conv, source: Value) -> tuple[Conv, list[str]]:
    """A grouped layer whose groups fit the CKN's channels, and what is lost: one group per channel stays that."""
    channels, groups = source.shape[0], node.groups
    if groups == source.width:
        return dataclasses.replace(node, groups=channels, filters=channels * max(1, round(node.filters / channels))), []
    if channels % groups == 0:
        return dataclasses.replace(node, filters=groups * max(1, round(node.filters / groups))), []
    return dataclasses.replace(node, groups=1), [
        f"one subspace for all {channels} channels, which {groups} groups do not divide"
    ]


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


def rule_module(module: nn.Module, rules: dict[Any, Any]) -> type[nn.Module] | None:
    """The class whose rule applies to a module: its own, or one that it inherits its forward from."""
    for ancestor in type(module).__mro__:
        if ancestor in rules and type(module).forward is ancestor.forward:  # type: ignore[attr-defined]
            return ancestor
    return None
