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

from .devices import own_precision
from .geometry import Pair, convolve, filled


class FixedWindow(nn.Module):
    """A convolution of every channel with one and the same window, such as a blur. (N, C, H, W) -> (N, C, H', W')"""

    def __init__(self, window: Sequence[Sequence[float]], stride: Pair = (1, 1), padding: Pair = (0, 0)) -> None:
        super().__init__()
        self.window, self.stride, self.padding = tuple(map(tuple, window)), stride, padding

    def forward(self, x: Tensor) -> Tensor:
        window = torch.stack([filled(row, x) for row in self.window])
        with own_precision(x.device):
            return convolve(x, window.expand(x.shape[1], 1, *window.shape), self.stride, self.padding, groups=x.shape[1])


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
        return torch.cat([x[:, first:end] for first, end in _runs(self.channels)], 1)  # no index to copy to the device


class ShuffledChannels(nn.Module):
    """The channels in another order. (N, C, H, W) -> (N, C, H, W)"""

    def __init__(self, order: Sequence[int]) -> None:
        super().__init__()
        runs = _runs(order)
        starts = sorted(start for start, _ in runs)
        self.sizes = [end - start for start, end in sorted(runs)]
        self.order = [starts.index(start) for start, _ in runs]

    def forward(self, x: Tensor) -> Tensor:
        parts = x.split(self.sizes, 1)  # whose gradient is one concatenation
        return torch.cat([parts[i] for i in self.order], 1)


def _runs(numbers: Sequence[int]) -> list[Pair]:
    """Where numbers in a row begin and end: [0, 1, 2, 5, 6] -> [(0, 3), (5, 7)]"""
    starts = [i for i, n in enumerate(numbers) if i == 0 or n != numbers[i - 1] + 1]
    return [(numbers[i], numbers[j - 1] + 1) for i, j in zip(starts, [*starts[1:], len(numbers)], strict=True)]
