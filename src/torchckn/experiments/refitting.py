"""Accuracy over steps with a classifier that is refitted at every validation.

The classifier of a step of stochastic gradient optimization lags behind its filters, and that of ultimate layer reversal is
fitted to one batch. A classifier refitted to many images compares the filters alone, as the curves released with the paper do.
"""

from __future__ import annotations

import copy
from typing import Any

from ..fit.callbacks import Callback, Training
from ..fit.head import fit_head_as
from ..fit.result import Record


class Refitting(Callback):
    """Add ``refitted_accuracy`` to the record of a validation; the network that is trained stays as it is."""

    def __init__(self, train_data: Any, valid_data: Any) -> None:
        self.train_data, self.valid_data = train_data, valid_data

    def on_validation_end(self, training: Training, record: Record) -> None:
        net = copy.deepcopy(training.net)
        # Filters know the training labels, so only validation images choose the penalty.
        head = fit_head_as(training.config, net, self.train_data, self.valid_data, lam=None, folds=0, progress=False)
        record["refitted_accuracy"] = head.accuracy
