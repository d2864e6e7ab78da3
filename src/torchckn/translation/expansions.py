"""Operations that are several others: a gated linear unit is a split, a sigmoid and a product. Read next: ``compositions.py``."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .operation import Operation, mapped


class Make(Protocol):
    """A new operation, from what it is known by, its arguments, its result, and its role; the last one has none."""

    def __call__(self, key: Any, args: tuple[Any, ...], value: Tensor, role: str = "") -> Operation: ...


def expanded(operations: Sequence[Operation], output: Any, unique: Callable[[str], str]) -> tuple[list[Operation], Any]:
    """The same operations, with several in place of one that is several."""
    now: dict[Operation, Operation] = {}
    result: list[Operation] = []
    for operation in operations:
        args, kwargs = (mapped(a, lambda o: now[o]) for a in (operation.args, operation.kwargs))
        last = current = dataclasses.replace(operation, args=args, kwargs=kwargs)

        def make(key: Any, args: tuple[Any, ...], value: Tensor, role: str = "", base: Operation = current) -> Operation:
            own = {"key": key, "args": args, "kwargs": {}, "value": value, "module": None, "changed": (), "users": []}
            if role:
                own |= {"name": unique(f"{base.name}_{role}"), "source": f"{base.source}_{role}"}
            result.append(Operation(**vars(base) | own))
            return result[-1]

        key = type(current.module) if current.module is not None else current.key
        if key in _EXPANSIONS and (several := _EXPANSIONS[key](current, make)) is not None:
            last = several
        else:
            result.append(current)
        now[operation] = last
    return result, mapped(output, lambda o: now[o])


def _gated_linear_unit(operation: Operation, make: Make) -> Operation | None:
    source = operation.args[0] if operation.args else operation.kwargs["input"]
    axis = operation.option("dim", 1, -1) % source.value.ndim
    values = source.value.chunk(2, axis)
    half = values[0].shape[axis]
    value, gate = (
        make(operator.getitem, (source, (*(slice(None),) * axis, slice(start, start + half))), part, role)
        for start, part, role in zip((0, half), values, ("value", "gate"), strict=True)
    )
    return make(operator.mul, (value, make(torch.sigmoid, (gate,), values[1], "sigmoid")), operation.value)


def _sum_of_branches(operation: Operation, make: Make) -> Operation | None:
    """``torch.stack([a, b], 1).sum(1)`` is ``a + b``, and a mean is that times a constant.

    So is the sum over the branches of an array (N, branches, C, H, W), or of a product of such arrays.
    """
    source = operation.args[0] if operation.args else operation.kwargs.get("input")
    axes = operation.option("dim", 1)
    axis = axes[0] if isinstance(axes, (tuple, list)) and len(axes) == 1 else axes
    if not isinstance(source, Operation) or not isinstance(axis, int) or operation.value.ndim == source.value.ndim:
        return None
    axis %= source.value.ndim
    if not _is_stack(source, axis) and (source.value.ndim != 5 or not axis):
        return None
    count = source.value.shape[axis]
    branches = [_branch(source, axis, i, make) for i in range(count)]
    is_mean = operation.key in ("mean", torch.mean)
    total, *others = branches
    for i, other in enumerate(others, 1):
        total = make(operator.add, (total, other), operation.value, "" if i == len(others) and not is_mean else f"sum{i}")
    return make(operator.mul, (total, 1 / count), operation.value) if is_mean else total


def _branch(source: Operation, axis: int, i: int, make: Make) -> Operation:
    """One of the branches along an axis of an array."""
    if _is_stack(source, axis):
        return source.option("tensors", 0, ())[i]
    value = source.value.select(axis, i)
    factors = source.args[:2] if source.key in (operator.mul, torch.mul, "mul") else ()
    if len(factors) == 2 and all(isinstance(f, Operation) and f.value.ndim == source.value.ndim for f in factors):
        own = tuple(_branch(f, axis, min(i, f.value.shape[axis] - 1), make) for f in factors)
        return make(operator.mul, own, value, f"product{i}")
    return make(operator.getitem, (source, (*(slice(None),) * axis, i)), value, f"branch{i}")


def _is_stack(operation: Operation, axis: int) -> bool:
    is_stack = operation.key is torch.stack and isinstance(operation.option("tensors", 0, ()), (tuple, list))
    return is_stack and operation.option("dim", 1, 0) % operation.value.ndim == axis


_EXPANSIONS: dict[Any, Callable[[Operation, Make], Operation | None]] = {
    **dict.fromkeys((nn.GLU, F.glu), _gated_linear_unit),
    **dict.fromkeys(("sum", torch.sum, "mean", torch.mean), _sum_of_branches),
}
#: what torch.export is to call by these names
EXPANDED = (F.glu, torch.stack)
