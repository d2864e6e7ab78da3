"""The operations of a ConvNet in the order of computation, with their shapes and their places in the source.

A copy of the network is traced with images of zeros: by ``symbolic.py``, and by ``exported.py`` where that cannot be. Read next:
:mod:`torchckn.translation.rules`.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..errors import TranslationError
from ..graph.preprocessing import STANDARDIZE, WHITEN
from . import symbolic
from .calls import DependsOnPixelsError, DoesNotRunError, Key, Recording, culprit, first_line, is_leaf, zero_images
from .compositions import FUNCTIONS, PAIRS, composed, needed_by
from .expansions import EXPANDED, expanded
from .hooks import settle_hooks
from .memory import Memory
from .operation import Operation, operations_in

__all__ = ["Key", "Operation", "Trace", "trace"]


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
    _require_shapes(net, input_shape)
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
        settle_hooks(net, images, lambda module: is_leaf(module, has_rule))
    except TranslationError:
        raise
    except Exception as error:
        raise _does_not_run(net, shape, DoesNotRunError.beyond(error)) from None
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
        raise _does_not_run(net, shape, DoesNotRunError.beyond(error)) from None
    from . import exported  # imports torch's compiler, which takes seconds

    for strict in (False, True):
        try:
            return exported.record(net, images, has_rule, {*rules, *FUNCTIONS, *PAIRS, *EXPANDED}, strict=strict)
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
        "Move such code out of forward, or into a separate module with its own rule."
    )


def _assembled(recording: Recording) -> Trace:
    """The operations that the output depends on, each with those that read it."""
    taken = {"input", "head", STANDARDIZE, WHITEN}

    def unique(name: str) -> str:
        return _unique(name, taken)

    memory = Memory(unique)
    for call in recording.calls:
        memory.add(call)
    operations, output = composed(*expanded(memory.operations, memory.current(recording.output), unique))
    used, (first, *_) = needed_by(output), operations
    kept = [o for o in operations if o in used or o is first]
    for operation in kept:
        for earlier in dict.fromkeys(operations_in((operation.args, operation.kwargs))):
            earlier.users.append(operation)
    return Trace(kept, first, output)


def _require_shapes(net: nn.Module, input_shape: Sequence[int]) -> None:
    """An error for lazy modules, whose parameters have no shape yet."""
    tensors = (*net.named_parameters(), *net.named_buffers())
    lazy = [name for name, tensor in tensors if nn.parameter.is_lazy(tensor)]
    if lazy:
        batch = ", ".join(map(str, (1, *input_shape)))
        raise TranslationError(
            f"expected a network whose parameters have shapes; {type(net).__name__} has lazy ones, such as {lazy[0]!r}. "
            f"Run the network once first: net(torch.zeros({batch}))."
        )


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
            "Detach tensors that it holds, make weight norm or pruning permanent (torch.nn.utils.remove_weight_norm, "
            "prune.remove), and pass the inner module of a compiled, parallel or scripted one."
        ) from None
    needed = [p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(needed) > 1:
        raise TranslationError(
            f"translate expected a network of one input, a batch of images; {type(net).__name__}.forward takes {len(needed)}. "
            "Wrap it in a module that fixes the others."
        )
    return net


def _unique(name: str, taken: set[str]) -> str:
    """A valid name for a node of a graph: not taken, and not an attribute of a module dictionary."""
    while name in taken or hasattr(_MODULES, name):
        name += "_"
    taken.add(name)
    return name


_MODULES = nn.ModuleDict()
