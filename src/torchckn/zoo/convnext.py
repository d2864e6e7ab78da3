"""ConvNeXt (Liu et al., 2022) in its smallest size, atto: depthwise 7x7 windows, LayerNorm and linear layers on channels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .base import ConvNet
from .catalogue import ARCHITECTURES


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of an image (N, C, H, W)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    """x + gamma W2 gelu(W1 norm(depthwise 7x7 (x)))"""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width, eps=1e-6)
        self.expand, self.activation, self.project = nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width)
        self.scale = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm(self.conv(x).permute(0, 2, 3, 1))
        inner = self.scale * self.project(self.activation(self.expand(inner)))
        return x + inner.permute(0, 3, 1, 2)


class ConvNeXtAtto(ConvNet):
    """Four stages of 2, 2, 6 and 2 blocks with 40, 80, 160 and 320 channels."""

    input_shape = ARCHITECTURES["convnext-atto"].input_shape

    def __init__(self, filters: int | None = None, classes: int = 1000, in_channels: int = 3) -> None:
        super().__init__(filters, in_channels)
        channels, layers = in_channels, []
        for i, (original, blocks) in enumerate(((40, 2), (80, 2), (160, 6), (320, 2))):
            width = self.width(original)
            stem = nn.Conv2d(channels, width, 4 if i == 0 else 2, 4 if i == 0 else 2)
            layers += [stem, ChannelNorm(width, eps=1e-6)] if i == 0 else [ChannelNorm(channels, eps=1e-6), stem]
            layers += [ConvNeXtBlock(width, self.width(4 * original)) for _ in range(blocks)]
            channels = width
        self.layers = nn.Sequential(*layers)
        self.norm, self.head = nn.LayerNorm(channels, eps=1e-6), nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.layers(x).mean((2, 3))))
