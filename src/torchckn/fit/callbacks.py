"""What is done beside the training steps: progress, early stopping, TensorBoard. All of it is callbacks.

A callback is a subclass of :class:`Callback` with the methods it needs; it sees the :class:`torchckn.fit.Training`, and asks it
to stop with ``training.stop("why")``. Read next: :mod:`torchckn.fit.loop`, which calls them, and :mod:`torchckn.runs.callbacks`,
those that write metrics and checkpoints.

Example:
    >>> from torchckn import Callback
    >>> class StopAtLoss(Callback):
    ...     def __init__(self, loss):
    ...         self.loss = loss
    ...     def on_step_end(self, training, record):
    ...         if record["loss"] < self.loss:
    ...             training.stop(f"the loss is below {self.loss}")
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from ..choices import as_integer
from ..errors import ConfigError, DataError
from ..formats import percent
from ..network import Classifier
from ..progress import Report, progress
from .config import TrainConfig
from .result import Record, TrainResult


class Training(Protocol):
    """A training in progress, as callbacks see it."""

    net: Classifier
    config: TrainConfig
    """with the defaults filled in"""
    history: list[Record]
    step: int
    """steps that were made"""
    seconds: float
    """of training, without validation and checkpoints"""
    stop_reason: str | None
    """why it ends before its last step, if it does"""

    @property
    def steps(self) -> int:
        """Steps in all."""

    @property
    def is_stopping(self) -> bool:
        """Whether no step will follow in this process."""

    def stop(self, reason: str) -> None:
        """Ask training to end after this step, as if it had been the last one."""

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and plain facts, copied: all that is needed to continue exactly from here."""


class Callback:
    """Does something while a network is trained. Every method may be left out."""

    def on_train_start(self, training: Training) -> None:
        """Before the first step, filters and classifier being fitted; in a resumed run, before the next one."""

    def on_steps_start(self, training: Training) -> None:
        """Before the first step as well, after the first validation; in a resumed run, before the next step."""

    def on_step_end(self, training: Training, record: Record) -> None:
        """After a step, and after its validation if there was one. ``record["step"]`` counts from 1."""

    def on_validation_end(self, training: Training, record: Record) -> None:
        """After a validation; the first one takes place before the first step (``record["step"] == 0``)."""

    def on_steps_end(self, training: Training) -> None:
        """After the last step, before the classifier is refitted."""

    def on_train_end(self, training: Training, result: TrainResult) -> None:
        """At the end, with what :func:`torchckn.train` returns."""

    def on_exit(self, training: Training) -> None:
        """Whatever happened, at the very end: close what is open."""

    # Exact resume: what the callback has to remember goes into checkpoints.

    def state(self) -> dict[str, Tensor]:
        """Tensors to keep in a checkpoint."""
        return {}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Back to what :meth:`state` gave."""


def best_validation(history: list[Record]) -> Record | None:
    """The first record with the highest validation accuracy."""
    records = [record for record in history if "valid_accuracy" in record]
    return max(records, key=lambda record: record["valid_accuracy"], default=None)


class EarlyStopping(Callback):
    """Stop after ``patience`` validations without a better accuracy than the best one before them."""

    def __init__(self, patience: int) -> None:
        if (number := as_integer(patience, 1)) is None:
            raise ConfigError(f"patience: expected an integer >= 1, got {patience!r}")
        self.patience = number
        #: the step that validations are counted from
        self.start = 0

    def on_train_start(self, training: Training) -> None:
        if training.stop_reason is None and self._validations_since(training.history) >= self.patience:
            self.start = training.step  # it was stopped here before, and is trained further now

    def on_validation_end(self, training: Training, record: Record) -> None:
        best = best_validation(training.history)
        assert best is not None
        since = self._validations_since(training.history)
        if since >= self.patience:
            accuracy = percent(best["valid_accuracy"], 2)
            training.stop(f"no validation accuracy above the {accuracy} of step {best['step']} in {since} validations")

    def _validations_since(self, history: list[Record]) -> int:
        """Validations after the best one that count."""
        best = best_validation(history)
        start = self.start if best is None else max(self.start, best["step"])
        return sum("valid_accuracy" in record and record["step"] > start for record in history)

    def state(self) -> dict[str, Tensor]:
        return {"start": torch.tensor(self.start)}

    def restore(self, state: dict[str, Tensor]) -> None:
        self.start = int(state.get("start", 0))  # older checkpoints have none


class KeepBest(Callback):
    """Let training end with the weights that had the best validation accuracy, instead of the last ones."""

    def __init__(self) -> None:
        self.best: dict[str, Tensor] = {}

    def on_train_start(self, training: Training) -> None:
        shapes = {name: value.shape for name, value in training.net.state_dict().items()}
        if any(shapes.get(name) != value.shape for name, value in self.best.items()):
            raise DataError("the checkpoint has the best weights of another network; delete it to start again")

    def on_validation_end(self, training: Training, record: Record) -> None:
        best = best_validation(training.history)
        if best is not None and best["step"] == record["step"]:
            self.best = {name: value.detach().clone() for name, value in training.net.state_dict().items()}

    def on_steps_end(self, training: Training) -> None:
        if self.best:
            training.net.load_state_dict(self.best)

    def state(self) -> dict[str, Tensor]:
        return self.best

    def restore(self, state: dict[str, Tensor]) -> None:
        self.best = dict(state)


class ProgressBar(Callback):
    """Steps, loss, accuracies and learning rate on the terminal."""

    def __init__(self, show: bool | None = None) -> None:
        self.show = show
        self._stack = ExitStack()
        self._report: Report | None = None
        self._valid = ""

    def on_train_start(self, training: Training) -> None:
        name = (training.config.method or "").upper()
        self._report = self._stack.enter_context(progress(name, training.steps, self.show))
        for record in training.history:
            if "valid_accuracy" in record:
                self.on_validation_end(training, record)

    def on_validation_end(self, training: Training, record: Record) -> None:
        self._valid = f" valid {100 * record['valid_accuracy']:.1f}"

    def on_step_end(self, training: Training, record: Record) -> None:
        text = f"loss {record['loss']:.3f} train {100 * record['accuracy']:.1f}{self._valid} lr {record['lr']:.1g}"
        if self._report:
            self._report(training.step, text)

    def on_steps_end(self, training: Training) -> None:
        self._stack.close()

    def on_exit(self, training: Training) -> None:
        self._stack.close()


class TensorBoard(Callback):
    """Every record as scalars for TensorBoard (``pip install 'torchckn[tensorboard]'``)."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ConfigError("TensorBoard is not installed: pip install 'torchckn[tensorboard]'") from None
        self._new_writer = lambda: SummaryWriter(str(Path(folder)))
        self._writer: Any = None

    def on_train_start(self, training: Training) -> None:
        self._writer = self._new_writer()
        if training.step == 0:
            self.on_step_end(training, training.history[0])

    def on_step_end(self, training: Training, record: Record) -> None:
        for key, value in record.items():
            if key != "step":
                self._writer.add_scalar(key, value, record["step"])

    def on_exit(self, training: Training) -> None:
        if self._writer is not None:
            self._writer.close()
