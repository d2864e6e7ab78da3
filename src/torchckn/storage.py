"""Saving and loading networks: one tensor file, with the network's description as JSON in its header.

Nothing in such a file is executed: loading validates the description, compares it with the tensors that are there, rebuilds the
network from its :class:`torchckn.graph.Graph` without memory of its own, and puts the tensors into it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .correspondence import Report
from .errors import CKNError, DataError, PathError
from .files import read_tensors, write_tensors
from .graph import Graph
from .kernels.rbf import FIXED
from .network import CKN, Classifier

KIND = "network"
VERSION = 1
#: limits of what is built from a file: nodes, depth of its JSON, and integers and the lengths of texts in it
MOST_NODES, DEEPEST, LARGEST, LONGEST = 5_000, 12, 2**24, 2_000


def save(net: Classifier, path: str | os.PathLike[str]) -> Path:
    """Write a network to ``path``: its weights and, of a CKN, all that is needed to build it again.

    A file of a ConvNet has its weights alone, for :func:`load_weights`: what builds the network is Python code.
    The file appears whole or not at all: it is written beside its destination and then moved there.
    """
    if not isinstance(net, Classifier):
        raise DataError(f"save expected a torchckn.CKN, got {type(net).__name__}; save other modules with torch.save")
    path = Path(path)
    description = {"version": VERSION, "kind": net.kind, **(net.description() or {})}
    tensors = net.state_dict()
    if isinstance(net, CKN):
        _check_rebuilt(net, description, tensors)
    write_tensors(path, KIND, description, tensors)
    return path


def _check_rebuilt(net: CKN, description: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """An error for a network that was changed so that its description does not give it back."""
    rebuilt = _on_meta(description, net.head.weight.dtype)
    remedy = "save expected a network as it was built; build it with what it should have, or use torch.save"
    layers = net.kernel_layers()
    for name, layer in rebuilt.kernel_layers().items():
        own, described = layers[name].extra_repr() if name in layers else "missing", layer.extra_repr()
        if own != described:
            raise DataError(f"layer {name!r} is {own} in the network, and {described} in its graph; {remedy}")
    try:
        _check_shapes(rebuilt, tensors)
    except DataError as error:
        raise DataError(f"{error}; {remedy}") from None


def load(path: str | os.PathLike[str], device: torch.device | str = "cpu") -> CKN:
    """Read a network that :func:`save` wrote: the same numbers, in the dtype they were saved in, on ``device``."""
    path = Path(path)
    description, tensors = _read(path)
    if "graph" not in description:
        raise DataError(
            f"{path} has the weights of a ConvNet, and not the code that builds it; build the network as it was, and read them "
            "with torchckn.storage.load_weights(net, path)"
        )
    try:
        _check_limits(description)
        if "head.weight" not in tensors:
            raise DataError("tensor head.weight is missing")
        ckn = _on_meta(description, tensors["head.weight"].dtype)
        _check_shapes(ckn, tensors)
        ckn.load_state_dict(tensors, assign=True)
        _check_numbers(ckn)
        report = description["report"]
        ckn.report = Report.from_json(report) if report else None
        ckn.train(bool(description["training"]))
    except _NOT_A_NETWORK as error:
        reason = " ".join(str(error).split())[:500]
        raise DataError(f"{path} is a torchckn model, but not one that this version can rebuild: {reason}") from error
    return ckn.to(device)


def load_weights(net: Classifier, path: str | os.PathLike[str]) -> None:
    """Read the weights of a file that :func:`save` wrote into a network that is built as the saved one was."""
    path = Path(path)
    _, tensors = _read(path)
    try:
        _check_shapes(net, tensors)
        net.load_state_dict(tensors)
        _check_numbers(net)
    except (CKNError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:500]
        raise DataError(f"{path} has the weights of another network, or damaged ones: {reason}") from error


#: what a description that no network has may raise while it is read
_NOT_A_NETWORK = (
    *(CKNError, KeyError, RuntimeError, TypeError, ValueError, AttributeError),
    *(OverflowError, ZeroDivisionError, RecursionError, MemoryError, IndexError),
)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not path.exists():
        raise PathError(f"{path} does not exist; load expects a file that torchckn.save wrote")
    description, tensors = read_tensors(path, KIND)
    if description.get("version") != VERSION:
        raise DataError(
            f"{path} was saved in format version {description.get('version')}, and this torchckn reads version {VERSION}; "
            "update torchckn"
        )
    return description, tensors


def _check_limits(value: Any, depth: int = 0) -> None:
    """An error for a description that is too deep, too long, or has numbers that no network has."""
    if depth > DEEPEST:
        raise DataError(f"its description is nested deeper than {DEEPEST} levels")
    if isinstance(value, dict):
        for key, item in value.items():
            if key == "nodes" and isinstance(item, list) and len(item) > MOST_NODES:
                raise DataError(f"it has {len(item)} nodes, more than {MOST_NODES}")
            _check_limits(item, depth + 1)
    elif isinstance(value, list):
        if len(value) > 4 * MOST_NODES:
            raise DataError(f"it has a list of {len(value)} entries")
        for item in value:
            _check_limits(item, depth + 1)
    elif isinstance(value, str) and len(value) > LONGEST:
        raise DataError(f"it has a text of {len(value)} characters, more than {LONGEST}")
    elif isinstance(value, int) and abs(value) > LARGEST:
        raise DataError(f"it has the number {str(value)[:30]}, larger than {LARGEST}")


def _on_meta(description: dict[str, Any], dtype: torch.dtype) -> CKN:
    """The network without memory for its parameters."""
    graph = Graph.from_json(description["graph"])
    return CKN(
        graph,
        description["classes"],
        description["centering"],
        weights=description["weights"],
        device="meta",
        dtype=dtype,
    )


def _check_shapes(net: Classifier, tensors: dict[str, Tensor]) -> None:
    expected = net.state_dict() | {"lam": torch.empty((), dtype=torch.float64)}
    # A head that has not been fitted has no penalty, and older files have no fixed bandwidths.
    optional = {"lam", *(name for name in expected if name.endswith(f".{FIXED}"))}
    tensors = {_name_in(expected, name): tensor for name, tensor in tensors.items()}
    for name in (expected.keys() - optional) | tensors.keys():
        if name not in tensors or name not in expected:
            raise DataError(f"tensor {name} {'is missing' if name not in tensors else 'is not part of the network'}")
        if tensors[name].shape != expected[name].shape or tensors[name].dtype != expected[name].dtype:
            raise DataError(
                f"tensor {name}: expected {tuple(expected[name].shape)} of {expected[name].dtype}, "
                f"got {tuple(tensors[name].shape)} of {tensors[name].dtype}"
            )


def _name_in(expected: dict[str, Tensor], name: str) -> str:
    """The name of a tensor in this network, where a bandwidth may be fixed that was trained in the file, or the reverse."""
    layer, _, last = name.rpartition(".")
    other = f"{layer}.{'sigma' if last == FIXED else FIXED if last == 'sigma' else last}"
    return other if name not in expected and other in expected else name


@torch.no_grad()
def _check_numbers(net: Classifier) -> None:
    """An error for weights that no fit gives: not finite, filters off the sphere, a norm of zero."""
    for name, tensor in net.state_dict().items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise DataError(f"tensor {name} has NaN or infinity")
    if not float(net.scaling.norm) > 0:
        raise DataError(f"the norm of its features is {float(net.scaling.norm)}, expected a number > 0")
    for name, norms in net.filter_norms().items():
        low, high = (float(value) for value in norms.aminmax())
        if not (low > 0.9 and high < 1.1):
            raise DataError(f"layer {name} expected filters of norm 1, got norms from {low:.3g} to {high:.3g}")
