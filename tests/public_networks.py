"""Blocks as public collections of ConvNets write them, each in a small network of 2-channel, 8x8 images and 3 classes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Around(nn.Module):
    """A convolution with ReLU, the block, global average pooling and a classifier."""

    def __init__(self, block: nn.Module, width: int = 8, out: int | None = None) -> None:
        super().__init__()
        self.stem, self.block = nn.Conv2d(2, width, 3, padding=1, bias=False), block
        self.head = nn.Linear(out or width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(F.relu(self.stem(x))).mean((2, 3)))


class InvertedResidual(nn.Module):
    """MobileNetV2: wide, depthwise, narrow, with a shortcut."""

    def __init__(self, width: int = 8, expansion: int = 2) -> None:
        super().__init__()
        hidden = width * expansion
        self.conv = nn.Sequential(
            *(nn.Conv2d(width, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6(inplace=True)),
            *(nn.Conv2d(hidden, hidden, 3, 1, 1, groups=hidden, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6(inplace=True)),
            *(nn.Conv2d(hidden, width, 1, bias=False), nn.BatchNorm2d(width)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x)


def drop_path(x: Tensor, probability: float, training: bool) -> Tensor:
    if probability == 0.0 or not training:
        return x
    keep = torch.rand(len(x), 1, 1, 1, device=x.device) >= probability
    return x * keep / (1 - probability)


torch.fx.wrap("drop_path")


class GlobalResponseNorm(nn.Module):
    """ConvNeXt V2, channels last."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.zeros(1, 1, 1, width)), nn.Parameter(torch.zeros(1, 1, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        norm = torch.norm(x, p=2, dim=(1, 2), keepdim=True)
        return self.gamma * (x * (norm / (norm.mean(dim=-1, keepdim=True) + 1e-6))) + self.beta + x


class ConvNeXtBlock(nn.Module):
    """Depthwise 7x7, then channels last: LayerNorm, two linear layers, layer scale; stochastic depth."""

    def __init__(self, width: int = 8, response_norm: bool = False, kernel_size: int = 7) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(width, width, kernel_size, padding=kernel_size // 2, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.pwconv1, self.act = nn.Linear(width, 2 * width), nn.GELU()
        self.grn = GlobalResponseNorm(2 * width) if response_norm else nn.Identity()
        self.pwconv2 = nn.Linear(2 * width, width)
        self.gamma = nn.Parameter(1e-6 * torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        x = self.dwconv(x).permute(0, 2, 3, 1)
        x = self.pwconv2(self.grn(self.act(self.pwconv1(self.norm(x)))))
        x = (self.gamma * x).permute(0, 3, 1, 2)
        return shortcut + drop_path(x, 0.1, self.training)


class LayerNorm2d(nn.LayerNorm):
    """Of channels that come first."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps).permute(0, 3, 1, 2)


class Ghost(nn.Module):
    """GhostNet: half the channels from a convolution, the other half from cheap operations on them."""

    def __init__(self, width: int = 8, out: int = 8) -> None:
        super().__init__()
        half, self.out = -(-out // 2), out
        self.primary = nn.Sequential(nn.Conv2d(width, half, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU(inplace=True))
        self.cheap = nn.Sequential(nn.Conv2d(half, half, 3, 1, 1, groups=half, bias=False), nn.BatchNorm2d(half), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        first = self.primary(x)
        return torch.cat([first, self.cheap(first)], dim=1)[:, : self.out, :, :]


class MixedConv(nn.Module):
    """MixNet: windows of several sizes, each on its share of the channels."""

    def __init__(self, width: int = 8, depthwise: bool = True) -> None:
        super().__init__()
        self.splits = [width // 2, width - width // 2]
        self.convs = nn.ModuleList(
            nn.Conv2d(n, n, k, padding=k // 2, groups=n if depthwise else 1, bias=False)
            for n, k in zip(self.splits, (3, 5), strict=True)
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = torch.split(x, self.splits, 1)
        return torch.cat([conv(parts[i]) for i, conv in enumerate(self.convs)], 1)


class Res2Net(nn.Module):
    """Bottle2neck: the channels in four shares, each convolved with the sum of itself and the previous one."""

    def __init__(self, width: int = 8, scale: int = 4) -> None:
        super().__init__()
        self.width, self.scale = width // scale, scale
        self.conv1, self.conv3 = nn.Conv2d(width, width, 1, bias=False), nn.Conv2d(width, width, 1, bias=False)
        self.convs = nn.ModuleList(nn.Conv2d(self.width, self.width, 3, padding=1, bias=False) for _ in range(scale - 1))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.conv1(x))
        spx = torch.split(out, self.width, 1)
        spo: list[Tensor] = []
        sp = spx[0]
        for i, conv in enumerate(self.convs):
            sp = spx[i] if i == 0 else sp + spx[i]
            sp = F.relu(conv(sp))
            spo.append(sp)
        spo.append(spx[len(self.convs)])
        return F.relu(self.conv3(torch.cat(spo, 1)) + x)


class CrossStagePartial(nn.Module):
    """CSP: one half of an expanded layer through the blocks, the other half past them."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.expand, self.inner = nn.Conv2d(width, 2 * width, 1, bias=False), nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.last = nn.Conv2d(2 * width, width, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.expand(x))
        half = x.shape[1] // 2
        past, through = x[:, :half], x[:, half:].contiguous()
        return F.relu(self.last(torch.cat([past, F.relu(self.inner(through))], dim=1)))


def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    batch, channels, height, width = x.size()
    x = x.view(batch, groups, channels // groups, height, width)
    return torch.transpose(x, 1, 2).contiguous().view(batch, -1, height, width)


class ShuffleUnit(nn.Module):
    """ShuffleNet V2, stride 1: one half unchanged, one half convolved, then a shuffle of channels."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        half = width // 2
        self.branch2 = nn.Sequential(
            *(nn.Conv2d(half, half, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU(inplace=True)),
            *(nn.Conv2d(half, half, 3, 1, 1, groups=half, bias=False), nn.BatchNorm2d(half)),
            *(nn.Conv2d(half, half, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU(inplace=True)),
        )

    def forward(self, x: Tensor) -> Tensor:
        x1, x2 = x.chunk(2, dim=1)
        return channel_shuffle(torch.cat((x1, self.branch2(x2)), dim=1), 2)


class HighResolution(nn.Module):
    """HRNet: two resolutions, each added to the other."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down = nn.Conv2d(width, 2 * width, 3, 2, 1, bias=False)
        self.up = nn.Sequential(nn.Conv2d(2 * width, width, 1, bias=False), nn.Upsample(scale_factor=2, mode="nearest"))
        self.fuse = nn.Conv2d(width, 2 * width, 3, 2, 1, bias=False)
        self.low = nn.Conv2d(2 * width, width, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        low = F.relu(self.down(x))
        high = F.relu(x + self.up(low))
        low = F.relu(low + self.fuse(x))
        up = F.interpolate(self.low(low), size=high.shape[-2:], mode="bilinear", align_corners=False)
        return torch.cat([high, F.relu(up)], 1)


class RepVGG(nn.Module):
    """3x3, 1x1 and identity side by side, each with its normalization, then ReLU."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.identity = nn.BatchNorm2d(width)
        self.dense = nn.Sequential(nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width))
        self.point = nn.Sequential(nn.Conv2d(width, width, 1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.dense(x) + self.point(x) + self.identity(x))


class BlurPool(nn.Module):
    """Anti-aliasing: a fixed window on reflected borders, then subsampling."""

    kernel: Tensor

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        row = torch.tensor([1.0, 2.0, 1.0])
        self.register_buffer("kernel", (row[:, None] * row / 16)[None, None].repeat(width, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), self.kernel, stride=2, groups=self.kernel.shape[0])


class Focus(nn.Module):
    """Every second pixel in each of four phases, as channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(32, 8, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        phases = [x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2]]
        return F.relu(self.conv(torch.cat(phases, 1)))


class SpaceToDepth(nn.Module):
    """Blocks of 2x2 pixels as channels, written with view and permute."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(32, 8, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.size()
        x = x.view(n, c, h // 2, 2, w // 2, 2).permute(0, 3, 5, 1, 2, 4).contiguous()
        return F.relu(self.conv(x.view(n, c * 4, h // 2, w // 2)))


class Tokens(nn.Module):
    """Positions as tokens: LayerNorm and a perceptron on channels, then an image again."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm, self.fc1, self.fc2 = nn.LayerNorm(width), nn.Linear(width, 12), nn.Linear(12, width)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        tokens = x.flatten(2).transpose(1, 2)
        tokens = tokens + self.fc2(F.relu(self.fc1(self.norm(tokens))))
        return tokens.transpose(1, 2).reshape(b, c, h, w)


class SqueezeExcitation(nn.Module):
    """With linear layers, as its authors write it."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.avg_pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Sequential(nn.Linear(width, 4, bias=False), nn.ReLU(inplace=True), nn.Linear(4, width), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        b, c, _, _ = x.size()
        y = self.fc(self.avg_pool(x).view(b, c)).view(b, c, 1, 1)
        return x * y.expand_as(x)


class EfficientChannelAttention(nn.Module):
    """ECA: a small window over the means of the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 1, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = x.mean((2, 3)).view(x.shape[0], 1, -1)
        y = self.conv(y).sigmoid().view(x.shape[0], -1, 1, 1)
        return x * y.expand_as(x)


class SpatialGate(nn.Module):
    """CBAM: mean and maximum over channels, convolved to a gate for every position."""

    def __init__(self, keepdim: bool = True) -> None:
        super().__init__()
        self.conv, self.keepdim = nn.Conv2d(2, 1, 7, padding=3, bias=False), keepdim

    def forward(self, x: Tensor) -> Tensor:
        mean, largest = x.mean(1, keepdim=self.keepdim), x.max(1, keepdim=self.keepdim)[0]
        if not self.keepdim:
            mean, largest = mean.unsqueeze(1), largest.unsqueeze(1)
        return x * torch.sigmoid(self.conv(torch.cat([mean, largest], 1)))


class Star(nn.Module):
    """StarNet: the product of two linear maps of one input."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.f1, self.f2, self.g = nn.Conv2d(width, 12, 1), nn.Conv2d(width, 12, 1), nn.Conv2d(12, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.g(F.relu6(self.f1(x)) * self.f2(x))


class GatedLinear(nn.Module):
    """One layer in two halves, one of which is the gate of the other."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, 2 * width, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.conv(x).chunk(2, dim=1)
        return value * torch.sigmoid(gate)


PUBLIC: dict[str, Any] = {
    "inverted residual": lambda: Around(InvertedResidual()),
    "ConvNeXt": lambda: Around(ConvNeXtBlock()),
    "ConvNeXt V2": lambda: Around(nn.Sequential(LayerNorm2d(8), ConvNeXtBlock(response_norm=True))),
    "ghost": lambda: Around(Ghost()),
    "ghost, odd": lambda: Around(Ghost(out=7), out=7),
    "mixed convolution": lambda: Around(nn.Sequential(MixedConv(), nn.ReLU(), MixedConv(depthwise=False), nn.ReLU())),
    "Res2Net": lambda: Around(Res2Net()),
    "cross stage partial": lambda: Around(CrossStagePartial()),
    "ShuffleNet": lambda: Around(nn.Sequential(*(ShuffleUnit() for _ in range(3)))),
    "shuffled groups": lambda: Around(
        nn.Sequential(nn.ChannelShuffle(2), nn.Conv2d(8, 8, 3, padding=1, groups=2), nn.ReLU())
    ),
    "high resolution": lambda: Around(HighResolution(), out=16),
    "RepVGG": lambda: Around(nn.Sequential(RepVGG(), RepVGG())),
    "blur pooling": lambda: Around(BlurPool()),
    "focus": lambda: Around(Focus()),
    "space to depth": lambda: Around(SpaceToDepth()),
    "pixel unshuffle": lambda: Around(nn.Sequential(nn.PixelUnshuffle(2), nn.Conv2d(32, 8, 1), nn.ReLU())),
    "tokens": lambda: Around(Tokens()),
    "squeeze and excitation": lambda: Around(SqueezeExcitation()),
    "efficient channel attention": lambda: Around(EfficientChannelAttention()),
    "spatial gate": lambda: Around(SpatialGate()),
    "spatial gate, axes made again": lambda: Around(SpatialGate(keepdim=False)),
    "star operation": lambda: Around(Star()),
    "gated linear units": lambda: Around(GatedLinear()),
    "group norm": lambda: Around(nn.Sequential(nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8), nn.SiLU())),
    "reflected borders": lambda: Around(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect"), nn.ReLU())),
}
