r"""The product of two feature maps: a kernel layer whose filters are pairs of unit vectors.

.. math:: F' = A\, \left[ (W_1 u) \circ (W_2 v) \right], \qquad
          A = \left( (W_1 W_1^T) \circ (W_2 W_2^T) + \epsilon I \right)^{-1/2}

With independent random weights, the elementwise product of two feature maps has the product of their kernels as its kernel, as
their sum has the sum (section 3.2 of the paper has the sum): :math:`k = \langle u, u' \rangle \langle v, v' \rangle`. That is the
linear kernel of the tensor product of u and v, so the filters are tensor products as well, of a unit vector for u with one for v,
and neither is ever formed. A factor without positions, or with one, is a gate that all positions share.
Read first: :mod:`torchckn.nn.layers`. Read next: :mod:`torchckn.graph`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..choices import Init, as_integers
from ..errors import ConfigError, DataError
from ..kernels import Linear
from ..kernels.base import require_tensor
from .base import KernelLayer
from .devices import own_precision
from .functional import gram_of_cosines
from .geometry import draw_normal
from .layers import require_same_type


class KernelProduct(KernelLayer):
    """The counterpart of ``u * v``. Two inputs, (N, C1, H, W) and (N, C2, H, W) -> (N, filters, H, W)

    One of them may be a gate without positions, (N, C2, 1, 1) or (N, C2), or of one row or column; or both may be vectors.

    Args:
        in_channels: of the two inputs.
        filters, eps, init, inverse_sqrt, root_block: as for :class:`torchckn.nn.KernelConv2d`. ``weight`` is (filters, C1),
            ``second_weight`` (filters, C2), both with rows of unit norm.

    Example:
        >>> layer = KernelProduct((8, 4), 16)
        >>> layer(torch.rand(2, 8, 5, 5), torch.rand(2, 4, 1, 1)).shape
        torch.Size([2, 16, 5, 5])
    """

    second_weight: nn.Parameter

    def __init__(
        self,
        in_channels: tuple[int, int],
        filters: int,
        eps: float = 1e-3,
        init: Init = "kmeans",
        inverse_sqrt: str = "auto",
        *,
        root_block: int | None = None,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if init == "identity":
            raise ConfigError("KernelProduct has no init='identity'; use 'kmeans', 'sample' or 'random'")
        channels = as_integers(in_channels, 1) if isinstance(in_channels, tuple) else None
        if channels is None or len(channels) != 2:
            raise ConfigError(f"KernelProduct expected the channels of two inputs, such as (64, 64), got {in_channels!r}")
        super().__init__((filters, channels[0]), 1, Linear(), eps, init, inverse_sqrt, root_block, generator, device, dtype)
        self.in_channels = channels[0], channels[1]
        second = draw_normal((self.filters, channels[1]), generator, device)
        self.second_weight = nn.Parameter(second.to(device=device, dtype=self.weight.dtype))
        self.normalize_()

    def sphere_parameters(self) -> list[nn.Parameter]:
        return [self.weight, *([self.second_weight] if hasattr(self, "second_weight") else [])]

    def filter_matrix(self) -> Tensor:
        """The filters as tensor products: (f, C1 C2)"""
        return tensor_products(self.weight, self.second_weight)

    def factors(self) -> tuple[Tensor, ...]:
        return self.weight, self.second_weight

    def gram(self, *factors: Tensor) -> Tensor:
        """The product of the Gram matrices of both factors: that of their tensor products."""
        first, second = (factor @ factor.mT for factor in factors)
        return gram_of_cosines(first * second, self.kernel, self.eps)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        for x, channels in zip((first, second), self.in_channels, strict=True):
            require_tensor("KernelProduct", x)
            if x.ndim not in (2, 4) or x.shape[1] != channels or len(x) != len(first):
                raise DataError(
                    f"KernelProduct expected two inputs of {self.in_channels} channels, images or vectors, got "
                    f"{tuple(first.shape)} and {tuple(second.shape)}"
                )
            require_same_type("KernelProduct", x, self.weight)
        sizes = first.shape[2:], second.shape[2:]
        if any(1 not in pair and pair[0] != pair[1] for pair in zip(*sizes, strict=False)):
            raise DataError(
                f"KernelProduct expected images of the same size, or of one row or column, got {tuple(first.shape)} and "
                f"{tuple(second.shape)}"
            )
        return kernel_product(first, second, self.weight, self.second_weight, self.own_projection())

    def extra_repr(self) -> str:
        return f"{self.filters}, {self.in_channels}, eps={self.eps:g}, init={self.init}"


def kernel_product(first: Tensor, second: Tensor, weight: Tensor, second_weight: Tensor, root: Tensor) -> Tensor:
    """The layer equation: A [(W1 u) o (W2 v)]."""
    values = pair_responses(first, second, weight, second_weight)
    with own_precision(values.device):
        values = values.to(root.dtype)
        return values @ root if values.ndim == 2 else F.conv2d(values, root[:, :, None, None])


def pair_responses(first: Tensor, second: Tensor, weight: Tensor, second_weight: Tensor) -> Tensor:
    """(W1 u) o (W2 v), of images and of vectors, which all positions of an image share."""
    pairs = ((first, weight), (second, second_weight))
    both = [F.linear(x, w) if x.ndim == 2 else F.conv2d(x, w[:, :, None, None]) for x, w in pairs]
    if both[0].ndim != both[1].ndim:
        both = [x[:, :, None, None] if x.ndim == 2 else x for x in both]
    return both[0] * both[1]


def tensor_products(first: Tensor, second: Tensor) -> Tensor:
    """Row by row, the tensor product of two vectors: (..., C1), (..., C2) -> (..., C1 C2)"""
    return (first[..., :, None] * second[..., None, :]).flatten(-2)


class RandomFeatureProduct(nn.Module):
    """Products of Gaussian combinations of both inputs, and 1 / sqrt(filters): their mean kernel is the product."""

    weight: Tensor
    second_weight: Tensor

    def __init__(
        self,
        in_channels: tuple[int, int],
        filters: int,
        *,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for name, channels in zip(("weight", "second_weight"), in_channels, strict=True):
            weight = draw_normal((filters, channels), generator, device)
            self.register_buffer(name, weight.to(device=device, dtype=dtype or torch.get_default_dtype()))

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return pair_responses(first, second, self.weight, self.second_weight) / len(self.weight) ** 0.5
