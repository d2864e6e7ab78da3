"""Images and labels: data sets by name, your own images, preprocessing, splits, batches.

``sets.py`` has what a data set is, ``sources.py`` downloads and checks the public ones (which ``catalogue.py`` lists,
``originals.py`` reads and ``cache.py`` keeps),
``own.py`` and ``npz.py`` read your own images, ``streams.py`` those that do not fit into memory, ``batches.py`` iterates over
data in any form, ``augmentation.py`` mirrors, crops and shifts training images. Preprocessing is in
:mod:`torchckn.graph.preprocessing`: it is part of a network.

Example:
    >>> from torchckn import data
    >>> digits = data.load("mnist-mini")
    >>> digits.train.images.shape, digits.train.labels[:3].tolist()
    (torch.Size([6000, 1, 28, 28]), [5, 0, 4])
"""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import ConfigError, DataError, unknown_name
from ..graph.preprocessing import Preprocessing
from .augmentation import augment
from .batches import batches, size_of
from .cache import data_folder, is_cached
from .catalogue import SOURCES
from .limits import shown
from .npz import load_npz
from .own import load_folder, load_unlabeled
from .sets import DataSet, Part, split
from .sources import fetch, load_mini, verify
from .streams import LazyPart
from .streams import stream as open_stream

__all__ = [
    "DataSet",
    "LazyPart",
    "Part",
    "Preprocessing",
    "augment",
    "batches",
    "data_folder",
    "fetch",
    "is_here",
    "load",
    "load_unlabeled",
    "names",
    "size_of",
    "split",
    "verify",
]


def names() -> list[str]:
    """The names that :func:`load` takes, besides paths."""
    return sorted([*SOURCES, "mnist-mini"])


def is_here(name: str, data_dir: str | os.PathLike[str] | None = None) -> bool:
    """Whether a data set is part of the package, or has been downloaded already."""
    return name == "mnist-mini" or is_cached(name, data_folder(data_dir))


def load(
    name: str | os.PathLike[str],
    data_dir: str | os.PathLike[str] | None = None,
    *,
    stream: bool = False,
    resize: int | None = None,
    workers: int = 0,
    progress: bool = True,
) -> DataSet:
    """A data set: by name, or your own by path.

    Args:
        name: ``"mnist"``, ``"cifar10"``, ``"fashion-mnist"`` (downloaded on first use), ``"mnist-mini"`` (part of the package);
            or the path of a folder with a sub-folder of images for each class, or with folders ``train``, ``val`` and ``test``
            of such sub-folders (``val`` or ``test`` may be missing); or the path of an ``.npz`` file with ``x`` and ``y``.
        data_dir: where downloaded data sets are kept, and where files that are there already are looked for; by default the
            environment's ``TORCHCKN_DATA``, or the platform's cache folder.
        stream: read images when they are needed, instead of holding all of them in memory: of a folder of images, or of one with
            shards, ``.tar`` files of images or ``.npz`` files. See :func:`torchckn.data.streams.stream`.
        resize: side, in pixels, that all image files of a folder are resized to.
        workers: processes that read images ahead of time; with ``stream``.
        progress: show a progress bar while downloading, on a terminal.
    """
    text = os.fspath(name)
    if stream:
        return open_stream(Path(text), resize, workers)
    if workers:
        raise ConfigError("workers is for images that are read when they are needed; add stream (--stream)")
    path = Path(text)
    try:
        is_folder, is_npz = path.is_dir(), path.suffix == ".npz" and path.is_file()
    except OSError as error:  # a name that is too long, a folder above it that may not be read
        raise DataError(f"{shown(path)} cannot be read: {error.strerror}") from error
    if resize is not None and (text in names() or is_npz):
        raise ConfigError(f"resize (--resize, --image-size) is for folders of image files, got {text!r}; leave it out")
    if text == "mnist-mini":
        return load_mini()
    if text in SOURCES:
        return fetch(text, data_dir, progress=progress)
    if is_folder:
        return load_folder(path, resize)
    if is_npz:
        return load_npz(path)
    hint = "Or pass the path of a folder of images, or of an .npz file; this is neither."
    raise unknown_name("data set", text, names(), hint)
