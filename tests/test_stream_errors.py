"""Images that cannot be streamed are refused before training, with what to do."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from torchckn import ConfigError, DataError, data

from .shards import as_arrays, as_tars, pictures, write_tar


def test_what_cannot_be_streamed_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--stream expected a folder of images or of shards"):
        data.load("mnist-mini", stream=True)
    with pytest.raises(ConfigError, match="add stream"):
        data.load("mnist-mini", workers=2)
    images, labels = pictures(20)
    np.savez_compressed(tmp_path / "train-0.npz", x=images, y=labels)
    with pytest.raises(DataError, match="it is compressed, so that no image can be read alone; write it with np.savez"):
        data.load(tmp_path, stream=True)
    np.savez(tmp_path / "train-0.npz", x=images.astype(np.float32), y=labels)
    with pytest.raises(DataError, match="expected x of dtype uint8, got float32"):
        data.load(tmp_path, stream=True)
    np.savez(tmp_path / "train-0.npz", x=images, y=labels)
    with pytest.raises(ConfigError, match="--resize is for image files"):
        data.load(tmp_path, stream=True, resize=5)
    (tmp_path / "train-0.npz").rename(tmp_path / "test-0.npz")
    with pytest.raises(DataError, match="has no shards for training; name them train-000.npz"):
        data.load(tmp_path, stream=True)
    (tmp_path / "train-1.tar").write_bytes(b"no archive")
    with pytest.raises(DataError, match="expected shards of one kind"):
        data.load(tmp_path, stream=True)
    (tmp_path / "test-0.npz").unlink()
    with pytest.raises(DataError, match="cannot be read as a .tar file that is not compressed"):
        data.load(tmp_path, stream=True)
    write_tar(tmp_path / "train-1.tar", {"1.png": b"x"})
    with pytest.raises(DataError, match="expected images in one folder per class, such as cat/1.png"):
        data.load(tmp_path, stream=True)


X, Y = pictures(20)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.asfortranarray(X), Y, "x is in Fortran order; write it with .*np.ascontiguousarray"),
        (X, Y[:3], r"expected a label for each image, got x of \(20, 14, 14\) and y of \(3,\)"),
        (X, Y - 5, "expected labels from 0, got -5; number the classes"),
        (
            X[:, :7].reshape(20, 14, 7),
            Y,
            r"must have one shape: .*train-1.npz has \(1, 14, 7\), .*train-0.npz \(1, 14, 14\)",
        ),
        (X[:, None].repeat(3, 1), Y, r"must have one shape: .* has \(3, 14, 14\)"),
    ],
)
def test_arrays_that_will_not_do_are_refused_before_training(
    tmp_path: Path, x: np.ndarray, y: np.ndarray, message: str
) -> None:
    np.savez(tmp_path / "train-0.npz", x=X, y=Y)
    np.savez(tmp_path / "train-1.npz", x=x, y=y)
    with pytest.raises(DataError, match=message):
        data.load(tmp_path, stream=True)


@pytest.mark.parametrize(
    ("descr", "shape", "message"),
    [
        ("|u1", "(20, 1000000, 1000000)", "x claims to have shape .*, which is not the size of its content"),
        ("|u1", "(20, -14, -14)", "x claims to have shape .*, which is not the size of its content"),
        ("|O", "(490,)", "x has Python objects"),
        ("|u1", "(20, 14, 14", "cannot be read as an .npz file of plain arrays"),
    ],
)
def test_arrays_that_are_not_what_they_claim_are_refused(tmp_path: Path, descr: str, shape: str, message: str) -> None:
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    y = io.BytesIO()
    np.save(y, Y)
    with zipfile.ZipFile(tmp_path / "train-0.npz", "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header + X.tobytes())
        archive.writestr("y.npy", y.getvalue())
    with pytest.raises(DataError, match=message):
        data.load(tmp_path, stream=True)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"a/1.png": b""}, r"a/1.png is empty"),
        ({"a/1.png": b"none", "b/1.png": b"x"}, r"train.tar \(image at byte 512\) cannot be read as an image"),
        ({"\udcff/1.png": b"x"}, r"printable folder names .*udcff.; rename the folder"),
        ({"\x1b[31m/1.png": b"x"}, r"printable folder names .*x1b\[31m.; rename the folder"),
        ({"x" * 256 + "/1.png": b"x"}, "printable folder names of at most 255 characters"),
    ],
)
def test_archives_that_will_not_do_are_refused(tmp_path: Path, entries: dict[str, bytes], message: str) -> None:
    write_tar(tmp_path / "train.tar", entries)
    (tmp_path / ".hidden.tar").write_bytes(b"not read")
    with pytest.raises(DataError, match=message):
        data.load(tmp_path, stream=True)


def test_a_file_with_holes_in_an_archive_is_refused(tmp_path: Path) -> None:
    write_tar(tmp_path / "train.tar", {"a/1.png": bytes(512)}, tarfile.GNUTYPE_SPARSE)
    with pytest.raises(DataError, match="a/1.png is sparse"):
        data.load(tmp_path, stream=True)


@pytest.mark.parametrize("ending", [".tar", ".npz"])
def test_a_shard_that_is_a_pipe_is_refused(tmp_path: Path, ending: str) -> None:
    os.mkfifo(tmp_path / f"train{ending}")
    with pytest.raises(DataError, match="it is not a regular file"):
        data.load(tmp_path, stream=True)


@pytest.mark.parametrize("side", [-3, 0, 10**6])
def test_a_size_that_no_image_has_is_refused(tmp_path: Path, side: int) -> None:
    as_tars(tmp_path)
    with pytest.raises(ConfigError, match=f"resize expected a side from 1 to 8192 pixels, got {side}"):
        data.load(tmp_path, stream=True, resize=side)


def test_a_shard_that_becomes_shorter_is_noticed(tmp_path: Path) -> None:
    as_arrays(tmp_path, shards=1)
    part = data.load(tmp_path, stream=True).train
    (tmp_path / "train-0.npz").write_bytes(b"")
    with pytest.raises(DataError, match="is shorter than it was when training began"):
        part[5]
