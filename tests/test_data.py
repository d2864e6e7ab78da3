"""Splits and subsets, preprocessing, batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, SubsetRandomSampler, TensorDataset

import torchckn
from torchckn import data
from torchckn.errors import ConfigError, DataError
from torchckn.graph import Conv, Graph
from torchckn.graph.preprocessing import unit_pixels


def test_a_split_is_a_partition_by_a_seed() -> None:
    part = data.Part(torch.arange(10.0)[:, None, None, None], torch.arange(10))
    train, valid = data.split(part, 3, seed=1)
    assert sorted([*train.labels.tolist(), *valid.labels.tolist()]) == list(range(10))
    assert torch.equal(train.images.flatten(), train.labels.float())
    assert torch.equal(data.split(part, 3, seed=1)[1].labels, valid.labels)
    assert not torch.equal(data.split(part, 3, seed=2)[1].labels, valid.labels)
    with pytest.raises(ConfigError, match="between 1 and 9 images, got 10"):
        data.split(part, 10)


def test_a_part_is_sliced_unpacked_and_taken_by_a_data_loader() -> None:
    part = data.Part(X, Y)
    assert isinstance(part[2:5], data.Part)
    assert part[2:5].labels.tolist() == [2, 3, 4]
    assert torch.equal(part[2:5].images, X[2:5])
    assert part[-3:].labels.tolist() == [7, 8, 9]
    assert part[::4].labels.tolist() == [0, 4, 8]
    assert (len(part), len(part[:100])) == (10, 10)
    images, labels = part[:3]
    assert torch.equal(images, X[:3])
    assert torch.equal(labels, Y[:3])
    image, label = part[4]
    assert (image.shape, int(label)) == ((1, 1, 1), 4)
    loaded = [y.tolist() for _, y in DataLoader(part, batch_size=4)]
    assert loaded == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert repr(part[:2]) == "Part(2 images of shape (1, 1, 1), torch.float32)"


def test_a_subset_is_the_first_images_or_random_ones_or_those_that_are_named() -> None:
    part = data.Part(X, Y)
    assert part.subset(3).labels.tolist() == [0, 1, 2]
    drawn = part.subset(4, seed=1)
    assert len(set(drawn.labels.tolist())) == 4
    assert drawn.labels.tolist() not in ([0, 1, 2, 3], part.subset(4, seed=2).labels.tolist())
    assert drawn.labels.tolist() == part.subset(4, seed=1).labels.tolist()
    assert torch.equal(drawn.images.flatten(), drawn.labels.float())
    assert part.subset([5, -1, 5]).labels.tolist() == [5, 9, 5]
    assert part.subset(torch.tensor([2, 0])).labels.tolist() == [2, 0]
    assert part.subset(Y > 6).labels.tolist() == [7, 8, 9]


@pytest.mark.parametrize(
    ("which", "seed", "error", "message"),
    [
        (0, None, ConfigError, "subset expected between 1 and 10 images, got 0"),
        (11, 1, ConfigError, "subset expected between 1 and 10 images, got 11"),
        ([1, 2], 0, ConfigError, "subset expected a number of images with seed, got indices; leave seed out"),
        ([1, 10], None, DataError, "subset expected indices below 10, got 1 to 10"),
        ([0.5], None, DataError, r"subset expected a number or a list of indices, got \(1,\) of torch.float32"),
        ([], None, DataError, r"subset expected a number or a list of indices, got \(0,\)"),
        (torch.ones(3, dtype=torch.bool), None, DataError, r"subset expected a Boolean tensor of shape \(10,\), got \(3,\)"),
    ],
)
def test_subsets_that_are_not_there_are_refused(which: Any, seed: int | None, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        data.Part(X, Y).subset(which, seed)


def test_preprocessing_standardises_by_training_statistics_and_travels_with_the_model(tmp_path: Path) -> None:
    images = torch.randint(0, 256, (50, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    pixels = data.Preprocessing.fit(images)
    plain = unit_pixels(images, torch.empty(0, dtype=torch.float64))
    torch.testing.assert_close(torch.tensor(pixels.mean).double(), plain.mean((0, 2, 3)))
    torch.testing.assert_close(torch.tensor(pixels.std).double(), plain.std((0, 2, 3), unbiased=False))
    graph = Graph((3, 8, 8), [*pixels.nodes(), Conv("conv", filters=2)])
    ckn = torchckn.CKN(graph, dtype=torch.float64)
    seen = ckn.inputs_of("conv", plain)[0]
    torch.testing.assert_close(seen.mean((0, 2, 3)), torch.zeros(3).double(), atol=1e-12, rtol=0)
    assert torchckn.load(torchckn.save(ckn, tmp_path / "model")).graph == graph


def test_a_whitened_network_takes_images_and_sees_patches() -> None:
    images = torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8)
    pixels = data.Preprocessing.fit(images, whiten=True)
    net = torchckn.zoo.build("allcnn", filters=4, in_channels=27)
    ckn = torchckn.translate(net, (3, 32, 32), preprocessing=pixels)
    assert [n.name for n in ckn.graph.nodes[:2]] == ["standardize", "whiten"]
    assert ckn(unit_pixels(images)).shape == (5, 10)
    with pytest.raises(ConfigError, match="preprocessing expected images of 3 channels, got 1"):
        torchckn.translate(net, (1, 32, 32), preprocessing=pixels)


def test_images_of_one_colour_cannot_be_standardised() -> None:
    with pytest.raises(DataError, match="all pixels of a channel are equal"):
        data.Preprocessing.fit(torch.ones(3, 1, 4, 4))
    with pytest.raises(DataError, match=r"images \(N, C, H, W\), got \(3, 4, 4\)"):
        data.Preprocessing.fit(torch.ones(3, 4, 4))


X, Y = torch.arange(10.0).reshape(10, 1, 1, 1), torch.arange(10)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(zip(X, Y, strict=True))


@pytest.mark.parametrize(
    "form",
    [
        (X, Y),
        data.Part(X, Y),
        [X.numpy(), Y.numpy()],
        TensorDataset(X, Y),
        DataLoader(TensorDataset(X, Y), batch_size=4),
        Stream(),
    ],
    ids=["pair", "part", "arrays", "dataset", "loader", "stream"],
)
def test_data_come_in_many_forms_and_out_in_one(form: Any) -> None:
    seen = list(data.batches(form, 4, labels=True))
    assert torch.equal(torch.cat([x for x, _ in seen]), X)
    assert torch.equal(torch.cat([y for _, y in seen if y is not None]), Y)
    assert [len(x) for x, _ in seen] == [4, 4, 2]


def test_images_alone_are_data_and_a_generator_shuffles_them() -> None:
    order = torch.cat([x for x, _ in data.batches(X, 3, generator=torch.Generator().manual_seed(0))]).flatten()
    assert sorted(order.tolist()) == X.flatten().tolist()
    assert not torch.equal(order, X.flatten())
    assert (
        data.size_of(X)
        == data.size_of((X, Y))
        == data.size_of(data.Part(X, Y))
        == data.size_of(DataLoader(TensorDataset(X, Y)))
        == 10
    )
    assert data.size_of(Stream()) is None


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (X, "labels are needed here"),
        ((X, Y[:3]), "10 images and 3 labels"),
        ((X[:, 0], Y), r"images \(N, C, H, W\), got shape \(10, 1, 1\)"),
        ({"x": X}, "a Dataset or a DataLoader, got dict"),
    ],
)
def test_data_that_will_not_do_are_refused_with_a_reason(form: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        list(data.batches(form, 4, labels=True))
    with pytest.raises(DataError, match="batch_size expected"):
        list(data.batches(X, 0))


def test_labels_number_the_classes_of_a_network_by_their_names() -> None:
    part = data.Part(torch.zeros(4, 1, 2, 2), torch.tensor([0, 1, 1, 0]))
    whole = data.DataSet("pets", part, part[:2], ("bee", "cat"))
    renamed = whole.in_classes(("ant", "bee", "cat"))
    assert renamed.train.labels.tolist() == [1, 2, 2, 1]
    assert renamed.test is not None
    assert renamed.test.labels.tolist() == [1, 2]
    assert whole.in_classes(("0", "1", "2")) is whole, "numbers are no names"
    digits = data.DataSet("digits", part, None, ("1", "2"))
    assert digits.in_classes(("0", "1", "2")).train.labels.tolist() == [1, 2, 2, 1]
    assert data.DataSet("digits", part, None, ("0", "1")).in_classes(("one", "two")).train is part
    with pytest.raises(DataError, match="pets expected images of the classes bee, dog, got cat; rename"):
        whole.in_classes(("bee", "dog"))
    with pytest.raises(DataError, match="pets expected images of the classes 0, got bee, cat; rename"):
        whole.in_classes(("0",))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_images_become_grey_or_colored_as_pillow_makes_them(dtype: torch.dtype) -> None:
    colored = torch.randint(256, (2, 3, 4, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    grey = torch.stack(
        [torch.from_numpy(np.array(Image.fromarray(i.permute(1, 2, 0).numpy()).convert("L"))) for i in colored]
    )
    whole = data.DataSet("colors", data.Part(colored.to(dtype), torch.zeros(2)), None, ("a", "b"))
    found = whole.in_channels(1).train.images
    assert (found.dtype, found.shape) == (dtype, (2, 1, 4, 5))
    torch.testing.assert_close(found[:, 0], grey.to(dtype), atol=0.6 if dtype.is_floating_point else 0, rtol=0)
    again = whole.in_channels(1).in_channels(3).train.images
    assert torch.equal(again, found.expand(2, 3, 4, 5))
    assert whole.in_channels(3) is whole.in_channels(2) is whole


@pytest.mark.parametrize("count", [1, 3, 7, 10, 99])
def test_some_images_are_evenly_spaced(count: int) -> None:
    part = data.Part(torch.arange(10.0)[:, None, None, None], torch.arange(10))
    some = part.some(count)
    assert len(some) == min(count, 10)
    gaps = some.labels.diff()
    assert not len(gaps) or int(gaps.max() - gaps.min()) <= 1


def test_classes_that_match_in_part_are_refused_even_if_they_are_numbers() -> None:
    part = data.Part(torch.zeros(2, 1, 2, 2), torch.tensor([0, 1]))
    with pytest.raises(DataError, match="expected images of the classes 1, 2, 3, got 0; rename"):
        data.DataSet("digits", part, None, ("0", "1")).in_classes(("1", "2", "3"))


def test_the_size_of_a_loader_is_that_of_what_it_draws() -> None:
    dataset = TensorDataset(torch.zeros(10, 1, 2, 2), torch.zeros(10, dtype=torch.long))
    some = SubsetRandomSampler(range(4))
    assert data.size_of(DataLoader(dataset, 2, sampler=some)) == 4
    assert data.size_of(DataLoader(dataset, 2)) == 10


def test_a_dataset_of_images_alone_has_no_labels() -> None:
    images = torch.rand(5, 1, 2, 2)
    found = list(data.batches(TensorDataset(images), 3))
    assert torch.equal(torch.cat([some for some, _ in found]), images)
    assert all(labels is None for _, labels in found)


@pytest.mark.parametrize("kind", ["crop", "shift"])
def test_a_signal_is_moved_along_its_length_only(kind: Any) -> None:
    signals = torch.rand(50, 2, 1, 16) + 1
    moved = data.augment(signals, [kind], torch.Generator().manual_seed(0))
    assert bool((moved.flatten(1).amax(1) > 0).all())
    assert not torch.equal(moved, signals)
