"""Public data sets: where they come from, their cache, and content that is not theirs."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import os
import stat
import struct
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from torchckn import data
from torchckn.data import catalogue, originals
from torchckn.errors import DataError
from torchckn.files import read_tensors, write_tensors
from torchckn.graph.preprocessing import unit_pixels


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
    source = catalogue.Source(
        tuple("0123456789"), (1, 4, 4), hashes, originals.read_idx, (("http://127.0.0.1:9/nothing.gz",),), None
    )
    monkeypatch.setitem(catalogue.SOURCES, "tiny", source)
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
        monkeypatch.setitem(catalogue.SOURCES, "other", catalogue.SOURCES["tiny"])
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
        ("/proc/self", "cannot use /proc/self for data: No such file or directory; choose another folder"),
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


def test_compressed_files_with_the_published_digests_are_verified(
    tiny: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_idx(tmp_path, tiny, compress=True)
    md5 = {file.name: hashlib.md5(file.read_bytes()).hexdigest() for file in tmp_path.glob("*.gz")}
    write_idx(tmp_path, tiny)  # beside them; the compressed ones have digests
    pixels = tiny["train_images"] / 255
    source = dataclasses.replace(
        catalogue.SOURCES["tiny"],
        sha256={},
        find=partial(originals.read_idx, md5=md5),
        statistics=catalogue.Statistics(2, 1, float(pixels.mean()), float(pixels.std())),
    )
    monkeypatch.setitem(catalogue.SOURCES, "tiny", source)
    data.load("tiny", tmp_path)
    assert data.verify("tiny", tmp_path) is True
