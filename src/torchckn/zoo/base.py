"""Base class of the networks of the zoo."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn


class ConvNet(nn.Module):
    """A ConvNet with the input shape of its usual images. Subclasses set ``layers``, and override ``forward`` if needed."""

    input_shape: ClassVar[tuple[int, int, int]]
    #: standard deviation of the initial weights in the paper: 0.2 for the LeNets, 0.3 for All-CNN-C
    init_std: ClassVar[float] = 0.2
    layers: nn.Module

    def __init__(self, filters: int | None = None, **options: Any) -> None:
        super().__init__()
        self.filters = filters

    @classmethod
    def options_for(cls, image_shape: tuple[int, int, int]) -> dict[str, Any]:
        """Arguments that adapt the network to images of this shape, if it can be adapted."""
        return {}

    def width(self, original: int) -> int:
        """The number of filters of a layer that has ``original`` filters in the publication."""
        return original if self.filters is None else self.filters

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)
