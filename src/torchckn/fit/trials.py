"""Trials of learning rates: a few training steps with each, judged on a separate batch.

Paper: section 5.1. Read first: :mod:`torchckn.fit.schedules`. Read next: :mod:`torchckn.fit.loop`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from ..errors import DataError, NumericalError
from ..nn.checks import check_finite
from .batches import TrainingBatches
from .features import check_labels
from .methods import Method, StepResult
from .schedules import Schedule

Batch = tuple[Tensor, Tensor]


class Kept(NamedTuple):
    """The steps of a trial, to be kept."""

    loss: float
    """on the separate batch"""
    state: dict[str, Tensor]
    """after the steps"""
    last: StepResult
    steps: int


class Trials:
    """The trials of one search. All of them have the same batches, which are not those of later steps, and each is undone.

    Args:
        steps: the most that a trial may take, if its steps are kept.
    """

    def __init__(self, method: Method, batches: TrainingBatches, schedule: Schedule, steps: int) -> None:
        self.method, self.batches, self.schedule = method, batches, schedule
        self.count = min(schedule.tries, steps) if schedule.keep else schedule.tries
        self.best: Kept | None = None
        self._drawn: tuple[list[Batch], Batch] | None = None

    def __call__(self, lr: float) -> float:
        """The loss after steps with this learning rate; infinite if they failed."""
        batches, separate = self._drawn = self._drawn or self._draw()
        self.method.checks.read()  # an error of the last step is none of this learning rate
        before = self.method.state()
        try:
            for images, labels in batches:
                result = self.method.step(images, labels, lr)
            self.method.checks.read()  # an error of the last trial is none of training
            after = self.method.state() if self.schedule.keep else {}
            loss = self.method.refitted_loss(*separate) if self.schedule.refit else self.method.loss(*separate)
        except (NumericalError, DataError):
            return math.inf
        finally:
            self.method.restore(before)
        if self.schedule.keep and loss < (self.best.loss if self.best else math.inf):
            self.best = Kept(loss, after, result, self.count)
        return loss

    def _draw(self) -> tuple[list[Batch], Batch]:
        """Batches of the steps, and one to judge by."""
        first = self._checked()
        others = [first if self.schedule.one_batch else self._checked() for _ in range(self.count - 1)]
        return [first, *others], self._checked()

    def _checked(self) -> Batch:
        """A batch of finite images whose labels the classifier has: others are no fault of a learning rate."""
        images, labels = self.batches.extra()
        check_finite(images)
        return images, check_labels(labels, self.method.net.head.out_features)
