"""What tensors hold after operations in place. Read next: ``trace.py``, which asks for it.

Tensors may share memory: after ``y = x[:, :4]``, the statement ``y.relu_()`` changes ``x`` as well. So an operation reads not the
result that its argument once was, but what the memory of that result holds now: the result of the last operation that has
changed it, the old channels and the new ones side by side, or some channels of what has changed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from .calls import Call
from .operation import Operation


class Memory:
    """The operations so far, with those that stand for tensors changed in place, and what each result holds now."""

    def __init__(self, unique: Callable[[str], str]) -> None:
        self.operations: list[Operation] = []
        self._unique = unique
        #: for each result: the operation that gives what it holds, and how many writes that takes into account
        self._contents: dict[fx.Node, tuple[Operation, int]] = {}
        self._writes: list[tuple[Operation, Tensor]] = []
        self._after: dict[tuple[Operation, Operation], Operation] = {}

    def add(self, call: Call) -> None:
        """The next call of the network."""
        arguments = {"args": self.current(call.args), "kwargs": self.current(call.kwargs)}
        operation = Operation(**vars(call) | arguments | {"name": self._unique(call.name)})
        self.operations.append(operation)
        self._writes += [(operation, tensor) for tensor in call.changed]
        self._contents[call.node] = operation, self._writes_in(call)

    def current(self, argument: Any) -> Any:
        """An argument, with the operations whose results its nodes hold now."""
        return fx.node.map_arg(argument, self._read)

    def _writes_in(self, call: Call) -> int:
        """How many writes the result of a call takes into account: one of several results is as old as all of them.

        A buffer is as it was before the network, whenever it is read.
        """
        if call.node.op == "get_attr":
            return 0
        source = call.args[0] if call.key is operator.getitem else None
        if isinstance(source, fx.Node) and not isinstance(self._contents[source][0].value, Tensor):
            return self._contents[source][1]
        return len(self._writes)

    def _read(self, node: fx.Node) -> Any:
        operation, writes = self._contents[node]
        held = operation.value
        if isinstance(held, Tensor):
            for write, target in self._writes[writes:]:
                if _overlap(held, target):
                    operation = self._changed(operation, held, write, target)
            self._contents[node] = operation, len(self._writes)
        return operation

    def _changed(self, before: Operation, held: Tensor, write: Operation, target: Tensor) -> Operation:
        """What ``held`` holds after a write to ``target``."""
        if (before, write) not in self._after:
            self._after[before, write] = self._made(before, held, write, target)
        return self._after[before, write]

    def _made(self, before: Operation, held: Tensor, write: Operation, target: Tensor) -> Operation:
        if not isinstance(write.value, Tensor) or _places(write.value) != _places(target):
            return self._new(write, "_rest", write.key, (before, write), held, is_lost=True)
        if _places(held) == _places(target):
            return write
        if (changed := _range_of(held, target)) is not None:
            axis, start, end = changed
            size = held.shape[axis]
            old = [self._part(write, before, held, axis, *ends) for ends in ((0, start), (end, size)) if ends[0] < ends[1]]
            parts = [write, *old] if start == 0 else [old[0], write, *old[1:]]
            return self._new(write, "_cat", torch.cat, (parts, axis), held)
        if (kept := _range_of(target, held)) is not None:
            return self._part(write, write, target, *kept)
        return self._new(write, "_rest", write.key, (before, write), held, is_lost=True)

    def _part(self, write: Operation, of: Operation, held: Tensor, axis: int, start: int, end: int) -> Operation:
        index = (*(slice(None),) * axis, slice(start, end))
        return self._new(write, "_part", operator.getitem, (of, index), held[index])

    def _new(self, write: Operation, suffix: str, key: Any, args: Any, value: Tensor, is_lost: bool = False) -> Operation:
        """An operation that is not in the source, at the place of the one that writes."""
        name = self._unique(write.name + suffix)
        own = {"name": name, "key": key, "args": args, "kwargs": {}, "value": value, "users": [], "is_lost": is_lost}
        own |= {"module": write.module if is_lost else None, "changed": ()}
        self.operations.append(Operation(**vars(write) | own))
        return self.operations[-1]


def _places(tensor: Tensor) -> tuple[Any, ...]:
    """Where a tensor has its numbers."""
    strides = tuple(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)
    return _storage(tensor), tensor.storage_offset(), tensor.shape, strides


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _overlap(one: Tensor, other: Tensor) -> bool:
    if _storage(one) != _storage(other) or one.numel() == 0 or other.numel() == 0:
        return False
    if _places(one) == _places(other):
        return True
    taken = torch.zeros(one.untyped_storage().nbytes() // one.element_size(), dtype=torch.bool)
    taken.as_strided(one.shape, one.stride(), one.storage_offset()).fill_(True)
    return bool(taken.as_strided(other.shape, other.stride(), other.storage_offset()).any())


def _range_of(whole: Tensor, part: Tensor) -> tuple[int, int, int] | None:
    """The axis, start and end of the slice of ``whole`` that ``part`` is, if it is one."""
    if whole.ndim != part.ndim:
        return None
    axes = [i for i in range(whole.ndim) if whole.shape[i] != part.shape[i]]
    if len(axes) != 1:
        return None
    (axis,) = axes
    if not whole.stride(axis):  # of an expanded tensor, whose parts are one and the same
        return None
    start, rest = divmod(int(part.storage_offset()) - int(whole.storage_offset()), whole.stride(axis))
    end = start + part.shape[axis]
    if rest or start < 0 or end > whole.shape[axis] or _places(whole.narrow(axis, start, end - start)) != _places(part):
        return None
    return axis, start, end
