"""Images that are not held in memory: read when they are asked for, by their number, from files or shards.

A folder of image files, or a folder of shards: ``.tar`` files of images, ``.npz`` files of arrays ``x`` and ``y``. Where each
image is in its shard is found once; then any image can be read alone, so that the order of training is decided by the seed,
each process reads its share of a batch and nothing else, and a run can be resumed at any step.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..errors import ConfigError, DataError
from .limits import check_class, shown
from .own import VALIDATION, WIDEST, ImageFile, Piece, image_files_by_part, is_grey, read_for, read_image
from .sets import DataSet, Part, evenly_spaced, in_channels
from .shards import Location, as_bytes, index_npz, index_tar

SHARDS = (".tar", ".npz")
#: bytes of an image in a shard that tell whether it is in color, nearly always
_HEADER = 2**12


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
        image = _whole(self.where, index)
        if isinstance(image, Piece) and self.where.path(index).endswith(".npz"):
            pixels = torch.frombuffer(bytearray(image.content), dtype=torch.uint8).view(-1, *self.image_shape[1:])
            return in_channels(pixels, self.image_shape[0]), self.labels[index]
        return read_for(image, self.image_shape, self.resize), self.labels[index]

    def subset(self, which: Tensor) -> LazyPart:
        """Some of the images, by their numbers."""
        where = self.where.rows(which.numpy())
        return LazyPart(where, self.labels[which], self.image_shape, resize=self.resize, workers=self.workers)

    def in_channels(self, channels: int) -> LazyPart:
        """Grey images as color images, or the reverse."""
        shape = (channels, *self.image_shape[1:])
        return LazyPart(self.where, self.labels, shape, resize=self.resize, workers=self.workers)

    def relabeled(self, numbers: Tensor) -> LazyPart:
        """The same images, with ``numbers[label]`` in place of each label."""
        return LazyPart(self.where, numbers[self.labels], self.image_shape, resize=self.resize, workers=self.workers)

    def some(self, count: int) -> Part:
        """At most so many images, evenly spaced over all of them, because folders are sorted by class; they are read now."""
        index = evenly_spaced(count, len(self))
        return Part(torch.stack([self[int(i)][0] for i in index]), self.labels[index])

    def digest(self) -> str:
        """Of the names and sizes of the files, the places of images in them, and all labels; not of where the folder is."""
        used, which = np.unique(self.where.file, return_inverse=True)
        files = [os.fsdecode(self.where.files[number]) for number in used]
        folder = os.path.commonpath([os.path.dirname(file) for file in files])
        digest = hashlib.sha256(repr(self.image_shape).encode())
        for file in files:
            try:
                digest.update(
                    f"{os.path.relpath(file, folder)} {os.path.getsize(file)}\n".encode("utf-8", "surrogateescape")
                )
            except OSError as error:
                raise DataError(f"{shown(file)} cannot be read: {error.strerror}") from error
        for column in (which, self.where.start, self.where.length, self.labels.numpy()):
            digest.update(np.ascontiguousarray(column, np.int64).tobytes())
        return digest.hexdigest()

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
    if resize is not None and not 1 <= resize <= WIDEST:
        raise ConfigError(f"resize expected a side from 1 to {WIDEST} pixels, got {resize}")
    shards = sorted(file for file in folder.iterdir() if file.suffix in SHARDS and not file.name.startswith("."))
    if not shards:
        classes, files = image_files_by_part(folder)
        places = {part: (_whole_files(list(some)), [*some.values()]) for part, some in files.items()}
        shape = _shape([where for where, _ in places.values()], resize)
    else:
        classes, places, shape = _places_in_shards(folder, shards, resize)
    if len(classes) < 2:
        raise DataError(f"{shown(folder)} expected images of at least two classes, got {len(classes)}")
    parts = {
        part: LazyPart(where, torch.tensor(labels), shape, resize=resize is not None, workers=workers)
        for part, (where, labels) in places.items()
    }
    lazy = cast(dict[str, Any], parts)  # parts that have no tensor of all their images
    return DataSet(shown(folder.name), lazy["train"], lazy.get("test"), tuple(classes), lazy.get("valid"))


def _places_in_shards(
    folder: Path, shards: Sequence[Path], resize: int | None
) -> tuple[list[str], dict[str, tuple[Location, list[int]]], tuple[int, int, int]]:
    """The classes, where the images of each part are, with their labels, and the shape of all images."""
    if len({file.suffix for file in shards}) > 1:
        raise DataError(f"{shown(folder)} expected shards of one kind, got {', '.join(SHARDS)}; move one kind elsewhere")
    part_of = np.array([_part_of(file.name) for file in shards])
    if "train" not in part_of:
        raise DataError(f"{shown(folder)} has no shards for training; name them train-000{shards[0].suffix}, ...")
    shape: tuple[int, int, int] | None = None
    if shards[0].suffix == ".tar":
        where, names = index_tar(shards)
        for name in set(names):
            check_class(name, shown(folder))
    else:
        if resize is not None:
            raise ConfigError("--resize is for image files; the arrays of .npz shards have the size that they have")
        where, names, shape = index_npz(shards)
    classes = sorted(set(names), key=_by_number)
    label = {name: number for number, name in enumerate(classes)}
    rows = {part: np.flatnonzero(part_of[where.file] == part) for part in ("train", "valid", "test") if part in part_of}
    places = {part: (where.rows(index), [label[names[i]] for i in index]) for part, index in rows.items()}
    for part, index in rows.items():
        if not len(index):
            raise DataError(f"{shown(folder)} expected images in its shards for {part}, got none")
    return classes, places, shape or _shape([where for where, _ in places.values()], resize)


def _part_of(name: str) -> str:
    if name.startswith("test"):
        return "test"
    return "valid" if name.startswith(VALIDATION) else "train"


def _by_number(name: str) -> tuple[int, str]:
    return (int(name), "") if name.isdecimal() else (2**63, name)


def _whole_files(files: Sequence[Path]) -> Location:
    count = len(files)
    return Location(as_bytes(files), np.arange(count), np.zeros(count, np.int64), np.zeros(count, np.int64))


def _shape(parts: Sequence[Location], resize: int | None) -> tuple[int, int, int]:
    """(C, H, W) of all images, the size that of the first one; if any of them is in color, all are, as in memory."""
    _, height, width = read_image(_whole(parts[0], 0)).shape
    is_colored = any(not _is_grey(where, index) for where in parts for index in range(len(where.file)))
    return 3 if is_colored else 1, resize or height, resize or width


def _is_grey(where: Location, index: int) -> bool:
    """Whether an image is grey; of a shard, from the first bytes of the image if they suffice."""
    if where.length[index] > _HEADER:
        try:
            return is_grey(_piece(where.path(index), int(where.start[index]), _HEADER))
        except DataError:
            pass  # its header is longer, or it has a palette
    return is_grey(_whole(where, index))


def _whole(where: Location, index: int) -> ImageFile:
    """An image: its file, or its bytes in a shard."""
    file, length = where.path(index), int(where.length[index])
    return _piece(file, int(where.start[index]), length) if length else file


def _piece(file: str, start: int, length: int) -> Piece:
    """An image in a shard, or the numbers of one."""
    try:
        with open(file, "rb") as opened:
            if start + length > os.fstat(opened.fileno()).st_size:  # asked first: the length may be of any size
                raise DataError(f"{shown(file)} is shorter than it was when training began; put the whole file back")
            return Piece(f"{file} (image at byte {start})", os.pread(opened.fileno(), length, start))
    except OSError as error:
        raise DataError(f"{shown(file)} cannot be read: {error.strerror}") from error
