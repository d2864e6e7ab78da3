"""VGG-11 (Simonyan and Zisserman, 2014), configuration A, for 32x32 images."""

from __future__ import annotations

from torch import nn

from ..nn.geometry import Pair
from .base import ConvNet
from .catalogue import ARCHITECTURES


class VGG11(ConvNet):
    """Eight 3x3 convolutions with ReLU, max pooling after five of them, and two hidden layers of 512 (4096 at 224x224).

    Args:
        image_size: rows and columns of the images, at least 32 each.
    """

    input_shape = ARCHITECTURES["vgg11"].input_shape

    least_size = 32

    def __init__(
        self,
        filters: int | None = None,
        classes: int = 10,
        bias: bool = True,
        batch_norm: bool = False,
        dropout: float = 0.5,
        in_channels: int = 3,
        image_size: int | Pair = 32,
    ) -> None:
        super().__init__(filters, in_channels)
        rows, columns = self.fit_size(image_size)
        layers: list[nn.Module] = []
        channels = in_channels
        for step in (64, "pool", 128, "pool", 256, 256, "pool", 512, 512, "pool", 512, 512, "pool"):
            if isinstance(step, str):
                layers.append(nn.MaxPool2d(2))
                continue
            width = self.width(step)
            norm = [nn.BatchNorm2d(width)] if batch_norm else []
            layers += [nn.Conv2d(channels, width, 3, padding=1, bias=bias), *norm, nn.ReLU()]
            channels = width
        layers.append(nn.Flatten())
        channels *= (rows // 32) * (columns // 32)
        for _ in range(2):
            layers += [nn.Linear(channels, self.width(512), bias=bias), nn.ReLU(), nn.Dropout(dropout)]
            channels = self.width(512)
        self.layers = nn.Sequential(*layers, nn.Linear(channels, classes, bias=bias))
