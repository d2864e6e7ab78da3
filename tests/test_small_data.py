"""Small data: cross-validation, a warning at chance level, augmentation, images without labels, ConvNets."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from sklearn.base import clone
from torch.utils.data import DataLoader, TensorDataset

import torchckn
from torchckn import ConfigError, DataError, cli, data
from torchckn.building import build_network, load_images
from torchckn.errors import ChanceWarning
from torchckn.fit import fit_head
from torchckn.fit.classifier import fit_classifier
from torchckn.fit.folds import cross_validated_penalty, fold_of, in_their_span
from torchckn.fit.head import Copies
from torchckn.fit.methods import METHODS, MethodOptions
from torchckn.network import FeatureScaling
from torchckn.settings import Settings
from torchckn.sklearn import CKNClassifier

from .training import OPTIONS, StopAfter, StopHereError, convnet, network, points, trained
from .training import digits as small_digits

# Cross-validation


@given(st.lists(st.integers(0, 3), min_size=5, max_size=40), st.integers(2, 5))
def test_folds_have_the_same_sizes_and_classes_but_for_one_image(labels: list[int], folds: int) -> None:
    y = torch.tensor(labels)
    fold = fold_of(y, folds)
    sizes = torch.bincount(fold, minlength=folds)
    assert sizes.max() - sizes.min() <= 1
    for label in y.unique():
        counts = torch.bincount(fold[y == label], minlength=folds)
        assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("loss", ["multinomial", "square"])
def test_the_penalty_is_that_of_the_best_mean_over_folds(loss: Any) -> None:
    x, y = points()
    lambdas = [1.0, 2.0**-4, 2.0**-8]
    lam, curve = cross_validated_penalty(x, y, 3, loss=loss, lambdas=lambdas, search="exhaustive", folds=3)
    fold, expected = fold_of(y, 3), {}
    for value in lambdas:
        right = 0.0
        for k in range(3):
            weight, bias, _ = fit_classifier(x[fold != k], y[fold != k], 3, loss=loss, lam=value)
            right += float(((x[fold == k] @ weight + bias).argmax(1) == y[fold == k]).sum())
        expected[value] = right / len(y)
    assert {score.lam: pytest.approx(score.accuracy) for score in curve} == expected
    assert expected[lam] == max(expected.values())
    best = [score for score in curve if score.accuracy == max(expected.values())]
    assert lam == min(best, key=lambda score: score.loss).lam, "ties by loss"


def test_copies_are_in_the_folds_of_their_originals_which_alone_are_validated_on() -> None:
    x, y = points(30)
    copies = torch.cat([x, x + 0.3 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype)])
    copy_of, lambdas = torch.arange(60) % 30, [1.0, 2.0**-8]
    _, curve = cross_validated_penalty(
        copies, y.repeat(2), 3, lambdas=lambdas, search="exhaustive", folds=3, copy_of=copy_of
    )
    fold = fold_of(y, 3)
    for score in curve:
        right = 0.0
        for k in range(3):
            rest = (fold != k).repeat(2)
            weight, bias, _ = fit_classifier(copies[rest], y.repeat(2)[rest], 3, lam=score.lam)
            right += float(((x[fold == k] @ weight + bias).argmax(1) == y[fold == k]).sum())
        assert score.accuracy == pytest.approx(right / 30)


def test_features_in_their_span_have_the_same_inner_products() -> None:
    x = points(8, 20)[0]
    assert in_their_span(x).shape == (8, 8)
    torch.testing.assert_close(in_their_span(x) @ in_their_span(x).T, x @ x.T)
    assert in_their_span(x.T) is not x.T
    assert in_their_span(x.T).shape == (20, 8)


def test_few_images_choose_the_penalty_by_folds_and_need_no_validation_images() -> None:
    (images, labels), valid = small_digits(100)
    net = torchckn.fit_filters(network(), images, 200)
    lambdas = OPTIONS["lambdas"]
    alone = fit_head(net, (images, labels), lambdas=lambdas)
    assert alone.folds == 5
    assert alone.accuracy == max(score.accuracy for score in alone.curve)
    both = fit_head(net, (images, labels), valid, lambdas=lambdas, folds=2)
    assert both.folds == 2
    assert both.accuracy == torchckn.evaluate(net, valid).accuracy
    assert fit_head(net, (images, labels), valid, lambdas=lambdas, folds=0).folds == 0
    with pytest.raises(ConfigError, match=r"folds expected 0, or a number from 2 to that of the images \(100\), got 101"):
        fit_head(net, (images, labels), folds=101)
    result = torchckn.train(network(), (images, labels), steps=1, **OPTIONS | {"folds": None})
    assert result.start is not None
    assert result.start.folds == 5
    with pytest.raises(ConfigError, match="--folds 5. to choose it by cross-validation"):
        torchckn.train(network(), (images, labels), steps=1, **OPTIONS | {"folds": 0})


# Chance


def test_a_classifier_at_chance_level_is_warned_of() -> None:
    (images, labels), (valid_images, valid_labels) = small_digits(100)
    net = torchckn.fit_filters(network(), images, 200)
    shuffled = labels[torch.randperm(100, generator=torch.Generator().manual_seed(0))]
    with pytest.warns(ChanceWarning, match=r"not clearly better than chance: validation accuracy .* on 100 images"):
        fit_head(net, (images, shuffled), (valid_images, valid_labels), lam=2.0**-6)


def test_a_classifier_that_has_learned_something_is_not(recwarn: pytest.WarningsRecorder) -> None:
    train, valid = small_digits(100)
    fit_head(torchckn.fit_filters(network(), train[0], 200), train, valid, lam=2.0**-6)
    assert not [warning for warning in recwarn if issubclass(warning.category, ChanceWarning)]


# Augmentation


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


# Images without labels, images of any size


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
    with pytest.raises(DataError, match=r"images must have one size: .* resize them with --image-size"):
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


# ConvNets: He weights, AdamW, features as they are


def test_he_weights_have_the_standard_deviation_of_their_layer() -> None:
    net = convnet().initialize_(None, torch.Generator().manual_seed(0))
    weights = [parameter for parameter in net.body.parameters() if parameter.ndim > 1]
    for weight in weights:
        assert float(weight.detach().std()) == pytest.approx((2 / weight[0].numel()) ** 0.5, rel=0.15)
    settings = Settings(kind="convnet", init="he", init_std=0.1)
    with pytest.raises(ConfigError, match="give init = 'he' or init_std, not both; got init_std = 0.1"):
        build_network(settings, load_images(settings), torch.Generator())


def test_a_convnet_is_trained_by_adamw_as_torch_has_it() -> None:
    net, other = convnet(), convnet()
    (images, labels), _ = small_digits(64)
    options = MethodOptions(lam=0.0, optimizer="adamw", weight_decay=0.1)
    method = METHODS["sgd"](net, options)
    groups = [{"params": other.body.parameters()}, {"params": other.head.parameters(), "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1)
    for _ in range(2):
        method.step(images, labels, 0.01)
        other.train()
        optimizer.zero_grad()
        F.cross_entropy(other.head(other.scaling(other.features(images))), labels).backward()
        optimizer.step()
    for ours, theirs in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    with pytest.raises(ConfigError, match="optimizer 'adamw' is for ConvNets"):
        trained(method="sgo", optimizer="adamw", steps=1)


def test_a_training_by_adamw_is_resumed_bit_for_bit(tmp_path: Path) -> None:
    class Stop(torchckn.Callback):
        def on_step_end(self, training: Any, record: Any) -> None:
            if record["step"] == 2:
                raise KeyboardInterrupt

    options = {"steps": 4, "optimizer": "adamw", "lr": 0.01, "checkpoint_every": 1, "final_head": False}
    whole, _ = trained(convnet(), **options)
    with pytest.raises(KeyboardInterrupt):
        trained(convnet(), callbacks=[Stop()], run_dir=tmp_path, **options)
    resumed, _ = trained(convnet(), run_dir=tmp_path, resume=True, **options)
    assert all(torch.equal(one, two) for one, two in zip(whole.parameters(), resumed.parameters(), strict=True))


def test_raw_features_are_as_they_are() -> None:
    scaling = FeatureScaling(4, "raw")
    x = torch.randn(3, 4)
    assert torch.equal(scaling(x), x)
    scaling.calibrate(x)
    assert torch.equal(scaling.eval()(x), x)


# scikit-learn


@pytest.mark.parametrize("net", ["lenet1", "own"])
def test_an_estimator_takes_any_convnet(net: str, digits: data.DataSet) -> None:
    own = torch.nn.Sequential(
        torch.nn.Conv2d(1, 6, 5), torch.nn.ReLU(), torch.nn.AvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(216, 10)
    )
    model = CKNClassifier(net=own if net == "own" else net, patches=200, lam=1e-3, random_state=0)
    images, labels = digits.train[:150]
    model = clone(model).fit(images.numpy(), labels.numpy())
    assert model.score(images.numpy(), labels.numpy()) > 0.8
    assert model.ckn_.head.out_features == 10
    with pytest.raises(ConfigError, match="unknown network 'lenet'.*Or pass your own ConvNet"):
        CKNClassifier(net="lenet").fit(images.numpy(), labels.numpy())


@given(st.lists(st.integers(0, 3), min_size=2, max_size=60), st.data())
def test_few_images_are_split_in_proportion_and_every_class_is_left_to_train_on(
    labels: list[int], drawn: st.DataObject
) -> None:
    part = data.Part(torch.zeros(len(labels), 1, 1, 1), torch.tensor(labels))
    held = drawn.draw(st.integers(1, len(labels) - 1))
    train, valid = data.split(part, held, seed=1)
    assert len(valid) == held
    assert sorted([*train.labels.tolist(), *valid.labels.tolist()]) == sorted(labels)
    if held <= len(labels) - len(set(labels)):
        assert set(train.labels.tolist()) == set(labels)
        for label in set(labels):
            spare = labels.count(label) - 1
            share = held * spare / (len(labels) - len(set(labels))) if spare else 0
            assert abs(int((valid.labels == label).sum()) - share) <= 1


def test_no_validation_images_at_all(folder: Path) -> None:
    images = load_images(Settings(data=str(folder), validation=0, resize=14))
    assert images.valid is None
    assert len(images.train) == len(load_images(Settings(data=str(folder), resize=14, validation=2)).train) + 2


def test_image_files_without_labels_do_not_go_with_images_of_numbers(folder: Path, tmp_path: Path) -> None:
    images = np.random.default_rng(0).random((20, 28, 28), dtype=np.float32)
    np.savez(tmp_path / "own.npz", x=images, y=np.arange(20) % 2)
    with pytest.raises(DataError, match=r"unlabeled expected training images of bytes .*, got numbers in own \(float32\)"):
        load_images(Settings(data=str(tmp_path / "own.npz"), unlabeled=str(folder / "others")))
