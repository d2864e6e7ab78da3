"""SE-ResNet-50 (Hu et al., 2018): ResNet-50 with squeeze and excitation in every block."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from .base import ConvNet
from .catalogue import ARCHITECTURES
from .gates import SqueezeExcitation


class SEBottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions, a gate for every channel, and the shortcut."""

    def __init__(self, channels: int, inner: int, width: int, squeezed: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv2, self.norm2 = nn.Conv2d(inner, inner, 3, stride, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv3, self.norm3 = nn.Conv2d(inner, width, 1, bias=False), nn.BatchNorm2d(width)
        self.gate = SqueezeExcitation(width, squeezed)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or channels != width:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.norm1(self.conv1(x)))
        inner = F.relu(self.norm2(self.conv2(inner)))
        return F.relu(self.gate(self.norm3(self.conv3(inner))) + self.shortcut(x))


class SEResNet50(ConvNet):
    """Four stages of 3, 4, 6 and 3 gated bottleneck blocks."""

    input_shape = ARCHITECTURES["seresnet50"].input_shape

    def __init__(self, filters: int | None = None, classes: int = 1000, in_channels: int = 3) -> None:
        super().__init__(filters, in_channels)
        channels = self.width(64)
        layers: list[nn.Module] = [
            nn.Conv2d(in_channels, channels, 7, 2, 3, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        ]
        for inner, blocks, first_stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            width = self.width(4 * inner)
            for i in range(blocks):
                stride = first_stride if i == 0 else 1
                layers.append(SEBottleneck(channels, self.width(inner), width, self.width(inner // 4), stride))
                channels = width
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
