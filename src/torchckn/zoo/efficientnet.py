"""EfficientNet-B0 (Tan and Le, 2019): inverted residuals with squeeze and excitation, and SiLU."""

from __future__ import annotations

from torch import Tensor, nn

from .base import ConvNet
from .catalogue import ARCHITECTURES
from .gates import SqueezeExcitation


class GatedResidual(nn.Module):
    """MBConv: expanded, filtered depthwise, gated, projected; x is added if it fits."""

    def __init__(self, channels: int, hidden: int, width: int, squeezed: int, size: int, stride: int, expands: bool) -> None:
        super().__init__()
        expansion = _normalized(nn.Conv2d(channels, hidden, 1, bias=False)) if expands else []
        self.layers = nn.Sequential(
            *expansion,
            *_normalized(nn.Conv2d(hidden, hidden, size, stride, size // 2, groups=hidden, bias=False)),
            SqueezeExcitation(hidden, squeezed, nn.SiLU),
            nn.Conv2d(hidden, width, 1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.residual = stride == 1 and channels == width

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.residual else self.layers(x)


class EfficientNetB0(ConvNet):
    """A 3x3 convolution, 16 gated inverted residuals, a 1x1 convolution, global average pooling and a classifier."""

    input_shape = ARCHITECTURES["efficientnet-b0"].input_shape
    #: expansion, filters, blocks, stride of the first, window: table 1 of the publication
    plan = (
        *((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3)),
        *((6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3)),
    )

    def __init__(self, filters: int | None = None, classes: int = 1000, in_channels: int = 3, dropout: float = 0.2) -> None:
        super().__init__(filters, in_channels)
        channels, original = self.width(32), 32
        layers = _normalized(nn.Conv2d(in_channels, channels, 3, 2, 1, bias=False))
        for expansion, out, repeats, first_stride, size in self.plan:
            for i in range(repeats):
                hidden = channels if expansion == 1 else self.width(original * expansion)
                squeezed, stride = self.width(original // 4), first_stride if i == 0 else 1
                layers.append(GatedResidual(channels, hidden, self.width(out), squeezed, size, stride, expansion > 1))
                channels, original = self.width(out), out
        layers += _normalized(nn.Conv2d(channels, self.width(1280), 1, bias=False))
        self.layers = nn.Sequential(
            *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout), nn.Linear(self.width(1280), classes)
        )


def _normalized(conv: nn.Conv2d) -> list[nn.Module]:
    return [conv, nn.BatchNorm2d(conv.out_channels), nn.SiLU(inplace=True)]
