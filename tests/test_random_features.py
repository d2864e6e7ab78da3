"""Random features: the finite network that a CKN approximates, and how far both are from the exact kernel."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchckn
from torchckn import translate, zoo
from torchckn.errors import ConfigError
from torchckn.graph import Conv, Dense
from torchckn.kernels import ArcCosine, Linear, RBFSphere


def small_net() -> nn.Module:
    first = nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AvgPool2d(2)
    return nn.Sequential(*first, nn.Conv2d(4, 4, 2), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 3))


@pytest.mark.parametrize("name", ["lenet1", "allcnn"])
def test_random_features_give_the_finite_network_that_the_ckn_stands_for(name: str) -> None:
    net = zoo.build(name, filters=6)
    finite = translate(net, weights="random-features", generator=torch.Generator().manual_seed(0))
    assert finite(torch.rand(2, *net.input_shape)).shape == (2, 10)
    trained = [n for n, _ in finite.named_parameters()]
    assert trained == ["head.weight", "head.bias"]


def test_features_of_both_kinds_approach_the_exact_kernel(tmp_path: Any) -> None:
    images = F.avg_pool2d(torch.rand(60, 1, 14, 14, generator=torch.Generator().manual_seed(0)), 3, 1)
    comparison = torchckn.compare_kernels(translate(small_net(), (1, 12, 12)), images, (4, 64), held_out=4, patches=500)
    errors = {(row.filters, row.method): row.median for row in comparison.rows}
    assert errors[64, "random-features"] < errors[4, "random-features"]
    assert errors[64, "nystrom"] < errors[64, "random-features"]
    assert "4 images, median of 3 seeds" in str(comparison)
    assert json.loads(json.dumps(comparison.to_json()))["images"] == 4
    comparison.plot(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 5000


def test_random_features_of_one_layer_have_the_exact_kernel_as_their_mean() -> None:
    for kernel in (Linear(), ArcCosine(0), ArcCosine(1), ArcCosine(2), RBFSphere(0.6)):
        nodes = [
            Conv("conv", filters=40_000, kernel_size=(2, 2), kernel=kernel),
            Dense("dense", filters=40_000, kernel=kernel),
        ]
        for node in nodes:
            graph = torchckn.Graph((2, 3, 3), [node])
            g = torch.Generator().manual_seed(0)
            images = torch.randn(3, 2, 3, 3, generator=g, dtype=torch.float64)
            features = torchckn.CKN(graph, weights="random-features", generator=g, dtype=torch.float64).features(images)
            exact = torchckn.exact_kernel(graph, images)
            assert (features @ features.T - exact).norm() < 0.05 * exact.norm()


def test_a_nonlinearity_after_pooling_is_itself_in_the_random_network() -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 20_000, 3, bias=False), nn.AvgPool2d(2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    finite = translate(
        net, (1, 6, 6), weights="random-features", generator=torch.Generator().manual_seed(0), classes=2
    ).double()
    images = torch.randn(3, 1, 6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weights = finite.layers["_0"].weight  # the ConvNet that it is, by hand: Gaussian weights, pooling, ReLU
    by_hand = F.relu(F.avg_pool2d(F.conv2d(images, weights), 2)).mean((2, 3)) * (2 / 20_000) ** 0.5
    torch.testing.assert_close(finite.features(images), by_hand)
    exact = torchckn.exact_kernel(finite.graph, images)
    features = finite.features(images)
    assert (features @ features.T - exact).norm() < 0.05 * exact.norm()


def test_comparing_kernels_needs_images_to_spare_and_random_features() -> None:
    with pytest.raises(torchckn.DataError, match="more than 8 images"):
        torchckn.compare_kernels(translate(small_net(), (1, 12, 12)), torch.rand(8, 1, 12, 12))
    with pytest.raises(ConfigError, match="Matern has no random features"):
        translate(small_net(), (1, 12, 12), torchckn.kernels.Matern(1.5, 0.6), weights="random-features")(
            torch.rand(1, 1, 12, 12)
        )


class Activated(nn.Module):
    def __init__(self, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.activation = activation
        self.conv, self.head = nn.Conv2d(1, 8, 3, bias=False), nn.Linear(128, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.activation(self.conv(x)).flatten(1))


@pytest.mark.parametrize(
    "activation",
    [
        nn.LeakyReLU(0.1),
        nn.ELU(0.5),
        nn.PReLU(),
        lambda u: F.leaky_relu(u, 0.1),
        lambda u: u.clamp(-0.5, 1),
        lambda u: u * torch.sigmoid(1.7 * u),
    ],
    ids=["LeakyReLU", "ELU", "PReLU", "leaky_relu", "clamp", "composition"],
)
def test_an_activation_with_parameters_of_its_own_has_random_features(activation: Callable[[Tensor], Tensor]) -> None:
    net, images = Activated(activation), torch.rand(5, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    finite = translate(net, (1, 6, 6), weights="random-features", filters=20_000, generator=torch.Generator().manual_seed(0))
    features, exact = finite.features(images).double(), torchckn.exact_kernel(finite, images)
    assert float((features @ features.T - exact).norm() / exact.norm()) < 0.03
    assert torch.equal(copy.deepcopy(finite)(images), finite(images))
    comparison = torchckn.compare_kernels(translate(net, (1, 6, 6)), images, (4,), held_out=2, seeds=1, patches=20)
    assert {row.method for row in comparison.rows} == {"nystrom", "random-features"}


def test_a_network_whose_activation_cannot_be_pickled_can_be() -> None:
    ckn, images = translate(Activated(lambda u: u.clamp(-0.5, 1)), (1, 6, 6)), torch.rand(2, 1, 6, 6)
    again = pickle.loads(pickle.dumps(ckn))
    assert torch.equal(again(images), ckn(images))
    assert again.graph == ckn.graph
