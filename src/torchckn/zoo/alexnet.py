"""AlexNet (Krizhevsky et al., 2012) as one network: the original's two halves are grouped convolutions."""

from __future__ import annotations

from torch import nn

from ..errors import ConfigError
from ..nn.geometry import Pair
from .base import ConvNet
from .catalogue import ARCHITECTURES


class AlexNet(ConvNet):
    """AlexNet for 3x227x227 images.

    Args:
        lrn: local response normalization after the first two convolutions, as in the original.
        groups: groups of three of the convolutions; 2 in the original, for its two GPUs; 1: ordinary convolutions.
        image_size: rows and columns of the images, at least 67 each.
    """

    input_shape = ARCHITECTURES["alexnet"].input_shape

    least_size = 67

    def __init__(
        self,
        filters: int | None = None,
        classes: int = 1000,
        bias: bool = True,
        lrn: bool = True,
        groups: int = 2,
        in_channels: int = 3,
        image_size: int | Pair = 227,
    ) -> None:
        super().__init__(filters, in_channels)
        positions = 1
        for pixels in self.fit_size(image_size):
            positions *= (((((pixels - 11) // 4 + 1) - 3) // 2 + 1 - 3) // 2 + 1 - 3) // 2 + 1
        w = self.width
        if filters is not None and filters % groups:
            raise ConfigError(f"filters expected a multiple of groups={groups}, got {filters}; pass a multiple, or groups=1")

        def normalize() -> list[nn.Module]:
            return [nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75, k=2.0)] if lrn else []

        self.layers = nn.Sequential(
            nn.Conv2d(in_channels, w(96), 11, stride=4, bias=bias),
            nn.ReLU(),
            *normalize(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(w(96), w(256), 5, padding=2, groups=groups, bias=bias),
            nn.ReLU(),
            *normalize(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(w(256), w(384), 3, padding=1, bias=bias),
            nn.ReLU(),
            nn.Conv2d(w(384), w(384), 3, padding=1, groups=groups, bias=bias),
            nn.ReLU(),
            nn.Conv2d(w(384), w(256), 3, padding=1, groups=groups, bias=bias),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.Flatten(),
            nn.Dropout(0.5),
            nn.Linear(w(256) * positions, w(4096), bias=bias),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(w(4096), w(4096), bias=bias),
            nn.ReLU(),
            nn.Linear(w(4096), classes, bias=bias),
        )
