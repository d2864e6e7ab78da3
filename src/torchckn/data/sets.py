"""A data set in memory: images, labels, and the names of the classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import ConfigError, DataError


class Part(NamedTuple):
    """Images (N, C, H, W), pixels as they are in the files, and labels (N,): a pair that every function here takes as data."""

    images: Tensor
    labels: Tensor

    def __repr__(self) -> str:
        return f"Part({len(self.images)} images of shape {tuple(self.images.shape[1:])}, {self.images.dtype})"


@dataclass(frozen=True)
class DataSet:
    """A training part, a test part if there is one, and what the classes are called."""

    name: str
    train: Part
    test: Part | None
    classes: tuple[str, ...]

    @property
    def image_shape(self) -> tuple[int, int, int]:
        channels, height, width = self.train.images.shape[1:]
        return channels, height, width


def split(part: Part, held_out: int, seed: int = 0) -> tuple[Part, Part]:
    """``part`` without ``held_out`` images, and these: training and validation part, drawn by a seed."""
    images, labels = part
    if not isinstance(held_out, int) or not 0 < held_out < len(images):
        raise ConfigError(f"split expected to hold out between 1 and {len(images) - 1} images, got {held_out!r}")
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    kept, held = order[held_out:], order[:held_out]
    return Part(images[kept], labels[kept]), Part(images[held], labels[held])


def checked_part(images: Tensor, labels: Tensor, classes: int, what: str) -> Part:
    """A part whose labels are 0, 1, ..., classes - 1."""
    if len(images) != len(labels):
        raise DataError(f"{what} has {len(images)} images and {len(labels)} labels; it needs one for each")
    if not len(images):
        raise DataError(f"{what} has no images")
    if labels.ndim != 1 or labels.min() < 0 or labels.max() >= classes:
        raise DataError(f"{what} expected labels from 0 to {classes - 1}, got {int(labels.min())} to {int(labels.max())}")
    return Part(images, labels.long())
