from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import torchckn
from torchckn import presets, runs
from torchckn.bench import measure
from torchckn.building import build_convnet, build_network, load_images
from torchckn.errors import ConfigError
from torchckn.kernels import RBFSphere
from torchckn.settings import settings_from

from .command_line import Result


def test_ckn_cifar_is_two_layers_on_whitened_patches() -> None:
    images = torch.randint(0, 256, (20, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    ckn = presets.build("ckn-cifar", images)
    assert ckn.graph.shapes["whiten"] == (27, 32, 32)
    assert ckn.graph.shapes["pool1"] == (64, 16, 16)
    assert ckn.graph.features == 2304
    assert ckn(images[:2].float() / 255).shape == (2, 10)
    with pytest.raises(ConfigError, match="unknown kernel network 'ckn-cifr'.*Did you mean 'ckn-cifar'"):
        presets.build("ckn-cifr", images)


def test_ckn_cifar5_is_five_layers_of_equal_width() -> None:
    images = torch.rand(20, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    ckn = presets.build("ckn-cifar5", images, 4, filters=8, kernel=RBFSphere(0.5), centering="feature")
    layers = [ckn.graph.shapes[f"conv{i}"] for i in range(1, 6)]
    assert layers == [(8, 32, 32), (8, 16, 16), (8, 16, 16), (8, 8, 8), (8, 8, 8)]
    assert ckn.graph.features == 8 * 3 * 3
    assert ckn(images[:2]).shape == (2, 4)
    assert ckn.layers["conv5"].kernel.sigma == 0.5


def test_filters_of_ckn_cifar_are_those_of_the_first_layer() -> None:
    ckn = presets.build("ckn-cifar", torch.rand(9, 1, 28, 28, generator=torch.Generator().manual_seed(0)), filters=4)
    assert [ckn.graph.shapes[name][0] for name in ("conv1", "conv2")] == [4, 16]


def test_the_regularization_of_a_kernel_network_is_an_option() -> None:
    given = settings_from({"network": "ckn-cifar", "options": {"whiten_eps": 0.1, "eps": 0.003}}, "test")
    ckn = build_network(given, load_images(given), torch.Generator())
    assert isinstance(ckn, torchckn.CKN)
    assert {layer.eps for layer in ckn.layers.values() if isinstance(layer, torchckn.nn.KernelConv2d)} == {0.003}
    assert next(module.eps for module in ckn.modules() if isinstance(module, torchckn.nn.Whitening)) == 0.1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "convnet"}, "ckn-cifar5 is a kernel network without a ConvNet; expected kind = 'ckn', got 'convnet'"),
        ({"kernel": "match"}, "no activations that a kernel could match; expected a kernel such as rbf:0.6, got 'match'"),
        ({"whiten": True}, "whiten is for networks of the zoo and your own, not for ckn-cifar5; remove it"),
        ({"options": {"bias": False}}, "unknown option of ckn-cifar5 'bias': expected one of eps, whiten_eps"),
        ({"options": {"eps": -1}}, "eps of ckn-cifar5 expected a number > 0, got -1"),
        ({"options": {"whiten_eps": "small"}}, "whiten_eps of ckn-cifar5 expected a number > 0, got 'small'"),
    ],
)
def test_options_that_a_kernel_network_does_not_have_are_refused(settings: dict[str, Any], message: str) -> None:
    given = settings_from({"network": "ckn-cifar5"} | settings, "test")
    with pytest.raises(ConfigError, match=re.escape(message)):
        build_network(given, load_images(given), torch.Generator())


@pytest.mark.usefixtures("_few_penalties")
def test_the_command_trains_a_kernel_network_by_its_name(
    command: Callable[..., Result], place: Path, tmp_path: Path
) -> None:
    options = ("--filters", 4, "--data", place / "digits.npz", "--steps", 1, "--patches", 100, "--batch-size", 32)
    status, _, err = command("train", "ckn-cifar5", *options, "--run", tmp_path / "run", "-q")
    assert (status, err) == (0, "")
    assert list(torchckn.load(runs.model_file(tmp_path / "run")).layers)[-1] == "conv5"


def test_a_kernel_network_is_not_translated_nor_compared_with_a_convnet() -> None:
    with pytest.raises(ConfigError, match="ckn-cifar is a kernel network, not a ConvNet, so it cannot be translated"):
        build_convnet(settings_from({"network": "ckn-cifar"}, "test"), (3, 32, 32), 10)
    with pytest.raises(ConfigError, match="ckn-cifar is a kernel network without a ConvNet to compare it with"):
        measure("ckn-cifar", 8, 4)
