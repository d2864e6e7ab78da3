"""Results in groups, and what figures and tables call the values of their variables.

Read next: :mod:`torchckn.experiments.figures`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from .results import Result
from .spec import Experiment

NETWORK_NAMES = {"lenet1": "LeNet-1", "lenet5": "LeNet-5", "allcnn": "All-CNN-C", "ckn": "CKN", "convnet": "ConvNet"}
DATA_NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
FLAG_NAMES = {
    "options.bias": "biases",
    "bandwidths": "trained bandwidths",
    "normalize": "normalized gradients",
    "refit": "refitted classifier",
}
LEARNER_NAMES = {
    "ckn": "CKN, unsupervised filters",
    "ckn-augmented": "CKN, unsupervised filters, augmented",
    "ckn-ulr": "CKN, then trained by ULR",
    "convnet": "ConvNet, AdamW",
    "convnet-augmented": "ConvNet, AdamW, augmented",
    "svm": "RBF SVM on pixels",
    "hog-svm": "RBF SVM on HOG",
    "hog-svm-augmented": "RBF SVM on HOG, augmented",
    "kmeans": "k-means features",
    "kmeans-augmented": "k-means features, augmented",
}
METHOD_NAMES = {
    "ulr": "ULR",
    "sgo": "SGO",
    "sgd": "SGD",
    "adamw": "Adam",  # AdamW without weight decay
    "eigh": "closed form",
    "newton": "Newton",
    "newton:50": "Newton",
    "svd": "SVD",
}


def in_grid_order(experiment: Experiment, results: Sequence[Result]) -> list[Result]:
    """The results in the order of the experiment's grid."""
    grid = experiment.grid

    def position(result: Result) -> list[int]:
        pairs = ((values, result.variables.get(name)) for name, values in grid.items())
        return [values.index(value) if value in values else len(values) for values, value in pairs]

    return sorted(results, key=lambda result: (position(result), result.variables.get("filters", 0), result.seed))


def grouped(results: Iterable[Result], names: Sequence[str]) -> dict[tuple[Any, ...], list[Result]]:
    """Results by the values of these variables, in the order of their first occurrence."""
    groups: dict[tuple[Any, ...], list[Result]] = {}
    for result in results:
        groups.setdefault(tuple(result.variables.get(name) for name in names), []).append(result)
    return groups


def value_label(name: str, value: Any) -> str:
    """The label of a variable's value, for figures and tables."""
    if name == "filters":
        return f"{value} filters"
    if name == "steps":
        return f"{value:,} steps"
    if name == "total_seconds":
        return f"{value / 60:g} minutes"
    if isinstance(value, bool):
        return f"{'with' if value else 'without'} {FLAG_NAMES.get(name, name)}"
    if name == "batch_size":
        return f"batches of {value}"
    if name == "lr":
        return _power_of_two(float(str(value).rpartition(":")[2]))
    if name == "loss":
        return f"{value} loss"
    if name == "budget":
        return f"equal {value}"
    if name == "weight_decay":
        return f"weight decay {value}" if value else "no weight decay"
    if name == "penalty":
        return f"L2 penalty {'of the first classifier' if value == 'first' else value}"
    if name == "centering":
        return "no feature scaling" if value == "raw" else f"centering per {value}"
    if name == "augment":
        return "no augmentation" if value == "none" else " and ".join(f"{kind}s" for kind in value.split(","))
    if name == "slip":
        return "none" if value == "none" else str(value).replace("-", " ")
    return NETWORK_NAMES.get(value, METHOD_NAMES.get(value, str(value)))


def learning_rate_label(result: Result) -> str:
    """The learning rate of a run, and among how many it was chosen: ``2^-2 (largest of 3)``."""
    rate = str(result["lr"]).rpartition(":")[2]
    if not rate.replace(".", "").isdigit():
        return rate
    tried = [float(str(lr).rpartition(":")[2]) for lr in result["trials"] or {}]
    ends = {min(tried): "smallest", max(tried): "largest"} if tried else {}
    among = f" ({ends.get(float(rate), 'best')} of {len(tried)})" if len(tried) > 1 else ""
    return f"{_power_of_two(float(rate))}{among}"


def _power_of_two(value: float) -> str:
    mantissa, exponent = math.frexp(value)
    return f"2^{exponent - 1}" if mantissa == 0.5 and value != 1 else f"{value:g}"


def joined_label(names: Sequence[str], values: Sequence[Any]) -> str:
    """The label of a line or panel: ``ConvNet, Adam``.

    An optimizer of its own says more than the method, SGD less. Of a kind of network, weight decay and trained bandwidths are
    named where there are any.
    """
    given = dict(zip(names, values, strict=True))
    if "kind" in given:
        given = {name: value for name, value in given.items() if value or name not in ("weight_decay", "bandwidths")}
    if {"optimizer", "method"} <= given.keys():
        del given["optimizer" if given["optimizer"] == "sgd" else "method"]
    return ", ".join(value_label(name, value) for name, value in given.items())


def distinguishing_labels(names: Sequence[str], lines: Sequence[tuple[Any, ...]]) -> dict[tuple[Any, ...], str]:
    """The labels of lines, without the last variables if these do not distinguish any."""
    labels = [joined_label(names, line) for line in lines]
    for count in range(len(names) - 1, 0, -1):
        shorter = [joined_label(names[:count], line[:count]) for line in lines]
        if len(set(shorter)) < len(lines):
            break
        labels = shorter
    return dict(zip(lines, labels, strict=True))


def method_label(method: str) -> str:
    """The label of a method of the inverse square root, such as ``"newton-20"``."""
    name, _, count = method.partition("-")
    return f"Newton, {count} iterations" if name == "newton" else METHOD_NAMES[name]
