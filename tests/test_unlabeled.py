"""Images without labels, and image files of any size."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import torchckn
from torchckn import ConfigError, DataError, cli, data
from torchckn.building import load_images
from torchckn.settings import Settings

from .training import digits as small_digits
from .training import network


@pytest.fixture
def folder(tmp_path: Path, digits: data.DataSet) -> Path:
    """Digits of two classes as files of different sizes, and others without labels."""
    for i in range(24):
        image = Image.fromarray(digits.train.images[i, 0].numpy()).resize((28 + i % 3, 28))
        place = tmp_path / "labelled" / ("even" if digits.train.labels[i] % 2 == 0 else "odd")
        place.mkdir(parents=True, exist_ok=True)
        image.save(place / f"{i}.png")
    (tmp_path / "others").mkdir()
    for i in range(30, 40):
        Image.fromarray(digits.train.images[i, 0].numpy()).save(tmp_path / "others" / f"{i}.png")
    return tmp_path


def test_image_files_are_resized_to_one_size(folder: Path) -> None:
    with pytest.raises(
        DataError, match=r"images must have one size: .* resize them with --image-size \(evaluate: --resize\)"
    ):
        data.load(folder / "labelled")
    images = data.load(folder / "labelled", resize=14).train.images
    assert images.shape == (24, 1, 14, 14)
    with pytest.raises(ConfigError, match=r"is for folders of image files, got 'mnist-mini'; leave it out"):
        data.load("mnist-mini", resize=14)
    with pytest.raises(ConfigError, match=r"resize expected a side from 1 to 8192 pixels, got 0"):
        data.load(folder / "labelled", resize=0)


def test_filters_are_fitted_to_images_without_labels(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    others = data.load_unlabeled(folder / "others", (1, 14, 14), resize=True)
    assert others.shape == (10, 1, 14, 14)
    with pytest.raises(DataError, match="is not a folder; expected a folder of image files without labels"):
        data.load_unlabeled(folder / "nowhere", (1, 14, 14))
    command = ["train", "lenet1", "--filters", "4", "--data", str(folder / "labelled"), "--image-size", "28"]
    arguments = [*command, "--unlabelled", str(folder / "others"), "--steps", "0", "--run", str(folder / "run"), "--json"]
    monkeypatch.setattr(sys, "argv", ["torchckn", *arguments])
    with suppress(SystemExit):
        cli.main()
    assert json.loads(capsys.readouterr().out)["start"]["folds"] == 5
    with pytest.raises(DataError, match="has 28x28 pixels, the network expects 14x14"):
        data.load_unlabeled(folder / "others", (1, 14, 14))


def test_the_filters_of_a_training_depend_on_the_unlabeled_images_alone() -> None:
    (images, labels), valid = small_digits(100)
    options = {"steps": 0, "lam": 2.0**-6, "patches": 100}
    nets = [network() for _ in range(3)]
    torchckn.train(nets[0], (images[:50], labels[:50]), valid, unlabeled=images[50:], **options)
    torchckn.train(nets[1], (images[10:60], labels[10:60]), valid, unlabeled=images[50:], **options)
    torchckn.train(nets[2], (images[:50], labels[:50]), valid, **options)
    weights = [net.layers["conv"].weight for net in nets]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_no_validation_images_at_all(folder: Path) -> None:
    images = load_images(Settings(data=str(folder), validation=0, resize=14))
    assert images.valid is None
    assert len(images.train) == len(load_images(Settings(data=str(folder), resize=14, validation=2)).train) + 2


def test_image_files_without_labels_do_not_go_with_images_of_numbers(folder: Path, tmp_path: Path) -> None:
    images = np.random.default_rng(0).random((20, 28, 28), dtype=np.float32)
    np.savez(tmp_path / "own.npz", x=images, y=np.arange(20) % 2)
    with pytest.raises(DataError, match=r"unlabeled expected training images of bytes .*, got numbers in own \(float32\)"):
        load_images(Settings(data=str(tmp_path / "own.npz"), unlabeled=str(folder / "others")))
