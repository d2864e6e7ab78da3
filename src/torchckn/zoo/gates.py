"""Squeeze and excitation (Hu et al., 2018), which several networks of the zoo share."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class SqueezeExcitation(nn.Module):
    """x * sigmoid(W2 a(W1 mean(x))): channels gated by a small network of their means."""

    def __init__(self, channels: int, hidden: int, activation: type[nn.Module] = nn.ReLU) -> None:
        super().__init__()
        self.reduce, self.activation = nn.Conv2d(channels, hidden, 1), activation()
        self.expand = nn.Conv2d(hidden, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.expand(self.activation(self.reduce(F.adaptive_avg_pool2d(x, 1))))
        return x * gate.sigmoid()
