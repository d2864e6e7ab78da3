"""Images that are not held in memory: read when they are asked for, by their number, from files or shards.

A folder of image files, or a folder of shards: ``.tar`` files of images, ``.npz`` files of arrays ``x`` and ``y``. Where each
image is in its shard is found once; then any image can be read alone, so that the order of training is decided by the seed,
each process reads its share of a batch and nothing else, and a run can be resumed at any step.
"""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..errors import ConfigError, DataError
from .limits import shown
from .npz import check_arrays
from .own import IMAGES, VALIDATION, image_files_by_part, read_for, read_image
from .sets import DataSet

SHARDS = (".tar", ".npz")
#: images that tell whether a data set is grey or in color
_LOOKED_AT = 64


class Location(NamedTuple):
    """Where images are: one entry per image."""

    files: tuple[str, ...]
    """paths: of shards, or one per image"""
    file: np.ndarray
    """which of them"""
    start: np.ndarray
    """first byte of the image's file or row in it"""
    length: np.ndarray
    """bytes; 0: the whole file"""


class LazyPart(Dataset[tuple[Tensor, Tensor]]):
    """Images that are read when they are asked for, and their labels: a ``Dataset`` of pairs, which all functions take as data.

    Args:
        shape: (C, H, W) of all images; image files of another size are resized.
        workers: processes that read ahead, while a network is trained; 0: none.
    """

    def __init__(
        self, where: Location, labels: Tensor, shape: tuple[int, int, int], *, resize: bool = True, workers: int = 0
    ) -> None:
        self.where, self.labels, self.image_shape = where, labels, shape
        self.resize, self.workers = resize, workers

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        file = Path(self.where.files[self.where.file[index]])
        start, length = int(self.where.start[index]), int(self.where.length[index])
        if not length:
            return read_for(file, self.image_shape, self.resize), self.labels[index]
        content = self._read(file, start, length)
        if file.suffix == ".npz":
            return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(self.image_shape), self.labels[index]
        return read_for(file, self.image_shape, self.resize, io.BytesIO(content)), self.labels[index]

    def _read(self, file: Path, start: int, length: int) -> bytes:
        try:
            with file.open("rb") as opened:
                content = os.pread(opened.fileno(), length, start)
        except OSError as error:
            raise DataError(f"{shown(file)} cannot be read: {error.strerror}") from error
        if len(content) != length:
            raise DataError(f"{shown(file)} is shorter than it was when training began; put the whole file back")
        return content

    def subset(self, which: Tensor) -> LazyPart:
        """Some of the images, by their numbers."""
        index = which.numpy()
        files, file, start, length = self.where
        where = Location(files, file[index], start[index], length[index])
        return LazyPart(where, self.labels[which], self.image_shape, resize=self.resize, workers=self.workers)

    def sample(self, count: int) -> Tensor:
        """At most so many images, evenly spaced: (n, C, H, W)"""
        step = max(1, len(self) // count)
        return torch.stack([self[i][0] for i in range(0, len(self), step)][:count])

    def __repr__(self) -> str:
        return f"LazyPart({len(self)} images of shape {self.image_shape}, read when needed)"


def stream(folder: Path, resize: int | None = None, workers: int = 0) -> DataSet:
    """The images of a folder, read when they are needed: image files by class as in ``load_folder``, or shards.

    Shards are for the part that their names begin with (``train-000.tar``, ``test-000.tar``, ``val-000.npz``), for training
    otherwise. In a ``.tar`` file the name of an image's folder is its class.

    Args:
        resize: side, in pixels, of all images; by default they must have the size of the first one.
        workers: processes that decode images ahead of time.
    """
    if not folder.is_dir():
        raise ConfigError(f"--stream expected a folder of images or of shards ({', '.join(SHARDS)}), got {shown(folder)}")
    shards = sorted(file for file in folder.iterdir() if file.suffix in SHARDS)
    if not shards:
        classes, files = image_files_by_part(folder)
        places = {part: (_whole_files(list(some)), [*some.values()]) for part, some in files.items()}
    else:
        if len({file.suffix for file in shards}) > 1:
            raise DataError(f"{shown(folder)} expected shards of one kind, got {', '.join(SHARDS)}; move one kind elsewhere")
        groups: dict[str, list[Path]] = {}
        for file in shards:
            groups.setdefault(_part_of(file.name), []).append(file)
        if "train" not in groups:
            raise DataError(f"{shown(folder)} has no shards for training; name them train-000{shards[0].suffix}, ...")
        indexed = {
            part: _index_tar(files) if shards[0].suffix == ".tar" else _index_npz(files) for part, files in groups.items()
        }
        classes = sorted({name for _, names in indexed.values() for name in names}, key=_by_number)
        places = {part: (where, [classes.index(name) for name in names]) for part, (where, names) in indexed.items()}
    if len(classes) < 2:
        raise DataError(f"{shown(folder)} expected images of at least two classes, got {len(classes)}")
    shape = _shape(places["train"][0], resize)
    parts = {
        part: LazyPart(where, torch.tensor(labels), shape, resize=resize is not None, workers=workers)
        for part, (where, labels) in places.items()
    }
    lazy = cast(dict[str, Any], parts)  # parts that have no tensor of all their images
    return DataSet(shown(folder.name), lazy["train"], lazy.get("test"), tuple(classes), lazy.get("valid"))


def _part_of(name: str) -> str:
    if name.startswith("test"):
        return "test"
    return "valid" if name.startswith(VALIDATION) else "train"


def _by_number(name: str) -> tuple[int, str]:
    return (int(name), "") if name.isdecimal() else (2**63, name)


def _whole_files(files: Sequence[Path]) -> Location:
    count = len(files)
    return Location(tuple(map(str, files)), np.arange(count), np.zeros(count, np.int64), np.zeros(count, np.int64))


def _index_tar(files: Sequence[Path]) -> tuple[Location, list[str]]:
    """Where the images of tar files are, and the names of their folders, which are their classes."""
    rows: list[tuple[int, int, int]] = []
    names: list[str] = []
    for number, file in enumerate(files):
        try:
            with tarfile.open(file, "r:") as archive:
                for member in archive:
                    path = PurePosixPath(member.name)
                    if member.isfile() and path.suffix.lower() in IMAGES:
                        rows.append((number, member.offset_data, member.size))
                        names.append(path.parent.name)
                    archive.members = []  # type: ignore[attr-defined] # which would hold every header in memory
        except (tarfile.TarError, OSError) as error:
            raise DataError(
                f"{shown(file)} cannot be read as a .tar file that is not compressed ({error}); make it with tar -cf"
            ) from error
    if not rows or "" in names:
        raise DataError(f"{shown(files[0])} and its like expected images in a folder for each class, as in cat/1.png")
    table = np.array(rows, np.int64)
    return Location(tuple(map(str, files)), table[:, 0], table[:, 1], table[:, 2]), names


def _index_npz(files: Sequence[Path]) -> tuple[Location, list[str]]:
    """Where the images of .npz files are, row by row, and their labels."""
    numbers, starts, lengths = [], [], []
    names: list[str] = []
    for number, file in enumerate(files):
        try:
            with zipfile.ZipFile(file) as archive:
                entry = archive.getinfo("x.npy")
                if entry.compress_type != zipfile.ZIP_STORED:
                    raise ValueError("it is compressed, so that no image can be read alone; write it with np.savez")
                with archive.open("y.npy") as opened:
                    y = np.lib.format.read_array(opened, allow_pickle=False)
                shape, dtype, start = _npy_header(file, entry)
        except (zipfile.BadZipFile, KeyError, ValueError, OSError) as error:
            raise DataError(f"{shown(file)} cannot be read as a shard with arrays x and y ({error})") from error
        if dtype != np.uint8:
            raise DataError(f"{shown(file)} expected x of uint8, as shards have it, got {dtype}")
        check_arrays(shape, dtype, y, shown(file))
        size = int(np.prod(shape[1:]))
        numbers.append(np.full(len(y), number))
        starts.append(start + size * np.arange(len(y)))
        lengths.append(np.full(len(y), size))
        names += map(str, y.tolist())
    return Location(tuple(map(str, files)), *map(np.concatenate, (numbers, starts, lengths))), names


def _npy_header(file: Path, entry: zipfile.ZipInfo) -> tuple[tuple[int, ...], np.dtype, int]:
    """Shape, dtype, and the first byte of the numbers in the file."""
    with file.open("rb") as opened:
        opened.seek(entry.header_offset + 26)
        name, extra = np.frombuffer(opened.read(4), "<u2")
        opened.seek(entry.header_offset + 30 + int(name) + int(extra))
        version = np.lib.format.read_magic(opened)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(opened)
        return shape, dtype, opened.tell()


def _shape(where: Location, resize: int | None) -> tuple[int, int, int]:
    """(C, H, W) of all images: grey if some that are looked at are."""
    if where.files[0].endswith(".npz"):
        with zipfile.ZipFile(where.files[0]) as archive:
            shape, _, _ = _npy_header(Path(where.files[0]), archive.getinfo("x.npy"))
        if resize is not None:
            raise ConfigError("--resize is for image files; the arrays of .npz shards have the size that they have")
        return (1, *shape[1:]) if len(shape) == 3 else shape[1:]  # type: ignore[return-value]
    some = LazyPart(where, torch.zeros(len(where.file)), (3, 1, 1))
    pixels = []
    for index in range(0, len(some), max(1, len(some) // _LOOKED_AT)):
        file, length = Path(where.files[where.file[index]]), int(where.length[index])
        content = some._read(file, int(where.start[index]), length) if length else None
        pixels.append(read_image(file, content=None if content is None else io.BytesIO(content)))
    height, width = (resize, resize) if resize else (pixels[0].shape[1], pixels[0].shape[2])
    return max(len(image) for image in pixels), height, width
