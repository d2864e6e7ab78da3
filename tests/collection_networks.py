"""More blocks in the styles of two public collections of ConvNets, for 2-channel, 8x8 images and 3 classes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .public_networks import Around, BlurPool, SpaceToDepth, SqueezeExcitation, channel_shuffle


def unit(i: int, o: int, k: int | tuple[int, int] = 1, act: type[nn.Module] = nn.ReLU, **options: Any) -> nn.Sequential:
    """Convolution, batch norm and activation."""
    size = (k, k) if isinstance(k, int) else k
    options = {"padding": (size[0] // 2, size[1] // 2), "bias": False} | options
    return nn.Sequential(nn.Conv2d(i, o, size, **options), nn.BatchNorm2d(o), act())


class GoogLeNet(nn.Module):
    """Normalizes the channels of its input, four branches, a second classifier in training only."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.pool = unit(2, 8, 3), nn.MaxPool2d(3, 2, ceil_mode=True)
        self.branches = nn.ModuleList(
            [
                unit(8, 2),
                nn.Sequential(unit(8, 3), unit(3, 4, 3)),
                nn.Sequential(unit(8, 3), unit(3, 2, 5)),
                nn.Sequential(nn.MaxPool2d(3, 1, 1, ceil_mode=True), unit(8, 2)),
            ]
        )
        self.aux, self.dropout, self.fc = nn.Linear(8, 3), nn.Dropout(0.2), nn.Linear(10, 3)

    def transform(self, x: Tensor) -> Tensor:
        first = torch.unsqueeze(x[:, 0], 1) * (0.229 / 0.5) + (0.485 - 0.5) / 0.5
        second = torch.unsqueeze(x[:, 1], 1) * (0.224 / 0.5) + (0.456 - 0.5) / 0.5
        return torch.cat((first, second), 1)

    def forward(self, x: Tensor) -> Any:
        x = self.pool(self.stem(self.transform(x)))
        aux = self.aux(x.mean((2, 3))) if self.training else None
        x = torch.cat([branch(x) for branch in self.branches], 1)
        x = self.fc(self.dropout(torch.flatten(F.adaptive_avg_pool2d(x, (1, 1)), 1)))
        return (x, aux) if self.training and not torch.jit.is_scripting() else x


class Factorized(nn.Module):
    """Inception V3: 1x7 and 7x1 convolutions, and an average pooling branch."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.pooled = unit(8, 4), unit(8, 4)
        self.long = nn.Sequential(unit(8, 4), unit(4, 4, (1, 7)), unit(4, 4, (7, 1)))
        self.wide, self.high = unit(8, 2, (1, 3)), unit(8, 2, (3, 1))

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.pooled(F.avg_pool2d(x, kernel_size=3, stride=1, padding=1))
        return torch.cat([self.one(x), self.long(x), torch.cat([self.wide(x), self.high(x)], 1), pooled], 1)


class Fire(nn.Module):
    """SqueezeNet."""

    def __init__(self) -> None:
        super().__init__()
        self.squeeze, self.expand1 = nn.Conv2d(8, 3, 1), nn.Conv2d(3, 4, 1)
        self.expand3, self.act = nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.squeeze(x))
        return torch.cat([self.act(self.expand1(x)), self.act(self.expand3(x))], 1)


class DenseLayer(nn.Module):
    """DenseNet with a list of all features so far."""

    def __init__(self, i: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(i), nn.Conv2d(i, 4, 3, padding=1, bias=False)

    def forward(self, inputs: Any) -> Tensor:
        inputs = [inputs] if isinstance(inputs, Tensor) else inputs
        return F.dropout(self.conv(F.relu(self.norm(torch.cat(inputs, 1)))), p=0.1, training=self.training)


class DenseBlock(nn.ModuleDict):
    def __init__(self) -> None:
        super().__init__()
        for i in range(2):
            self.add_module(f"denselayer{i}", DenseLayer(8 + 4 * i))

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.values():
            features.append(layer(features))
        return torch.cat(features, 1)


class StandardizedConv(nn.Conv2d):
    """A convolution whose filters are standardized, and scaled by a trained gain in networks without normalization."""

    def __init__(self, *sizes: int, gain: bool = False, **options: Any) -> None:
        super().__init__(*sizes, **options)
        self.gain = nn.Parameter(torch.ones(self.out_channels, 1, 1, 1)) if gain else None

    def forward(self, x: Tensor) -> Tensor:
        weight = F.batch_norm(self.weight.reshape(1, self.out_channels, -1), None, None, training=True).reshape_as(
            self.weight
        )
        weight = weight if self.gain is None else weight * self.gain
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class PreActivation(nn.Module):
    """ResNetV2 with GroupNorm and standardized filters."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(2, 8), StandardizedConv(8, 4, 1, bias=False)
        self.norm2, self.conv2 = nn.GroupNorm(2, 4), StandardizedConv(4, 8, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv2(F.relu(self.norm2(self.conv1(F.relu(self.norm1(x)))))) + x


class NormalizerFree(nn.Module):
    """NFNet: constants before and after the branch, a gate, a trained gain."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gate = StandardizedConv(8, 8, 3, padding=1, gain=True), SqueezeExcitation()
        self.skip_gain = nn.Parameter(torch.tensor(0.0))

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv(F.gelu(x) * 1.7015 * 0.9)
        out = 2.0 * self.gate(out)
        out.mul_(self.skip_gain)
        return out * 0.2 + x


class DeepAggregation(nn.Module):
    """DLA: a root over the outputs of two blocks and their input."""

    def __init__(self) -> None:
        super().__init__()
        self.tree1, self.tree2, self.root = unit(8, 8, 3), unit(8, 8, 3), nn.Conv2d(24, 8, 1)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: Tensor, children: Any = None) -> Tensor:
        children = [] if children is None else children
        first = self.tree1(x)
        children += [first, x]
        second = self.tree2(first)
        return F.relu(self.norm(self.root(torch.cat([second, *children], 1))) + second)


class DualPath(nn.Module):
    """DPN: some channels are added to the residual path, the others put beside the dense one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = unit(8, 10, 3), unit(10, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        residual, dense = x[:, :6], x[:, 6:]
        for layer in (self.first,):
            out = layer(torch.cat([residual, dense], dim=1))
            residual, dense = residual + out[:, :6], torch.cat([dense, out[:, 6:]], dim=1)
        return self.second(torch.cat([residual, dense[:, :4]], 1))


class PartialResidual(nn.Module):
    """ReXNet: the shortcut is added to the first channels only."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(unit(8, 12, 3, nn.SiLU), nn.Conv2d(12, 12, 1, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv(x)
        return torch.cat([out[:, 0:8] + x, out[:, 8:]], dim=1)


class OneShot(nn.Module):
    """VOVNet: all outputs side by side at once, and a gate of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([unit(8, 4, 3), unit(4, 4, 3), unit(4, 4, 3)])
        self.concat, self.fc = unit(20, 8), nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        outputs = [x]
        for layer in self.layers:
            outputs.append(layer(outputs[-1]))
        out = self.concat(torch.cat(outputs, dim=1))
        return out * F.hardsigmoid(self.fc(out.mean((2, 3), keepdim=True))) + x


class MobileOne(nn.Module):
    """Many branches of one convolution, their normalizations, and a scale branch."""

    def __init__(self) -> None:
        super().__init__()
        self.identity, self.scale = nn.BatchNorm2d(8), nn.Sequential(nn.Conv2d(8, 8, 1, groups=8), nn.BatchNorm2d(8))
        self.convs = nn.ModuleList([nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        out: Any = 0 if self.identity is None else self.identity(x)
        for branch in (self.scale, *self.convs):
            out = out + branch(x)
        return F.relu(out)


class ScaledResidual(nn.Module):
    """Inception-ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.up = unit(8, 3), nn.Sequential(unit(8, 3), unit(3, 3, 3)), nn.Conv2d(6, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + 0.17 * self.up(torch.cat((self.left(x), self.right(x)), 1)))


class Mixer(nn.Module):
    """ConvMixer: a residual depthwise convolution, then a 1x1 convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise = nn.Sequential(nn.Conv2d(8, 8, 5, groups=8, padding="same"), nn.GELU(), nn.BatchNorm2d(8))
        self.pointwise = nn.Sequential(nn.Conv2d(8, 8, 1), nn.GELU(), nn.BatchNorm2d(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.pointwise(self.depthwise(x) + x)


class SelectiveKernel(nn.Module):
    """Branches weighted by a softmax over them; stacked, or with weights that are split."""

    def __init__(self, stacked: bool = True) -> None:
        super().__init__()
        self.a, self.b, self.fc, self.stacked = unit(8, 8, 3), unit(8, 8, 5), nn.Conv2d(8, 16, 1), stacked

    def forward(self, x: Tensor) -> Tensor:
        if self.stacked:
            branches = torch.stack([self.a(x), self.b(x)], dim=1)
            weights = self.fc(branches.sum(1).mean((2, 3), keepdim=True)).view(len(x), 2, 8, 1, 1)
            return (branches * weights.softmax(1)).sum(1)
        a, b = self.a(x), self.b(x)
        weights = F.softmax(self.fc((a + b).mean((2, 3), keepdim=True)).view(len(x), 2, 8), dim=1).view(len(x), 16, 1, 1)
        first, second = weights.chunk(2, dim=1)
        return a * first + b * second


class ConcatenatedBranches(nn.Module):
    """Selective kernels with branches that are concatenated along an axis of their own, and a linear layer for each."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([unit(8, 8, 3, dilation=d, padding=d) for d in (1, 2, 3)])
        self.fc, self.fcs = nn.Linear(8, 4), nn.ModuleList([nn.Linear(4, 8) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        features = torch.cat([conv(x).unsqueeze(1) for conv in self.convs], 1)
        z = self.fc(features.sum(1).mean(-1).mean(-1))
        weights = torch.cat([fc(z).unsqueeze(dim=1) for fc in self.fcs], dim=1).softmax(1)
        return (features * weights.unsqueeze(-1).unsqueeze(-1)).sum(dim=1)


class SplitAttention(nn.Module):
    """ResNeSt: the groups of one convolution, weighted by a softmax over them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc1, self.fc2 = unit(8, 16, 3, groups=2), unit(8, 4), nn.Conv2d(4, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        batch, channels, height, width = x.shape
        x = x.reshape((batch, 2, channels // 2, height, width))
        weights = self.fc2(self.fc1(x.sum(dim=1).mean((2, 3), keepdim=True)))
        weights = F.softmax(weights.view(batch, 1, 2, -1).transpose(1, 2), dim=1).reshape(batch, -1).view(batch, -1, 1, 1)
        return (x * weights.reshape((batch, 2, channels // 2, 1, 1))).sum(dim=1).contiguous()


class MaxFeatureMap(nn.Module):
    """LightCNN: the larger of the two halves of a convolution's channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 16, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.max(*torch.split(self.conv(x), 8, 1))


class PartialConv(nn.Module):
    """FasterNet: the first channels are convolved in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.mlp = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.Sequential(unit(8, 16), nn.Conv2d(16, 8, 1))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        x = x.clone()
        x[:, :4, :, :] = self.conv(x[:, :4, :, :])
        return shortcut + self.mlp(x)


class ShuffledGroups(nn.Module):
    """ShuffleNet V1: grouped 1x1 convolutions with a shuffle in between."""

    def __init__(self) -> None:
        super().__init__()
        self.squeeze, self.expand = unit(8, 8, groups=2), nn.Sequential(nn.Conv2d(8, 8, 1, groups=2), nn.BatchNorm2d(8))
        self.depthwise = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.BatchNorm2d(8))

    def forward(self, x: Tensor) -> Tensor:
        out = self.expand(self.depthwise(channel_shuffle(self.squeeze(x), 2)))
        return F.relu(x + out)


def tresnet() -> nn.Module:
    """Space to depth, leaky ReLU, anti-aliased subsampling, a gate."""
    leaky = nn.LeakyReLU(1e-3)
    return nn.Sequential(SpaceToDepth(), unit(8, 8, 3), leaky, BlurPool(), SqueezeExcitation())


COLLECTIONS: dict[str, Any] = {
    "AlexNet": lambda: nn.Sequential(
        *(nn.Conv2d(2, 8, 5, stride=2, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2), nn.AdaptiveAvgPool2d((2, 2))),
        *(nn.Flatten(), nn.Dropout(), nn.Linear(32, 8), nn.ReLU(inplace=True), nn.Linear(8, 3)),
    ),
    "GoogLeNet": GoogLeNet,
    "Inception V3": lambda: Around(Factorized(), out=16),
    "SqueezeNet": lambda: Around(nn.Sequential(Fire(), nn.Conv2d(8, 8, 1), nn.ReLU(inplace=True))),
    "DenseNet": lambda: Around(
        nn.Sequential(DenseBlock(), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 1), nn.AvgPool2d(2))
    ),
    "MnasNet": lambda: Around(
        nn.Sequential(unit(8, 24), unit(24, 24, 5, groups=24), nn.Conv2d(24, 8, 1), nn.BatchNorm2d(8))
    ),
    "MobileNetV3": lambda: Around(
        nn.Sequential(unit(8, 16, act=nn.Hardswish), unit(16, 16, 5, nn.Hardswish, groups=16), unit(16, 8))
    ),
    "EfficientNetV2": lambda: Around(
        nn.Sequential(unit(8, 32, 3, nn.SiLU), nn.Conv2d(32, 8, 1, bias=False), nn.BatchNorm2d(8))
    ),
    "ResNeXt, RegNet": lambda: Around(
        nn.Sequential(unit(8, 8), unit(8, 8, 3, groups=2), SqueezeExcitation(), unit(8, 8, act=nn.Identity))
    ),
    "ResNetV2": lambda: Around(nn.Sequential(PreActivation(), PreActivation())),
    "NFNet": lambda: Around(NormalizerFree()),
    "DLA": lambda: Around(DeepAggregation()),
    "DPN": lambda: Around(DualPath()),
    "ReXNet": lambda: Around(PartialResidual(), out=12),
    "VOVNet": lambda: Around(OneShot()),
    "MobileOne": lambda: Around(MobileOne()),
    "Inception-ResNet": lambda: Around(ScaledResidual()),
    "ConvMixer": lambda: Around(nn.Sequential(Mixer(), Mixer())),
    "Xception": lambda: Around(
        nn.Sequential(nn.ReLU(), nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.Conv2d(8, 8, 1), nn.MaxPool2d(3, 2, 1))
    ),
    "LCNet": lambda: Around(
        nn.Sequential(unit(8, 8, 5, nn.Hardswish, groups=8), SqueezeExcitation(), unit(8, 8, act=nn.Hardswish))
    ),
    "FasterNet": lambda: Around(PartialConv()),
    "ShuffleNet V1": lambda: Around(ShuffledGroups()),
    "TResNet": lambda: Around(tresnet()),
    "SKNet": lambda: Around(SelectiveKernel()),
    "SKNet, split": lambda: Around(SelectiveKernel(stacked=False)),
    "SKNet, concatenated": lambda: Around(ConcatenatedBranches()),
    "ResNeSt": lambda: Around(SplitAttention()),
    "LightCNN": lambda: Around(MaxFeatureMap()),
}
