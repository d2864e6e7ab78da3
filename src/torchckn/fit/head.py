"""The head of a network, fitted to the features of all images, its L2 penalty chosen on validation data.

Paper: Algorithm 2, before and after the supervised iterations. The classifier itself is in :mod:`torchckn.fit.classifier`.
Read next: :mod:`torchckn.fit.ulr`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..choices import Augmentation, ClassWeights, Loss, PenaltySearch, as_real, check_choice
from ..data.augmentation import augment
from ..data.batches import checked_batch
from ..distributed import alone, from_first, gathered, summing, total_of_numbers
from ..errors import ChanceWarning, ConfigError
from ..formats import percent
from ..network import Classifier, modes_kept
from .classifier import LAMBDAS, HeadFit, LambdaScore, fit_classifier
from .config import TrainConfig
from .features import Features, labels_of, shared_features
from .folds import FEW_IMAGES, FOLDS, cross_validated_penalty
from .targets import aim

#: validation images that it takes to tell a classifier from chance
_ENOUGH = 20


@dataclass(frozen=True)
class Copies:
    """Changed copies of training images, as :func:`torchckn.data.augment` makes them."""

    count: int
    """of each image"""
    kinds: Sequence[Augmentation]
    generator: torch.Generator

    def added_to(self, data: Any) -> tuple[Tensor, Tensor]:
        """Images with labels, followed by the copies, all images once and then all again."""
        if isinstance(data, (Dataset, DataLoader)):
            raise ConfigError(
                f"copies are for images in memory, got {type(data).__name__}; pass a pair (images, labels), or no copies"
            )
        images, labels = checked_batch(data, need_labels=True)
        assert labels is not None
        changed = [augment(images, self.kinds, self.generator) for _ in range(self.count)]
        return torch.cat([images, *changed]), labels.repeat(1 + self.count)


def fit_head(
    ckn: Classifier,
    train_data: Any,
    valid_data: Any = None,
    *,
    loss: Loss = "multinomial",
    lam: float | None = None,
    lambdas: Sequence[float] = LAMBDAS,
    search: PenaltySearch = "path",
    refit: bool = False,
    folds: int | None = None,
    class_weights: ClassWeights | None = None,
    label_smoothing: float | None = None,
    copied: Copies | None = None,
    max_iterations: int = 1000,
    progress: bool | None = None,
) -> HeadFit:
    """Fit the head of a network, with its filters fixed; sets ``ckn.head`` and calibrates ``ckn.scaling``.

    Args:
        train_data, valid_data: images with labels, in any form that :func:`torchckn.data.batches` takes. The scaling of the
            features comes from the training data.
        loss: ``"multinomial"`` or ``"square"``.
        lam: the L2 penalty; by default the one of ``lambdas`` with the best accuracy on the validation data (or over the folds),
            and the lowest loss there among those.
        search: ``"path"`` goes from large to small penalties, each from the solution of the previous one, in strides that are
            halved around the best one, and stops when accuracy keeps falling; ``"exhaustive"`` tries all of them, each from
            zero, as the paper does.
        refit: fit again on training and validation data together, with the chosen penalty. Validation data are not copied.
        folds: choose the penalty by cross-validation over training and validation data together, in so many folds; 0: on the
            validation data. By default 5 if there are fewer than 2,000 images in all: a few dozen validation images say little
            about a penalty. If the filters were trained with these labels, folds are too optimistic: pass 0.
        class_weights: a number for each class, its weight in the loss; ``"balanced"``: every class counts the same.
        label_smoothing: the share of an image's label that is spread over all classes.
        copied: fit to changed copies of each training image as well, :class:`torchckn.fit.Copies`. Penalties are compared on the
            images themselves.
        progress: whether to show a progress bar; by default on a terminal.
    """
    check_choice("loss", loss, Loss)
    check_choice("search", search, PenaltySearch)
    if lam is not None and not 0 <= as_real(lam) < float("inf"):
        raise ConfigError(f"lam expected a number >= 0, got {lam!r}")
    if ckn.head.bias is None:
        raise ConfigError("fit_head expected a head with a bias, got one without; build the head with bias=True")
    copies = 0 if copied is None else copied.count
    if copied is not None:
        train_data = copied.added_to(train_data)
    train = _labelled(ckn, train_data, "train_data", progress)
    valid = None if valid_data is None else _labelled(ckn, valid_data, "valid_data", progress)
    with summing(ckn):
        ckn.scaling.calibrate(train.features)
    given = [train, *([valid] if valid else [])]
    with torch.no_grad(), modes_kept(ckn):
        ckn.scaling.eval()
        parts = [part._replace(features=ckn.scaling(part.features)) for part in given]
    classes = ckn.head.out_features
    target = aim(class_weights, label_smoothing, _labels(train), classes, shared=True)
    common: dict[str, Any] = {"loss": loss, "aim": target, "max_iterations": max_iterations, "progress": progress}
    counts = [len(part.features) for part in parts]
    folds = 0 if lam is not None else _folds(folds, [counts[0] / (1 + copies), *counts[1:]])
    curve = None
    if folds:
        options = {"lambdas": lambdas, "search": search, "folds": folds, **common}
        lam, curve = _penalty_over_folds(parts, classes, copies, **options)
    weight, bias, result = fit_classifier(
        parts[0].features,
        _labels(parts[0]),
        classes,
        parts[1].features if valid else None,
        _labels(parts[1]) if valid else None,
        lam=lam,
        lambdas=lambdas,
        search=search,
        refit=refit,
        **common,
    )
    if curve is not None:
        over_folds = next(score.accuracy for score in curve if score.lam == lam)
        accuracy = over_folds if result.accuracy is None else result.accuracy
        result = replace(result, accuracy=accuracy, curve=curve, folds=folds)
        _warn_at_chance(over_folds, "cross-validated", parts, classes, copies)
    elif result.accuracy is not None:
        _warn_at_chance(result.accuracy, "validation", parts[-1:], classes)
    with torch.no_grad():
        ckn.head.weight.copy_(weight.T)
        ckn.head.bias.copy_(bias)
    ckn.penalty, ckn.head_loss = result.lam, loss
    return result


def _labelled(ckn: Classifier, data: Any, what: str, progress: bool | None) -> Features:
    own = shared_features(ckn, data, progress=progress)
    return own._replace(labels=labels_of(own, ckn, "fit_head", what))


def _labels(part: Features) -> Tensor:
    assert part.labels is not None
    return part.labels


def _folds(folds: int | None, counts: Sequence[float]) -> int:
    """How many folds the penalty is chosen by; 0: on the validation data, which are the last of ``counts``, if there are two."""
    (images,) = total_of_numbers(sum(counts))
    if folds is None:
        folds = FOLDS if images < FEW_IMAGES else 0
    if folds and not 2 <= folds <= images:
        raise ConfigError(f"folds expected 0, or a number from 2 to that of the images ({images:.0f}), got {folds}")
    if not folds and len(counts) == 1:
        raise ConfigError(
            "fit_head chooses the L2 penalty on validation data: pass valid_data, the penalty itself as lam=..., or folds=5 to "
            "choose it by cross-validation"
        )
    return folds


def _penalty_over_folds(
    parts: Sequence[Features], classes: int, copies: int, **options: Any
) -> tuple[float, tuple[LambdaScore, ...]]:
    """The penalty by cross-validation: of few images, so the first process does it for all of them.

    Of the first part, the images come first, and then their copies.
    """
    everything = []
    for part in parts:
        order = gathered(part.places).argsort()
        device = part.features.device
        everything.append((gathered(part.features)[order.to(device)], gathered(_labels(part))[order.to(device)]))
    x, y = (torch.cat(both) for both in zip(*everything, strict=True))
    copied = len(everything[0][1])
    rows = torch.arange(len(y))
    copy_of = torch.where(rows < copied, rows % (copied // (1 + copies)), rows)

    def choose() -> tuple[float, tuple[LambdaScore, ...]]:
        with alone():
            return cross_validated_penalty(x, y, classes, copy_of=copy_of, **options)

    return from_first(choose)


def _warn_at_chance(accuracy: float, which: str, parts: Sequence[Features], classes: int, copies: int = 0) -> None:
    """A warning if a classifier is not better than always naming the largest class by more than two standard errors."""
    own = [torch.bincount(_labels(part), minlength=classes).double() for part in parts]
    own[0] /= 1 + copies
    counts = torch.tensor(total_of_numbers(*sum(own[1:], own[0]).tolist()))
    images, chance = float(counts.sum()), float(counts.max() / counts.sum())
    margin = 2 * math.sqrt(chance * (1 - chance) / images)
    if chance < 1 and images >= _ENOUGH and accuracy <= chance + margin:
        warnings.warn(
            f"the classifier is not clearly better than chance: {which} accuracy {percent(accuracy)} on {images:.0f} images, of "
            f"which the largest class has {percent(chance)} (two standard errors are {percent(margin)}). Check that labels and "
            "images belong together, and that filters were fitted",
            ChanceWarning,
            stacklevel=3,
        )


def fit_head_as(
    config: TrainConfig,
    net: Classifier,
    train_data: Any,
    valid_data: Any = None,
    generator: torch.Generator | None = None,
    **others: Any,
) -> HeadFit:
    """:func:`fit_head` with the options of training that are about classifiers; ``others`` take precedence.

    Args:
        generator: decides how copies are changed; by default, the seed does.
    """
    generator = generator or torch.Generator().manual_seed(config.seed)
    given: dict[str, Any] = {
        "loss": config.loss,
        "lam": config.lam,
        "lambdas": config.lambdas or LAMBDAS,
        "search": config.penalty_search,
        "folds": config.folds,
        "class_weights": config.class_weights,
        "label_smoothing": config.label_smoothing,
        "copied": Copies(config.copies, config.augment or (), generator) if config.copies else None,
    }
    return fit_head(net, train_data, valid_data, **given | others)
