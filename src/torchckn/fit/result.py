"""What a training gives back."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from .classifier import HeadFit

#: one line of the history: step, loss, accuracy, lr, seconds; valid_accuracy and valid_loss where validation took place
Record = dict[str, Any]


@dataclass(frozen=True)
class TrainResult:
    """What :func:`torchckn.train` did."""

    history: list[Record] = field(repr=False)
    """one record per step: step, loss, accuracy, lr, seconds; valid_accuracy and valid_loss where validation took place"""
    lam: float
    """the L2 penalty during the steps"""
    start: HeadFit | None
    """the classifier before the steps, if it was fitted here"""
    head: HeadFit | None
    """the classifier after the steps"""
    seconds: float
    """of training, without validation and checkpoints"""
    steps: int
    """that were made"""
    stopped: str | None = None
    """why training stopped early, if it did"""

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "history"}

    @staticmethod
    def from_json(content: dict[str, Any], history: list[Record]) -> TrainResult:
        heads = {key: HeadFit.from_json(content[key]) if content.get(key) else None for key in ("start", "head")}
        return TrainResult(
            history=history,
            lam=content["lam"],
            start=heads["start"],
            head=heads["head"],
            seconds=content["seconds"],
            steps=content["steps"],
            stopped=content.get("stopped"),
        )
