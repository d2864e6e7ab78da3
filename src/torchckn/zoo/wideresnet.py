"""Wide residual network (Zagoruyko and Komodakis, 2016): WRN-28-10 for 32x32 images, normalization before convolution."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from .base import ConvNet
from .catalogue import ARCHITECTURES


class WideBlock(nn.Module):
    """x + conv(relu(norm(conv(relu(norm(x)))))); where the size changes, the shortcut is a 1x1 convolution of relu(norm(x))."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(channels), nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(width), nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.shortcut = None if stride == 1 and channels == width else nn.Conv2d(channels, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.norm1(x))
        shortcut = x if self.shortcut is None else self.shortcut(inner)
        return shortcut + self.conv2(F.relu(self.norm2(self.conv1(inner))))


class WideResNet(ConvNet):
    """Three stages of (depth - 4) / 6 blocks, with 16, 32 and 64 times ``widening`` filters."""

    input_shape = ARCHITECTURES["wideresnet"].input_shape

    def __init__(
        self, filters: int | None = None, classes: int = 10, in_channels: int = 3, depth: int = 28, widening: int = 10
    ) -> None:
        super().__init__(filters, in_channels)
        channels = self.width(16)
        self.conv = nn.Conv2d(in_channels, channels, 3, padding=1, bias=False)
        blocks = []
        for original, first_stride in ((16, 1), (32, 2), (64, 2)):
            for i in range((depth - 4) // 6):
                width = self.width(original * widening)
                blocks.append(WideBlock(channels, width, first_stride if i == 0 else 1))
                channels = width
        self.layers = nn.Sequential(*blocks)
        self.norm, self.head = nn.BatchNorm2d(channels), nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(self.conv(x))
        return self.head(F.relu(self.norm(x)).mean((2, 3)))
