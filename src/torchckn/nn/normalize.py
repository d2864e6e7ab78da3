"""Division of the features at each position by their norm (paper, section 3.2 "Normalization")."""

from __future__ import annotations

from torch import Tensor, nn

from ..kernels import safe_norms


class Normalization(nn.Module):
    """x / |x| over the channels, position by position; zero stays zero. (N, C, H, W) -> (N, C, H, W)"""

    def forward(self, x: Tensor) -> Tensor:
        _, inverse = safe_norms(x.square().sum(1, keepdim=True))
        return x * inverse
