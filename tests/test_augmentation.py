"""Augmentation: images moved or mirrored at random, in training steps and as copies for the classifier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import torchckn
from torchckn import ConfigError, data
from torchckn.fit import fit_head
from torchckn.fit.head import Copies

from .training import OPTIONS, StopAfter, StopHereError, network, trained
from .training import digits as small_digits


@pytest.mark.parametrize("kind", ["flip", "crop", "shift"])
def test_an_augmented_image_is_the_image_moved_or_mirrored(kind: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(1, 256, (16, 3, 28, 16), generator=generator, dtype=torch.uint8)
    changed = data.augment(images, [kind], torch.Generator().manual_seed(1))
    assert changed.shape == images.shape
    assert changed.dtype == images.dtype
    down, right = {"flip": (0, 0), "crop": (3, 2), "shift": (2, 1)}[kind]
    found = set()
    for image, other in zip(images, changed, strict=True):
        candidates = {}
        for i in range(-down, down + 1):
            for j in range(-right, right + 1):
                rows, columns = torch.arange(28) + i, torch.arange(16) + j
                moved = image[:, rows.clamp(0, 27)][:, :, columns.clamp(0, 15)]
                inside = ((rows >= 0) & (rows < 28))[:, None] & ((columns >= 0) & (columns < 16))
                candidates[i, j] = moved if kind == "shift" else moved * inside
        if kind == "flip":
            candidates["mirrored"] = image.flip(2)
        (match,) = [name for name, candidate in candidates.items() if torch.equal(candidate, other)]
        found.add(match)
    assert len(found) > 1, "at random"


def test_a_part_of_a_batch_is_augmented_as_it_is_in_the_whole() -> None:
    images = torch.rand(6, 1, 14, 14)
    kinds: Any = ["flip", "crop", "shift"]
    whole = data.augment(images, kinds, torch.Generator().manual_seed(3))
    part = data.augment(images[2:4], kinds, torch.Generator().manual_seed(3), slice(2, 4), 6)
    assert torch.equal(whole[2:4], part)
    with pytest.raises(ConfigError, match="unknown augmentation 'turn': expected one of crop, flip, shift"):
        data.augment(images, ["turn"], torch.Generator())  # type: ignore[list-item]


def test_augmentation_and_weights_may_be_as_the_command_line_has_them() -> None:
    assert torchckn.TrainConfig(class_weights=["balanced"]).class_weights == "balanced"  # type: ignore[arg-type]
    assert torchckn.TrainConfig(augment="flip,crop").augment == ("flip", "crop")  # type: ignore[arg-type]
    assert torchckn.TrainConfig(augment="none").augment is torchckn.TrainConfig(augment=[]).augment is None  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="augment.*expected 'flip', 'crop' or 'shift', got 'turn'"):
        torchckn.TrainConfig(augment=["turn"])  # type: ignore[arg-type,list-item]


def test_a_classifier_is_fitted_to_augmented_copies_as_well() -> None:
    (images, labels), valid = small_digits(100)
    net = torchckn.fit_filters(network(), images, 200)
    copied = Copies(2, ("shift",), torch.Generator().manual_seed(3))
    given = {"lambdas": OPTIONS["lambdas"], "folds": 0}
    fit_head(net, (images, labels), valid, copied=copied, **given)
    found = net.head.weight.clone()
    generator = torch.Generator().manual_seed(3)
    more = [data.augment(images, ["shift"], generator) for _ in range(2)]
    fit_head(net, (torch.cat([images, *more]), labels.repeat(3)), valid, **given)
    torch.testing.assert_close(net.head.weight, found)
    by_folds = fit_head(net, (images, labels), valid, copied=copied, lambdas=OPTIONS["lambdas"])
    assert by_folds.folds == 5, "copies do not make the images many"
    for wrong in (TensorDataset(images, labels), DataLoader(TensorDataset(images, labels))):
        with pytest.raises(ConfigError, match=f"copies are for images in memory, got {type(wrong).__name__}"):
            fit_head(net, wrong, valid, copied=copied)
        with pytest.raises(ConfigError, match=f"copies are for images in memory, got {type(wrong).__name__}.*--stream"):
            torchckn.train(network(), wrong, valid, **OPTIONS, steps=1, augment="shift", copies=1)


def test_augmentation_without_steps_needs_copies() -> None:
    train_data, valid_data = small_digits(100)
    with pytest.raises(
        ConfigError, match="augment changes the images of training steps: expected steps, got none; .*copies=5"
    ):
        torchckn.train(network(), train_data, valid_data, **OPTIONS, steps=0, augment="shift")
    with pytest.raises(ConfigError, match="copies are augmented images: expected augment"):
        torchckn.train(network(), train_data, valid_data, **OPTIONS, steps=0, copies=2)
    first, again, other = (
        trained(network(), steps=0, augment="shift", copies=2, seed=seed)[0].head.weight for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_copies_are_the_same_after_an_interruption(tmp_path: Path) -> None:
    options = {"augment": "shift", "copies": 1, "steps": 4}
    expected = trained(**options)[0].state_dict()
    with pytest.raises(StopHereError):
        trained(**options, run_dir=tmp_path / "run", checkpoint_every=1, callbacks=[StopAfter(2)])
    found = trained(**options, run_dir=tmp_path / "run", checkpoint_every=1, resume=True)[0].state_dict()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_an_augmented_training_is_resumed_bit_for_bit(tmp_path: Any) -> None:
    class Stop(torchckn.Callback):
        def on_step_end(self, training: Any, record: Any) -> None:
            if record["step"] == 3:
                raise KeyboardInterrupt

    options = {"steps": 6, "lam": 2.0**-8, "augment": ["flip", "shift"], "checkpoint_every": 1}
    whole, _ = trained(**options)
    with pytest.raises(KeyboardInterrupt):
        trained(run_dir=tmp_path, callbacks=[Stop()], **options)
    resumed, _ = trained(run_dir=tmp_path, resume=True, **options)
    assert torch.equal(whole.layers["conv"].weight, resumed.layers["conv"].weight)
    other, _ = trained(**options | {"augment": None})
    assert not torch.equal(whole.layers["conv"].weight, other.layers["conv"].weight)
