"""The cache of public data sets: a file each, ``torchckn-NAME.safetensors``.

It has a digest that is verified whenever it is read. It appears whole or not at all, and nothing else in the data folder is
changed. Read first: ``catalogue.py``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import platformdirs
import torch

from ..errors import DataError
from ..files import read_tensors, write_tensors
from .catalogue import Source, form_problem
from .originals import PARTS, Originals

_KIND = "data"
#: bytes of a file of the cache; CIFAR-10 has 184 million
_LARGEST = 2**29


def data_folder(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """Where data sets are kept: ``data_dir``, or the environment's TORCHCKN_DATA, or the platform's cache folder."""
    folder = data_dir or os.environ.get("TORCHCKN_DATA") or platformdirs.user_cache_path("torchckn") / "data"
    try:
        return Path(folder).expanduser()
    except RuntimeError as error:  # ~name, where nobody has that name
        raise DataError(
            f"cannot use {folder} for data: {error}; choose another folder with data_dir or TORCHCKN_DATA"
        ) from error


def is_cached(name: str, folder: Path) -> bool:
    """Whether a data set is in the cache."""
    return os.path.lexists(cache_file(name, folder))


def cache_file(name: str, folder: Path) -> Path:
    return folder / f"torchckn-{name}.safetensors"


def read_cache(name: str, source: Source, folder: Path) -> Originals:
    file = cache_file(name, folder)
    try:
        if file.is_file() and file.stat().st_size > _LARGEST:
            raise DataError(f"{file} is larger than any file that torchckn writes")
        facts, tensors = read_tensors(file, _KIND)
        arrays = {part: tensor.numpy() for part, tensor in tensors.items()}
        problem = f"it has {facts.get('name')!r}" if facts.get("name") != name else form_problem(source, arrays)
        if problem is not None:
            raise DataError(f"{file} does not have {name}: {problem}")
    except DataError as error:
        raise DataError(f"the cached {name} is damaged: {error}; delete that file and load {name} again") from error
    return Originals(arrays, facts.get("verified") is True)


def write_cache(name: str, originals: Originals, folder: Path, scratch: Path) -> None:
    complete, file = scratch / "complete", cache_file(name, folder)
    tensors = {part: torch.from_numpy(np.array(originals.arrays[part])) for part in PARTS}
    write_tensors(complete, _KIND, {"name": name, "verified": originals.verified}, tensors)
    try:
        os.replace(complete, file)
    except OSError as error:
        raise DataError(f"cannot write {file}: {error.strerror}") from error


def make_private(folder: Path) -> None:
    """Make a folder and those above it that are missing, each for the user alone."""
    if not folder.exists():
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
    elif not folder.is_dir():
        raise NotADirectoryError(None, "it is not a folder")


#: a file that says that a folder is torchckn's own, so that it may be removed
_MARKER = "torchckn-made-this"


@contextmanager
def scratch_folder(name: str, folder: Path) -> Iterator[Path]:
    """A temporary folder beside the cache; what a killed process left in it goes first. (Called within the lock.)"""
    scratch = folder / f".torchckn-fetching-{name}"
    try:
        if os.path.lexists(scratch):
            if (scratch / _MARKER).is_file():
                shutil.rmtree(scratch)
            else:
                scratch.rmdir()
        scratch.mkdir(mode=0o700)
        (scratch / _MARKER).touch()
    except OSError as error:
        raise DataError(
            f"cannot use {scratch} for files that are being fetched: {error.strerror}; if it is yours, rename it"
        ) from error
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
