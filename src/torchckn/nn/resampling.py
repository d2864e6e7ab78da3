r"""Linear operations on positions, the same for every channel, and changes of patches.

.. math:: F' = F P, \qquad \langle F'_p, F'_q \rangle = (P^\top G P)_{pq}

A linear operation on positions maps inner products of positions to inner products of positions, so its kernel is exact.
Read next: :mod:`torchckn.graph.resampling`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .geometry import Pair


class FixedWindow(nn.Module):
    """A convolution of every channel with one and the same window, such as a blur. (N, C, H, W) -> (N, C, H', W')"""

    def __init__(self, window: Sequence[Sequence[float]], stride: Pair = (1, 1), padding: Pair = (0, 0)) -> None:
        super().__init__()
        self.window, self.stride, self.padding = tuple(map(tuple, window)), stride, padding

    def forward(self, x: Tensor) -> Tensor:
        window = torch.tensor(self.window, dtype=x.dtype, device=x.device)[None, None]
        return F.conv2d(x, window.expand(x.shape[1], 1, *window.shape[2:]), None, self.stride, self.padding, 1, x.shape[1])


class Resized(nn.Module):
    """``F.interpolate`` to a fixed size. (N, C, H, W) -> (N, C, H', W')"""

    def __init__(self, size: Pair, mode: str, align_corners: bool | None = None) -> None:
        super().__init__()
        self.size, self.mode, self.align_corners = size, mode, align_corners

    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(x, self.size, mode=self.mode, align_corners=self.align_corners)


class SelectedChannels(nn.Module):
    """Some of the channels of an image. (N, C, H, W) -> (N, C', H, W)"""

    def __init__(self, channels: Sequence[int]) -> None:
        super().__init__()
        self.channels = list(channels)

    def forward(self, x: Tensor) -> Tensor:
        return x[:, self.channels]
