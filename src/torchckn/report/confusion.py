"""What a saved network makes of images: its confusion matrix, and the images it is most wrong about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data import DataSet
from ..data.batches import checked_batch
from ..errors import DataError
from ..fit.features import CHUNK, check_labels
from ..network import Classifier
from .pictures import thumbnail

#: images that are looked at; wrong ones that are shown; classes that a matrix is drawn for; confusions that are named
IMAGES, HARDEST, CLASSES, CONFUSIONS = 3000, 24, 40, 10


@dataclass(frozen=True)
class Sample:
    """Images with labels that networks are tried on."""

    what: str
    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]


def take_sample(data: Any) -> Sample | None:
    """A few thousand of the images that the caller passed; the test part, where there is one."""
    if data is None:
        return None
    what, names = "images given", None
    if isinstance(data, DataSet):
        what = f"{'training' if data.test is None else 'test'} images of {data.name}"
        names, data = data.classes, data.train if data.test is None else data.test
    elif isinstance(data, (tuple, list)) and len(data) == 3:
        *data, names = data
    images, labels = checked_batch(data, need_labels=True)
    assert labels is not None
    if not len(images):
        raise DataError("a report expected images to try the networks on, got none; leave data out, or pass some")
    count = 1 + int(labels.max())
    classes = tuple(map(str, range(count) if names is None else names))
    if len(classes) < count:
        raise DataError(f"a report expected a name for each class, got {len(classes)} names and labels up to {count - 1}")
    all_of_them = len(images)
    # At random, for images often come class by class.
    chosen = torch.randperm(all_of_them, generator=torch.Generator().manual_seed(0))[:IMAGES]
    what = f"{len(chosen)} of {all_of_them} {what}" if all_of_them > IMAGES else f"{all_of_them} {what}"
    return Sample(what, images[chosen], labels[chosen], classes)


@dataclass(frozen=True)
class Hard:
    """An image that the network is wrong about."""

    picture: str
    true: str
    predicted: str
    probability: float
    """that the network gives to what it predicts"""


@dataclass(frozen=True)
class Confusion:
    accuracy: float
    images: int
    classes: tuple[str, ...]
    counts: list[list[int]]
    """one row for each true class, one column for each predicted one"""
    hardest: list[Hard]
    """by falling loss"""

    @property
    def has_matrix(self) -> bool:
        """Whether it is small enough to be read."""
        return len(self.classes) <= CLASSES

    @property
    def shares(self) -> list[list[float]]:
        """How dark each cell is: the share of its row on the diagonal; elsewhere as compared to the worst confusion."""
        totals = [max(1, sum(row)) for row in self.counts]
        shares = [[n / total for n in row] for row, total in zip(self.counts, totals, strict=True)]
        worst = max((s for i, row in enumerate(shares) for j, s in enumerate(row) if i != j), default=0.0) or 1.0
        return [[s if i == j else s / worst for j, s in enumerate(row)] for i, row in enumerate(shares)]

    @property
    def most_frequent(self) -> list[tuple[int, str, str]]:
        """How often, which class, taken for which."""
        wrong = [
            (n, self.classes[i], self.classes[j])
            for i, row in enumerate(self.counts)
            for j, n in enumerate(row)
            if n and i != j
        ]
        return sorted(wrong, key=lambda entry: -entry[0])[:CONFUSIONS]


@torch.inference_mode()
def confusion(net: Classifier, sample: Sample) -> Confusion:
    """Predictions of a network; an error if these images are not for it."""
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
