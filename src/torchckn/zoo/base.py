"""What the networks of the zoo have in common."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn


class ConvNet(nn.Module):
    """A ConvNet with the input shape that it was made for. Subclasses set ``layers``, and ``forward`` where it is not enough."""

    input_shape: ClassVar[tuple[int, int, int]]
    #: spread of the normal distribution that the paper draws first weights from: 0.2 for the LeNets, 0.3 for All-CNN-C
    init_std: ClassVar[float] = 0.2
    layers: nn.Module

    def __init__(self, filters: int | None = None, **options: Any) -> None:
        super().__init__()
        self.filters = filters

    @classmethod
    def options_for(cls, image_shape: tuple[int, int, int]) -> dict[str, Any]:
        """Arguments that fit the network to images of this shape, where it can be fitted to them."""
        return {}

    def width(self, original: int) -> int:
        """How many filters a layer has that originally had ``original``."""
        return original if self.filters is None else self.filters

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)
