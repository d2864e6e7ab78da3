r"""The quadratic model of a batch's objective, as a function of the classifier.

.. math:: f(V) + \langle \nabla f(V), \eta \rangle + \tfrac12 \eta^T H \eta, \qquad
          \nabla f = \frac1n \sum_i (p_i - y_i) x_i^T + 2 \lambda V, \quad
          H = \frac1n \sum_i \big( \operatorname{diag}(p_i) - p_i p_i^T \big) \otimes x_i x_i^T + 2 \lambda I

Paper: section 4.3. Read next: :mod:`torchckn.fit.ulr`, which minimizes it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..network import Total, of_this_process
from ..nn.devices import wide_dtype
from .targets import PLAIN, Aim

#: numbers, of which a Hessian takes one for each image, class and feature, that are in memory at a time
SPREAD = 2**22


class Batch:
    """A batch as the solve sees it: gradient, Hessian and its products, each a sum over images that goes through ``total``.

    Args:
        images: of all processes; by default they are counted.
    """

    def __init__(
        self,
        features: Tensor,
        targets: Tensor,
        head: nn.Linear,
        lam: float,
        total: Total,
        aim: Aim = PLAIN,
        images: float | None = None,
    ) -> None:
        # In double precision, so that sums over images do not depend on their order, nor on how many processes there are.
        self.dtype, wide = features.dtype, wide_dtype(features.device)
        features = features.to(wide)
        ones = features.new_ones(len(features), 1)
        self.x = features if head.bias is None else torch.cat([features, ones], 1)  # (n, d + 1)
        parts = [head.weight] if head.bias is None else [head.weight, head.bias[:, None]]
        self.classifier = torch.cat([part.detach() for part in parts], 1).to(wide)  # (K, d + 1)
        self.has_bias = head.bias is not None
        self.targets = aim.targets(targets, head.out_features).to(features)  # (n, K)
        weights = aim.weights(targets)
        #: of each image, (n, 1); None: 1
        self.weights = None if weights is None else weights.to(features)[:, None]
        self.lam = lam
        self.total = total
        count = features.new_full((), len(features) if images is None else images)
        self.images = total(count) if images is None else count
        #: of all images, those that this process has
        self.share = len(features) / self.images
        #: 2 lambda for each column of the classifier, 0 for the bias
        self.curvature_of_penalty = self.x.new_full((self.x.shape[1],), 2 * lam)
        if self.has_bias:
            self.curvature_of_penalty[-1:].zero_()
        self.log_p = F.log_softmax(self.x @ self.classifier.T, 1)  # (n, K), in the features' graph
        #: probabilities as constants, for the solve
        self.p = self.log_p.detach().exp()

    def mean(self, per_image: Tensor) -> Tensor:
        """This process's part of a mean over all images, in the graph."""
        return per_image.sum() / self.images

    def weighted(self, per_image: Tensor) -> Tensor:
        """What each image has, (n, ...), times its weight."""
        return per_image if self.weights is None else self.weights * per_image

    def penalty(self, classifier: Tensor) -> Tensor:
        """This process's part of it: processes' objectives add up to the objective."""
        return self.share * (classifier.square() * self.curvature_of_penalty).sum() / 2

    def square_loss(self, classifier: Tensor) -> Tensor:
        return self.mean(self.weighted((self.targets - self.x @ classifier.T).square()))

    def model(self, eta: Tensor, diagonal: bool) -> Tensor:
        """The quadratic model f(V) + <grad f(V), eta> + eta^T H eta / 2, in the graph of the features."""
        p, u = self.log_p.exp(), self.x @ eta.T
        if diagonal:
            curvature = (p * (1 - p) * (self.x.square() @ eta.T.square())).sum(1)
        else:
            curvature = (p * u.square()).sum(1) - (p * u).sum(1).square()
        per_image = ((p - self.targets) * u - self.targets * self.log_p).sum(1) + curvature / 2
        penalty = self.penalty(self.classifier) + self.share * (self.classifier * eta * self.curvature_of_penalty).sum()
        return self.mean(self.weighted(per_image[:, None])) + penalty + self.penalty(eta)

    def totals(self, *sums: Tensor) -> list[Tensor]:
        """Sums over this process's images as sums over all images, by one total."""
        if self.total is of_this_process:
            return list(sums)
        whole = self.total(torch.cat([part.flatten() for part in sums]))
        pieces = whole.split([part.numel() for part in sums])
        return [piece.view(part.shape) for piece, part in zip(pieces, sums, strict=True)]

    def product(self, v: Tensor) -> Tensor:
        """H v, H never being formed: (K, d + 1)"""
        u = self.x @ v.T
        image = self.weighted(self.p * (u - (self.p * u).sum(1, keepdim=True)))
        return self.total(image.T @ self.x) / self.images + v * self.curvature_of_penalty

    def gradient_and_diagonal(self) -> tuple[Tensor, Tensor]:
        """Of f at the head, and of its Hessian: (K, d + 1) each"""
        gradient, diagonal = self.totals(self._gradient_sum(), self.weighted(self.p * (1 - self.p)).T @ self.x.square())
        return self._gradient(gradient), diagonal / self.images + self.curvature_of_penalty

    def gradient_and_hessian(self) -> tuple[Tensor, Tensor]:
        """Of f at the head: (K, d + 1); (K (d + 1), K (d + 1)), classes outside, columns of the classifier inside."""
        n, classes = self.p.shape
        size = self.x.shape[1]
        matrix = self.x.new_zeros(classes * size, classes * size)
        blocks = matrix.view(classes, size, classes, size).diagonal(dim1=0, dim2=2)  # (d + 1, d + 1, K)
        for start in range(0, n, some := max(1, SPREAD // (classes * size))):
            part = slice(start, start + some)
            x = self.x[part]
            spread = (self.p[part, :, None] * x[:, None]).flatten(1)  # (n, K (d + 1)), p_ik x_ij
            weighted = spread if self.weights is None else self.weights[part] * spread
            matrix.addmm_(weighted.T, spread, alpha=-1)
            blocks += torch.einsum("nki,nj->ijk", weighted.view(len(x), classes, size), x)
        gradient, matrix = self.totals(self._gradient_sum(), matrix)
        matrix = matrix / self.images
        matrix.diagonal().add_(self.curvature_of_penalty.repeat(classes))
        return self._gradient(gradient), matrix

    def _gradient_sum(self) -> Tensor:
        return self.weighted(self.p - self.targets).T @ self.x

    def _gradient(self, summed: Tensor) -> Tensor:
        return summed / self.images + self.classifier * self.curvature_of_penalty
