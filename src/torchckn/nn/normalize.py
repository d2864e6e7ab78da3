"""Division of the features at each position by their norm (paper, section 3.2), and standardization of pixels (5.1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..choices import NormOver
from ..kernels import safe_norms
from .geometry import filled


class Normalization(nn.Module):
    """x / |x| over the channels, at each position; zero stays zero. (N, C, H, W) -> (N, C, H, W)

    With ``over="image"``, |x|^2 is its mean over positions.
    """

    def __init__(self, over: NormOver = "position") -> None:
        super().__init__()
        self.over = over

    def forward(self, x: Tensor) -> Tensor:
        squares = x.square().sum(1, keepdim=True)
        if self.over == "image" and x.ndim == 4:
            squares = squares.mean((2, 3), keepdim=True)
        _, inverse = safe_norms(squares)
        return x * inverse


class Standardization(nn.Module):
    """(x - mean) / std for each channel, with constants that are part of the graph and not trained."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.mean, self.std = tuple(mean), tuple(std)

    def forward(self, x: Tensor) -> Tensor:
        mean, std = (filled(numbers, x)[:, None, None] for numbers in (self.mean, self.std))
        return (x - mean) / std


def unit_pixels(images: Tensor, like: Tensor | None = None) -> Tensor:
    """Pixels between 0 and 1: uint8 is divided by 255, other dtypes keep their values; in the dtype and device of ``like``."""
    like = torch.empty(0) if like is None else like
    scaled = images.to(like)
    return scaled.div_(255) if images.dtype == torch.uint8 else scaled


def wide_pixels(images: Tensor) -> Tensor:
    """As :func:`unit_pixels`, in float64, where the images are."""
    return unit_pixels(images, torch.empty(0, dtype=torch.float64, device=images.device))
