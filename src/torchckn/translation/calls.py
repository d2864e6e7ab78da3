"""What both tracers record, and what they know about places in the source. Read next: ``symbolic.py``, ``exported.py``."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

Key = type[nn.Module] | Callable[..., Any] | str
"""What identifies an operation: the class of a module, a function, or the name of a tensor's method."""


@dataclass(frozen=True, eq=False)
class Call:
    """One call of the network, as a tracer has recorded it."""

    node: fx.Node
    """the node whose value it gives"""
    name: str
    """unique in its recording"""
    source: str
    """its name in the ConvNet: the path of a module, or the name of a function"""
    key: Key | None
    """what to look a rule up by; None for parameters and for the input"""
    module: nn.Module | None
    args: tuple[Any, ...]
    """positional arguments; an argument that is the result of another call is that call's node"""
    kwargs: dict[str, Any]
    value: Any
    """its result for a batch of two all-zero images"""
    where: str
    """file, line and text of the source, if known"""
    inside: str = ""
    """the path of the module whose ``forward`` has the call"""
    changed: tuple[Tensor, ...] = ()
    """the tensors that it has changed in place"""

    @property
    def kind(self) -> str:
        """For messages: ``Conv2d``, ``F.relu``, ``Tensor.view``."""
        if self.module is not None:
            return type(self.module).__name__
        if self.key is None:
            return self.node.op
        if isinstance(self.key, str):
            return f"Tensor.{self.key}"
        home = str(getattr(self.key, "__module__", "") or "")
        prefix = {"torch.nn.functional": "F.", "_operator": "operator."}.get(home, "torch." if "torch" in home else "")
        return prefix + getattr(self.key, "__name__", str(self.key))


@dataclass(frozen=True)
class Recording:
    """All calls in the order of computation, the image's first, and what ``forward`` returns, with nodes for tensors."""

    calls: list[Call]
    output: Any


class DoesNotRunError(Exception):
    """The network itself raises an error for images of this shape."""

    def __init__(self, what: str, error: BaseException) -> None:
        super().__init__(f"{what} raises: {first_line(error)}")

    @classmethod
    def beyond(cls, error: BaseException) -> DoesNotRunError:
        """The error at its place in the user's code."""
        return cls(culprit(error).removeprefix(" beyond ") or "forward", error)


class DependsOnPixelsError(Exception):
    """The network does other operations for other pixels."""


def zero_images(net: nn.Module, input_shape: Sequence[int]) -> Tensor:
    """A batch of two images of zeros, of the network's dtype, on its device."""
    example = example_tensor(net)
    return torch.zeros(2, *input_shape, dtype=example.dtype, device=example.device)


def example_tensor(net: nn.Module) -> Tensor:
    """One that has the network's dtype and device."""
    return next((t for t in (*net.parameters(), *net.buffers()) if t.is_floating_point()), torch.zeros(()))


def changes(run: Callable[[], Any], args: Any, kwargs: Any) -> tuple[Any, tuple[Tensor, ...]]:
    """What a call gives, and the tensors that it changes in place: torch counts the changes of each."""
    arguments = pytree.tree_leaves((kwargs.get("out"), args, kwargs))
    counts = [(a, a._version) for a in arguments if isinstance(a, Tensor)]
    result = run()
    # Tensors that share memory share their count: the one that an operation changes is its first argument.
    changed = {a.untyped_storage()._cdata: a for a, count in reversed(counts) if a._version != count}
    return result, tuple(changed.values())


def is_leaf(module: nn.Module, has_rule: Callable[[nn.Module], bool]) -> bool:
    """Whether a module is one operation: it has a rule, or it is one of torch's own."""
    return has_rule(module) or (
        type(module).__module__.startswith(("torch.nn", "torch.ao.nn")) and not isinstance(module, nn.Sequential)
    )


def place(frames: Sequence[traceback.FrameSummary]) -> str:
    """``file.py:12, `x = F.relu(x)```: the innermost line of the user's code."""
    own = [frame for frame in frames if is_own(frame.filename)]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}, `{own[-1].line}`" if own else ""


def culprit(error: BaseException) -> str:
    """Where in the user's code an error was raised, behind a word that leads to it."""
    where = place(traceback.extract_tb(error.__traceback__))
    return f" beyond {where}" if where else ""


@functools.cache
def is_own(file: str) -> bool:
    """Whether a file is the user's: neither torch's nor part of the translation."""
    return not {_TORCH, _HERE} & set(Path(file).parents)


_TORCH, _HERE = Path(torch.__file__).parent, Path(__file__).parent


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
