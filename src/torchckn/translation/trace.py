"""The operations of a ConvNet in the order of computation, with their shapes and their places in the source.

A copy of the network is traced with images of zeros: by ``symbolic.py``, and by ``exported.py`` where that cannot be. Read next:
:mod:`torchckn.translation.rules`.
"""

from __future__ import annotations

import copy
import inspect
import operator
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from ..errors import TranslationError
from . import symbolic
from .calls import Call, DependsOnPixelsError, DoesNotRunError, Key, Recording, culprit, first_line, zero_images

__all__ = ["Key", "Operation", "Trace", "trace"]


@dataclass
class Operation:
    """One operation of the traced network."""

    name: str
    """unique, and a valid name for a node of a graph"""
    source: str
    """its name in the ConvNet: the path of a module, or the name of a function"""
    key: Key | None
    """what to look a rule up by; None for parameters and for the input"""
    kind: str
    """for messages: ``Conv2d``, ``F.relu``, ``Tensor.view``"""
    module: nn.Module | None
    args: tuple[Any, ...]
    """positional arguments; an argument that is the result of another operation is that operation"""
    kwargs: dict[str, Any]
    value: Any
    """its result for a batch of two all-zero images"""
    where: str
    """file, line and text of the source, if known"""
    inside: str = ""
    """the path of the module whose ``forward`` has it"""
    users: list[Operation] = field(default_factory=list)

    @property
    def is_tensor(self) -> bool:
        return isinstance(self.value, Tensor)

    @property
    def returns_its_input(self) -> bool:
        """Whether it gives back the tensor that it got, as stochastic depth does once a network is trained."""
        given = next((a.value for a in _operations_in((self.args, self.kwargs)) if a.is_tensor), None)
        return given is not None and self.value is given

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of its result, without the batch."""
        return tuple(self.value.shape[1:])


@dataclass
class Trace:
    operations: list[Operation]
    input: Operation
    output: Any
    """what ``forward`` returns; a tensor is the operation that gives it"""


def trace(
    net: nn.Module, input_shape: Sequence[int], has_rule: Callable[[nn.Module], bool], rules: Iterable[Key] = ()
) -> Trace:
    """Trace ``net`` with an image of ``input_shape`` (C, H, W).

    A module for which ``has_rule`` is true is one operation; all others are traced into. ``rules`` has what functions are
    known by.
    """
    net = _copy(net)
    home = type(net).__mro__[1].__module__  # of the class that was copied
    if has_rule(net) or (home.startswith("torch.nn") and not isinstance(net, nn.Sequential)):
        net = nn.Sequential(net)  # a single layer is a network as well
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about the network, which its own training shows as well
        return _assembled(_recorded(net, tuple(input_shape), has_rule, rules))


def _recorded(
    net: nn.Module, shape: tuple[int, ...], has_rule: Callable[[nn.Module], bool], rules: Iterable[Key]
) -> Recording:
    images = zero_images(net, shape)
    try:
        return symbolic.record(net, images, has_rule)
    except DoesNotRunError as error:
        raise _does_not_run(net, shape, error) from None
    except DependsOnPixelsError as error:
        raise _cannot_be_traced(net, error) from None
    except Exception as error:
        symbolic_error = error
    try:
        net(images)
    except Exception as error:
        raise _does_not_run(
            net, shape, DoesNotRunError(culprit(error).removeprefix(" beyond ") or "forward", error)
        ) from None
    from . import exported  # imports torch's compiler, which takes seconds

    for strict in (False, True):
        try:
            return exported.record(net, images, has_rule, rules, strict=strict)
        except Exception:  # torch.export has no common class for what it refuses
            continue
    raise _cannot_be_traced(net, symbolic_error)


def _does_not_run(net: nn.Module, shape: tuple[int, ...], error: DoesNotRunError) -> TranslationError:
    return TranslationError(
        f"{type(net).__name__} does not run on images of shape {shape}: {error}. Check that input_shape, without the batch, "
        "is the one that the network was made for."
    )


def _cannot_be_traced(net: nn.Module, error: BaseException) -> TranslationError:
    return TranslationError(
        f"{type(net).__name__} cannot be traced{culprit(error)}: {first_line(error)}. Its forward must do the same "
        "operations for every image of one shape: no `if` or loop that depends on pixel values, no tensors turned into numbers. "
        "Move such code out of forward, or put it into a module of its own and register a rule for that module."
    )


def _assembled(recording: Recording) -> Trace:
    """The operations that the output depends on, each with those that read it."""
    #: the operation that gives a node's value: its own, or the last one that has changed it in place
    current: dict[fx.Node, Operation] = {}
    operations: list[Operation] = []
    taken = {"input", "head"}
    for call in recording.calls:
        operation = _operation(call, _unique(call.name, taken), current)
        operations.append(operation)
        current[call.node] = operation
        if _is_in_place(operation) and (before := _operations_in((operation.args, operation.kwargs))):
            current.update({node: operation for node, other in current.items() if other is before[0]})
    output = _replace(recording.output, current)
    used = _needed(output)
    kept = [o for o in operations if id(o) in used or o is operations[0]]
    for operation in kept:
        for earlier in {id(o): o for o in _operations_in((operation.args, operation.kwargs))}.values():
            earlier.users.append(operation)
    return Trace(kept, operations[0], output)


def _operation(call: Call, name: str, current: dict[fx.Node, Operation]) -> Operation:
    args, kwargs = _replace(call.args, current), _replace(call.kwargs, current)
    given = (name, call.source, call.key, call.kind, call.module, args, kwargs, call.value, call.where, call.inside)
    return Operation(*given)


def _copy(net: nn.Module) -> nn.Module:
    """A copy in eval mode, whose forward takes one argument: others keep their defaults."""
    try:
        net = copy.deepcopy(net).eval()
        parameters = inspect.signature(net.forward).parameters.values()
        forward = type(net).forward
        net.__class__ = type(type(net).__name__, (type(net),), {"forward": lambda self, images: forward(self, images)})
    except Exception as error:
        raise TranslationError(
            f"{type(net).__name__} cannot be copied, which translate does to leave it untouched: {first_line(error)}. "
            "Detach tensors that it holds, and pass the inner module of a compiled, parallel or scripted one."
        ) from None
    needed = [p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(needed) > 1:
        raise TranslationError(
            f"translate expected a network of one input, a batch of images; {type(net).__name__}.forward takes {len(needed)}. "
            "Wrap it in a module that fixes the others."
        )
    return net


def _is_in_place(operation: Operation) -> bool:
    """Whether it changes its input: later operations on that input get the result."""
    if isinstance(operation.key, str):
        return operation.key.endswith("_") and not operation.key.endswith("__")
    if operation.module is not None:
        return bool(getattr(operation.module, "inplace", False))
    name = getattr(operation.key, "__name__", "")
    in_place_operators = (operator.iadd, operator.isub, operator.imul, operator.itruediv)
    return operation.key in in_place_operators or name.endswith("_") or operation.kwargs.get("inplace") is True


def _operations_in(item: Any) -> list[Operation]:
    """The operations in an argument."""
    if isinstance(item, Operation):
        return [item]
    if isinstance(item, slice):
        item = (item.start, item.stop, item.step)
    if isinstance(item, dict):
        item = tuple(item.values())
    return [operation for part in item for operation in _operations_in(part)] if isinstance(item, (tuple, list)) else []


def _needed(output: Any) -> set[int]:
    """The ids of all operations that the output depends on; the rest is dead code."""
    needed: set[int] = set()
    waiting = _operations_in(output)
    while waiting:
        operation = waiting.pop()
        if id(operation) not in needed:
            needed.add(id(operation))
            waiting += _operations_in((operation.args, operation.kwargs))
    return needed


def _replace(argument: Any, current: dict[fx.Node, Operation]) -> Any:
    return fx.node.map_arg(argument, lambda node: current[node])  # type: ignore[arg-type,return-value]


def _unique(name: str, taken: set[str]) -> str:
    """A valid name for a node of a graph: not taken, and not an attribute of a module dictionary."""
    while name in taken or hasattr(_MODULES, name):
        name += "_"
    taken.add(name)
    return name


_MODULES = nn.ModuleDict()
