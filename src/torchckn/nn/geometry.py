"""Window sizes, output sizes and convolutions, shared by layers, pooling and the graph."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..choices import as_integers
from ..errors import ConfigError

Pair = tuple[int, int]


def pair(name: str, value: int | Pair, least: int = 1) -> Pair:
    """``value`` as a validated pair (rows, columns)."""
    both = as_integers(value if isinstance(value, (tuple, list)) else (value, value), least)
    if both is None or len(both) != 2:
        raise ConfigError(f"{name} expected an integer >= {least} or a pair of them, got {value!r}")
    return both[0], both[1]


def conv_output_size(size: Pair, kernel_size: Pair, stride: Pair, padding: Pair, dilation: Pair) -> Pair:
    """Height and width after a convolution, as in torch; below 1 if no patch fits."""
    spans = (size[i] + 2 * padding[i] - dilation[i] * (kernel_size[i] - 1) - 1 for i in (0, 1))
    rows, columns = (span // step + 1 for span, step in zip(spans, stride, strict=True))
    return rows, columns


def convolve(x: Tensor, weight: Tensor, stride: Pair, padding: Pair, dilation: Pair = (1, 1), groups: int = 1) -> Tensor:
    """``F.conv2d``, with the right numbers for images of one channel.

    For such images in the layout of channels last, a stride along rows and responses of one column, torch's convolution on a CPU
    (2.13) reads memory that is not the image's. In the default layout, it does not.
    """
    if x.shape[1] == 1 and stride[1] > 1 and x.device.type == "cpu":
        size, kernel_size = (x.shape[2], x.shape[3]), (weight.shape[2], weight.shape[3])
        if conv_output_size(size, kernel_size, stride, padding, dilation)[1] == 1:
            x = x.clone(memory_format=torch.contiguous_format)
    return F.conv2d(x, weight, None, stride, padding, dilation, groups)


def draw_normal(shape: tuple[int, ...], generator: torch.Generator | None, device: torch.device | str | None) -> Tensor:
    """Random numbers, drawn on the CPU in float64, so that a seed means the same on every device and in every dtype."""
    if device is not None and torch.device(device).type == "meta":
        return torch.empty(shape, dtype=torch.float64, device="meta")
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def filled(numbers: Sequence[float], like: Tensor) -> Tensor:
    """The numbers as a vector, filled in on the device of ``like``: for a copy from the host, the host would wait."""
    return torch.stack([like.new_full((), number) for number in numbers])


def real_device(device: torch.device | str | None) -> torch.device | str | None:
    """``device``, or the CPU in place of meta: for what a network's file does not have."""
    return "cpu" if device is not None and torch.device(device).type == "meta" else device
