"""The files that public data sets are published as, read into arrays: IDX files (MNIST), binary batches or pictures (CIFAR-10).

They may come from anywhere, so nothing in them is believed: sizes are limited before they are read, and every error names the
file. Whether the content is that of the data set is checked in ``catalogue.py``.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from ..errors import DataError

Arrays = dict[str, np.ndarray]
PARTS = ("train_images", "train_labels", "test_images", "test_labels")
#: MNIST's names for them
IDX_FILES = dict(
    zip(
        PARTS,
        ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
        strict=True,
    )
)
#: bytes of one file, unpacked; the largest one has 47 million
_LARGEST = 64 * 2**20
#: bytes of an image in CIFAR-10's binary version: its label, then its pixels
_CIFAR_ROW = 1 + 3 * 32 * 32


class Originals(NamedTuple):
    """The arrays by the names in PARTS; and whether every file had a digest that was published for it."""

    arrays: Arrays
    verified: bool


def read_idx(folder: Path, md5: Mapping[str, str] | None = None) -> Originals | None:
    """MNIST's files, compressed or not; None if they are not there.

    Args:
        md5: digests of the compressed files. If there are any, compressed files are preferred, and have to have them.
    """
    arrays: Arrays = {}
    verified = True
    for part, stem in IDX_FILES.items():
        plain, packed = folder / stem, folder / f"{stem}.gz"
        if packed.is_file() and (md5 or not plain.is_file()):
            content = _read(packed)
            if md5 and hashlib.md5(content, usedforsecurity=False).hexdigest() != md5[packed.name]:
                raise DataError(f"{packed} is not the published file: its md5 sum is different")
            raw = _unpacked(packed, content)
            verified = verified and bool(md5)
            arrays[part] = _idx_array(packed, raw, 3 if "images" in part else 1)
        elif plain.is_file():
            verified = False
            arrays[part] = _idx_array(plain, _read(plain), 3 if "images" in part else 1)
        else:
            return None
    return Originals(arrays, verified)


def _idx_array(file: Path, raw: bytes, dimensions: int) -> np.ndarray:
    """Images as (N, 1, H, W), labels as (N,)."""
    start = 4 + 4 * dimensions
    if raw[:4] != bytes([0, 0, 8, dimensions]) or len(raw) < start:
        raise DataError(f"{file} is not an IDX file of bytes in {dimensions} dimensions, or is damaged")
    shape = [int(size) for size in np.frombuffer(raw, ">u4", dimensions, 4)]
    count = 1
    for size in shape:
        count *= size
    if count != len(raw) - start:
        raise DataError(f"{file} is truncated or damaged: expected {count} bytes after its header, got {len(raw) - start}")
    array = np.frombuffer(raw, np.uint8, offset=start).reshape(shape)
    return array[:, None] if dimensions == 3 else array


def read_cifar_binary(folder: Path) -> Originals | None:
    """CIFAR-10's binary version, from its archive or from the files in it; None if they are not there. Nothing is unpacked."""
    train, test = [f"data_batch_{i}.bin" for i in range(1, 6)], ["test_batch.bin"]
    for place in (folder / "cifar-10-batches-bin", folder):
        if all((place / name).is_file() for name in (*train, *test)):
            return _cifar_arrays(*([(place / name, _read(place / name)) for name in names] for names in (train, test)))
    archive = folder / "cifar-10-binary.tar.gz"
    if not archive.is_file():
        return None
    members: dict[str, bytes] = {}
    try:
        with tarfile.open(archive) as content:
            for member in content:
                name = member.name.rsplit("/", 1)[-1]
                file = content.extractfile(member) if member.isreg() and name in (*train, *test) else None
                if file is not None:
                    members[name] = _limited(archive / name, file)
    except (OSError, EOFError, tarfile.TarError, zlib.error, ValueError) as error:
        raise DataError(f"{archive} is truncated or damaged ({_reason(error)})") from error
    missing = [name for name in (*train, *test) if name not in members]
    if missing:
        raise DataError(f"{archive} expected files {', '.join((*train, *test))}; {', '.join(missing)} is not in it")
    return _cifar_arrays(*([(archive / name, members[name]) for name in names] for names in (train, test)))


def _cifar_arrays(train: Iterable[tuple[Path, bytes]], test: Iterable[tuple[Path, bytes]]) -> Originals:
    arrays: Arrays = {}
    for part, files in (("train", train), ("test", test)):
        batches = []
        for file, raw in files:
            if not raw or len(raw) % _CIFAR_ROW:
                raise DataError(
                    f"{file} is truncated or damaged: expected {_CIFAR_ROW} bytes per image, got {len(raw)} bytes"
                )
            batches.append(np.frombuffer(raw, np.uint8).reshape(-1, _CIFAR_ROW))
        rows = np.concatenate(batches)
        arrays[f"{part}_labels"] = rows[:, 0].copy()
        arrays[f"{part}_images"] = rows[:, 1:].reshape(-1, 3, 32, 32)
    return Originals(arrays, False)


def read_cifar_pictures(folder: Path) -> Originals:
    """The npm package: pictures of 10,000 rows by 1,024 columns, one image per row; labels as JSON lists."""
    from PIL import Image

    arrays: Arrays = {}
    for part, names in (("train", [f"data_batch_{i}" for i in range(1, 6)]), ("test", ["test_batch"])):
        pixels = []
        for name in names:
            with Image.open(folder / f"{name}.png", formats=("PNG",)) as picture:
                rows = np.asarray(picture.convert("RGB"))  # (images, 1024, 3)
            pixels.append(rows.reshape(len(rows), 32, 32, 3).transpose(0, 3, 1, 2))
        labels = json.loads((folder / f"{part}_lables.json").read_text())  # spelled so
        arrays[f"{part}_images"] = np.ascontiguousarray(np.concatenate(pixels))
        arrays[f"{part}_labels"] = np.asarray(labels, np.uint8)
    return Originals(arrays, False)


def read_idx_package(folder: Path) -> Originals:
    """The npm package with MNIST's files."""
    arrays = read_idx(folder / "data")
    if arrays is None:
        raise DataError("the package does not have the files it should have")
    return arrays


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            if os.fstat(opened.fileno()).st_size > _LARGEST:  # a sparse file may claim any size
                raise DataError(f"{file} is larger than the file that was published")
            return opened.read()
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}") from error


def _unpacked(file: Path, content: bytes) -> bytes:
    try:
        with gzip.open(io.BytesIO(content)) as opened:
            return _limited(file, opened)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file} is truncated or damaged ({_reason(error)})") from error


def _limited(file: Path, opened: IO[bytes] | gzip.GzipFile) -> bytes:
    raw = opened.read(_LARGEST + 1)
    if len(raw) > _LARGEST:
        raise DataError(f"{file} is larger than the file that was published")
    return raw


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
