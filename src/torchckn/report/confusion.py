"""Predictions of a trained network: its confusion matrix, and the misclassified images with the highest loss."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data import DataSet, LazyPart
from ..data.batches import checked_batch
from ..errors import DataError
from ..fit.features import CHUNK, check_labels
from ..network import Classifier
from .pictures import thumbnail

#: at most: images that are classified, misclassified ones that are shown, classes of a matrix, confusions that are listed
IMAGES, HARDEST, CLASSES, CONFUSIONS = 3000, 24, 40, 10


@dataclass(frozen=True)
class Sample:
    """Images with labels that the networks classify."""

    what: str
    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    tests: str | None = None
    """the data set whose test images these are, if they are"""
    is_all: bool = True
    """whether these are all the images that there were"""

    def is_test_of(self, data: str | None) -> bool:
        """Whether these are the test images of a run's data set, named as in its settings; by default they are."""
        return self.tests is not None and (data is None or self.tests in (data, Path(data).name, Path(data).stem))


def take_sample(data: Any) -> Sample | None:
    """A few thousand of the images that the caller passed; the test part, or validation part, where there is one."""
    if data is None:
        return None
    what, names, tests = "images given", None, None
    if isinstance(data, DataSet):
        kind, part = next(
            (kind, part)
            for kind, part in (("test", data.test), ("validation", data.valid), ("training", data.train))
            if part is not None
        )
        what, names, tests = f"{kind} images of {data.name}", data.classes, data.name if kind == "test" else None
        data = part
    elif isinstance(data, (tuple, list)) and len(data) == 3:
        *data, names = data
    total = len(data) if isinstance(data, LazyPart) else None
    images, labels = checked_batch(data.some(IMAGES) if isinstance(data, LazyPart) else data, need_labels=True)
    assert labels is not None
    if not len(images):
        raise DataError("a report expected images to classify, got none; leave data out, or pass some")
    count = 1 + int(labels.max())
    classes = tuple(map(str, range(count) if names is None else names))
    if len(classes) < count:
        raise DataError(f"a report expected a name for each class, got {len(classes)} names and labels up to {count - 1}")
    total = total or len(images)
    # At random, because images are often sorted by class.
    index = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:IMAGES]
    what = f"{len(index)} of {total} {what}" if total > IMAGES else f"{total} {what}"
    return Sample(what, images[index], labels[index], classes, tests, total <= IMAGES)


@dataclass(frozen=True)
class Hard:
    """A misclassified image."""

    picture: str
    true: str
    predicted: str
    probability: float
    """of the predicted class"""


@dataclass(frozen=True)
class Confusion:
    accuracy: float
    images: int
    classes: tuple[str, ...]
    counts: list[list[int]]
    """one row for each true class, one column for each predicted one"""
    hardest: list[Hard]
    """misclassified images, those with the highest loss first"""

    @property
    def has_matrix(self) -> bool:
        """Whether the matrix is small enough to be read."""
        return len(self.classes) <= CLASSES

    @property
    def shares(self) -> list[list[float]]:
        """How dark each cell is: on the diagonal the share of its row, elsewhere in proportion to the worst confusion."""
        totals = [max(1, sum(row)) for row in self.counts]
        shares = [[n / total for n in row] for row, total in zip(self.counts, totals, strict=True)]
        worst = max((s for i, row in enumerate(shares) for j, s in enumerate(row) if i != j), default=0.0) or 1.0
        return [[s if i == j else s / worst for j, s in enumerate(row)] for i, row in enumerate(shares)]

    @property
    def most_frequent(self) -> list[tuple[int, str, str]]:
        """Count, true class, predicted class."""
        wrong = [
            (n, self.classes[i], self.classes[j])
            for i, row in enumerate(self.counts)
            for j, n in enumerate(row)
            if n and i != j
        ]
        return sorted(wrong, key=lambda entry: -entry[0])[:CONFUSIONS]


@torch.inference_mode()
def confusion(net: Classifier, sample: Sample) -> Confusion:
    """Predictions of a network; an error if the images do not suit it."""
    labels = check_labels(sample.labels, net.head.out_features)
    scores = torch.cat([net(net.pixels(some)) for some in sample.images.split(CHUNK)])
    predicted = scores.argmax(1)
    # The head may predict classes that no label has.
    names = sample.classes + tuple(map(str, range(len(sample.classes), net.head.out_features)))
    size = len(names)
    counts = torch.bincount(labels * size + predicted, minlength=size * size).view(size, size)
    losses = F.cross_entropy(scores, labels, reduction="none")
    wrong = torch.nonzero(predicted != labels).flatten()
    hardest = [
        Hard(
            thumbnail(sample.images[i]),
            names[int(labels[i])],
            names[int(predicted[i])],
            float(scores[i].softmax(0)[predicted[i]]),
        )
        for i in wrong[losses[wrong].argsort(descending=True)][:HARDEST].tolist()
    ]
    accuracy = float((predicted == labels).double().mean())
    return Confusion(accuracy, len(labels), names, counts.tolist(), hardest)
