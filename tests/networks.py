"""Networks as people write them, and what tests of translation share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchckn
from torchckn import zoo


def rows_of(ckn: torchckn.CKN) -> dict[str, Any]:
    assert ckn.report is not None
    return {row.source: row for row in ckn.report.rows}


def run(ckn: torchckn.CKN, *shape: int) -> Tensor:
    """Forward and backward; every filter that can be trained gets a gradient."""
    torch.manual_seed(0)
    scores = ckn(torch.randn(3, *shape, dtype=ckn.head.weight.dtype))
    scores.square().sum().backward()
    for name, parameter in ckn.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert torch.isfinite(parameter.grad).all(), name
    return scores


def run_and_save(ckn: torchckn.CKN, shape: tuple[int, int, int], classes: int, folder: Path) -> Tensor:
    """Forward, backward, saved and loaded; images that it was compared on."""
    assert run(ckn, *shape).shape == (3, classes)
    again = torchckn.load(torchckn.save(ckn.eval(), folder / "model"))
    x = torch.rand(2, *shape)
    with torch.no_grad():
        assert torch.equal(again(x), ckn(x))
    assert again.report == ckn.report
    return x


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 6, 3, padding="same")
        self.dense, self.out = nn.Linear(6 * 5 * 5, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool2d(F.relu(self.conv1(x)), 2)
        x = torch.relu(self.conv2(x))
        x = x.view(x.size(0), -1)
        x = F.dropout(self.dense(x).relu(), 0.5, self.training)
        return F.log_softmax(self.out(x), dim=1)


class Nested(nn.Module):
    class Block(nn.Module):
        def __init__(self, i: int, o: int) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x)

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([self.Block(1, 4), self.Block(4, 4), self.Block(4, 6)])
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        for i, block in enumerate(self.blocks):
            x = block(x)
            if i < 2:
                x = F.max_pool2d(x, 2)
        return self.out(x.mean([-2, -1]))


class MultiBranch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 3, 1), nn.Conv2d(1, 4, 5, padding=2)
        self.c = nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(), nn.Conv2d(2, 4, 3, padding=1))
        self.out = nn.Linear(11, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.a(x), self.b(x), self.c(x)], dim=1).relu()
        return self.out(F.adaptive_avg_pool2d(x, (1, 1)).flatten(1))


class PreActivation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv1, self.conv2 = (nn.Conv2d(i, 4, 3, padding=1) for i in (1, 4, 4))
        self.norm1, self.norm2, self.out = nn.BatchNorm2d(4), nn.BatchNorm2d(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.conv2(F.relu(self.norm2(self.conv1(F.relu(self.norm1(x))))))
        return self.out(F.relu(x).mean((2, 3)))


class Depthwise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.depth, self.point = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 6, 1)
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu6(self.stem(x))
        x = F.silu(self.point(F.hardswish(self.depth(x))))
        return self.out(x.mean((2, 3)))


class Concatenating(nn.Module):
    """Features of two depths, flattened and put side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.out = nn.Conv2d(1, 3, 3), nn.Conv2d(3, 2, 3, dilation=2), nn.Linear(3 * 100 + 2 * 36, 3)

    def forward(self, x: Tensor) -> Tensor:
        one = torch.tanh(self.one(x))
        two = torch.sigmoid(self.two(one))
        return self.out(torch.cat((one.flatten(1), two.reshape(two.shape[0], -1)), 1))


class Locally(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.local = zoo.LocallyConnected2d(1, 3, 3, 12, stride=3)
        self.out = nn.Linear(3 * 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.local(x)).flatten(1))


class Subclassed(nn.Conv2d):
    """A convolution by another name, which keeps its forward."""


class WeightScaled(nn.Conv2d):
    """A convolution with a forward of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight * 2, self.bias, self.stride, self.padding, self.dilation, self.groups)


class DenselyConnected(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(1 + 2 * i, 2, 3, padding=1) for i in range(3))
        self.out = nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = torch.cat([x, F.relu(conv(x))], 1)
        return self.out(x[:, :, ::2, ::2].mean(dim=(2, 3)))


class Lambda(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def lambda_network() -> nn.Module:
    return nn.Sequential(
        Lambda(lambda x: x * 2 - 1),
        nn.Conv2d(1, 4, 3),
        Lambda(lambda x: 1.7159 * torch.tanh(x * 2 / 3)),
        Lambda(lambda x: x.flatten(1)),
        nn.Linear(400, 3),
    )


NETWORKS: dict[str, Any] = {
    "functional": Functional,
    "nested modules": Nested,
    "branches": MultiBranch,
    "pre-activation residual": PreActivation,
    "depthwise": Depthwise,
    "concatenated vectors": Concatenating,
    "locally connected": Locally,
    "densely connected": DenselyConnected,
    "lambdas": lambda_network,
    "sequential": lambda: nn.Sequential(
        nn.ZeroPad2d(1), nn.Conv2d(1, 4, 3), nn.GELU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(144, 3), nn.Softmax(1)
    ),
    "even window, same padding": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 4, padding="same"), nn.LeakyReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3)
    ),
    "all convolutional": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ),
    "local response": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.LocalResponseNorm(4), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(100, 3)
    ),
    "subclassed convolution": lambda: nn.Sequential(
        Subclassed(1, 4, 3), nn.ReLU(), WeightScaled(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(256, 3)
    ),
    "activation after a vector": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 12), nn.Flatten(), nn.ReLU(), nn.Linear(4, 5), nn.Dropout(0.1), nn.ReLU(), nn.ReLU(), nn.Linear(5, 3)
    ),
}


class Written(nn.Module):
    """A network given by a function of its layers and the image."""

    def __init__(self, forward: Any, **layers: Any) -> None:
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.written = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.written(self, x)


def conv(i: int = 1, o: int = 4, k: int = 3) -> nn.Conv2d:
    return nn.Conv2d(i, o, k, padding=k // 2, bias=False)


def end(x: Tensor) -> Tensor:
    return x.mean((2, 3))
