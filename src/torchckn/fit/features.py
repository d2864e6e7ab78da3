"""Features of all images, and how accurate a network is on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data import size_of
from ..data.batches import placed_batches
from ..distributed import gathered, rank, total_of_numbers, world
from ..errors import DataError
from ..network import Classifier, modes_kept
from ..nn.checks import require
from ..nn.shared_roots import shared_projections
from ..progress import progress as show_progress

#: images that go through a network at a time: few enough that what they leave behind stays in the cache
CHUNK = 128


def extract_features(
    ckn: Classifier, data: Any, *, batch_size: int = CHUNK, progress: bool | None = None
) -> tuple[Tensor, Tensor | None]:
    """The features of all images, before scaling, and their labels if there are any: (N, d), (N,)"""
    own = _features(ckn, data, batch_size, progress, lambda place: True)
    if not len(own.features):
        raise DataError("there are no images to compute features of")
    return own.features, own.labels


#: images in a row that one process computes the features of: sums over them are the same, whichever process it is
UNIT = 512


class Features(NamedTuple):
    """Features of some of the images, one process's share of them."""

    features: Tensor
    """(n, d), before scaling"""
    labels: Tensor | None
    places: Tensor
    """(n,), of the images in the data"""


def shared_features(ckn: Classifier, data: Any, *, batch_size: int = CHUNK, progress: bool | None = None) -> Features:
    """The features that this process has to compute: every so many units, all of them if it is the only one."""
    here, processes = rank(), world()
    own = _features(ckn, data, batch_size, progress, lambda place: place // UNIT % processes == here)
    if not total_of_numbers(len(own.features))[0]:
        raise DataError("there are no images to compute features of")
    return own


@torch.no_grad()
def _features(ckn: Classifier, data: Any, batch_size: int, progress: bool | None, wanted: Callable[[int], bool]) -> Features:
    features, places = [ckn.head.weight.new_empty(0, ckn.head.in_features)], [torch.empty(0, dtype=torch.long)]
    labels = []
    with modes_kept(ckn), show_progress("features", size_of(data), progress) as report, shared_projections(ckn.eval()):
        for place, images, targets in placed_batches(data, batch_size, wanted=wanted):
            features.append(ckn.features(ckn.pixels(images)))
            places.append(torch.arange(place, place + len(images)))
            if targets is not None:
                labels.append(targets)
            report(place + len(images), "")
    return Features(torch.cat(features), torch.cat(labels) if labels else None, torch.cat(places))


@dataclass(frozen=True)
class Evaluation:
    """Accuracy and loss of a network on labelled images."""

    accuracy: float
    loss: float
    """mean negative log-likelihood"""
    images: int
    predictions: Tensor
    """the class with the highest score, one per image"""

    def __str__(self) -> str:
        return f"accuracy {self.accuracy:.4f}, loss {self.loss:.4f}, {self.images} images"


def evaluate(ckn: Classifier, data: Any, *, batch_size: int = CHUNK, progress: bool | None = None) -> Evaluation:
    """Accuracy and loss on images with labels."""
    own = shared_features(ckn, data, batch_size=batch_size, progress=progress)
    labels = labels_of(own, ckn, "evaluate", "the data")
    with torch.no_grad(), modes_kept(ckn):
        scores = ckn.head(ckn.scaling.eval()(own.features))
    right = float((scores.argmax(1) == labels).sum())
    loss = float(F.cross_entropy(scores.double(), labels, reduction="sum"))
    right, loss, images = total_of_numbers(right, loss, len(labels))
    everybody = gathered(torch.stack([own.places, scores.argmax(1).cpu()], 1))  # (images, 2)
    predictions = everybody[everybody[:, 0].argsort(), 1]
    return Evaluation(right / images, loss / images, int(images), predictions)


def labels_of(own: Features, ckn: Classifier, what: str, where: str) -> Tensor:
    """Their labels, checked, on the device of the features; none if this process has no images."""
    labels = own.labels
    if labels is None and not len(own.features):
        labels = torch.empty(0, dtype=torch.long)
    if labels is None:
        raise DataError(
            f"{what} needs labels in {where}: pass a pair (images, labels), or a Dataset or DataLoader of such pairs"
        )
    return check_labels(labels, ckn.head.out_features).to(own.features.device)


def one_hot(labels: Tensor, classes: int) -> Tensor:
    """1 for the class of each image, 0 for the others: (n,) -> (n, classes). (torch's own looks at the labels on the host.)"""
    return (labels[:, None] == torch.arange(classes, device=labels.device)).long()


def check_labels(labels: Tensor, classes: int) -> Tensor:
    """Labels as whole numbers from 0 to classes - 1."""
    if labels.is_floating_point() or labels.ndim != 1:
        raise DataError(f"labels must be integers, one for each image, got {tuple(labels.shape)} of {labels.dtype}")
    require(
        (labels >= 0) & (labels < classes),
        lambda: DataError(
            f"labels must be from 0 to {classes - 1} for a head of {classes} classes, got {int(labels.min())} to "
            f"{int(labels.max())}; pass classes=... to translate, or number the classes from 0"
        ),
    )
    return labels.long()
