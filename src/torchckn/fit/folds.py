r"""The L2 penalty by cross-validation, where images are too few to hold some of them out.

.. math:: \mathrm{acc}(\lambda) = \frac1n \sum_{k=1}^{K} \sum_{i \in F_k} \big[ \hat y_{-k, \lambda}(x_i) = y_i \big]

The images are divided into K folds, each with its share of every class; :math:`\hat y_{-k, \lambda}` is the classifier with the
penalty lambda fitted to all folds but the k-th. Penalties of equal accuracy are ranked by the mean loss on the held-out folds.

Read first: :mod:`torchckn.fit.classifier`. Read next: :mod:`torchckn.fit.head`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from ..choices import Loss, PenaltySearch
from ..data.sets import FEW_IMAGES as FEW_IMAGES  # in all, below which the penalty is chosen by cross-validation
from .classifier import LAMBDAS, MANY, SOLVERS, HeldOut, LambdaScore, search_penalty
from .solvers import Solution
from .targets import PLAIN, Aim

FOLDS = 5


def fold_of(labels: Tensor, folds: int = FOLDS) -> Tensor:
    """The fold of each image (n,), in turn among the images of a class, so that folds have the same classes."""
    fold = torch.empty_like(labels)
    fold[labels.argsort(stable=True)] = torch.arange(len(labels), device=labels.device) % folds
    return fold


@dataclass(frozen=True)
class Folds:
    """Penalties judged by all folds together."""

    parts: Sequence[HeldOut]

    #: beyond all limits: penalties are compared loosely, for the classifier itself is fitted afterwards
    multiplications: int = MANY + 1

    def score(
        self, lam: float, start: Sequence[Solution] | None, precision: float
    ) -> tuple[Sequence[Solution], LambdaScore]:
        starts: Sequence[Solution | None] = start or [None] * len(self.parts)
        both = [part.score(lam, begin, precision) for part, begin in zip(self.parts, starts, strict=True)]
        sizes = torch.tensor([len(part.y) for part in self.parts], dtype=torch.float64)

        def mean(name: str) -> float:
            values = torch.tensor([getattr(score, name) for _, score in both], dtype=torch.float64)
            return float((sizes * values).sum() / sizes.sum())

        evaluations = sum(score.evaluations for _, score in both)
        score = LambdaScore(lam, mean("accuracy"), mean("loss"), mean("objective"), evaluations)
        return [solution for solution, _ in both], score


@threadpool_limits.wrap(limits=1, user_api="blas")
def cross_validated_penalty(
    x: Tensor,
    y: Tensor,
    classes: int,
    *,
    loss: Loss = "multinomial",
    lambdas: Sequence[float] = LAMBDAS,
    search: PenaltySearch = "path",
    folds: int = FOLDS,
    copy_of: Tensor | None = None,
    aim: Aim = PLAIN,
    max_iterations: int = 1000,
    progress: bool | None = None,
) -> tuple[float, tuple[LambdaScore, ...]]:
    """The penalty with the best accuracy over folds of features x (n, d) and labels y (n,), and the scores of all tried.

    Args:
        copy_of: (n,), the row that each row is a changed copy of, its own if it is none. Copies are in the folds of their
            originals, which alone are validated on.

    Example:
        >>> x, y = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
        >>> lam, curve = cross_validated_penalty(x, y, 2, lambdas=[1.0, 2.0**-8])
        >>> lam in (1.0, 2.0**-8), len(curve)
        (True, 2)
    """
    rows = torch.arange(len(y), device=y.device)
    copy_of = rows if copy_of is None else copy_of.to(y.device)
    original = copy_of == rows
    fold = torch.empty_like(y)
    fold[original] = fold_of(y[original], min(folds, int(original.sum())))
    x, fold = in_their_span(x), fold[copy_of]
    parts = []
    for held_out in fold.unique():
        rest, here = fold != held_out, (fold == held_out) & original
        parts.append(HeldOut(SOLVERS[loss](x[rest], y[rest], classes, max_iterations, aim), x[here], y[here]))
    lam, _, curve = search_penalty(Folds(parts), lambdas, search, progress)
    return lam, curve


def in_their_span(x: Tensor) -> Tensor:
    """Coordinates of features (n, d) in the space that they span, if there are fewer images than features: (n, min(n, d)).

    Inner products stay what they are, and a penalized classifier is a combination of its images (representer theorem), so every
    classifier has the same scores, at the cost of n instead of d features.
    """
    if len(x) >= x.shape[1]:
        return x
    return torch.linalg.qr(x.double().T, mode="r").R.T.to(x.dtype)
