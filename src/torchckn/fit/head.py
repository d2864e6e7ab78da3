"""The head of a network, fitted to the features of all images, its L2 penalty chosen on validation data.

Paper: Algorithm 2, before and after the supervised iterations. The classifier itself is in :mod:`torchckn.fit.classifier`.
Read next: :mod:`torchckn.fit.ulr`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..choices import Loss, PenaltySearch, check_choice
from ..distributed import summing
from ..errors import ConfigError
from ..network import Classifier, modes_kept
from .classifier import LAMBDAS, HeadFit, fit_classifier
from .features import labels_of, shared_features


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
    max_iterations: int = 1000,
    progress: bool | None = None,
) -> HeadFit:
    """Fit the head of a network, with its filters fixed; sets ``ckn.head`` and calibrates ``ckn.scaling``.

    Args:
        train_data, valid_data: images with labels, in any form that :func:`torchckn.data.batches` takes. The scaling of the
            features comes from the training data.
        loss: ``"multinomial"`` or ``"square"``.
        lam: the L2 penalty; by default the one of ``lambdas`` with the best accuracy on the validation data, and the lowest
            validation loss among those.
        search: ``"path"`` goes from large to small penalties, each from the solution of the previous one, in strides that are
            halved around the best one, and stops when accuracy keeps falling; ``"exhaustive"`` tries all of them, each from
            zero, as the paper does.
        refit: fit again on training and validation data together, with the chosen penalty.
        progress: whether to show a progress bar; by default on a terminal.
    """
    check_choice("loss", loss, Loss)
    check_choice("search", search, PenaltySearch)
    if lam is None and valid_data is None:
        raise ConfigError(
            "fit_head chooses the L2 penalty on validation data: pass valid_data, or the penalty itself as lam=..."
        )
    if lam is not None and not (isinstance(lam, (int, float)) and 0 <= lam < float("inf")):
        raise ConfigError(f"lam expected a number >= 0, got {lam!r}")
    if ckn.head.bias is None:
        raise ConfigError("fit_head expected a head with a bias, got one without; build the head with bias=True")
    train, train_labels = _labelled(ckn, train_data, "train_data", progress)
    valid = None if valid_data is None else _labelled(ckn, valid_data, "valid_data", progress)
    with summing(ckn):
        ckn.scaling.calibrate(train)
    raw = [train, *([valid[0]] if valid else [])]
    with torch.no_grad(), modes_kept(ckn):
        ckn.scaling.eval()
        parts = [ckn.scaling(part) for part in raw]
    labels = [train_labels, *([valid[1]] if valid else [])]
    weight, bias, result = fit_classifier(
        parts[0],
        labels[0],
        ckn.head.out_features,
        parts[1] if valid else None,
        labels[1] if valid else None,
        loss=loss,
        lam=lam,
        lambdas=lambdas,
        search=search,
        refit=refit,
        max_iterations=max_iterations,
        progress=progress,
    )
    with torch.no_grad():
        ckn.lam.fill_(result.lam)
        ckn.head_loss = loss
        ckn.head.weight.copy_(weight.T)
        ckn.head.bias.copy_(bias)
    return result


def _labelled(ckn: Classifier, data: Any, what: str, progress: bool | None) -> tuple[Tensor, Tensor]:
    own = shared_features(ckn, data, progress=progress)
    return own.features, labels_of(own, ckn, "fit_head", what)
