"""What tests of training share: small digits, small networks, and one way to train them."""

from __future__ import annotations

import functools
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchckn
from torchckn import data
from torchckn.fit import TrainResult, classifier, folds, head
from torchckn.graph import AveragePool, Conv, Dense, Graph
from torchckn.kernels import RBFSphere


class Patch(Protocol):
    """Such as ``pytest.MonkeyPatch``."""

    def setattr(self, target: object, name: str, value: object) -> None: ...


def try_few_penalties(patch: Patch) -> None:
    """Two L2 penalties and two folds by default, where the paper's 41 and five would take most of the time of a test."""
    search = classifier.search_penalty

    def search_few(trial: Any, lambdas: Any, *rest: Any) -> Any:
        return search(trial, (2.0**-10, 2.0**-18) if lambdas is classifier.LAMBDAS else lambdas, *rest)

    patch.setattr(classifier, "search_penalty", search_few)
    patch.setattr(folds, "search_penalty", search_few)
    patch.setattr(head, "FOLDS", 2)


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


def points(n: int = 60, d: int = 6, classes: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Features of classes that can be told apart, and their labels."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=generator)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    return x + F.one_hot(y, d), y


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


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def two_layers(**options: Any) -> torchckn.CKN:
    nodes = [
        Conv("conv1", filters=6, kernel_size=3, **options),
        AveragePool("pool", kernel_size=2),
        Conv("same", filters=6, init="identity", trainable=False),
        Conv("conv2", filters=5, kernel_size=3, padding=1),
        Dense("dense", filters=7),
    ]
    return torchckn.CKN(Graph((1, 12, 12), nodes), classes=3)


#: for two layers
IMAGES = torch.rand(120, 1, 12, 12, generator=seeded(5))

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
