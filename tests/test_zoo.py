from __future__ import annotations

from typing import Any

import pytest
import torch

from torchckn import zoo
from torchckn.errors import ConfigError


@pytest.mark.parametrize("name", zoo.names())
@pytest.mark.parametrize("filters", [4, 8])
def test_every_network_runs_at_any_width(name: str, filters: int) -> None:
    net = zoo.build(name, filters=filters, classes=7).eval()
    assert net(torch.randn(2, *net.input_shape)).shape == (2, 7)


#: parameters with biases at the original widths, from the descriptions in the literature
PARAMETERS = {
    "lenet1": (1 * 25 + 1) * 4 + 8 + (4 * 25 + 1) * 12 + 24 + (12 * 16 + 1) * 10,
    "lenet5": 26 * 6 + 12 + (6 * 25 + 1) * 16 + 32 + (400 + 1) * 120 + 121 * 84 + 85 * 10,
    # 1.37 million in the paper of All-CNN-C, and the 110 of the added layer
    "allcnn": 28 * 96 + 865 * 96 * 2 + 865 * 192 + 1729 * 192 * 3 + 193 * 192 + 193 * 10 + 110,
    "nin": 966_986,
}


#: of the networks for photographs and of the deep ones for CIFAR-10, from the publications and their reference code
PARAMETERS |= {
    "convnext-atto": 3_695_520,  # 3.7 million
    "densenet": 769_162,  # 0.8 million
    "efficientnet-b0": 5_288_548,  # 5.3 million
    "mobilenetv2": 3_504_872,  # 3.4 million in the publication, 3.5 in its code
    "seresnet50": 28_088_024,  # 28.1 million
    "wideresnet": 36_479_194,  # 36.5 million
}


def count(net: torch.nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_original_widths_have_the_parameters_of_the_literature(name: str) -> None:
    assert count(zoo.build(name)) == PARAMETERS[name]


#: images of other channels and sizes than those of the publications
OTHERS = {
    "alexnet": (1, 67, 80),
    "convnext-atto": (4, 40, 32),
    "vgg11": (2, 64, 33),
    "lenet1": (3, 16, 21),
    "lenet5": (3, 40, 32),
}


@pytest.mark.parametrize("name", zoo.names())
def test_every_network_takes_other_channels_and_sizes(name: str) -> None:
    shape = OTHERS.get(name, (2, 40, 33))
    net = zoo.build(name, filters=4, classes=3, **zoo.ARCHITECTURES[name].load().options_for(shape)).eval()
    assert net(torch.randn(2, *shape)).shape == (2, 3)
    assert net.input_shape[0] == shape[0]


def test_resnet20_has_its_270_thousand_parameters_and_20_layers() -> None:
    net = zoo.build("resnet20")
    weighted = [m for m in net.modules() if isinstance(m, (torch.nn.Conv2d, torch.nn.Linear))]
    assert len(weighted) == 20
    assert count(net) == 269_722


def test_vgg11_and_alexnet_have_their_weighted_layers() -> None:
    for name, layers in (("vgg11", 11), ("alexnet", 8)):
        net = zoo.build(name, filters=4)
        weighted = [m for m in net.modules() if isinstance(m, (torch.nn.Conv2d, torch.nn.Linear))]
        assert len(weighted) == layers


#: the columns of the appendix's matrices C3 transposed: the maps that each filter is connected to
CONNECTED_MAPS = {
    "lenet1": "0 01 01 1 01 01 2 23 23 3 23 23",
    "lenet5": "012 123 234 345 045 015 0123 1234 2345 0345 0145 0125 0134 1245 0235 012345",
}


@pytest.mark.parametrize("name", CONNECTED_MAPS)
def test_incomplete_connection_schemes_are_those_of_the_paper(name: str) -> None:
    net = zoo.build(name, connections="incomplete")
    (masked,) = [m for m in net.modules() if isinstance(m, zoo.MaskedConv2d)]
    rows = [[float(str(z) in maps) for z in range(masked.in_channels)] for maps in CONNECTED_MAPS[name].split()]
    torch.testing.assert_close(masked.scheme.flatten(1), torch.tensor(rows))
    x = torch.randn(1, *net.input_shape)
    before = net(x)
    with torch.no_grad():  # connections that are not there do not matter
        masked.weight += 100 * (1 - masked.scheme)
    torch.testing.assert_close(net(x), before)


def test_biases_are_optional() -> None:
    for name in ("lenet1", "lenet5", "allcnn"):
        assert not [n for n, _ in zoo.build(name, bias=False).named_parameters() if n.endswith("bias")]


def test_lenet5_takes_28_pixels_with_padding() -> None:
    net = zoo.build("lenet5", padding=2)
    assert net.input_shape == (1, 28, 28)
    assert net(torch.zeros(1, 1, 28, 28)).shape == (1, 10)


def test_allcnn_has_the_shapes_of_the_appendix() -> None:
    net = zoo.build("allcnn")
    shapes = []
    for layer in net.layers:  # type: ignore[union-attr]
        if isinstance(layer, torch.nn.ReLU):
            layer.register_forward_hook(lambda _m, _i, out: shapes.append(tuple(out.shape[1:])))
    net(torch.zeros(1, 3, 32, 32))
    sides = [(96, 32), (96, 32), (96, 15), (192, 15), (192, 15), (192, 7), (192, 7), (192, 7), (10, 7)]
    assert shapes == [(c, n, n) for c, n in sides]


def test_the_scaled_tanh_is_about_one_at_one() -> None:
    assert zoo.ScaledTanh()(torch.ones(1)).item() == pytest.approx(1, abs=1e-4)


def test_a_locally_connected_layer_is_a_convolution_where_its_filters_are_equal() -> None:
    local = zoo.LocallyConnected2d(2, 3, 3, 6, stride=2, padding=1, bias=False)
    with torch.no_grad():
        local.weight.copy_(local.weight[:1].expand_as(local.weight).clone())
    x = torch.randn(2, 2, 6, 6)
    torch.testing.assert_close(local(x), torch.nn.functional.conv2d(x, local.weight[0], stride=2, padding=1))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: zoo.build("lenet"), "unknown architecture 'lenet'.*Did you mean 'lenet[15]'"),
        (lambda: zoo.build("lenet5", dropuot=1), "unknown option of lenet5 'dropuot'"),
        (lambda: zoo.build("lenet5", filters=0), "filters expected an integer >= 1, or None for the original widths, got 0"),
        (
            lambda: zoo.build("lenet5", filters=8, connections="incomplete"),
            r"defined for the original widths \(6, 16\) only, got filters=8",
        ),
        (lambda: zoo.build("lenet5", connections="none"), "unknown connection scheme 'none'"),
        (lambda: zoo.build("lenet5", padding=5), "padding expected an integer from 0 to 4, got 5; use 2 for 28x28"),
        (lambda: zoo.build("vgg11", image_size=20), "image_size expected an integer >= 32 or a pair of them, got 20"),
        (lambda: zoo.build("resnet20", in_channels=0), "in_channels expected an integer >= 1, got 0"),
        (lambda: zoo.build("alexnet", filters=3), "filters expected a multiple of groups=2, got 3"),
        (lambda: zoo.LocallyConnected2d(1, 1, 5, 3), r"at least one \(5, 5\) patch, got \(3, 3\)"),
    ],
)
def test_bad_requests_are_refused_with_a_reason(call: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()
