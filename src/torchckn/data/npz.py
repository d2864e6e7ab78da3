"""Your own images as arrays in an ``.npz`` file."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError
from .limits import check_memory, check_regular, shown
from .sets import DataSet, checked_part, has_channels_last

#: classes that the labels of an .npz file may number
_MOST_CLASSES = 2**16


def load_npz(file: Path) -> DataSet:
    """Arrays ``x`` (N, H, W) or (N, C, H, W) and ``y`` (N,), integers.

    A validation part, ``x_valid`` and ``y_valid``, and a test part, ``x_test`` and ``y_test``, are read if they are there.
    """
    arrays, in_file = _read_npz(file, [f"{array}{ending}" for ending in ("", "_valid", "_test") for array in "xy"])
    pairs: dict[str, tuple[Tensor, Tensor]] = {}
    for name, ending in (("train", ""), ("valid", "_valid"), ("test", "_test")):
        x, y = f"x{ending}", f"y{ending}"
        if name == "train" or x in arrays or y in arrays:
            if x not in arrays or y not in arrays:
                got = ", ".join(shown(array) for array in in_file[:20]) or "none"
                raise DataError(f"{shown(file)} expected arrays {x} and {y}, got {got}")
            pairs[name] = _arrays(
                arrays.pop(x), arrays.pop(y), shown(file) if name == "train" else f"{shown(file)} ({name})"
            )
    bytes_in = {name: images.dtype == torch.uint8 for name, (images, _) in pairs.items()}
    if len(set(bytes_in.values())) > 1:
        kinds = ", ".join(f"{name}: {'uint8' if is_bytes else 'numbers'}" for name, is_bytes in bytes_in.items())
        raise DataError(
            f"{shown(file)} expected the same kind of pixels in all parts, got {kinds}; store all as uint8, or all as numbers "
            "of the same range"
        )
    count = 1 + int(max(labels.max() for _, labels in pairs.values()))
    parts = {name: checked_part(*pair, count, shown(file)) for name, pair in pairs.items()}
    if count < 2:
        raise DataError(f"{shown(file)} expected images of at least two classes, got the label {count - 1} only")
    classes = tuple(str(i) for i in range(count))
    return DataSet(shown(file.stem), parts["train"], parts.get("test"), classes, parts.get("valid"))


def _read_npz(file: Path, names: Sequence[str]) -> tuple[dict[str, np.ndarray], list[str]]:
    """Those of the named arrays that are in the file, and the names of all.

    What they claim to be is checked before any memory is taken.
    """
    with opened_npz(file) as archive:
        in_file = sorted(entry.removesuffix(".npy") for entry in archive.namelist())
        entries = {name: archive.getinfo(f"{name}.npy") for name in names if name in in_file}
        claims = [array_claim(archive, entry) for entry in entries.values()]
        check_memory(sum(claim.size for claim in claims), shown(file))
        return {name: read_array(archive, entry) for name, entry in entries.items()}, in_file


@contextmanager
def opened_npz(file: Path) -> Iterator[zipfile.ZipFile]:
    """An .npz file; whatever goes wrong within this context is the fault of the file."""
    try:
        check_regular(file)
        with zipfile.ZipFile(file) as archive:
            yield archive
    except DataError:
        raise
    except Exception as error:  # zipfile, zlib and numpy raise nearly anything when a file is damaged
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"{shown(file)} cannot be read as an .npz file of plain arrays ({shown(reason)})") from error


class Claim(NamedTuple):
    """What an array claims to be."""

    shape: tuple[int, ...]
    dtype: np.dtype
    by_columns: bool
    """the first index changes fastest"""
    start: int
    """bytes of its header"""

    @property
    def size(self) -> int:
        """in bytes"""
        return math.prod(self.shape) * self.dtype.itemsize


def array_claim(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Claim:
    """What an array claims to be, which must agree with the size of its file."""
    name = entry.filename.removesuffix(".npy")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{name} is compressed by a method that numpy does not use")
    most = 1100 * entry.compress_size + 1100  # deflate packs 1,032 bytes into one at most
    if entry.file_size > (most if entry.compress_type == zipfile.ZIP_DEFLATED else entry.compress_size):
        raise ValueError(f"{name} claims to have {entry.file_size} bytes, packed into {entry.compress_size}")
    with archive.open(entry) as opened:
        version = np.lib.format.read_magic(opened)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, by_columns, dtype = read(opened)
        claim = Claim(shape, dtype, by_columns, opened.tell())
    if dtype.hasobject:
        raise ValueError(f"{name} has Python objects")
    if any(size < 0 for size in shape) or claim.size != entry.file_size - claim.start:
        raise ValueError(f"{name} claims to have shape {shape}, which is not the size of its content")
    return claim


def read_array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(entry) as opened:
        array: np.ndarray = np.lib.format.read_array(opened, allow_pickle=False)
        return array


def check_arrays(shape: tuple[int, ...], dtype: np.dtype, y: np.ndarray, what: str) -> None:
    """An error unless an array x of this shape and dtype and an array y can be images and their labels."""
    if len(shape) not in (3, 4) or dtype.kind not in "uif":
        raise DataError(f"{what} expected x of shape (N, H, W) or (N, C, H, W) and numbers, got {shape} of {dtype}")
    if has_channels_last(shape):
        raise DataError(
            f"{what} expected channels first, x of shape (N, C, H, W), got {shape}, which seems to have them last; store "
            f"numpy.moveaxis(x, -1, 1), or, if there are {shape[1]} channels, x with height and width exchanged"
        )
    if y.ndim != 1 or y.dtype.kind not in "ui":
        raise DataError(
            f"{what} expected y to be integers, one for each image, got {y.shape} of {y.dtype}; number the classes 0, 1, 2, ..."
        )
    if not shape[0] or not len(y):
        raise DataError(f"{what} has no images")
    if not math.prod(shape):
        raise DataError(f"{what} expected images with pixels, got x of shape {shape}")
    if int(y.max()) >= _MOST_CLASSES:
        raise DataError(f"{what} expected labels below {_MOST_CLASSES}, got {int(y.max())}; number the classes 0, 1, 2, ...")


def _arrays(x: np.ndarray, y: np.ndarray, what: str) -> tuple[Tensor, Tensor]:
    check_arrays(x.shape, x.dtype, y, what)
    if x.ndim == 3:
        x = x[:, None]
    if x.dtype.kind == "f":
        largest = max(-x.min(), x.max())  # NaN if any is
        if not np.isfinite(largest):
            raise DataError(f"{what} has pixels that are NaN or infinite; remove these images, or replace the pixels")
        if largest > np.finfo(np.float32).max:
            raise DataError(f"{what} has pixels of up to {largest:.1e}, beyond the range of float32; scale them to 0..1")
    pixels = x if x.dtype == np.uint8 else x.astype(np.float32)
    return torch.from_numpy(np.ascontiguousarray(pixels)), torch.from_numpy(y.astype(np.int64))
