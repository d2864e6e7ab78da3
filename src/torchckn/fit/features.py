"""Features of all images, and how accurate a network is on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data import batches, size_of
from ..errors import DataError
from ..network import Classifier, modes_kept
from ..nn.checks import require
from ..progress import progress as show_progress

#: images that go through a network at a time: few enough that what they leave behind stays in the cache
CHUNK = 128


@torch.no_grad()
def extract_features(
    ckn: Classifier, data: Any, *, batch_size: int = CHUNK, progress: bool | None = None
) -> tuple[Tensor, Tensor | None]:
    """The features of all images, before scaling, and their labels if there are any: (N, d), (N,)"""
    features, labels, done = [], [], 0
    with modes_kept(ckn), show_progress("features", size_of(data), progress) as report:
        ckn.eval()
        for images, targets in batches(data, batch_size):
            features.append(ckn.features(ckn.pixels(images)))
            if targets is not None:
                labels.append(targets)
            done += len(images)
            report(done, "")
    if not features:
        raise DataError("there are no images to compute features of")
    return torch.cat(features), torch.cat(labels) if labels else None


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
    features, labels = extract_features(ckn, data, batch_size=batch_size, progress=progress)
    if labels is None:
        raise DataError("evaluate needs labels: pass a pair (images, labels), or a Dataset or DataLoader of such pairs")
    with torch.no_grad(), modes_kept(ckn):
        scores = ckn.head(ckn.scaling.eval()(features))
    labels = check_labels(labels, ckn.head.out_features).to(scores.device)
    predictions = scores.argmax(1)
    accuracy = float((predictions == labels).double().mean())
    return Evaluation(accuracy, float(F.cross_entropy(scores, labels)), len(labels), predictions.cpu())


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
