"""Network in Network (Lin et al., 2013) for CIFAR-10: each convolution is followed by two 1x1 convolutions."""

from __future__ import annotations

from torch import nn

from .base import ConvNet
from .catalogue import ARCHITECTURES


class NetworkInNetwork(ConvNet):
    """Three blocks, then global average pooling of one feature map per class, without a linear layer at the end."""

    input_shape = ARCHITECTURES["nin"].input_shape

    def __init__(
        self,
        filters: int | None = None,
        classes: int = 10,
        bias: bool = True,
        dropout: float = 0.5,
        in_channels: int = 3,
    ) -> None:
        super().__init__(filters, in_channels)

        def block(channels: int, size: int, *widths: int) -> list[nn.Module]:
            layers: list[nn.Module] = []
            for i, width in enumerate(widths):
                window = size if i == 0 else 1
                layers += [nn.Conv2d(channels, width, window, padding=window // 2, bias=bias), nn.ReLU()]
                channels = width
            return layers

        w = self.width
        self.layers = nn.Sequential(
            *block(in_channels, 5, w(192), w(160), w(96)),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            nn.Dropout(dropout),
            *block(w(96), 5, w(192), w(192), w(192)),
            nn.AvgPool2d(3, 2, ceil_mode=True),
            nn.Dropout(dropout),
            *block(w(192), 3, w(192), w(192), classes),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
