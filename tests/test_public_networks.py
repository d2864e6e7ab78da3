"""Blocks in the styles of public collections are translated, run, trained, saved and exported; exact where they can be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchckn
from torchckn import translate, zoo
from torchckn.errors import ConfigError, TranslationError
from torchckn.graph import KernelNode

from .collection_networks import COLLECTIONS, REFUSED
from .networks import Written, conv, rows_of, run
from .public_networks import PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_blocks_of_public_collections_run_backpropagate_save_and_export(name: str, tmp_path: Any) -> None:
    ckn = translate(PUBLIC[name](), (2, 8, 8))
    assert run(ckn, 2, 8, 8).shape == (3, 3)
    again = torchckn.load(torchckn.save(ckn.eval(), tmp_path / "model"))
    x = torch.rand(2, 2, 8, 8)
    assert torch.equal(again(x), ckn(x))
    torch.testing.assert_close(torchckn.export.plain(ckn)(x), ckn(x).softmax(1), rtol=1e-4, atol=1e-5)
    for width in ({"filters": 5}, {"width": 0.5}):
        other = translate(PUBLIC[name](), (1, 8, 8), **width)
        assert other(torch.rand(2, 1, 8, 8)).shape == (2, 3)


@pytest.mark.parametrize("name", COLLECTIONS)
def test_more_networks_of_public_collections_run_backpropagate_and_save(name: str, tmp_path: Any) -> None:
    ckn = translate(COLLECTIONS[name](), (2, 8, 8))
    assert run(ckn, 2, 8, 8).shape == (3, 3)
    again = torchckn.load(torchckn.save(ckn.eval(), tmp_path / "model"))
    x = torch.rand(2, 2, 8, 8)
    assert torch.equal(again(x), ckn(x))


@pytest.mark.parametrize("name", REFUSED)
def test_networks_of_public_collections_that_are_refused_are_told_why(name: str) -> None:
    build, reason = REFUSED[name]
    with pytest.raises(TranslationError, match=reason):
        translate(build(), (2, 8, 8))


def test_a_sum_over_positions_is_pooling_with_a_factor() -> None:
    net = Written(lambda s, x: F.relu(s.a(x)).sum((2, 3)) + x.mean((2, 3)), a=conv(4, 4))
    ckn = translate(net, (4, 5, 5))
    assert ckn.graph.nodes[-1].weights == (25.0, 1.0)  # type: ignore[attr-defined]
    with pytest.raises(TranslationError, match="the sum is not over height and width"):
        translate(Written(lambda s, x: s.a(x).sum(1), a=conv(4, 4)), (4, 5, 5))


#: blocks of which every part but the stem's is exact: splits, shuffles, blocks of pixels, interpolation
EXACT = {
    "split": lambda x, f, g: torch.cat([f(x[:, :3]), g(x[:, 3:])], 1),
    "shuffle": lambda x, f, g: torch.cat([f(F.channel_shuffle(x, 2)[:, :3]), g(F.channel_shuffle(x, 2)[:, 3:])], 1),
    "blocks": lambda x, f, g: F.pixel_unshuffle(torch.cat([f(x[:, :3]), g(x[:, 3:])], 1), 2),
    "interpolation": lambda x, f, g: F.interpolate(f(x[:, :3]), (5, 7), mode="bilinear"),
}


@pytest.mark.parametrize("name", EXACT)
def test_random_features_of_parts_approach_the_exact_kernel(name: str) -> None:
    """Monte Carlo: one Gram matrix of 160 filters is off by about 8 %, the mean of 12 by about 2 %."""

    def forward(s: Any, x: Tensor) -> Tensor:
        return EXACT[name](F.relu(s.a(x)), s.b, s.c).mean((2, 3))

    net = Written(forward, a=conv(2, 8), b=nn.Sequential(conv(3, 4), nn.ReLU()), c=nn.Sequential(conv(5, 4), nn.ReLU()))
    x = torch.randn(4, 2, 6, 6, generator=torch.Generator().manual_seed(0))

    grams = []
    for seed in range(12):
        options = {"strict": True, "filters": 160, "classes": 3, "generator": torch.Generator().manual_seed(seed)}
        ckn = translate(net, (2, 6, 6), weights="random-features", **options)
        features = ckn.features(x).double()
        grams.append(features @ features.T)
    exact = torchckn.exact_kernel(ckn, x)
    assert float((torch.stack(grams).mean(0) - exact).norm() / exact.norm()) < 0.1


def test_width_scales_every_layer_and_classes_and_channels_follow_the_data() -> None:
    net = zoo.build("resnet20")
    quarter = translate(net, (1, 16, 16), width=0.25, classes=5)
    assert quarter(torch.rand(2, 1, 16, 16)).shape == (2, 5)
    assert {node.filters for node in quarter.graph.nodes if isinstance(node, KernelNode)} == {4, 8, 16}
    fixed = translate(net, (1, 16, 16), filters=6)
    assert {node.filters for node in fixed.graph.nodes if isinstance(node, KernelNode)} == {6}
    assert rows_of(quarter)["conv"].why.endswith("the images have 1 channels, the ConvNet takes 3")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"filters": 0}, "filters expected an integer >= 1, or None for the network's own widths, got 0"),
        ({"width": -1}, "width expected a positive factor such as 0.25, got -1"),
        ({"filters": 4, "width": 0.5}, "expected filters or width, got both, filters=4 and width=0.5"),
    ],
)
def test_widths_that_cannot_be_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        translate(zoo.build("resnet20"), **options)
