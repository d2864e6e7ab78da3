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

Key = type[nn.Module] | Callable[..., Any] | str
"""What identifies an operation: the class of a module, a function, or the name of a tensor's method."""


@dataclass(frozen=True)
class Call:
    """One call of the network, as a tracer has recorded it."""

    node: fx.Node
    """the node whose value it gives; arguments that are results of other calls are their nodes"""
    name: str
    """unique in its recording"""
    source: str
    """its name in the ConvNet: the path of a module, or the name of a function"""
    key: Key | None
    """what to look a rule up by; None for parameters and for the input"""
    module: nn.Module | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    value: Any
    """its result for a batch of two all-zero images"""
    where: str
    """file, line and text of the source, if known"""
    inside: str = ""
    """the path of the module whose ``forward`` has the call"""

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


class DependsOnPixelsError(Exception):
    """The network does other operations for other pixels."""


def zero_images(net: nn.Module, input_shape: Sequence[int]) -> Tensor:
    """A batch of two images of zeros, of the network's dtype, on its device."""
    example = next((t for t in (*net.parameters(), *net.buffers()) if t.is_floating_point()), torch.zeros(()))
    return torch.zeros(2, *input_shape, dtype=example.dtype, device=example.device)


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
