"""DenseNet-BC-100 (Huang et al., 2017) for 32x32 images: every layer gets the outputs of all before it in its block."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import ConvNet
from .catalogue import ARCHITECTURES


class DenseLayer(nn.Module):
    """x beside conv3x3(relu(norm(conv1x1(relu(norm(x))))))"""

    def __init__(self, channels: int, inner: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(channels), nn.Conv2d(channels, inner, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(inner), nn.Conv2d(inner, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.conv1(F.relu(self.norm1(x)))
        return torch.cat([x, self.conv2(F.relu(self.norm2(inner)))], 1)


class DenseNet(ConvNet):
    """Three blocks of (depth - 4) / 6 layers that add ``growth`` channels each; half the channels pass from block to block."""

    input_shape = ARCHITECTURES["densenet"].input_shape

    def __init__(
        self, filters: int | None = None, classes: int = 10, in_channels: int = 3, depth: int = 100, growth: int = 12
    ) -> None:
        super().__init__(filters, in_channels)
        channels = self.width(2 * growth)
        layers: list[nn.Module] = [nn.Conv2d(in_channels, channels, 3, padding=1, bias=False)]
        for block in range(3):
            for _ in range((depth - 4) // 6):
                layers.append(DenseLayer(channels, self.width(4 * growth), self.width(growth)))
                channels += self.width(growth)
            layers += [nn.BatchNorm2d(channels), nn.ReLU()]
            if block < 2:
                passed = channels // 2 if filters is None else filters
                layers += [nn.Conv2d(channels, passed, 1, bias=False), nn.AvgPool2d(2)]
                channels = passed
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
