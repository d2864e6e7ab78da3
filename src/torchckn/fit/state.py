"""All that a training depends on, as checkpoints keep it.

Read first: :mod:`torchckn.fit.config`, :mod:`torchckn.fit.callbacks`. Read next: :mod:`torchckn.fit.loop`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from ..distributed import is_first
from ..errors import CKNError, DataError
from ..network import Classifier
from .batches import TrainingBatches
from .callbacks import Callback
from .classifier import HeadFit
from .config import TrainConfig
from .methods import Method, net_state
from .result import Record, TrainResult
from .schedules import Schedule, describe, schedule


class Store(Protocol):
    """Where a training is kept, so that it can be resumed: a run folder, :class:`torchckn.runs.Run`."""

    folder: Path

    def load_result(self, net: Classifier) -> TrainResult | None:
        """The result of a training that is finished, whose weights the network gets."""

    def load_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """What :meth:`TrainingState.state` was at the last checkpoint."""

    def save_checkpoint(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Keep the state of a training."""

    def save_result(self, net: Classifier, result: TrainResult) -> None:
        """Keep the trained network and the result."""


@dataclass
class TrainingState:
    """A training between two steps: its network, its options, and how far it is."""

    net: Classifier
    config: TrainConfig
    """with the defaults filled in"""
    method_class: type[Method]
    train_data: Any
    valid_data: Any
    batches: TrainingBatches
    generator: torch.Generator
    callbacks: Sequence[Callback]
    store: Store | None = None
    """of the first process; others have none"""
    progress: bool | None = None
    clock: Callable[[], float] = time.perf_counter
    """what seconds are measured with"""
    unlabeled: Any = None
    """what the unsupervised filters are fitted to, if not to the training data"""

    history: list[Record] = field(default_factory=list)
    step: int = 0
    """steps that were made"""
    lr: float | None = None
    scale: float = 1.0
    """of the learning rate, after roll-backs"""
    seconds: float = 0.0
    start: HeadFit | None = None
    stop_reason: str | None = None
    epoch_accuracy: float | None = None
    epoch_state: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.method: Method | None = None  # without steps there is none
        self.schedule: Schedule = schedule(self.config.lr, convnet=self.config.method == "sgd")

    @property
    def steps(self) -> int:
        """Steps in all."""
        assert self.config.steps is not None
        return self.config.steps

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and plain facts, copied: all that is needed to continue exactly from here; an error if the last step failed."""
        if self.method:
            self.method.checks.read()
        return self.snapshot()

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The same, without waiting until an accelerator tells whether the last step failed."""
        tensors = self.method.state() if self.method else net_state(self.net)
        tensors |= {f"epoch.{name}": value for name, value in self.epoch_state.items()}
        tensors |= {f"batches.{name}": value for name, value in self.batches.state().items()}
        for key, callback in self._callbacks_by_name():
            tensors |= {f"{key}{name}": value.clone() for name, value in callback.state().items()}
        tensors["generator"] = self.generator.get_state()
        tensors["torch_generator"] = torch.get_rng_state()  # of dropout and the like
        facts = {
            "step": self.step,
            "lr": self.lr,
            "schedule": describe(self.config.lr),
            "scale": self.scale,
            "steps": self.steps,
            "seconds": self.seconds,
            "epoch_accuracy": self.epoch_accuracy,
            "start": asdict(self.start) if self.start else None,
            "stop_reason": self.stop_reason,
            "history": list(self.history),
        }
        return tensors, facts

    def continue_from(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Back to a checkpoint; a :class:`DataError` if it is not one of such a run."""
        try:
            self.net.load_state_dict(_part(tensors, "net."))
            if self.net.penalty is None:
                raise ValueError("it has no L2 penalty")
            if self.steps:
                self.method = self.method_class(self.net, self.config)
            self._restore(tensors, facts)
        except CKNError:
            raise
        except _NOT_A_CHECKPOINT as error:
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            folder = self.store.folder / "checkpoint" if self.store else "the run's folder"
            raise DataError(
                f"the checkpoint in {folder} is not one of this run ({type(error).__name__}: {reason}); delete {folder} to start "
                "again"
            ) from error

    def _restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        if self.method:
            self.method.restore(tensors)
        self.epoch_state = _part(tensors, "epoch.")
        self.batches.restore(_part(tensors, "batches."))
        for key, callback in self._callbacks_by_name():
            callback.restore(_part(tensors, key))
        self.generator.set_state(tensors["generator"])
        if is_first():  # others draw other numbers, for other images
            torch.set_rng_state(tensors["torch_generator"])
        self.step, self.scale, self.seconds = (_number(facts[name]) for name in ("step", "scale", "seconds"))  # type: ignore[assignment]
        self.lr, self.epoch_accuracy = (
            None if facts[name] is None else _number(facts[name]) for name in ("lr", "epoch_accuracy")
        )
        if facts.get("schedule", describe(self.config.lr)) != describe(self.config.lr):
            self.lr, self.scale = None, 1.0  # trained further with another learning rate
        if not isinstance(self.step, int) or not 0 <= self.step <= self.steps:
            raise ValueError(f"step {self.step} of {self.steps}")
        self.stop_reason = facts["stop_reason"] if facts["steps"] == self.steps else None  # it is trained further now
        self.start = HeadFit.from_json(facts["start"]) if facts["start"] else None
        self.history = list(facts["history"])

    def _callbacks_by_name(self) -> Iterator[tuple[str, Callback]]:
        """Each callback with a key that does not depend on other callbacks, which a resumed run may have or not."""
        names = [type(callback).__name__ for callback in self.callbacks]
        for i, callback in enumerate(self.callbacks):
            yield f"callback.{names[i]}.{names[:i].count(names[i])}.", callback


#: what a checkpoint that is none of the run's may raise while training goes back to it
_NOT_A_CHECKPOINT = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RuntimeError)


def _number(value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TypeError(f"expected a number, got {value!r}")
    return value


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
