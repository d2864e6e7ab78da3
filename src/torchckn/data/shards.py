"""Where the images of shards are: ``.tar`` files of images, ``.npz`` files of arrays ``x`` and ``y``.

Their headers are read once, and checked; what is not where they claim it to be is an error that names the file.
Read next: :mod:`torchckn.data.streams`, which reads the images.
"""

from __future__ import annotations

import os
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from ..errors import DataError
from .limits import check_regular, shown
from .npz import array_claim, check_arrays, opened_npz, read_array
from .own import IMAGES


class Location(NamedTuple):
    """Where images are: one entry per image."""

    files: np.ndarray
    """paths as bytes: of shards, or one per image; Python objects would be copied in every worker that looks at them"""
    file: np.ndarray
    """which of them"""
    start: np.ndarray
    """first byte of the image's file or row in it"""
    length: np.ndarray
    """bytes; 0: the whole file"""

    def path(self, index: int) -> str:
        """The file of an image. (A ``Path`` would write its parts into a table of Python's, which workers share until then.)"""
        return os.fsdecode(self.files[self.file[index]])

    def rows(self, index: np.ndarray) -> Location:
        """Some of the images, by their numbers."""
        return Location(self.files, self.file[index], self.start[index], self.length[index])


def as_bytes(files: Sequence[Path]) -> np.ndarray:
    """Paths in one array."""
    return np.array([os.fsencode(file) for file in files])


def index_tar(files: Sequence[Path]) -> tuple[Location, list[str]]:
    """Where the images of tar files are, and the names of their folders, which are their classes."""
    rows: list[tuple[int, int, int]] = []
    names: list[str] = []
    for number, file in enumerate(files):
        try:
            check_regular(file)
            with tarfile.open(file, "r:") as archive:
                for member in archive:
                    path = PurePosixPath(member.name)
                    is_hidden = any(part.startswith(".") and part != "." for part in path.parts)  # as those of macOS
                    if member.isfile() and path.suffix.lower() in IMAGES and not is_hidden:
                        if not member.size or member.issparse():
                            raise ValueError(
                                f"{shown(member.name)[:100]} {'is sparse' if member.issparse() else 'is empty'}"
                            )
                        rows.append((number, member.offset_data, member.size))
                        names.append(path.parent.name)
                    archive.members = []  # type: ignore[attr-defined] # which would hold every header in memory
        except Exception as error:  # tarfile raises nearly anything when a file is damaged
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise DataError(
                f"{shown(file)} cannot be read as a .tar file that is not compressed ({shown(reason)}); make it with tar -cf"
            ) from error
    if not rows or "" in names:
        raise DataError(
            f"{shown(files[0])} and similar .tar files expected images in one folder per class, such as cat/1.png"
        )
    table = np.array(rows, np.int64)
    return Location(as_bytes(files), table[:, 0], table[:, 1], table[:, 2]), names


def index_npz(files: Sequence[Path]) -> tuple[Location, list[str], tuple[int, int, int]]:
    """Where the images of .npz files are, row by row, their labels, and the shape (C, H, W) that all of them have."""
    numbers, starts, lengths = [], [], []
    names: list[str] = []
    shapes: list[tuple[int, ...]] = []
    for number, file in enumerate(files):
        with opened_npz(file) as archive:
            x, y = (archive.getinfo(f"{name}.npy") for name in "xy")
            if x.compress_type != zipfile.ZIP_STORED:
                raise ValueError("it is compressed, so that no image can be read alone; write it with np.savez")
            (shape, dtype, by_columns, start), labels = array_claim(archive, x), array_claim(archive, y)
            if labels.shape != shape[:1]:
                raise DataError(f"{shown(file)} expected a label for each image, got x of {shape} and y of {labels.shape}")
            if by_columns and len(shape) > 1:
                raise ValueError("x is in Fortran order; write it with np.savez(..., x=np.ascontiguousarray(x))")
            y_values = read_array(archive, y)
            start += _first_byte(file, x)
        if dtype != np.uint8:
            raise DataError(f"{shown(file)} expected x of dtype uint8, got {dtype}")
        check_arrays(shape, dtype, y_values, shown(file))
        if y_values.min() < 0:
            raise DataError(f"{shown(file)} expected labels from 0, got {y_values.min()}; number the classes 0, 1, 2, ...")
        shapes.append((1, *shape[1:]) if len(shape) == 3 else shape[1:])
        if shapes[-1] != shapes[0]:
            raise DataError(
                f"images must have one shape: {shown(file)} has {shapes[-1]}, {shown(files[0])} {shapes[0]}; "
                "crop or resize them to one size first"
            )
        size = int(np.prod(shape[1:]))
        numbers.append(np.full(len(y_values), number))
        starts.append(start + size * np.arange(len(y_values)))
        lengths.append(np.full(len(y_values), size))
        names += map(str, y_values.tolist())
    channels, height, width = shapes[0]
    where = Location(as_bytes(files), *map(np.concatenate, (numbers, starts, lengths)))
    return where, names, (channels, height, width)


def _first_byte(file: Path, entry: zipfile.ZipInfo) -> int:
    """Where an entry that is not compressed begins in its archive: after a header of its own."""
    with file.open("rb") as opened:
        opened.seek(entry.header_offset + 26)
        name, extra = np.frombuffer(opened.read(4), "<u2")
    return entry.header_offset + 30 + int(name) + int(extra)
