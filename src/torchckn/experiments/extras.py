"""What a cell may be given besides settings of training: parameters of its measure.

To add one, write a line here; it may then stand in the rules and in the grid of an experiment.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from ..choices import LearnerName, Slip
from ..config import Config
from ..fit.config import TrainConfig


class GradientExtras(Config):
    """Arguments of :func:`torchckn.experiments.gradient.gradient_errors`."""

    images: int = Field(ge=1)
    directions: int = Field(ge=1)
    methods: list[Annotated[str, Field(pattern=r"^(eigh|svd|newton-\d+)$")]] = Field(min_length=1)
    """``"eigh"``, ``"svd"``, or ``"newton-20"``, with the number of iterations"""


class Extras(Config):
    """Parameters of the measures, by name."""

    model_config = ConfigDict(strict=True)  # as they are: "240" is not a number

    lrs: list[float | str] | None = Field(None, min_length=1)
    """learning rates to choose from; a number stands for a cosine decay from there"""
    trial_steps: int | None = Field(None, ge=1)
    """of each learning rate that is tried; by default as many as the cell has"""
    total_seconds: float | None = Field(None, gt=0)
    """the cell takes as many steps as fit into this time"""
    refit_images: int | None = Field(None, ge=1)
    """training images that a classifier is refitted to at every evaluation"""
    slip: Slip | None = None
    budget: Literal["steps", "time"] | None = None
    """a name for what the rules of an experiment do"""
    refit: bool | None = None
    """likewise"""
    penalty: str | None = Field(None, pattern=r"^(first|2\^-\d+)$")
    """likewise: the L2 penalty of training is that of the first classifier, or a number"""
    gradient: GradientExtras | None = None
    learner: LearnerName | None = None
    label_counts: list[int] | None = Field(None, min_length=1)

    @field_validator("lrs")
    @classmethod
    def _are_schedules(cls, lrs: list[float | str] | None) -> list[float | str] | None:
        for lr in lrs or []:
            TrainConfig(lr=lr)
        return lrs

    @field_validator("label_counts")
    @classmethod
    def _grow(cls, counts: list[int] | None) -> list[int] | None:
        if counts is not None and counts != sorted({count for count in counts if count > 0}):
            raise ValueError(f"expected growing numbers of labels, got {counts!r}")
        return counts

    @model_validator(mode="after")
    def _fit_together(self) -> Extras:
        if self.lrs is not None and self.trial_steps is None and self.total_seconds is None:
            raise ValueError("lrs needs trial_steps as well, the steps of each trial, or total_seconds")
        return self


#: extras without which a measure cannot be run, and how they are written
NEEDED = {
    "gradient": {"gradient": "gradient = { images = 64, directions = 5, methods = ['svd'] }"},
    "few-labels": {"learner": "learner = 'ckn'", "label_counts": "label_counts = [100, 300]"},
}
