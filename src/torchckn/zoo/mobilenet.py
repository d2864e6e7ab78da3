"""MobileNetV2 (Sandler et al., 2018): inverted residuals with depthwise convolutions."""

from __future__ import annotations

from torch import Tensor, nn

from .base import ConvNet
from .catalogue import ARCHITECTURES


class InvertedResidual(nn.Module):
    """Expanded by a 1x1 convolution, filtered depthwise, projected by a linear 1x1 convolution; x is added if it fits."""

    def __init__(self, channels: int, hidden: int, width: int, stride: int, expands: bool) -> None:
        super().__init__()
        expansion = (
            [nn.Conv2d(channels, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6(inplace=True)] if expands else []
        )
        self.layers = nn.Sequential(
            *expansion,
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(inplace=True),
            nn.Conv2d(hidden, width, 1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.residual = stride == 1 and channels == width

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.residual else self.layers(x)


class MobileNetV2(ConvNet):
    """A 3x3 convolution, 17 inverted residuals, a 1x1 convolution, global average pooling and a classifier."""

    input_shape = ARCHITECTURES["mobilenetv2"].input_shape
    #: expansion, filters, blocks, stride of the first: table 2 of the publication
    plan = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))

    def __init__(self, filters: int | None = None, classes: int = 1000, in_channels: int = 3, dropout: float = 0.2) -> None:
        super().__init__(filters, in_channels)
        channels = self.width(32)
        layers = _normalized(nn.Conv2d(in_channels, channels, 3, 2, 1, bias=False))
        original = 32
        for expansion, out, repeats, first_stride in self.plan:
            for i in range(repeats):
                hidden = channels if expansion == 1 else self.width(original * expansion)
                stride = first_stride if i == 0 else 1
                layers.append(InvertedResidual(channels, hidden, self.width(out), stride, expansion > 1))
                channels, original = self.width(out), out
        layers += _normalized(nn.Conv2d(channels, self.width(1280), 1, bias=False))
        self.layers = nn.Sequential(
            *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout), nn.Linear(self.width(1280), classes)
        )


def _normalized(conv: nn.Conv2d) -> list[nn.Module]:
    return [conv, nn.BatchNorm2d(conv.out_channels), nn.ReLU6(inplace=True)]
