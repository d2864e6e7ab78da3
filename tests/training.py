"""What tests of training share: small digits, small networks, and one way to train them."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

import torchckn
from torchckn import data
from torchckn.fit import TrainResult
from torchckn.graph import AveragePool, Conv, Dense, Graph
from torchckn.kernels import RBFSphere


@functools.cache
def mnist_mini() -> data.DataSet:
    """The digits that come with the package, loaded once per process; tests change nothing in place."""
    return data.load("mnist-mini")


def digits(count: int = 300) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Small pictures of digits: training and validation part."""
    images, labels = mnist_mini().train
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[: count + 100]
    small = torch.nn.functional.avg_pool2d(images[order].float() / 255, 2)
    return (small[:count], labels[order][:count]), (small[count:], labels[order][count:])


def network(seed: int = 0, dtype: torch.dtype | None = None) -> torchckn.CKN:
    layers = [
        Conv("conv", filters=8, kernel_size=(5, 5), kernel=RBFSphere(0.6)),
        AveragePool("pool", kernel_size=(2, 2), stride=(2, 2)),
        Dense("dense", filters=12, kernel=RBFSphere(0.6)),
    ]
    return torchckn.CKN(Graph((1, 14, 14), layers), generator=torch.Generator().manual_seed(seed), dtype=dtype)


def convnet() -> torchckn.ScaledConvNet:
    body = nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(150, 20), nn.ReLU(), nn.Linear(20, 10)
    )
    net = torchckn.ScaledConvNet(body, (1, 14, 14), generator=torch.Generator().manual_seed(0))
    return net.initialize_(0.2, torch.Generator().manual_seed(1))


OPTIONS: dict[str, Any] = {"batch_size": 64, "lambdas": [2.0**-6, 2.0**-12], "patches": 300, "folds": 0}


def trained(net: Any = None, seed: int = 0, **options: Any) -> tuple[Any, TrainResult]:
    net = network() if net is None else net
    train_data, valid_data = digits()
    generator = torch.Generator().manual_seed(seed)
    arguments = {"steps": 12, "lr": 2**-4, **OPTIONS, **options}
    return net, torchckn.train(net, train_data, valid_data, generator=generator, **arguments)


class Dropping(torchckn.ScaledConvNet):
    """A ConvNet with dropout, as a module or as a function."""

    def features(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(super().features(x), 0.5, self.training)


def dropping() -> Dropping:
    layers = nn.Sequential(nn.Conv2d(1, 6, 5), nn.ReLU(), nn.AvgPool2d(5), nn.Flatten(), nn.Linear(24, 10))
    net = Dropping(layers, (1, 14, 14), generator=torch.Generator().manual_seed(0))
    net.initialize_(0.2, torch.Generator().manual_seed(1))
    return net


class StopHereError(Exception):
    pass


class StopAfter(torchckn.Callback):
    """Raises after a step, as if the process had been killed."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_validation_end(self, training: Any, record: dict[str, Any]) -> None:
        if record["step"] == self.step == 0:
            raise StopHereError

    def on_step_end(self, training: Any, record: dict[str, Any]) -> None:
        if record["step"] == self.step:
            raise StopHereError
