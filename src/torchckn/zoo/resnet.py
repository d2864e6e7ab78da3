"""ResNet-20 (He et al., 2015) for 32x32 images: three stages of three residual blocks, with parameter-free shortcuts."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from .base import ConvNet
from .catalogue import ARCHITECTURES
from .modules import Subsample


class ResidualBlock(nn.Module):
    """relu(x + norm(conv(relu(norm(conv(x)))))); where the size changes, x is subsampled and padded with zero channels."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Identity() if stride == 1 and channels == width else Subsample(stride, width - channels)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.norm1(self.conv1(x)))
        inner = self.norm2(self.conv2(inner))
        return F.relu(inner + self.shortcut(x))


class ResNet20(ConvNet):
    """Three stages of three residual blocks with 16, 32 and 64 filters."""

    input_shape = ARCHITECTURES["resnet20"].input_shape

    def __init__(self, filters: int | None = None, classes: int = 10, in_channels: int = 3) -> None:
        super().__init__(filters, in_channels)
        channels = self.width(16)
        self.conv = nn.Conv2d(in_channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        blocks = []
        for original, first_stride in ((16, 1), (32, 2), (64, 2)):
            for i in range(3):
                blocks.append(ResidualBlock(channels, self.width(original), first_stride if i == 0 else 1))
                channels = self.width(original)
        self.layers = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(F.relu(self.norm(self.conv(x))))
        return self.head(x.mean((2, 3)))
