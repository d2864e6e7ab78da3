"""All-CNN-C (Springenberg et al., 2014): convolutions and ReLUs only, with strided convolutions instead of pooling."""

from __future__ import annotations

from torch import nn

from ..errors import unknown_name
from .base import ConvNet
from .catalogue import ARCHITECTURES

#: nonlinearities that All-CNN-C can have in the place of its ReLUs
ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}


class AllCNN(ConvNet):
    """All-CNN-C for 3x32x32 images.

    With zero padding in the layers of stride 1. As in the paper, a fully connected layer is added after the global average
    pooling, so that the kernel network has an unconstrained last layer.

    Args:
        in_channels: 3, or 27 for whitened images, whose pixels are 3x3 patches; the first filters are 1x1 then.
        dropout: dropout of 20 % of the input and 50 % after each strided layer, as in the original; the paper has none.
        activation: the nonlinearity: ``"relu"`` as in the original, ``"gelu"`` or ``"tanh"``.
    """

    input_shape = ARCHITECTURES["allcnn"].input_shape
    init_std = 0.3

    def __init__(
        self,
        filters: int | None = None,
        classes: int = 10,
        bias: bool = True,
        dropout: bool = False,
        in_channels: int = 3,
        activation: str = "relu",
    ) -> None:
        super().__init__(filters, in_channels)
        if activation not in ACTIVATIONS:
            raise unknown_name("activation of allcnn", activation, ACTIVATIONS)
        first = 1 if in_channels == 27 else 3
        #  filters, kernel_size, stride
        plan = [(96, first, 1), (96, 3, 1), (96, 3, 2), (192, 3, 1), (192, 3, 1), (192, 3, 2), (192, 3, 1), (192, 1, 1)]
        layers: list[nn.Module] = [nn.Dropout(0.2)] if dropout else []
        channels = in_channels
        for original, size, stride in [*plan, (classes, 1, 1)]:
            padding = size // 2 if stride == 1 else 0
            layers += [
                nn.Conv2d(channels, self.width(original), size, stride, padding, bias=bias),
                ACTIVATIONS[activation](),
            ]
            if dropout and stride == 2:
                layers.append(nn.Dropout(0.5))
            channels = self.width(original)
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes, bias=bias))
