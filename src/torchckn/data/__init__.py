"""Images and labels: data sets by name, one's own images, preprocessing, splits, batches.

``sources.py`` fetches and checks the public sets, ``own.py`` reads one's own, ``preprocessing.py`` has what is done to pixels,
``batches.py`` goes through data in whatever form they come.

Example:
    >>> from torchckn import data
    >>> digits = data.load("mnist-mini")
    >>> digits.train.images.shape, digits.train.labels[:3].tolist()
    (torch.Size([6000, 1, 28, 28]), [5, 0, 4])
"""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import unknown_name
from ..graph.preprocessing import Preprocessing
from .batches import batches, size_of
from .own import load_folder, load_npz
from .sets import DataSet, Part, split
from .sources import SOURCES, data_folder, fetch, is_complete, load_mini, verify

__all__ = [
    "DataSet",
    "Part",
    "Preprocessing",
    "batches",
    "data_folder",
    "fetch",
    "is_here",
    "load",
    "names",
    "size_of",
    "split",
    "verify",
]


def names() -> list[str]:
    """The names that :func:`load` takes, besides paths."""
    return sorted([*SOURCES, "mnist-mini"])


def is_here(name: str, data_dir: str | os.PathLike[str] | None = None) -> bool:
    """Whether a data set is part of the package, or has been fetched already."""
    return name == "mnist-mini" or is_complete(data_folder(data_dir) / name)


def load(name: str | os.PathLike[str], data_dir: str | os.PathLike[str] | None = None, *, progress: bool = True) -> DataSet:
    """A data set: by name, or one's own by path.

    Args:
        name: ``"mnist"``, ``"cifar10"``, ``"fashion-mnist"`` (fetched on first use), ``"mnist-mini"`` (part of the package), or
            the path of a folder with a sub-folder of PNG or JPEG images for each class, or of an ``.npz`` with ``x`` and ``y``.
        data_dir: where fetched sets are kept, and where files that are there already are looked for; by default the
            environment's ``TORCHCKN_DATA``, or the platform's cache folder.
        progress: show a progress bar while fetching, on a terminal.
    """
    text = os.fspath(name)
    if text == "mnist-mini":
        return load_mini()
    if text in SOURCES:
        return fetch(text, data_dir, progress=progress)
    path = Path(text)
    if path.is_dir():
        return load_folder(path)
    if path.suffix == ".npz" and path.is_file():
        return load_npz(path)
    hint = "Or pass the path of a folder of images, or of an .npz file; there is none at this one."
    raise unknown_name("data set", text, names(), hint)
