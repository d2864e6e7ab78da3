"""The walk over a traced ConvNet: rule after rule in the order of computation, and the classifier at the end.

Read first: ``trace.py``, ``rules/``. Read next: ``assembly.py``, which the results are put together with.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ..correspondence import OtherNumber, Row
from ..errors import TranslationError
from ..graph import Dense, Graph
from .assembly import Builder
from .builder import Step, rule_module
from .compositions import Composition
from .rules import RULES, Rule, reason_against
from .rules.refusals import crops_vector
from .rules.shapes import SELECTING, SEVERAL, moving
from .trace import Key, Operation, Trace, trace
from .values import Layout, Value


def traced_network(net: nn.Module, shape: tuple[int, int, int], adapt: bool) -> Trace:
    """The trace; if the network is made for another number of channels than ``shape`` has, for that number."""

    def has_rule(module: nn.Module) -> bool:
        return rule_module(module, RULES) is not None

    first = next((m for m in net.modules() if isinstance(m, nn.Conv2d)), None)
    try:
        return trace(net, shape, has_rule, RULES)
    except TranslationError:
        if not adapt or first is None or first.in_channels == shape[0]:
            raise
        try:
            return trace(net, (first.in_channels, *shape[1:]), has_rule, RULES)
        except TranslationError:
            pass
        raise


def apply_rules(traced: Trace, shape: tuple[int, ...], builder: Builder) -> dict[str, Value]:
    """Apply the rules in the order of computation."""
    builder.shapes[Graph.input] = shape
    channels = traced.input.shape[0]
    values: dict[str, Any] = {traced.input.name: Value(Graph.input, shape, width=channels)}
    for operation in traced.operations:
        step = Step(builder, operation, values)
        if operation.key in _NUMBERS and step.raw_inputs:
            raise step.refuse("it converts a feature map to Python numbers", "Use tensor operations instead.")
        # Not translated: the input and parameters, arithmetic with sizes, and with parameters alone (a weight times a mask).
        if operation.key is None or _is_bookkeeping(operation) or not step.raw_inputs:
            continue
        key = None if operation.is_lost or crops_vector(operation) else _rule_key(operation)
        if key is None:
            raise step.refuse(*reason_against(operation))
        if not operation.is_tensor and key not in SEVERAL:
            raise step.refuse(
                "it does not return a single tensor", "Put it into a module and register a rule for that module."
            )
        value = _apply(_leaving_out if any(_is_statistic(v) for v in step.raw_inputs) else RULES[key], step)
        # What several operations read must be there by itself: it cannot merge with one of them. But its parts can.
        readers = [user for user in operation.users if not _is_bookkeeping(user)]
        if len(readers) > 1 and isinstance(value, Value):
            value = dataclasses.replace(value, several=True)
            if not all(user.key in SELECTING for user in readers):
                value = builder.settle(value)
        values[operation.name] = value
    return values


def _rule_key(operation: Operation) -> Key | None:
    """What to look the operation's rule up by; None if it has no rule."""
    key = rule_module(operation.module, RULES) if operation.module is not None else operation.key
    if isinstance(key, Composition):
        return type(key)
    if key in RULES:
        return key
    if operation.returns_its_input:
        return nn.Identity
    return _not_in_place(operation)


def _not_in_place(operation: Operation) -> Key | None:
    """The operation that gives the same numbers as this one in place, such as ``torch.tanh`` for ``torch.tanh_``."""
    own = operation.key if isinstance(operation.key, str) else getattr(operation.key, "__name__", "")
    name = own.removesuffix("_")
    if name == own or not operation.changed:
        return None
    names = (name,) if isinstance(operation.key, str) else (*(getattr(home, name, None) for home in (F, torch)), name)
    return next((key for key in names if key in RULES and RULES[key] is not moving), None)


#: methods that give numbers, and not tensors, which depend on pixels
_NUMBERS = ("item", "tolist")


def _apply(applied: Rule, step: Step) -> Any:
    """A rule's result, checked; errors in a rule name the operation and its place."""
    before = len(step.builder.rows)
    try:
        value = applied(step)
    except TranslationError:
        raise
    except Exception as error:
        raise step.refuse(
            f"its rule failed: {error}", "If the rule is yours, fix it; otherwise please report this."
        ) from None
    if isinstance(value, tuple) or (isinstance(value, Value) and value.view is not None):
        return value
    if not isinstance(value, Value):
        raise step.refuse(
            f"its rule returned {type(value).__name__}", "A rule returns what step.emit, step.layer, ... gave it."
        )
    wanted = _positions_of(step.output_shape, value.layout)
    if wanted is not None and not value.statistic and len(value.shape) == 3 and value.shape[1:] != wanted:
        raise step.refuse(f"its rule gives {value.shape[1:]} positions, the network {wanted}", "Fix the rule.")
    shape = (torch.Size(value.shape).numel(),) if value.flat else value.shape
    rows = step.builder.rows
    for i in range(before, len(rows)):
        if rows[i].name == step.name:
            rows[i] = dataclasses.replace(rows[i], output_shape=shape)
    return dataclasses.replace(value, width=_channels_of(step.output_shape, value))


def _is_statistic(value: Any) -> bool:
    return isinstance(value, Value) and value.statistic


def _leaving_out(step: Step) -> Value:
    """Arithmetic with norms and variances of single channels, which the CKN leaves out."""
    others = [value for value in step.inputs if not value.statistic]
    step.note("dropped", "normalization of single channels has no counterpart", faithful=False)
    return others[0] if others else step.input


def _positions_of(shape: tuple[int, ...], layout: Layout) -> tuple[int, ...] | None:
    """Rows and columns of the ConvNet's image of this shape."""
    if len(shape) != 3:
        return None
    return shape[:2] if layout == "hwc" else shape[1:]


def _channels_of(shape: tuple[int, ...], value: Value) -> int:
    """How many channels the ConvNet has in a result of this shape."""
    if len(shape) <= 1:
        positions = torch.Size(value.shape[1:]).numel()
        return torch.Size(shape).numel() // positions
    return shape[-1] if value.layout in ("hwc", "pc") else shape[0]


def _is_bookkeeping(operation: Operation) -> bool:
    """Whether it only asks for sizes: ``x.size(0)``, ``x.shape[0]``."""
    parts = operation.value if isinstance(operation.value, tuple) else (operation.value,)
    return all(isinstance(part, (int, float, torch.dtype, torch.device)) for part in parts)


def make_head(traced: Trace, values: dict[str, Value], builder: Builder, classes: int | None) -> tuple[str, int]:
    """Make the last linear layer the head, or report that one is added.

    Returns the name of the node whose features the head gets, and the number of classes.
    """
    output = traced.output
    if isinstance(output, Operation) and output.is_tensor and output.name not in values:
        raise TranslationError(
            "the scores of the network do not depend on the image, as far as it can be traced; return what is computed from the "
            "image, and put results together with torch.cat or torch.stack instead of writing them into a tensor such as "
            "torch.zeros(...)"
        )
    if not isinstance(output, Operation) or output.name not in values:
        raise TranslationError(
            f"translate expected a network that gives one tensor of scores, got {type(output).__name__}; "
            "wrap it in a module that returns the scores only"
        )
    last = builder.looked_at(values[output.name])
    if isinstance(last.pending, Dense):
        name = last.pending.name
        reasons = ["the last linear layer is the classifier, trained on the features"]
        if classes not in (None, last.width):
            reasons.append(builder.notice(OtherNumber("classes", classes, last.width)))
        builder.rows = [
            # The head has a bias, so the one that was there is not lost.
            dataclasses.replace(
                row, correspondence="kept", reasons=tuple(reasons), parts=(), layer="head", counterpart=_HEAD
            )
            if row.layer == name
            else row
            for row in builder.rows
        ]
        return last.pending.inputs[0], last.width if classes is None else classes
    features = builder.settle(last).node
    if classes is None:
        if len(output.shape) != 1:
            raise TranslationError(
                f"the network gives {output.shape} for each image and ends without a linear layer, so the number of "
                "classes is unknown; pass classes=..."
            )
        classes = output.shape[0]
    why = "the ConvNet ends without a linear layer; one is added, as in the paper's All-CNN-C"
    builder.rows.append(
        Row("", "", "", "kept", (why,), True, (output.name,), layer="head", counterpart=_HEAD, output_shape=(classes,))
    )
    return features, classes


_HEAD = "linear classifier"
