"""How large the next step is: the paper's search, fixed, in stages, or falling to zero.

Paper: section 5.1: "chosen initially from the values 2^i by training for five iterations with each step size and choosing the
step size yielding the lowest training loss on a separate mini-batch. The same method is used to update the step size every 100
iterations", among 2^-3 to 2^3 times the current one. Read next: :mod:`torchckn.fit.trainer`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError, unknown_name

#: trains a few iterations with a step size, tells the loss on a separate batch, and undoes it all
Trial = Callable[[float], float]


class StepSize:
    """What a step-size rule is: a function of the step, of the step size before it, and of trials."""

    #: iterations of a trial
    tries: int = 5

    def choose(self, step: int, steps: int, current: float | None, trial: Trial) -> float:
        """The step size of step number ``step`` (from 0) of ``steps``."""
        raise NotImplementedError


@dataclass(frozen=True)
class Fixed(StepSize):
    """The same step size throughout."""

    lr: float

    def choose(self, step: int, steps: int, current: float | None, trial: Trial) -> float:
        return self.lr


@dataclass(frozen=True)
class Falling(StepSize):
    """From ``lr`` down to zero along half a cosine."""

    lr: float

    def choose(self, step: int, steps: int, current: float | None, trial: Trial) -> float:
        return self.lr * (1 + math.cos(math.pi * step / steps)) / 2


@dataclass(frozen=True)
class RootOfSteps(StepSize):
    """c / sqrt(T) for T steps in all: the step size of proposition "sgo_constrained"."""

    c: float

    def choose(self, step: int, steps: int, current: float | None, trial: Trial) -> float:
        return self.c / math.sqrt(steps)


@dataclass(frozen=True)
class Stages(StepSize):
    """Step sizes one after the other, each for ``length`` steps; the last one for the rest."""

    lrs: tuple[float, ...]
    length: int = 2000

    def choose(self, step: int, steps: int, current: float | None, trial: Trial) -> float:
        return self.lrs[min(step // self.length, len(self.lrs) - 1)]


@dataclass(frozen=True)
class Search(StepSize):
    """The paper's search: a few iterations with each candidate, judged on a separate mini-batch."""

    first: tuple[float, ...] = tuple(2.0**i for i in range(-6, 3))
    """candidates at the start; the paper has 2^-6..2^2 for CKNs and 2^-10..2^2 for ConvNets"""
    factors: tuple[float, ...] = tuple(2.0**i for i in range(-3, 4))
    """candidates later, times the current step size"""
    every: int = 100
    tries: int = 5
    """iterations with each candidate"""

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
                f"no step size of {sorted(losses)} gives a finite loss; try smaller ones: lr=Search(first=...)"
            )
        return min(finite, key=lambda lr: finite[lr])


_NAMED: dict[str, Callable[[float], StepSize]] = {"fixed": Fixed, "falling": Falling, "root": RootOfSteps}


def step_size(lr: Any, *, convnet: bool = False) -> StepSize:
    """A rule from what a user writes: a number, a list of stages, ``"search"``, ``"cosine:0.03"``, or a rule itself."""
    if isinstance(lr, StepSize):
        return lr
    if isinstance(lr, (int, float)) and not isinstance(lr, bool):
        return Fixed(_positive(lr))
    if isinstance(lr, (list, tuple)) and lr and all(isinstance(value, (int, float)) for value in lr):
        return Stages(tuple(_positive(value) for value in lr))
    if isinstance(lr, str):
        name, _, number = lr.partition(":")
        if name == "search" and not number:
            return Search(first=tuple(2.0**i for i in range(-10, 3))) if convnet else Search()
        if name in _NAMED:
            try:
                return _NAMED[name](_positive(float(number)))
            except ValueError:
                raise ConfigError(f"lr={lr!r}: expected a positive number after {name}:, such as {name}:0.03") from None
        known = ["search", *(f"{name}:NUMBER" for name in _NAMED)]
        raise unknown_name("step size", lr, known, "Or pass a number, or a list of numbers for stages.")
    raise ConfigError(f"lr expected a positive number, a list of them, or a rule such as 'search', got {lr!r}")


def _positive(value: float) -> float:
    if not 0 < value < math.inf:
        raise ConfigError(f"a step size is a positive number, got {value!r}")
    return float(value)
