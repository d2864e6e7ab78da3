r"""What a classifier aims at: smoothed labels, and a weight for each class.

.. math:: \frac1n \sum_{i=1}^n w_{y_i} \, \mathcal L(t_i, V x_i), \qquad t_{ik} = (1 - s) \, [y_i = k] + \frac{s}{K}

s is the label smoothing, K the number of classes. With weights, images of a rare class count for more; ``"balanced"`` weights,
:math:`w_k = n / (K n_k)`, let every class count the same. Ultimate layer reversal minimizes this objective, with its
Hessian. Read next: :mod:`torchckn.fit.solvers`, :mod:`torchckn.fit.ulr`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..choices import ClassWeights
from ..distributed import total_of_numbers
from ..errors import ConfigError
from .features import one_hot


class Aim(NamedTuple):
    """Class weights and label smoothing. By default, neither."""

    class_weights: tuple[float, ...] | None = None
    smoothing: float = 0.0

    def targets(self, labels: Tensor, classes: int) -> Tensor:
        """(n,) -> (n, classes): whole numbers without smoothing"""
        exact = one_hot(labels, classes)
        return exact if not self.smoothing else (1 - self.smoothing) * exact.double() + self.smoothing / classes

    def weights(self, labels: Tensor) -> Tensor | None:
        """The weight of each image: (n,); None: all the same."""
        if self.class_weights is None:
            return None
        return torch.tensor(self.class_weights, dtype=torch.float64, device=labels.device)[labels]

    @property
    def is_plain(self) -> bool:
        return self == Aim()


PLAIN = Aim()


def aim(
    class_weights: ClassWeights | None, smoothing: float | None, labels: Tensor, classes: int, shared: bool = False
) -> Aim:
    """An aim for these training labels, ``"balanced"`` weights computed from them.

    Args:
        shared: whether the labels are one process's share of them.
    """
    smoothing = smoothing or 0.0
    if not 0 <= smoothing < 1:
        raise ConfigError(f"label_smoothing expected a number from 0 to below 1, got {smoothing!r}")
    if class_weights is None:
        return Aim(None, smoothing)
    if class_weights == "balanced":
        counts = torch.bincount(labels, minlength=classes).tolist()
        if shared:
            counts = total_of_numbers(*counts)
        # a class without images has no image to weigh
        return Aim(tuple(sum(counts) / (classes * count) if count else 1.0 for count in counts), smoothing)
    weights = tuple(float(weight) for weight in class_weights)
    if len(weights) != classes or not all(0 < weight < float("inf") for weight in weights):
        raise ConfigError(
            f"class_weights expected a positive number for each of {classes} classes, or 'balanced', got {list(weights)}"
        )
    return Aim(weights, smoothing)
