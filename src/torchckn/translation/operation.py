"""One operation of a traced network, with its neighbours. Read next: ``memory.py``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from .calls import Call

#: those of fx
_SEQUENCES = (fx.immutable_collections.immutable_list, torch.Size)
_CONVOLUTIONS = (F.conv2d, torch.conv2d)


@dataclass(frozen=True, eq=False)
class Operation(Call):
    """A call that knows its neighbours: in its arguments, the result of another operation is that operation.

    Its name is unique, and a valid name for a node of a graph.
    """

    users: list[Operation] = field(default_factory=list)
    is_lost: bool = False
    """whether it stands for a tensor that was changed in part, by a write that cannot be told as a concatenation"""

    def option(self, name: str, position: int, default: Any = None) -> Any:
        """The module's attribute, or the function's argument by position or name; ``axis`` is another name of ``dim``."""
        if self.module is not None:
            return getattr(self.module, name, default)
        name = "axis" if name == "dim" and "axis" in self.kwargs else name
        return self.kwargs.get(name, self.args[position] if len(self.args) > position else default)

    @property
    def is_tensor(self) -> bool:
        return isinstance(self.value, Tensor)

    @property
    def returns_its_input(self) -> bool:
        """Whether it gives back the tensor that it got, unchanged, as stochastic depth does once a network is trained."""
        given = next((a.value for a in operations_in((self.args, self.kwargs)) if a.is_tensor), None)
        return given is not None and self.value is given and not self.changed

    @property
    def has_groups(self) -> bool:
        """Whether it is a convolution of several groups of several channels, for which the order of channels matters."""
        named = self.kwargs.get("groups", self.args[6] if self.key in _CONVOLUTIONS and len(self.args) > 6 else 1)
        groups = named if self.module is None else getattr(self.module, "groups", 1)
        first = operations_in(self.args)[:1]
        return isinstance(groups, int) and groups > 1 and any(o.is_tensor and o.shape[0] > groups for o in first)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of its result, without the batch."""
        return tuple(self.value.shape[1:])


def operations_in(item: Any) -> list[Operation]:
    """The operations in an argument."""
    if isinstance(item, Operation):
        return [item]
    if isinstance(item, slice):
        item = (item.start, item.stop, item.step)
    if isinstance(item, dict):
        item = tuple(item.values())
    return [operation for part in item for operation in operations_in(part)] if isinstance(item, (tuple, list)) else []


def mapped(item: Any, function: Callable[[Any], Any], kind: type = Operation) -> Any:
    """An argument, with ``function`` of everything in it that is of that kind."""
    if isinstance(item, kind):
        return function(item)
    if isinstance(item, dict):
        return {name: mapped(value, function, kind) for name, value in item.items()}
    if isinstance(item, slice):
        return slice(*(mapped(end, function, kind) for end in (item.start, item.stop, item.step)))
    if isinstance(item, (tuple, list)) and type(item) in (tuple, list, *_SEQUENCES):
        return type(item)(mapped(part, function, kind) for part in item)
    return item


def parameters_in(item: Any) -> list[nn.Parameter]:
    """The parameters that an argument is, has, or is computed from."""
    parameters, seen, waiting = [], set(), [item]
    while waiting:
        part = waiting.pop()
        if isinstance(part, nn.Parameter):
            parameters.append(part)
        elif isinstance(part, Operation) and part not in seen:
            seen.add(part)
            waiting += [part.value, part.args, part.kwargs] if part.is_tensor else [part.args, part.kwargs]
        elif isinstance(part, dict):
            waiting += part.values()
        elif isinstance(part, (tuple, list)):
            waiting += part
    return parameters
