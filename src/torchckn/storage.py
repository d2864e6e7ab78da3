"""Saving and loading networks: one safetensors file, with the network's description as JSON in its header.

Nothing in such a file is executed: loading rebuilds the network from its :class:`torchckn.graph.Graph` and copies numbers
into it.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save as to_bytes

from .correspondence import Report
from .errors import CKNError, DataError
from .graph import Graph
from .network import CKN, Classifier

FORMAT = "torchckn"
VERSION = 1


def save(net: Classifier, path: str | os.PathLike[str]) -> Path:
    """Write a network to ``path``: its weights and, of a CKN, all that is needed to build it again.

    A file of a ConvNet has its weights alone, for :func:`load_weights`: what builds the network is Python code.
    The file appears whole or not at all: it is written beside its destination and then moved there.
    """
    if not isinstance(net, Classifier):
        raise DataError(f"save expected a torchckn.CKN, got {type(net).__name__}; save other modules with torch.save")
    description = {"version": VERSION, "kind": net.kind, **(net.description() or {})}
    tensors = {name: tensor.detach().cpu().clone() for name, tensor in net.state_dict().items()}
    path = Path(path)
    write_atomically(path, to_bytes(tensors, {"format": FORMAT, "network": json.dumps(description)}))
    return path


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
        dtype = tensors["head.weight"].dtype
        graph, report = Graph.from_json(description["graph"]), description["report"]
        ckn = CKN(graph, description["classes"], description["centering"], weights=description["weights"], dtype=dtype)
        ckn.report = Report.from_json(report) if report else None
        ckn.load_state_dict(tensors, assign=False)
        ckn.train(description["training"])
    except (CKNError, KeyError, RuntimeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{path} is a torchckn model, but not one that this version can rebuild: {reason}") from error
    return ckn.to(device)


def load_weights(net: Classifier, path: str | os.PathLike[str]) -> None:
    """Read the weights of a file that :func:`save` wrote into a network that is built as the saved one was."""
    path = Path(path)
    try:
        net.load_state_dict(_read(path)[1])
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{path} has the weights of another network: {reason}") from error


def _read(path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    if path.is_dir():
        raise DataError(f"{path} is a folder; load expected the file that torchckn.save wrote")
    try:
        with safetensors.safe_open(path, "pt") as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                raise DataError(
                    f"{path} is a safetensors file, but not a torchckn model; load expected what torchckn.save wrote"
                )
            description = json.loads(header["network"])
            if not isinstance(description, dict):
                raise KeyError("network")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; load expected a file that torchckn.save wrote") from error
    except (safetensors.SafetensorError, KeyError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} is not a torchckn model, or is truncated or corrupt ({error}); save it again, or fetch it again"
        ) from error
    if description.get("version") != VERSION:
        raise DataError(
            f"{path} was saved in format version {description.get('version')}, and this torchckn reads version {VERSION}; "
            "update torchckn"
        )
    return description, tensors


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that it is either complete or untouched, whatever happens in between."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(_PARTIAL, f".{path.name}.", path.parent)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}; choose a folder that can be written to") from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}; is the disk full?") from error
    finally:
        if os.path.exists(name):
            os.unlink(name)


def remove_partial_files(folder: Path) -> None:
    """Remove what :func:`write_atomically` left in a folder when its process was killed, and nothing else."""
    for file in folder.glob(f".*{_PARTIAL}"):
        file.unlink(missing_ok=True)


#: how the name of a file ends that was not moved to its place yet
_PARTIAL = ".torchckn-partial"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
