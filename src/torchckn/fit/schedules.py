"""Learning rates: the paper's search, constant, in stages, decaying, or any function of the step.

Paper: section 5.1: "chosen initially from the values 2^i by training for five iterations with each step size and choosing the
step size yielding the lowest training loss on a separate mini-batch. The same method is used to update the step size every 100
iterations", among 2^-3 to 2^3 times the current one. Read next: :mod:`torchckn.fit.methods`.

Nothing here needs torch: options are checked before anything is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..errors import ConfigError, unknown_name

#: trains a few steps with a learning rate, and returns the loss on a separate batch: see :mod:`torchckn.fit.trials`
Trial = Callable[[float], float]


class Schedule:
    """A learning rate as a function of the step, of the learning rate before it, and of trials."""

    #: training steps in a trial
    tries: int = 5
    #: whether all steps of a trial are on one batch
    one_batch: ClassVar[bool] = False
    #: whether a trial is judged by the loss of a classifier fitted to the separate batch, or by the objective of the one that
    #: its steps leave behind
    refit: ClassVar[bool] = False
    #: whether the steps of the best trial are kept, and count as steps of training; else all of them are undone
    keep: ClassVar[bool] = False

    def choose(self, step: int, steps: int, current: float | None, trial: Trial) -> float:
        """The learning rate of step number ``step`` (from 0) of ``steps``."""
        raise NotImplementedError


@dataclass(frozen=True)
class Constant(Schedule):
    """The same learning rate throughout."""

    lr: float

    def choose(self, step: int, steps: int, current: float | None, trial: Trial) -> float:
        return self.lr


@dataclass(frozen=True)
class Cosine(Schedule):
    """From ``lr`` down to zero along half a cosine."""

    lr: float

    def choose(self, step: int, steps: int, current: float | None, trial: Trial) -> float:
        return self.lr * (1 + math.cos(math.pi * step / steps)) / 2


@dataclass(frozen=True)
class RootOfSteps(Schedule):
    """c / sqrt(T) for T steps in all: the learning rate of proposition "sgo_constrained"."""

    c: float

    def choose(self, step: int, steps: int, current: float | None, trial: Trial) -> float:
        return self.c / math.sqrt(steps)


@dataclass(frozen=True)
class Stages(Schedule):
    """One learning rate after the other, ``length`` steps each; the last one stays."""

    lrs: tuple[float, ...]
    length: int = 2000

    def choose(self, step: int, steps: int, current: float | None, trial: Trial) -> float:
        return self.lrs[min(step // self.length, len(self.lrs) - 1)]


@dataclass(frozen=True)
class Function(Schedule):
    """Any function of the step, which counts from 0."""

    function: Callable[[int], float]

    def choose(self, step: int, steps: int, current: float | None, trial: Trial) -> float:
        lr = float(self.function(step))
        if not 0 <= lr < math.inf:
            raise ConfigError(f"lr: expected a function that gives numbers >= 0, got {lr!r} for step {step}")
        return lr


@dataclass(frozen=True)
class Search(Schedule):
    """The paper's search: a few training steps with each candidate, judged on a separate mini-batch."""

    first: tuple[float, ...] = tuple(2.0**i for i in range(-6, 3))
    """candidates at the start; the paper has 2^-6..2^2 for CKNs and 2^-10..2^2 for ConvNets"""
    factors: tuple[float, ...] = tuple(2.0**i for i in range(-3, 4))
    """candidates later, times the current learning rate"""
    every: int = 100
    tries: int = 5
    """training steps with each candidate"""

    def choose(self, step: int, steps: int, current: float | None, trial: Trial) -> float:
        if current is None:
            candidates: Sequence[float] = self.first
        elif step % self.every == 0:
            candidates = [factor * current for factor in self.factors]
        else:
            return current
        losses = {lr: trial(lr) for lr in candidates}
        finite = {lr: loss for lr, loss in losses.items() if math.isfinite(loss)}
        if not finite:
            raise ConfigError(
                f"no learning rate of {sorted(losses)} gives a finite loss; try smaller ones: lr=Search(first=...)"
            )
        return min(finite, key=lambda lr: finite[lr])


@dataclass(frozen=True)
class Search2019(Search):
    """The search of the code that was released with the paper in 2019."""

    first: tuple[float, ...] = tuple(2.0**i for i in range(-9, 0))
    one_batch: ClassVar[bool] = True
    refit: ClassVar[bool] = True
    keep: ClassVar[bool] = True


_NAMED: dict[str, Callable[[float], Schedule]] = {"constant": Constant, "cosine": Cosine, "root": RootOfSteps}


def schedule(lr: Any, *, convnet: bool = False) -> Schedule:
    """A schedule from what a user writes: a number, a list of stages, ``"cosine:0.03"``, a search, a function, a schedule."""
    if isinstance(lr, Schedule):
        return lr
    lr = plain(lr)
    if isinstance(lr, (int, float)) and not isinstance(lr, bool):
        return Constant(_positive(lr))
    if isinstance(lr, tuple) and lr and all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in lr):
        return Stages(tuple(_positive(value) for value in lr))
    if isinstance(lr, str):
        name, _, number = lr.partition(":")
        if name == "search" and not number:
            return Search(first=tuple(2.0**i for i in range(-10, 3))) if convnet else Search()
        if lr == "search:2019":
            return Search2019()
        if name in _NAMED:
            try:
                return _NAMED[name](_positive(float(number)))
            except ValueError:
                raise ConfigError(f"lr: expected a positive number after {name}:, such as {name}:0.03, got {lr!r}") from None
        names = ["search", "search:2019", *(f"{name}:NUMBER" for name in _NAMED)]
        raise unknown_name("learning rate", lr, names, "Or pass a number, a list of numbers for stages, or a function.")
    if callable(lr):
        return Function(lr)
    raise ConfigError(
        f"lr: expected a positive number, a list of them, a name such as 'search', or a function of the step, got {lr!r}"
    )


def plain(lr: Any) -> Any:
    """Numbers of NumPy and torch as those of Python, lists and arrays of them as tuples; all else as it is."""
    if hasattr(lr, "tolist"):
        lr = lr.tolist()
    return tuple(plain(value) for value in lr) if isinstance(lr, (list, tuple)) else lr


def describe(lr: Any) -> Any:
    """A learning rate as a configuration file has it: numbers and names as they are, others by a text that is always the same."""
    if isinstance(lr, Function):
        lr = lr.function
    if lr is None or isinstance(lr, (str, int, float)):
        return lr
    if isinstance(lr, (list, tuple)):
        return list(lr)
    if isinstance(lr, Schedule):
        return repr(lr)
    return f"{getattr(lr, '__module__', '')}.{getattr(lr, '__qualname__', type(lr).__qualname__)}"


def _positive(value: float) -> float:
    if not 0 < value < math.inf:
        raise ConfigError(f"lr: expected a positive number, got {value!r}")
    return float(value)
