"""What the networks of the zoo have in common."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn


class ConvNet(nn.Module):
    """A ConvNet with the input shape that it was made for. Subclasses set ``layers``, and ``forward`` where it is not enough."""

    input_shape: ClassVar[tuple[int, int, int]]
    layers: nn.Module

    def __init__(self, filters: int | None = None, **options: Any) -> None:
        super().__init__()
        self.filters = filters

    def width(self, original: int) -> int:
        """How many filters a layer has that originally had ``original``."""
        return original if self.filters is None else self.filters

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)
