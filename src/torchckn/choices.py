"""The words that options may have, each spelled once, and checks of values. Needs no torch, so that the command line can offer
them quickly."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from numbers import Real
from typing import Any, Literal, get_args

from .errors import unknown_name

# Networks
Kind = Literal["ckn", "convnet"]
KernelNetworkName = Literal["ckn-cifar", "ckn-cifar5"]
Weights = Literal["nystrom", "random-features"]
Centering = Literal["image", "feature", "none", "raw"]
ConvNetInit = Literal["paper", "he"]
Connections = Literal["complete", "incomplete"]
Correspondence = Literal["exact", "inexact", "kept", "dropped"]

# Layers
Init = Literal["kmeans", "sample", "random", "identity"]
FilterMethod = Literal["kmeans", "sample", "random"]
RootMethod = Literal["auto", "eigh", "newton", "svd"]
Native = Literal["auto", "off", "require"]
RootBlock = int | Literal["auto", "all"]

# Operations
Border = Literal["zeros", "reflect", "replicate", "circular"]
Interpolation = Literal["nearest", "nearest-exact", "bilinear", "bicubic"]
NormOver = Literal["position", "image"]

# Data
Augmentation = Literal["flip", "crop", "shift"]
DataSetName = Literal["cifar10", "fashion-mnist", "mnist", "mnist-mini"]
#: settings that say where images are, which may have been moved when a run is resumed: digests tell whether they are the same
PLACES = ("data", "unlabeled")

# Training
Optimizer = Literal["sgd", "adamw"]
TrainingMethod = Literal["ulr", "sgo", "sgo-ball", "sgd"]
Loss = Literal["multinomial", "square"]
Hessian = Literal["full", "diag", "cg", "auto"]
HeadUpdate = Literal["exact", "reuse"]
Precision = Literal["float32", "bfloat16", "float16"]
PresetName = Literal["fast", "accurate"]
PenaltySearch = Literal["path", "exhaustive"]
ClassWeights = Literal["balanced"] | tuple[float, ...]
Chunk = int | Literal["auto", "all"]

# Experiments
ScaleName = Literal["cpu", "long", "paper"]
Measure = Literal["train", "unsupervised", "gradient", "few-labels"]
LearnerName = Literal[
    "ckn", "ckn-augmented", "ckn-ulr", "convnet", "convnet-augmented", "svm",
    "hog-svm", "hog-svm-augmented", "kmeans", "kmeans-augmented",
]  # fmt: skip
Slip = Literal["none", "diagonal-sign", "sgo-without-penalty", "half-whitening"]
FigureKind = Literal["curves", "over-filters", "over-labels", "errors", "table"]


def check_choice(what: str, value: object, choice: Any) -> None:
    """An error that names the known words, unless ``value`` is one of them."""
    if value not in get_args(choice):
        raise unknown_name(what, value, get_args(choice))


def as_integer(value: Any, least: int | None = None) -> int | None:
    """``value`` as an int, if it is an integer, of NumPy or of Python, and not below ``least``; else None. A bool is none."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None
    return None if number is None or (least is not None and number < least) else number


def as_real(value: Any) -> float:
    """``value`` as a float, if it is a real number, of NumPy or of Python; else NaN, which no limits hold for. A bool is none."""
    try:
        return float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:  # of an integer
        return math.nan


def as_integers(values: Iterable[Any], least: int | None = None) -> tuple[int, ...] | None:
    """All of ``values`` by :func:`as_integer`; None if one of them is no such integer."""
    given = tuple(values)
    numbers = tuple(number for number in (as_integer(value, least) for value in given) if number is not None)
    return numbers if len(numbers) == len(given) else None
