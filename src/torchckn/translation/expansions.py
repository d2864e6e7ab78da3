"""Operations that are several others: a gated linear unit is a split, a sigmoid and a product. Read next: ``compositions.py``."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .operation import Operation, mapped

Make = Callable[[Any, tuple[Any, ...], Tensor], Operation]
"""a new operation, from what it is known by, its arguments and its result"""


def expanded(operations: Sequence[Operation], output: Any, unique: Callable[[str], str]) -> tuple[list[Operation], Any]:
    """The same operations, with several in place of one that is several."""
    now: dict[Operation, Operation] = {}
    result: list[Operation] = []
    for operation in operations:
        args, kwargs = (mapped(a, lambda o: now[o]) for a in (operation.args, operation.kwargs))
        last = current = dataclasses.replace(operation, args=args, kwargs=kwargs)

        def make(key: Any, args: tuple[Any, ...], value: Tensor, base: Operation = current) -> Operation:
            own = {"name": unique(base.name), "key": key, "args": args, "kwargs": {}, "value": value, "module": None}
            result.append(Operation(**vars(base) | own | {"changed": (), "users": []}))
            return result[-1]

        key = type(current.module) if current.module is not None else current.key
        if key in _EXPANSIONS and (several := _EXPANSIONS[key](current, make)) is not None:
            last = several
        else:
            result.append(current)
        now[operation] = last
    return result, mapped(output, lambda o: now[o])


def _option(operation: Operation, name: str, position: int, default: Any) -> Any:
    if operation.module is not None:
        return getattr(operation.module, name)
    return operation.kwargs.get(name, operation.args[position] if len(operation.args) > position else default)


def _gated_linear_unit(operation: Operation, make: Make) -> Operation | None:
    source = operation.args[0] if operation.args else operation.kwargs["input"]
    axis = _option(operation, "dim", 1, -1) % source.value.ndim
    values = source.value.chunk(2, axis)
    half = values[0].shape[axis]
    value, gate = (
        make(operator.getitem, (source, (*(slice(None),) * axis, slice(start, start + half))), part)
        for start, part in zip((0, half), values, strict=True)
    )
    return make(operator.mul, (value, make(torch.sigmoid, (gate,), values[1])), operation.value)


def _sum_of_stack(operation: Operation, make: Make) -> Operation | None:
    """``torch.stack([a, b], 1).sum(1)`` is ``a + b``, and a mean is that times a constant."""
    stack = operation.args[0] if operation.args else operation.kwargs.get("input")
    axes = _option(operation, "dim", 1, operation.kwargs.get("axis"))
    axis = axes[0] if isinstance(axes, (tuple, list)) and len(axes) == 1 else axes
    if not isinstance(stack, Operation) or stack.key is not torch.stack or not isinstance(axis, int):
        return None
    parts = _option(stack, "tensors", 0, ())
    if not isinstance(parts, (tuple, list)) or operation.value.ndim == stack.value.ndim:
        return None
    if axis % stack.value.ndim != _option(stack, "dim", 1, 0) % stack.value.ndim:
        return None
    total, *others = parts
    for other in others:
        total = make(operator.add, (total, other), operation.value)
    is_mean = operation.key in ("mean", torch.mean)
    return make(operator.mul, (total, 1 / len(parts)), operation.value) if is_mean else total


_EXPANSIONS: dict[Any, Callable[[Operation, Make], Operation | None]] = {
    **dict.fromkeys((nn.GLU, F.glu), _gated_linear_unit),
    **dict.fromkeys(("sum", torch.sum, "mean", torch.mean), _sum_of_stack),
}
#: what torch.export is to call by these names
EXPANDED = (F.glu, torch.stack)
