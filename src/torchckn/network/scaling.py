r"""Features, centered and divided by their average norm.

.. math:: s(F) = (F - \text{mean}) \,/\, \tfrac1n \sum_i \lVert F_i - \text{mean} \rVert

Paper: section 5.1. Read next: :mod:`torchckn.network.classifier`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..choices import Centering, check_choice
from ..errors import DataError
from ..nn.devices import wide_dtype

#: Makes sums over this process's images into sums over all images: a differentiable all-reduce, which
#: :func:`torchckn.distributed.total` is.
Total = Callable[[Tensor], Tensor]


def of_this_process(part: Tensor) -> Tensor:
    """The sum over all images, if there is one process."""
    return part


class FeatureScaling(nn.Module):
    """Center features and divide them by their average norm, so that a head and its L2 penalty mean the same everywhere.

    In training mode the average norm (and, with ``centering="feature"``, the mean) is the batch's; in eval mode it is the
    one that :meth:`calibrate` took from the training set, 1 (and 0) before that.

    Args:
        features: number of features per image.
        centering: ``"image"`` subtracts each image's mean over its features, as in the paper; ``"feature"`` each
            feature's mean over the images; ``"none"`` nothing; ``"raw"`` nothing, and does not divide by the norm either.

    ``total`` is the one place where several processes add their parts of a batch: ultimate layer reversal, too, takes its sums
    over images from there. :func:`torchckn.distributed.summing` sets it.
    """

    mean: Tensor
    norm: Tensor
    total: Total = staticmethod(of_this_process)

    def __init__(
        self,
        features: int,
        centering: Centering = "image",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_choice("centering", centering, Centering)
        self.centering = centering
        width = features if centering == "feature" else 0
        self.register_buffer("mean", torch.zeros(width, device=device, dtype=dtype))
        self.register_buffer("norm", torch.ones((), device=device, dtype=dtype))

    def forward(self, features: Tensor) -> Tensor:
        if not self.training:
            return self.center(features, self.mean) / self.norm
        return self._by_themselves(features)[0]

    def calibrated(self, features: Tensor) -> Tensor:
        """These features as in training mode, and :meth:`calibrate` by them: the sums over images are those of both."""
        scaled, mean, norm = self._by_themselves(features)
        self.mean.copy_(mean.detach())
        self.norm.copy_(norm.detach())
        return scaled

    def _by_themselves(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Features scaled by their own mean and average norm, and both of these."""
        mean = self._mean_over_images(features) if self.centering == "feature" else self.mean
        centered = self.center(features, _for_each_image(mean, features) if self.centering == "feature" else mean)
        norm = self._average_norm(centered)
        return centered / _for_each_image(norm, centered[:, :1]), mean, norm

    def center(self, features: Tensor, mean: Tensor) -> Tensor:
        """Centred features; ``mean`` is of each feature over the images, and counts with ``centering="feature"`` only."""
        if self.centering == "image":
            return features - features.mean(1, keepdim=True)
        return features - mean if self.centering == "feature" else features

    @torch.no_grad()
    def calibrate(self, features: Tensor) -> None:
        """Store the mean and the average norm of these features, which are those of the training set."""
        if features.ndim != 2 or not (len(features) or self.total is not of_this_process):
            raise DataError(f"calibrate expected features (images, d) of at least one image, got {tuple(features.shape)}")
        if self.centering == "feature":
            self.mean.copy_(self._mean_over_images(features))
        self.norm.copy_(self._average_norm(self.center(features, self.mean)))

    def _average_norm(self, centered: Tensor) -> Tensor:
        """1 where all are zero, so that dividing by it is always possible."""
        if self.centering == "raw":
            return centered.new_ones(())
        norm = self._mean_over_images(torch.linalg.vector_norm(centered, dim=1))
        return torch.where(norm == 0, 1.0, norm)

    def _mean_over_images(self, values: Tensor) -> Tensor:
        """Of (n,) or (n, d), over the images of all processes, in double precision; sum and number of images in one total."""
        sums = values.sum(0, dtype=wide_dtype(values.device))
        both = self.total(torch.cat([sums.flatten(), sums.new_full((1,), len(values))]))
        return both[:-1].view(sums.shape) / both[-1]

    def extra_repr(self) -> str:
        return f"centering={self.centering}"


def _for_each_image(value: Tensor, like: Tensor) -> Tensor:
    """The same for every image, so that its gradient is added up over the images in the precision that it has."""
    return value.expand_as(like).to(like.dtype)
