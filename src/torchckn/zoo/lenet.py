"""LeNet-1 and LeNet-5 (LeCun et al., 1995, 1998), as described in the paper's appendix.

Convolution, average pooling with a trainable scale and bias, then the scaled tanh: the nonlinearity comes after the
pooling. The original second convolution has an incomplete connection scheme; the paper trains with the complete one.
LeNet-5's last layer is linear here, not the radial basis functions of 1998.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torch import nn

from ..choices import Connections
from ..errors import ConfigError, unknown_name
from ..nn.geometry import Pair
from .base import ConvNet
from .catalogue import ARCHITECTURES
from .modules import ChannelScale, MaskedConv2d, ScaledTanh

#: C3 of the appendix: one row per input channel, one column per filter
_LENET1_C3 = (
    "1 1 1 0 1 1 0 0 0 0 0 0",
    "0 1 1 1 1 1 0 0 0 0 0 0",
    "0 0 0 0 0 0 1 1 1 0 1 1",
    "0 0 0 0 0 0 0 1 1 1 1 1",
)
_LENET5_C3 = (
    "1 0 0 0 1 1 1 0 0 1 1 1 1 0 1 1",
    "1 1 0 0 0 1 1 1 0 0 1 1 1 1 0 1",
    "1 1 1 0 0 0 1 1 1 0 0 1 0 1 1 1",
    "0 1 1 1 0 0 1 1 1 1 0 0 1 0 1 1",
    "0 0 1 1 1 0 0 1 1 1 1 0 1 1 0 1",
    "0 0 0 1 1 1 0 0 1 1 1 1 0 1 1 1",
)


class _LeNet(ConvNet):
    """Two blocks of convolution, pooling and scaled tanh."""

    scheme: tuple[str, ...]

    def _positions(self, padding: int = 0) -> int:
        """How many positions are left of an image of ``input_shape``."""
        rows, columns = (((n + 2 * padding - 4) // 2 - 4) // 2 for n in self.input_shape[1:])
        return rows * columns

    def _convolutions(
        self, in_channels: int, widths: tuple[int, int], padding: int, bias: bool, connections: Connections
    ) -> dict[str, nn.Module]:
        if connections not in ("complete", "incomplete"):
            raise unknown_name("connection scheme", connections, ("complete", "incomplete"))
        if connections == "incomplete" and self.filters is not None:
            raise ConfigError(
                f"the incomplete connection scheme is defined for the original widths {widths} only, got filters={self.filters}; "
                "use filters=None"
            )
        first, second = (self.width(w) for w in widths)
        scheme = list(zip(*([int(c) for c in row.split()] for row in self.scheme), strict=True))
        incomplete = connections == "incomplete"
        return {
            "conv1": nn.Conv2d(in_channels, first, 5, padding=padding, bias=bias),
            "pool1": nn.AvgPool2d(2),
            "scale1": ChannelScale(first, bias),
            "tanh1": ScaledTanh(),
            "conv2": MaskedConv2d(scheme, 5, bias=bias) if incomplete else nn.Conv2d(first, second, 5, bias=bias),
            "pool2": nn.AvgPool2d(2),
            "scale2": ChannelScale(second, bias),
            "tanh2": ScaledTanh(),
            "flatten": nn.Flatten(),
        }


class LeNet1(_LeNet):
    """LeNet-1 for 28x28 images: 4 and 12 filters, then a linear classifier.

    Args:
        connections: ``"complete"``, or ``"incomplete"`` for the original connection scheme (original widths only).
        bias: whether layers have biases; the paper's experiments have none.
        in_channels, image_size: of the images; at least 16 rows and columns.
    """

    input_shape = ARCHITECTURES["lenet1"].input_shape
    scheme = _LENET1_C3

    least_size = 16

    def __init__(
        self,
        filters: int | None = None,
        classes: int = 10,
        bias: bool = True,
        connections: Connections = "complete",
        in_channels: int = 1,
        image_size: int | Pair = 28,
    ) -> None:
        super().__init__(filters, in_channels)
        self.fit_size(image_size)
        convolutions = self._convolutions(in_channels, (4, 12), 0, bias, connections)
        head = {"head": nn.Linear(self.width(12) * self._positions(), classes, bias=bias)}
        self.layers = nn.Sequential(OrderedDict(convolutions | head))


class LeNet5(_LeNet):
    """LeNet-5 for 32x32 images: 6 and 16 filters, then fully connected layers of 120 and 84.

    Args:
        padding: zero padding of the image; 2 for 28x28 images.
        image_size: of the images; by default what is 32 with the padding.
        others: as for :class:`LeNet1`.
    """

    input_shape = ARCHITECTURES["lenet5"].input_shape
    scheme = _LENET5_C3

    @classmethod
    def options_for(cls, image_shape: tuple[int, int, int]) -> dict[str, Any]:
        channels, height, width = image_shape
        if height == width and 24 <= height <= 32 and height % 2 == 0:
            return {"in_channels": channels, "padding": (32 - height) // 2}
        return {"in_channels": channels, "image_size": (height, width)}

    def __init__(
        self,
        filters: int | None = None,
        classes: int = 10,
        bias: bool = True,
        connections: Connections = "complete",
        padding: int = 0,
        in_channels: int = 1,
        image_size: int | Pair | None = None,
    ) -> None:
        super().__init__(filters, in_channels)
        if not isinstance(padding, int) or not 0 <= padding <= 4:
            raise ConfigError(f"padding expected an integer from 0 to 4, got {padding!r}; use 2 for 28x28 images")
        self.fit_size(32 - 2 * padding if image_size is None else image_size, 16 - 2 * padding)
        widths = self.width(16) * self._positions(padding), self.width(120), self.width(84)
        dense: dict[str, nn.Module] = {
            "dense1": nn.Linear(widths[0], widths[1], bias=bias),
            "tanh3": ScaledTanh(),
            "dense2": nn.Linear(widths[1], widths[2], bias=bias),
            "tanh4": ScaledTanh(),
            "head": nn.Linear(widths[2], classes, bias=bias),
        }
        self.layers = nn.Sequential(
            OrderedDict(self._convolutions(in_channels, (6, 16), padding, bias, connections) | dense)
        )
