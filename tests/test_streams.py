"""Images that are read when they are needed: the same numbers as images in memory, from files and from shards."""

from __future__ import annotations

import io
import os
import resource
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import torchckn
from torchckn import DataError, data
from torchckn.data import LazyPart
from torchckn.data.batches import read_items
from torchckn.runs import data_digest

from .faults.harness import HANGING, environment
from .shards import SIZE, as_arrays, as_files, as_tars, pictures, write_tar
from .training import network


def content(part: Any) -> list[tuple[int, bytes]]:
    """All images with their labels, in an order that does not depend on where they are."""
    return sorted((int(part[i][1]), part[i][0].numpy().tobytes()) for i in range(len(part)))


@pytest.mark.parametrize("written", [as_files, as_tars, as_arrays])
@pytest.mark.parametrize("workers", [0, 2])
def test_images_are_those_that_were_written(tmp_path: Path, written: Any, workers: int) -> None:
    written(tmp_path / "images")
    streamed = data.load(tmp_path / "images", stream=True, workers=workers)
    assert isinstance(streamed.train, LazyPart)
    assert streamed.image_shape == (1, SIZE, SIZE)
    assert streamed.classes == tuple(map(str, range(10)))
    images, labels = pictures(60)
    assert content(streamed.train) == sorted(
        (int(label), image.tobytes()) for image, label in zip(images, labels, strict=True)
    )
    batches = list(data.batches(streamed.train, 25))
    assert [len(images) for images, _ in batches] == [25, 25, 10]


def test_training_is_that_on_images_in_memory_and_is_resumed(tmp_path: Path) -> None:
    as_files(tmp_path / "images", 100)
    memory, streamed = data.load(tmp_path / "images"), data.load(tmp_path / "images", stream=True, workers=1)
    states = []
    options: dict[str, Any] = {"lam": 2**-6, "batch_size": 16, "lr": 2**-6, "patches": 200, "checkpoint_every": 1}
    for part, runs in ((memory.train, [5]), (streamed.train, [2, 5])):
        for steps in runs:
            net = network()
            torchckn.train(net, part, steps=steps, run_dir=tmp_path / type(part).__name__, resume=True, **options)
        states.append(net.state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_other_sizes_are_resized_if_asked_for(tmp_path: Path) -> None:
    as_files(tmp_path)
    Image.new("L", (30, 20), 7).save(tmp_path / "3" / "other.png")
    with pytest.raises(DataError, match="has 20x30 pixels, the network expects 14x14"):
        list(data.batches(data.load(tmp_path, stream=True).train, 16))
    resized = data.load(tmp_path, stream=True, resize=9).train
    assert {images.shape[1:] for images, _ in data.batches(resized, 16)} == {(1, 9, 9)}


@pytest.mark.parametrize(("images", "count"), [(190, 100), (200, 100), (100, 100), (90, 100), (1000, 100)])
def test_a_sample_is_evenly_spaced_over_all_images(tmp_path: Path, images: int, count: int) -> None:
    x = (np.arange(images) % 256).astype(np.uint8)[:, None, None].repeat(2, 1)
    np.savez(tmp_path / "train.npz", x=x, y=np.arange(images) * 10 // images)
    part = data.load(tmp_path, stream=True).train
    assert isinstance(part, LazyPart)
    sample = part.some(count).images[:, 0, 0, 0]
    assert len(sample) == min(count, images)
    gaps = sample.to(torch.uint8).diff()  # which count modulo 256, as the pixels do
    assert set(gaps.tolist()) <= {images // len(sample), -(-images // len(sample))}
    assert int(sample[-1]) == (images - -(-images // len(sample))) % 256


@pytest.mark.parametrize("written", [as_files, as_tars])
@pytest.mark.parametrize("kind", ["RGB", "P", "CMYK"])
def test_one_image_in_color_makes_all_of_a_stream_rgb(tmp_path: Path, written: Any, kind: str) -> None:
    written(tmp_path, 200)
    assert data.load(tmp_path, stream=True).image_shape == (1, SIZE, SIZE)
    content = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3)).astype(np.uint8)
    Image.fromarray(noise).convert(kind).save(content, "JPEG" if kind == "CMYK" else "PNG")
    if written is as_files:
        (tmp_path / "3" / "00133x.png").write_bytes(content.getvalue())
        assert data.load(tmp_path).image_shape == (3, SIZE, SIZE)
    else:
        write_tar(tmp_path / "train-x.tar", {"3/1.png": content.getvalue()})
    streamed = data.load(tmp_path, stream=True)
    assert streamed.image_shape == (3, SIZE, SIZE)
    assert {images.shape[1] for images, _ in data.batches(streamed.train, 50)} == {3}


@pytest.mark.parametrize("written", [as_files, as_tars, as_arrays])
def test_images_of_a_stream_become_grey_or_colored(tmp_path: Path, written: Any) -> None:
    written(tmp_path)
    whole = data.load(tmp_path, stream=True)
    other = whole.in_channels(4 - whole.image_shape[0])
    assert other.image_shape == (4 - whole.image_shape[0], *whole.image_shape[1:])
    index = torch.arange(5)
    before, after = whole.train.subset(index), other.train.subset(index)
    expected = torch.stack([image for image, _ in before])  # type: ignore[attr-defined]
    expected = data.Part(expected, torch.zeros(5)).in_channels(other.image_shape[0]).images
    assert torch.equal(torch.stack([image for image, _ in after]), expected)  # type: ignore[attr-defined]


def test_the_colors_of_a_large_image_in_a_shard_are_found(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (90, 90)).astype(np.uint8)
    grey = Image.fromarray(noise)
    palette = Image.fromarray(np.stack([noise, noise, noise // 2], 2)).convert("P")
    for images, channels in (([grey, grey], 1), ([grey, grey.convert("P")], 1), ([grey, palette], 3)):
        entries = {}
        for label, image in enumerate(images):
            content = io.BytesIO()
            image.save(content, "PNG")
            entries[f"{label}/1.png"] = content.getvalue()
        assert min(map(len, entries.values())) > 2**12
        write_tar(tmp_path / "train.tar", entries)
        assert data.load(tmp_path, stream=True).image_shape == (channels, 90, 90)


@pytest.mark.parametrize("written", [as_files, as_tars, as_arrays])
def test_the_digest_of_a_stream_has_every_image_and_label_but_not_the_place_of_its_folder(
    tmp_path: Path, written: Any
) -> None:
    for name in ("here", "there"):
        written(tmp_path / name, 200)
    parts: list[Any] = [data.load(tmp_path / name, stream=True).train for name in ("here", "there")]
    digest = data_digest(parts[0])
    assert data_digest(parts[1]) == digest
    parts[1].labels[101] += 1
    assert data_digest(parts[1]) != digest
    assert data_digest(parts[0].subset(torch.arange(199))) != digest
    assert data_digest(parts[0].subset(torch.arange(200).roll(1))) != digest
    if written is as_files:
        Image.new("L", (SIZE, SIZE), 7).save(tmp_path / "here" / "3" / "00133.png")
        assert data_digest(data.load(tmp_path / "here", stream=True).train) != digest
        (tmp_path / "there" / "3" / "00133.png").rename(tmp_path / "there" / "3" / "00133b.png")
        assert data_digest(data.load(tmp_path / "there", stream=True).train) != digest
    os.unlink(parts[0].where.path(-1))
    with pytest.raises(DataError, match="cannot be read: No such file"):
        parts[0].digest()


def test_labels_of_very_many_classes_are_found_at_once(tmp_path: Path) -> None:
    np.savez(tmp_path / "train.npz", x=np.zeros((2**16, 1, 1), np.uint8), y=np.arange(2**16))
    assert len(data.load(tmp_path, stream=True).classes) == 2**16


def test_numbers_of_images_are_made_when_a_worker_is_about_to_need_them(tmp_path: Path) -> None:
    """A list of all of them would be copied into every worker, page by page."""
    as_files(tmp_path)
    part = data.load(tmp_path, stream=True, workers=1).train
    made = []

    def index() -> Iterator[torch.Tensor]:
        for start in range(60):
            made.append(start)
            yield torch.tensor([start])

    read = read_items(part, index())
    next(read)
    assert len(made) < 5  # two are read ahead
    assert len(list(read)) == 59


@pytest.mark.parametrize("written", [as_files, as_tars, as_arrays])
def test_reading_an_image_adds_nothing_to_the_table_of_names_that_workers_share(
    tmp_path: Path, written: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path)
    part = data.load(tmp_path, stream=True).train
    image, _ = part[5]
    with monkeypatch.context() as patch:
        patch.setattr(sys, "intern", None)  # which every Path calls with the parts of its name
        with pytest.raises(TypeError):
            Path("a/b").parts  # noqa: B018
        again, _ = part[5]
    assert torch.equal(again, image)


_TRAINING = """
import multiprocessing, os, sys
import torchckn
from torchckn import data
from tests.training import network


def memory():  # of this process and its workers, in KiB, pages that they share counted once
    size, workers = 0, multiprocessing.active_children()
    Watch.workers = max(Watch.workers, len(workers))
    for pid in [os.getpid(), *(worker.pid for worker in workers)]:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            size += sum(int(line.split()[1]) for line in file if line.startswith("Pss:"))
    return size


class Watch(torchckn.Callback):
    during, workers = [], 0

    def on_step_end(self, training, record):
        if record["step"] % 5 == 0:
            self.during.append(memory())


watch = Watch()
part = data.load(sys.argv[1], stream=True, workers=1).train
result = torchckn.train(network(), part, lam=2**-8, epochs=1, batch_size=100, lr=2**-6, callbacks=[watch])
print(len(part), result.steps, watch.workers, max(watch.during[:2]), max(watch.during), memory())
"""


@pytest.mark.slow
def test_memory_is_flat_while_200000_image_files_are_trained_on(tmp_path: Path) -> None:
    """Unsupervised filters, the first classifier, an epoch of ultimate layer reversal, the last classifier; with a worker.

    The memory is that of the process and its worker together, at every fifth step.
    """
    as_files(tmp_path / "images", 200_000)
    command = [sys.executable, "-c", _TRAINING, str(tmp_path / "images")]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=HANGING)
    assert done.returncode == 0, done.stderr
    count, steps, workers, early, late, end = map(int, done.stdout.split())
    assert (count, steps, workers) == (200_000, 2000, 1)
    print(
        f"memory after 1,000 images {early / 2**10:.0f} MiB, at most {late / 2**10:.0f} MiB in 200,000, "
        f"{end / 2**10:.0f} MiB after the last classifier"
    )
    assert late <= 1.1 * early
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 2**22


def test_hidden_members_of_tar_files_are_not_read(tmp_path: Path) -> None:
    as_tars(tmp_path, shards=1)
    with tarfile.open(tmp_path / "train-0.tar") as archive:
        entries = {f"./{member.name}": archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    whole = len(entries)
    write_tar(tmp_path / "train-0.tar", entries | {"./3/._00001.png": b"of macOS", ".cache/1.png": b"x"})
    assert len(data.load(tmp_path, stream=True).train) == whole
