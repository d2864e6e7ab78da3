r"""Per-image patch whitening, the preprocessing of the paper's CIFAR-10 experiments.

.. math:: \tilde E = (C + \delta I)^{-1/2} (E - \bar E), \qquad C = \tfrac1p (E - \bar E)(E - \bar E)^T

Paper: section 5.1 ("standardized channel-wise and then ZCA whitened on a per-image basis"). E holds the 3x3 patches of one
image, each with its mean subtracted channel by channel; C is that image's own patch covariance. A whitened image is the
(9 C, H, W) tensor of its patches, on which the first kernel layer has 1x1 filters. Read next: :mod:`torchckn.network`.

Subtracting the means removes one direction per channel, so C is always singular; ``delta = eps * trace(C) / rank`` keeps the
root finite, and the removed directions contain nothing that it could amplify.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ConfigError, DataError
from .devices import wide_dtype
from .functional import check_finite
from .geometry import Pair, pair
from .invsqrt import inverse_sqrt
from .layers import require_images


def whiten(images: Tensor, patch_size: int | Pair = 3, eps: float = 1e-3, root: int = 2) -> Tensor:
    """Images (N, C, H, W) -> their whitened patches (N, C kh kw, H, W); an all-zero image stays zero.

    Batched, differentiable, in the dtype of the images; the root is computed in float64. ``root=4`` whitens by half, with
    C^(-1/4), which is not differentiable at repeated eigenvalues.
    """
    if images.ndim != 4 or not images.is_floating_point():
        raise DataError(f"whiten expected floating-point images (N, C, H, W), got {tuple(images.shape)} of {images.dtype}")
    height, width = images.shape[2:]
    rows, columns = patch_size = pair("patch_size", patch_size)
    # An even window has no center: it extends one pixel further up and to the left.
    margins = (columns // 2, (columns - 1) // 2, rows // 2, (rows - 1) // 2)
    padded = F.pad(images, margins)
    # A few images at a time: patches are nine times as large as the image, and should fit into the CPU cache.
    return torch.cat([_whiten(some, patch_size, eps, root).unflatten(2, (height, width)) for some in padded.split(_CHUNK)])


_CHUNK = 16


def _whiten(padded: Tensor, patch_size: Pair, eps: float, root: int) -> Tensor:
    """The whitened patches (N, s, H W) of padded images.

    Both means are linear maps of the patches, so they are subtracted in the covariance and in the root, which are small,
    instead of in the patches: with Q subtracting each channel's mean and m the mean patch, C = Q (E E^T / p - m m^T) Q, and the
    whitened patches are (A Q) E - (A Q) m.
    """
    channels, area = padded.shape[1], patch_size[0] * patch_size[1]
    patches = F.unfold(padded, patch_size)
    # float64, because the removed directions differ from zero by rounding errors only
    wide = patches.to(wide_dtype(padded.device))
    mean = wide.mean(2, keepdim=True)
    block = torch.eye(area, dtype=wide.dtype, device=wide.device) - 1 / area
    centering = torch.block_diag(*[block] * channels)
    covariance = centering @ (wide @ wide.mT / wide.shape[2] - mean @ mean.mT) @ centering  # (N, s, s)
    check_finite(covariance)
    rank = max(1, channels * (area - 1))
    spread = covariance.diagonal(dim1=1, dim2=2).sum(1) / rank
    ridge = (eps * spread).clamp(min=torch.finfo(padded.dtype).tiny)
    identity = torch.eye(len(centering), dtype=wide.dtype, device=wide.device)
    whitener = _inverse_root(covariance + ridge[:, None, None] * identity, root) @ centering
    return torch.baddbmm((-whitener @ mean).to(padded.dtype), whitener.to(padded.dtype), patches)


def _inverse_root(covariance: Tensor, root: int) -> Tensor:
    """C^(-1/root)"""
    if root == 2:
        return inverse_sqrt(covariance, "eigh")
    values, vectors = torch.linalg.eigh(covariance)
    return (vectors * values.pow(-1 / root)[..., None, :]) @ vectors.mT


class Whitening(nn.Module):
    """:func:`whiten` as a module. (N, C, H, W) -> (N, C kh kw, H, W)"""

    def __init__(self, in_channels: int, patch_size: int | Pair = 3, eps: float = 1e-3, root: int = 2) -> None:
        super().__init__()
        if not eps > 0:
            raise ConfigError(f"Whitening expected eps > 0 (a patch covariance is singular), got {eps!r}")
        self.in_channels = in_channels
        self.patch_size = pair("patch_size", patch_size)
        self.eps = float(eps)
        if not isinstance(root, int) or root < 1:
            raise ConfigError(f"Whitening expected an integer root >= 1, got {root!r}; use 2 to whiten")
        self.root = root

    def forward(self, images: Tensor) -> Tensor:
        require_images("Whitening", images, self.in_channels, images)
        return whiten(images, self.patch_size, self.eps, self.root)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, patch_size={self.patch_size}, eps={self.eps:g}"
