"""What training refuses, before anything is written."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import torchckn
from torchckn import ConfigError, DataError, TranslationError, zoo

from .training import OPTIONS, convnet, digits, network, trained


def broken(what: str) -> tuple[Any, dict[str, Any]]:
    (images, labels), _ = digits()
    if what == "labels out of range":
        return (images, labels + 1), {}
    if what == "a class missing":
        return (images[labels != 3], labels[labels != 3]), {}
    if what == "fewer images than the batch":
        return (images, labels), {"batch_size": 512}
    if what == "NaN pixels":
        images = images.clone()
        images[17, 0, 3, 3] = torch.nan
        return (images, labels), {}
    if what == "no labels":
        return images, {}
    return (images, labels), {what: "nonsense"}


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("labels out of range", "labels must be from 0 to 9"),
        ("a class missing", "no image of class 3"),
        ("fewer images than the batch", "batch_size is 512, but there are 300 training images"),
        ("NaN pixels", "NaN or infinity in 1 images, first 17"),
        ("no labels", "labels are needed"),
        ("method", "method: expected 'ulr', 'sgo', 'sgo-ball' or 'sgd', got 'nonsense'"),
        ("loss", "loss: expected 'multinomial' or 'square', got 'nonsense'"),
        ("hessian", "hessian: expected 'full', 'diag', 'cg' or 'auto', got 'nonsense'"),
        ("head_update", "head_update: expected 'exact' or 'reuse', got 'nonsense'"),
        ("lr", "unknown learning rate 'nonsense'"),
        ("steps", "steps: expected an integer"),
        ("evaluate_every", "evaluate_every: expected an integer"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(tmp_path: Path, what: str, message: str) -> None:
    train_data, options = broken(what)
    arguments = {"steps": 3, **OPTIONS, **options}
    with pytest.raises((ConfigError, DataError), match=message):
        torchckn.train(network(), train_data, digits()[1], run_dir=tmp_path / "run", **arguments)
    assert not (tmp_path / "run").exists()


def test_what_else_is_refused() -> None:
    train_data, valid_data = digits()
    with pytest.raises(ConfigError, match="validation data.*lam"):
        torchckn.train(network(), train_data, steps=1, folds=0)
    with pytest.raises(ConfigError, match=r"CKN .* or a torchckn.ScaledConvNet, got LeNet5"):
        torchckn.train(zoo.build("lenet5"), train_data, valid_data)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="'sgd' is for ConvNets"):
        trained(method="sgd")
    with pytest.raises(ConfigError, match="for kernel networks"):
        trained(convnet(), bandwidths=True)
    with pytest.raises(ConfigError, match="nothing to train"):
        trained(trainable=[])
    with pytest.raises(ConfigError, match="trainable: expected a list"):
        trained(trainable="conv")
    for name in ("tau", "momentum", "radius", "lam"):
        with pytest.raises(ConfigError, match=f"{name}: expected a .*number"):
            trained(**{name: "a"})
        with pytest.raises(ConfigError, match=f"{name}: expected a .*number"):
            trained(**{name: math.nan})
    with pytest.raises(ConfigError, match="generator: expected a torch.Generator"):
        torchckn.train(network(), train_data, valid_data, generator=3)  # type: ignore[arg-type]


def test_balanced_weights_need_labels_that_the_network_has() -> None:
    (images, labels), valid = digits()
    with pytest.raises(DataError, match="labels must be from 0 to 9"):
        torchckn.train(network(), (images, labels - 1), valid, class_weights="balanced", steps=1)


def test_a_loader_does_not_say_where_an_epoch_ends_that_might_be_rolled_back() -> None:
    train_data, valid = digits()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*train_data), 64)
    with pytest.raises(ConfigError, match="rollback needs to know where an epoch ends.* pass a Dataset or a pair"):
        torchckn.train(network(), loader, valid, rollback=True, lam=2**-10, steps=1)


def test_a_classifier_that_a_convnet_uses_twice_is_refused() -> None:
    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = torch.nn.Linear(16, 4), torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.last(self.first(x.flatten(1)).relu()).relu())

    with pytest.raises(TranslationError, match="a classifier that is used once, got 'last' of Twice, which is used 2 times"):
        torchckn.ScaledConvNet(Twice(), (1, 4, 4))


def test_advice_without_validation_data_is_what_helps_the_method() -> None:
    train_data, _ = digits()
    with pytest.raises(ConfigError, match=r"pass valid_data, or the penalty itself \(lam, --lam\), or a number of folds"):
        torchckn.train(network(), train_data, folds=0, steps=1)
    with pytest.raises(ConfigError, match=r"or no classifier at the end \(final_head=False, --no-final-head\)"):
        torchckn.train(convnet(), train_data, steps=1)
    assert torchckn.train(convnet(), train_data, steps=1, final_head=False).steps == 1
