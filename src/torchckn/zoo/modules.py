"""Modules of the zoo that torch does not have."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ConfigError
from ..nn.geometry import Pair, conv_output_size, pair


class ScaledTanh(nn.Module):
    """1.7159 tanh(2/3 x), the nonlinearity of the LeNets: f(1) is about 1, and f(-1) about -1."""

    def forward(self, x: Tensor) -> Tensor:
        return 1.7159 * torch.tanh(2 / 3 * x)


class ChannelScale(nn.Module):
    """A trainable scale and bias per channel: the trainable part of the LeNets' average pooling."""

    def __init__(self, channels: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        scaled = x * self.weight[:, None, None]
        return scaled if self.bias is None else scaled + self.bias[:, None, None]


class MaskedConv2d(nn.Conv2d):
    """A convolution with an incomplete connection scheme: filter k is connected to channel z where ``scheme[k][z]`` is 1."""

    scheme: Tensor

    def __init__(self, scheme: Sequence[Sequence[int]], kernel_size: int, bias: bool = True) -> None:
        mask = torch.tensor(scheme)
        super().__init__(mask.shape[1], mask.shape[0], kernel_size, bias=bias)
        self.register_buffer("scheme", mask[:, :, None, None].to(self.weight.dtype))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight * self.scheme, self.bias, self.stride, self.padding)


class Subsample(nn.Module):
    """Every ``stride``-th pixel, then ``extra_channels`` zero channels: the parameter-free shortcut of a ResNet (option A)."""

    def __init__(self, stride: int, extra_channels: int = 0) -> None:
        super().__init__()
        self.stride = stride
        self.extra_channels = extra_channels

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, :, :: self.stride, :: self.stride]
        return F.pad(x, (0, 0, 0, 0, 0, self.extra_channels))


class LocallyConnected2d(nn.Module):
    """A convolution with different filters at every position: the partially connected layer of the paper's table 1.

    ``weight`` is (positions, out_channels, in_channels, kh, kw), positions row by row.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Pair,
        input_size: int | Pair,
        stride: int | Pair = 1,
        padding: int | Pair = 0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size = pair("kernel_size", kernel_size)
        self.input_size = pair("input_size", input_size)
        self.stride, self.padding = pair("stride", stride), pair("padding", padding, least=0)
        self.output_size = conv_output_size(self.input_size, self.kernel_size, self.stride, self.padding, (1, 1))
        if min(self.output_size) < 1:
            raise ConfigError(
                f"LocallyConnected2d expected an input_size of at least one {self.kernel_size} patch, got {self.input_size}"
            )
        positions = self.output_size[0] * self.output_size[1]
        bound = (in_channels * self.kernel_size[0] * self.kernel_size[1]) ** -0.5
        self.weight = nn.Parameter(
            torch.empty(positions, out_channels, in_channels, *self.kernel_size).uniform_(-bound, bound)
        )
        self.bias = nn.Parameter(torch.zeros(out_channels, *self.output_size)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        patches = F.unfold(x, self.kernel_size, padding=self.padding, stride=self.stride)  # (N, s, L)
        values = torch.einsum("lfs,nsl->nfl", self.weight.flatten(2), patches).unflatten(2, self.output_size)
        return values if self.bias is None else values + self.bias
