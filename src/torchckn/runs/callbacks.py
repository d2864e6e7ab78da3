"""The callbacks that write a run folder: metrics, filters for pictures, checkpoints. Read next: :mod:`torchckn.runs.trainer`."""

from __future__ import annotations

from ..fit.callbacks import Callback, Training
from ..fit.result import Record
from .folder import Run


class MetricsFile(Callback):
    """Every record as a line of the run folder's ``metrics.jsonl``."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def on_steps_start(self, training: Training) -> None:
        self.run.keep_metrics(training.history)

    def on_step_end(self, training: Training, record: Record) -> None:
        self.run.log(record)


class FilterSnapshots(Callback):
    """The first layer's filters at every validation, for pictures."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def on_validation_end(self, training: Training, record: Record) -> None:
        filters = training.net.filters_to_watch()
        if filters is not None:
            self.run.save_filters(training.step, filters)


class Checkpoints(Callback):
    """The whole state in the run folder: at the start, every so many steps, at the end, and when training is to stop."""

    def __init__(self, run: Run, every: int) -> None:
        self.run, self.every = run, every
        self._seen = 0

    def on_steps_start(self, training: Training) -> None:
        self._seen = training.step
        if training.step == 0:
            self.run.save_checkpoint(*training.state())

    def on_step_end(self, training: Training, record: Record) -> None:
        before, self._seen = self._seen, training.step  # a search may keep several steps at once
        if training.step // self.every > before // self.every or training.is_stopping:
            self.run.save_checkpoint(*training.state())
