"""Checkpoints of a run: the last one, the one before it, and the filters that were kept for pictures."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import DataError
from ..files import read_tensors, write_tensors

#: the last checkpoint, and the one before it
CHECKPOINTS = ("last", "previous")


def checkpoint_file(folder: str | os.PathLike[str], name: str) -> Path:
    return Path(folder) / "checkpoint" / f"{name}.safetensors"


def write_checkpoint(folder: str | os.PathLike[str], tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Make this the last checkpoint of a run.

    The history grows with every step, so it is written as a tensor of characters, not into the file's header.
    """
    history = bytearray(json.dumps(facts["history"]).encode())
    others = {name: value for name, value in facts.items() if name != "history"}
    tensors = tensors | {"history": torch.frombuffer(history, dtype=torch.uint8)}
    write_tensors(checkpoint_file(folder, CHECKPOINTS[0]), "checkpoint", others, tensors)


def _read(file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    facts, tensors = read_tensors(file, "checkpoint")
    try:
        history = json.loads(tensors.pop("history").numpy().tobytes())
    except (KeyError, ValueError, RecursionError) as error:
        raise DataError(f"{file} has no history of a training ({type(error).__name__})") from error
    return tensors, facts | {"history": history}


def read_checkpoint(folder: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The tensors and other facts of a run's last checkpoint, if it has one; of the one before, if the last is damaged."""
    damage: DataError | None = None
    last, previous = (checkpoint_file(folder, name) for name in CHECKPOINTS)
    for file in (last, previous):
        if not file.exists():
            continue
        try:
            checkpoint = _read(file)
        except DataError as error:
            damage = damage or error
            continue
        if damage:
            os.replace(last, last.with_name("damaged.safetensors"))  # or it would become the one before the next
            warnings.warn(f"{damage}. The run continues from the checkpoint before it, {file}", stacklevel=2)
        return checkpoint
    if damage:
        raise DataError(f"{damage}, and there is no checkpoint before it; delete {last.parent} to start again") from damage
    return None


def read_filters(folder: str | os.PathLike[str]) -> dict[int, Tensor]:
    """The first layer's filters that were kept, by step."""
    files = sorted((Path(folder) / "checkpoint").glob("filters-*.safetensors"))
    return {int(file.stem.split("-")[1]): read_tensors(file, "filters")[1]["filters"] for file in files}
