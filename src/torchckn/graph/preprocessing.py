"""Preprocessing of pixels before the first layer: standardization and, for CIFAR-10, whitening.

Paper: section 5.1. The statistics are computed on training images only. They become nodes of the network's graph, so they are
saved with it, and the network takes uint8 images, or pixels between 0 and 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import ConfigError, DataError
from ..kernels.base import require_tensor
from ..nn.normalize import unit_pixels
from .graph import Graph
from .node import Node
from .operations import Standardize, Whiten

#: the names of its nodes
STANDARDIZE, WHITEN = "standardize", "whiten"


@dataclass(frozen=True)
class Preprocessing:
    """Standardization of each channel, then optional whitening.

    Example:
        >>> from torchckn import data, translate, zoo
        >>> digits = data.load("mnist-mini")
        >>> pixels = data.Preprocessing.fit(digits.train.images)
        >>> ckn = translate(zoo.build("lenet1"), (1, 28, 28), preprocessing=pixels)
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    whiten: int | None = None
    """side of the whitened patches, 3 in the paper; None: no whitening"""
    whiten_eps: float = 1e-3
    whiten_root: int = 2
    """4: half whitening, by the inverse fourth root, which the released code does by mistake"""

    @staticmethod
    def fit(images: Tensor, whiten: bool | int = False, whiten_eps: float = 1e-3) -> Preprocessing:
        """Compute the mean and standard deviation of each channel of training images."""
        require_tensor("Preprocessing.fit", images)
        if images.ndim != 4 or not len(images):
            raise DataError(f"Preprocessing.fit expected images (N, C, H, W), got {tuple(images.shape)}")
        sums = torch.zeros(2, images.shape[1], dtype=torch.float64)
        for some in images.split(1000):  # bounded memory
            pixels = unit_pixels(some, torch.empty(0, dtype=torch.float64))
            sums += torch.stack([pixels.sum((0, 2, 3)), pixels.square().sum((0, 2, 3))])
        mean, square = sums / (images.numel() / images.shape[1])
        std = (square - mean**2).clamp(min=0).sqrt()
        if not bool((std > 0).all()):
            raise DataError(
                "Preprocessing.fit expected pixels that vary in every channel, but all pixels of a channel are equal; "
                "remove that channel"
            )
        side = 3 if whiten is True else (whiten or None)
        return Preprocessing(tuple(mean.tolist()), tuple(std.tolist()), side, whiten_eps)

    def nodes(self) -> list[Node]:
        """The nodes to put before all others in a graph."""
        first: list[Node] = [Standardize(STANDARDIZE, mean=self.mean, std=self.std)]
        return first + (
            [Whiten(WHITEN, patch_size=(self.whiten, self.whiten), eps=self.whiten_eps, root=self.whiten_root)]
            if self.whiten
            else []
        )

    def output_shape(self, image_shape: tuple[int, int, int]) -> tuple[int, int, int]:
        """The shape of preprocessed images of this shape: the input shape of the network."""
        if image_shape[0] != len(self.mean):
            raise ConfigError(f"this preprocessing expected images of {len(self.mean)} channels, got {image_shape[0]}")
        shape = Graph(image_shape, self.nodes()).shapes[self.nodes()[-1].name]
        return shape[0], shape[1], shape[2]
