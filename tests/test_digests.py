"""Digests of training data: a run is resumed on the images that it was begun on."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

import torchckn
from torchckn import ConfigError
from torchckn.runs import data_digest

from .training import OPTIONS, digits, network


def test_other_images_are_another_configuration(tmp_path: Path) -> None:
    (images, labels), valid_data = digits()
    arguments: dict[str, Any] = {"steps": 2, "lr": 2**-5, **OPTIONS}
    for name, first, second in (
        ("pair", (images, labels), (images.clone().index_fill_(0, torch.tensor([7]), 0.0), labels)),
        ("dataset", TensorDataset(images, labels), TensorDataset(images[:200], labels[:200])),
    ):
        generator = torch.Generator().manual_seed(0)
        torchckn.train(network(), first, valid_data, run_dir=tmp_path / name, generator=generator, **arguments)
        generator = torch.Generator().manual_seed(0)
        with pytest.raises(ConfigError, match="another configuration: data .expected data ="):
            torchckn.train(
                network(), second, valid_data, run_dir=tmp_path / name, resume=True, generator=generator, **arguments
            )


class _Noisy(Dataset[Any]):
    """Images changed at random when they are read, with labels as Python numbers."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels.tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        noise = torch.rand(()) + np.random.rand() + random.random()
        return self.images[i] + 0.01 * float(noise), self.labels[i]


def test_the_digest_of_a_dataset_has_its_labels_but_no_random_numbers() -> None:
    (images, labels), _ = digits()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = data_digest(_Noisy(images, labels))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert data_digest(_Noisy(images, labels)) == first
    assert data_digest(_Noisy(images, 9 - labels)) != first


class _OfArrays(TensorDataset):
    def __getitem__(self, i: int) -> Any:
        image, label = super().__getitem__(i)
        return image.numpy(), label


def test_the_digest_of_a_dataset_of_arrays_has_their_pixels() -> None:
    (images, labels), _ = digits()
    assert data_digest(_OfArrays(images, labels)) == data_digest(_OfArrays(images.clone(), labels))
    assert data_digest(_OfArrays(images, labels)) != data_digest(_OfArrays(1 - images, labels))
