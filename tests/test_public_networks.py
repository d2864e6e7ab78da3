"""Blocks in the styles of public collections are translated, run, trained, saved and exported; exact where they can be."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from benchmarks import collections
from torch import Tensor, nn

import torchckn
from torchckn import translate, zoo
from torchckn.correspondence import OtherNumber, Report
from torchckn.errors import ConfigError, TranslationError
from torchckn.graph import Conv, KernelNode, MaxPool, ShuffleChannels
from torchckn.kernels import RBFSphere

from .collection_networks import COLLECTIONS
from .networks import Written, conv, end, rows_of, run_and_save
from .public_networks import PUBLIC, Around, SqueezeExcitation, channel_shuffle
from .test_translation_exported import of_export


@pytest.mark.parametrize("name", [*PUBLIC, *COLLECTIONS])
def test_networks_of_public_collections_run_backpropagate_save_and_export(name: str, tmp_path: Any) -> None:
    net = (PUBLIC | COLLECTIONS)[name]()
    ckn = translate(net, (2, 8, 8))
    x = run_and_save(ckn, (2, 8, 8), 3, tmp_path)
    torch.testing.assert_close(torchckn.export.plain(ckn)(x), ckn(x).softmax(1), rtol=1e-4, atol=1e-5)
    if any(isinstance(node, MaxPool) or getattr(node, "groups", 1) > 1 for node in ckn.graph.nodes):
        with pytest.raises(ConfigError, match="no exact kernel"):
            torchckn.exact_kernel(ckn, x)
    else:
        assert torch.linalg.eigvalsh(torchckn.exact_kernel(ckn, x)).min() > 0


@pytest.mark.parametrize("name", PUBLIC)
@pytest.mark.parametrize("width", [{"filters": 5}, {"width": 0.5}], ids=str)
def test_they_take_other_widths_and_numbers_of_channels(name: str, width: dict[str, Any]) -> None:
    assert translate(PUBLIC[name](), (1, 8, 8), **width)(torch.rand(2, 1, 8, 8)).shape == (2, 3)


def test_many_gates_in_a_row_give_features_that_grow_like_the_image() -> None:
    """Without a bound, twelve gates would raise the norm of the image to the power 4,096."""
    ckn = translate(Around(nn.Sequential(*(SqueezeExcitation() for _ in range(12)))), (2, 8, 8), RBFSphere(0.6)).double()
    x = torch.rand(2, 2, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(ckn.features(10 * x), 10 * ckn.features(x))
    assert "a gate of bounded units is divided by its norm" in rows_of(ckn)["mul"].why


def test_a_sum_over_positions_is_pooling_with_a_factor() -> None:
    net = Written(lambda s, x: F.relu(s.a(x)).sum((2, 3)) + x.mean((2, 3)), a=conv(4, 4))
    ckn = translate(net, (4, 5, 5))
    assert ckn.graph.nodes[-1].weights == (25.0, 1.0)  # type: ignore[attr-defined]
    with pytest.raises(TranslationError, match="the sum is not over height and width"):
        translate(Written(lambda s, x: s.a(x).sum(1), a=conv(4, 4)), (4, 5, 5))


#: other ways to write an operation
SAME: dict[str, tuple[Any, Any]] = {
    "mean of means": (lambda s, x: x.mean(3).mean(2), lambda s, x: x.mean((2, 3))),
    "mean, rows first": (lambda s, x: x.mean(2, keepdim=True).mean(3)[:, :, 0], lambda s, x: x.mean((2, 3))),
    "axis": (lambda s, x: x.mean(axis=(2, 3)), lambda s, x: x.mean((2, 3))),
    "mean over columns": (lambda s, x: x.mean(3).flatten(1), lambda s, x: F.adaptive_avg_pool2d(x, (6, 1)).flatten(1)),
    "mean over rows": (
        lambda s, x: s.one(x.mean(2, keepdim=True)).flatten(1),
        lambda s, x: s.one(F.adaptive_avg_pool2d(x, (1, 4))).flatten(1),
    ),
    "channels last": (
        lambda s, x: x.permute(0, 2, 3, 1).mean(1).mean(1),
        lambda s, x: x.mean((2, 3)),
    ),
    "a branch of a stack": (lambda s, x: end(torch.stack((x, s.b(x)), 1)[:, 1]), lambda s, x: end(s.b(x))),
    "stack of a crop": (
        lambda s, x: end(torch.stack((F.avg_pool2d(s.b(x), 2), x[:, :, :3, :2]), 1).sum(1)),
        lambda s, x: end(F.avg_pool2d(s.b(x), 2) + x[:, :, :3, :2]),
    ),
    "GLU": (lambda s, x: end(F.glu(s.b(x), 1)), lambda s, x: end(s.b(x)[:, :4] * torch.sigmoid(s.b(x)[:, 4:]))),
    "GLU, a module": (lambda s, x: end(s.glu(s.b(x))), lambda s, x: end(F.glu(s.b(x), dim=1))),
    "stack and sum": (lambda s, x: end(torch.stack((x, s.b(x))).sum(0)), lambda s, x: end(x + s.b(x))),
    "stack and mean": (
        lambda s, x: end(torch.stack([x, s.b(x)], dim=1).mean(1)),
        lambda s, x: end((x + s.b(x)) * 0.5),
    ),
    "adaptive max pooling": (
        lambda s, x: s.largest(x).flatten(1),
        lambda s, x: F.max_pool2d(x, 2).flatten(1),
    ),
}


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize("tracer", ["symbolic", "export"])
def test_other_ways_to_write_an_operation_give_the_same_features(
    name: str, tracer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.rand(2, 2, 6, 4, generator=torch.Generator().manual_seed(0))
    features = []
    for forward in SAME[name]:
        layers: dict[str, nn.Module] = {"a": conv(2, 8), "b": conv(8, 8), "one": conv(8, 8, 1), "glu": nn.GLU(1)}
        layers["largest"] = nn.AdaptiveMaxPool2d((3, 2))
        net = Written(lambda s, x, forward=forward: forward(s, F.relu(s.a(x))), **layers)
        options: Any = {"classes": 3, "generator": torch.Generator().manual_seed(0)}
        ckn = (
            translate(net, (2, 6, 4), **options) if tracer == "symbolic" else of_export(monkeypatch, net, 2, 6, 4, **options)
        )
        features.append(ckn.features(x).detach())
    if name == "GLU":  # there, two layers of half the width
        assert features[0].shape == features[1].shape
    else:
        torch.testing.assert_close(*features)


#: blocks of which every part but the stem's is exact: splits, shuffles, blocks of pixels, interpolation
EXACT = {
    "split": lambda x, f, g: torch.cat([f(x[:, :3]), g(x[:, 3:])], 1),
    "shuffle": lambda x, f, g: torch.cat([f(F.channel_shuffle(x, 2)[:, :3]), g(F.channel_shuffle(x, 2)[:, 3:])], 1),
    "blocks": lambda x, f, g: F.pixel_unshuffle(torch.cat([f(x[:, :3]), g(x[:, 3:])], 1), 2),
    "interpolation": lambda x, f, g: F.interpolate(f(x[:, :3]), (5, 7), mode="bilinear"),
    "maximum": lambda x, f, g: torch.maximum(f[0](x[:, :3]), g[0](x[:, 3:])),
}


def of_parts(name: str) -> nn.Module:
    def forward(s: Any, x: Tensor) -> Tensor:
        return EXACT[name](F.relu(s.a(x)), s.b, s.c).mean((2, 3))

    return Written(forward, a=conv(2, 8), b=nn.Sequential(conv(3, 4), nn.ReLU()), c=nn.Sequential(conv(5, 4), nn.ReLU()))


@pytest.mark.parametrize("name", EXACT)
def test_random_features_of_parts_approach_the_exact_kernel(name: str) -> None:
    """Monte Carlo: one Gram matrix of 160 filters is off by about 8 %, the mean of 12 by about 2 %."""
    x = torch.randn(4, 2, 6, 6, generator=torch.Generator().manual_seed(0))
    grams = []
    for seed in range(12):
        options = {"strict": True, "filters": 160, "classes": 3, "generator": torch.Generator().manual_seed(seed)}
        ckn = translate(of_parts(name), (2, 6, 6), weights="random-features", **options)
        features = ckn.features(x).double()
        grams.append(features @ features.T)
    exact = torchckn.exact_kernel(ckn, x)
    assert float((torch.stack(grams).mean(0) - exact).norm() / exact.norm()) < 0.1


@pytest.mark.parametrize("name", EXACT)
def test_nystrom_features_of_parts_approach_the_exact_kernel_as_filters_grow(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 2, 6, 6, generator=generator)
    errors = []
    for filters in (8, 32, 128):
        ckn = translate(of_parts(name), (2, 6, 6), strict=True, filters=filters, classes=3)
        torchckn.fit_filters(ckn, x, patches=600, restarts=1, generator=generator)
        features = ckn.features(x[:4]).detach().double()
        exact = torchckn.exact_kernel(ckn, x[:4])
        errors.append(float((features @ features.T - exact).norm() / exact.norm()))
    assert errors[2] < errors[1] < errors[0]
    assert errors[2] < errors[0] / 3


def grouped(shuffle: Any) -> nn.Module:
    """Two layers of two groups, with ``shuffle`` in between."""
    layers = (nn.Conv2d(i, 8, 3, padding=1, groups=2, bias=False) for i in (4, 8))
    return Written(lambda s, x: F.relu(s.b(shuffle(F.relu(s.a(x))))).mean((2, 3)), **dict(zip("ab", layers, strict=True)))


#: orders of channels, and whether the groups of the layer after them read both groups of the layer before
SHUFFLES: dict[str, tuple[Any, bool]] = {
    "none": (lambda x: x, False),
    "shuffle": (lambda x: F.channel_shuffle(x, 2), True),
    "view and transpose": (lambda x: channel_shuffle(x, 2), True),
    "shuffle before pooling": (lambda x: F.avg_pool2d(F.channel_shuffle(x, 2), 2), True),
    "there and back": (lambda x: F.channel_shuffle(F.channel_shuffle(x, 2), 4), False),
    "halves swapped": (lambda x: x[:, [4, 5, 6, 7, 0, 1, 2, 3]], False),
    "quarters": (lambda x: x[:, [0, 1, 4, 5, 2, 3, 6, 7]], True),
}


@pytest.mark.parametrize("name", SHUFFLES)
@pytest.mark.parametrize("filters", [8, *(pytest.param(other, marks=pytest.mark.slow) for other in (4, 16))])
@pytest.mark.parametrize("weights", ["nystrom", "random-features"])
def test_a_shuffle_before_groups_mixes_them_as_in_the_convnet(name: str, filters: int, weights: Any) -> None:
    """A feature depends on both groups of pixels, or on one, whether or not the layers are as wide as the ConvNet's."""
    shuffle, mixes = SHUFFLES[name]
    options: Any = {"weights": weights, "filters": filters, "classes": 3, "generator": torch.Generator().manual_seed(0)}
    ckn = translate(grouped(shuffle), (4, 6, 6), **options)
    x = torch.rand(2, 4, 6, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
    (gradient,) = torch.autograd.grad(ckn.features(x)[:, 0].sum(), x)
    read = (gradient.unflatten(1, (2, 2)).abs().amax((0, 2, 3, 4)) > 0).tolist()
    assert sum(read) == 2 if mixes else sum(read) == 1


DIFFERENTIATED = {
    "split": lambda: of_parts("split"),
    "blocks": lambda: of_parts("blocks"),
    "interpolation": lambda: of_parts("interpolation"),
    "shuffled groups": lambda: Around(
        nn.Sequential(nn.ChannelShuffle(2), nn.Conv2d(8, 8, 3, padding=1, groups=2), nn.ReLU())
    ),
    "gate": PUBLIC["squeeze and excitation"],
    "star operation": PUBLIC["star operation"],
    "gated linear units": PUBLIC["gated linear units"],
}


@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_splits_shuffles_and_products_have_the_gradient_of_finite_differences(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    ckn = translate(DIFFERENTIATED[name](), (2, 6, 6), filters=4, classes=2, generator=generator).double()
    x = torch.randn(2, 2, 6, 6, generator=generator, dtype=torch.float64).requires_grad_()
    network = Written(lambda s, x: s.ckn.features(x), ckn=ckn)
    weights = {name: p.detach().clone() for name, p in network.named_parameters() if "layers" in name and p.requires_grad}

    def features(x: Tensor, *directions: Tensor) -> Tensor:
        """Filters stay on their spheres."""
        unit = [d / d.flatten(1).norm(dim=1).view(-1, *(1,) * (d.ndim - 1)) for d in directions]
        return torch.func.functional_call(network, dict(zip(weights, unit, strict=True)), (x,))

    inputs = (x, *(weight.requires_grad_() for weight in weights.values()))
    assert len(inputs) > 2
    assert torch.autograd.gradcheck(features, inputs, fast_mode=True, atol=1e-6)


def test_part_of_a_shuffled_value_has_its_own_channels() -> None:
    def forward(s: Any, x: Tensor) -> Tensor:
        x = F.relu(F.channel_shuffle(s.a(x), 2))
        return torch.cat([s.b(x), s.c(x[:, 2:6])], 1).mean((2, 3))

    net = Written(forward, a=conv(4, 8), b=nn.Conv2d(8, 8, 1, groups=2), c=nn.Conv2d(4, 4, 1, groups=2))
    ckn = translate(net, (4, 6, 6), classes=3)
    orders = [node.order for node in ckn.graph.nodes if isinstance(node, ShuffleChannels)]
    assert orders == [(0, 4, 1, 5, 2, 6, 3, 7), (0, 2, 1, 3)]
    assert ckn(torch.rand(2, 4, 6, 6)).shape == (2, 3)


def test_some_filters_of_groups_are_one_subspace_for_all_channels() -> None:
    net = Written(lambda s, x: F.relu(s.b(F.relu(s.a(x)))[:, :4]).mean((2, 3)), a=conv(2, 8), b=nn.Conv2d(8, 8, 1, groups=2))
    ckn = translate(net, (2, 6, 6), classes=3)
    assert [(node.filters, node.groups) for node in ckn.graph.nodes if isinstance(node, Conv)] == [(8, 1), (4, 1)]
    assert "some filters of every group become one subspace" in rows_of(ckn)["getitem"].why


def test_width_scales_every_layer_and_classes_and_channels_follow_the_data() -> None:
    net = zoo.build("resnet20")
    quarter = translate(net, (1, 16, 16), width=0.25, classes=5)
    assert quarter(torch.rand(2, 1, 16, 16)).shape == (2, 5)
    assert {node.filters for node in quarter.graph.nodes if isinstance(node, KernelNode)} == {4, 8, 16}
    fixed = translate(net, (1, 16, 16), filters=6)
    assert {node.filters for node in fixed.graph.nodes if isinstance(node, KernelNode)} == {6}
    assert rows_of(quarter)["conv"].why.endswith("number of channels: 1 in the images, 3 in the ConvNet")
    assert quarter.report is not None
    assert quarter.report.other_numbers == (OtherNumber("channels", 1, 3), OtherNumber("classes", 5, 10))
    assert Report.from_json(quarter.report.to_json()) == quarter.report


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


def test_the_count_of_a_collection_goes_on_after_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def own() -> Iterator[tuple[str, Any]]:
        yield "left out", lambda: nn.Identity()
        yield "one feature", lambda: Written(lambda s, x: s.a(x).mean(1).flatten(1), a=nn.Conv2d(3, 4, 8))
        yield "good", lambda: nn.Sequential(nn.Conv2d(3, 4, 8), nn.ReLU(), nn.Flatten(), nn.Linear(4, 2))

    monkeypatch.setitem(collections.COLLECTIONS, "own", own)
    monkeypatch.setattr(sys, "argv", ["collections", "own", "--size", "8", "one feature", "good"])
    with warnings.catch_warnings():
        collections.main()
    out = capsys.readouterr().out
    assert "left out" not in out
    assert "one feature: one feature, centered" in out
    assert "1 of 2 translated" in out
