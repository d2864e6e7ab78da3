"""Base class of the networks of the zoo."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from ..choices import as_integer
from ..errors import ConfigError
from ..nn.geometry import Pair, pair


class ConvNet(nn.Module):
    """A ConvNet with the input shape of its usual images. Subclasses set ``layers``, and override ``forward`` if needed."""

    input_shape: ClassVar[tuple[int, int, int]]
    #: standard deviation of the initial weights in the paper: 0.2 for the LeNets, 0.3 for All-CNN-C
    init_std: ClassVar[float] = 0.2
    #: rows and columns that an image must have, for networks that have to know the size of their images
    least_size: ClassVar[int | None] = None
    layers: nn.Module

    def __init__(self, filters: int | None = None, in_channels: int | None = None, **options: Any) -> None:
        super().__init__()
        self.filters = filters
        if in_channels is not None:
            if (channels := as_integer(in_channels, 1)) is None:
                raise ConfigError(f"in_channels expected an integer >= 1, got {in_channels!r}")
            self.input_shape = (channels, *type(self).input_shape[1:])  # type: ignore[misc]

    @classmethod
    def options_for(cls, image_shape: tuple[int, int, int]) -> dict[str, Any]:
        """Arguments that adapt the network to images of this shape; it keeps its own size if they are too small for it."""
        large_enough = cls.least_size is not None and min(image_shape[1:]) >= cls.least_size
        return {"in_channels": image_shape[0]} | ({"image_size": image_shape[1:]} if large_enough else {})

    def fit_size(self, image_size: int | Pair, least: int | None = None) -> Pair:
        """Set the size of the images, rows and columns; both must be at least ``least``, by default ``least_size``."""
        least = (self.least_size or 1) if least is None else least
        size = pair("image_size", image_size, least)
        self.input_shape = (self.input_shape[0], *size)  # type: ignore[misc]
        return size

    def width(self, original: int) -> int:
        """The number of filters of a layer that has ``original`` filters in the publication."""
        return original if self.filters is None else self.filters

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)
