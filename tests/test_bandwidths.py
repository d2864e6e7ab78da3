"""Trained bandwidths: where they are kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import torchckn
from torchckn.files import read_tensors, write_tensors
from torchckn.graph import Dense, Graph
from torchckn.kernels import RBFSphere
from torchckn.storage import KIND, load_weights

from .training import digits, network, trained

pytestmark = pytest.mark.usefixtures("_few_penalties")


def bandwidths(ckn: torchckn.CKN) -> list[float]:
    return [layer.kernel.bandwidth for layer in ckn.kernel_layers().values()]


def test_a_bandwidth_is_part_of_the_state_whether_it_is_trained_or_not() -> None:
    first, _ = trained(bandwidths=True, steps=3)
    second = network(seed=1)
    second.load_state_dict(first.state_dict())
    assert bandwidths(second) == bandwidths(first) != [0.6, 0.6]
    images = digits()[1][0]
    with torch.no_grad():
        assert torch.equal(first.eval()(images), second.eval()(images))


@pytest.mark.parametrize("trainable", [False, True])
@pytest.mark.parametrize("was_trainable", [False, True])
def test_fixed_and_trained_bandwidths_are_loaded_into_each_other(trainable: bool, was_trainable: bool) -> None:
    kernel = RBFSphere(0.5, trainable)
    kernel.load_state_dict(RBFSphere(0.7, was_trainable).state_dict())
    assert kernel.bandwidth == 0.7
    assert kernel.trainable == trainable


def test_a_state_from_before_it_had_fixed_bandwidths_is_loaded() -> None:
    state = {name: value for name, value in network(1).state_dict().items() if "sigma" not in name}
    ckn = network()
    ckn.load_state_dict(state)
    assert bandwidths(ckn) == [0.6, 0.6]


def test_a_file_from_before_it_had_fixed_bandwidths_is_loaded(tmp_path: Path) -> None:
    ckn = network()
    description, tensors = read_tensors(torchckn.save(ckn, tmp_path / "new"), KIND)
    older = {name: value for name, value in tensors.items() if "sigma" not in name}
    assert len(older) < len(tensors)
    write_tensors(tmp_path / "old", KIND, description, older)
    assert bandwidths(torchckn.load(tmp_path / "old")) == [0.6, 0.6]


def test_the_weights_of_a_file_have_its_bandwidths(tmp_path: Path) -> None:
    ckn, _ = trained(bandwidths=True, steps=2)
    other = network(1)
    load_weights(other, torchckn.save(ckn, tmp_path / "ckn"))
    assert bandwidths(other) == bandwidths(ckn) != [0.6, 0.6]


@pytest.mark.parametrize("value", [torch.tensor(0.0), torch.tensor(float("nan")), torch.ones(2)])
def test_a_bandwidth_that_is_no_positive_number_is_not_loaded(value: torch.Tensor) -> None:
    kernel = RBFSphere(0.5)
    with pytest.raises(RuntimeError, match="sigma expected a positive number"):
        kernel.load_state_dict({"fixed_sigma": value})
    assert kernel.bandwidth == 0.5


@pytest.mark.parametrize("trainable", [False, True])
def test_weights_of_fixed_and_trained_bandwidths_go_into_each_other(trainable: bool, tmp_path: Path) -> None:
    def dense(sigma: float, trainable: bool) -> torchckn.CKN:
        return torchckn.CKN(Graph((1, 2, 2), [Dense("dense", filters=3, kernel=RBFSphere(sigma, trainable))]))

    ckn = dense(0.6, not trainable)
    load_weights(ckn, torchckn.save(dense(0.8, trainable), tmp_path / "ckn"))
    assert bandwidths(ckn) == [0.8]


def test_the_model_of_a_run_is_the_network_that_training_gives(tmp_path: Path) -> None:
    ckn, _ = trained(bandwidths=True, steps=3, run_dir=tmp_path / "run")
    loaded = torchckn.load(tmp_path / "run" / "model" / "model.safetensors")
    assert bandwidths(loaded) == bandwidths(ckn) != [0.6, 0.6]
    assert not any(isinstance(layer.kernel.sigma, torch.Tensor) for layer in loaded.kernel_layers().values())
    trained(loaded, steps=2)
    assert bandwidths(loaded) == bandwidths(ckn), "nobody asked for other bandwidths"
