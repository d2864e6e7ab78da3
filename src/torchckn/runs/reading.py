"""What a run folder says: configuration, metrics, result, where its model is.

Files may be damaged, or written by others: what a run does not have is a :class:`torchckn.DataError`.
"""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

from ..errors import DataError, PathError
from ..files import read_bytes, read_text

PathLike = str | os.PathLike[str]
#: entries of a configuration that are digests, and of what
DIGESTS = {
    "network": "network",
    "data": "training data",
    "validation_data": "validation data",
    "unlabeled_data": "unlabeled data",
}
#: bytes of metrics: those of some millions of steps
_LONGEST_METRICS = 2**30


def model_file(folder: PathLike) -> Path:
    """Where a run keeps its network, once it is finished."""
    return Path(folder) / "model" / "model.safetensors"


def read_config(folder: PathLike) -> dict[str, Any]:
    """The configuration of a run."""
    file = Path(folder) / "config.toml"
    try:
        config = tomllib.loads(read_text(file))
    except FileNotFoundError:
        what = "is not a run folder: it has no config.toml" if Path(folder).exists() else "does not exist"
        raise PathError(f"{folder} {what}; expected the folder of a run, such as runs/lenet5-ckn-1") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{file} cannot be read: {error}") from error
    _require_plain(file, config)
    required = (
        {"training": dict, "classes": list, "image_shape": list, "preprocessing": dict} if "settings" in config else {}
    )
    for name, kind in (required | {"training": dict, "settings": dict, "network": str, "earlier": list}).items():
        if name in required and name not in config:
            raise DataError(f"{file} is not a run's configuration: it does not have {name}")
        _require_kind(file, config, name, kind)
    _require_kind(file, config.get("training", {}), "method", str)
    _require_kind(file, config.get("training", {}), "steps", int)
    for name in ("network", "kind", "data"):
        _require_kind(file, config.get("settings", {}), name, str)
    return config


def _require_plain(file: Path, value: Any) -> None:
    """An error for what only TOML has, such as dates: a run has numbers, texts, lists and tables."""
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            _require_plain(file, item)
    elif not isinstance(value, (str, int, float)):
        raise DataError(f"{file} expected numbers, texts and lists of them, got the {type(value).__name__} {value}")


def _require_kind(file: Path, content: dict[str, Any], name: str, kind: type | tuple[type, ...]) -> None:
    value = content.get(name)
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
        raise DataError(f"{file} has an invalid {name} for a run, got {str(value)[:60]!r}")


def read_metrics(folder: PathLike) -> list[dict[str, Any]]:
    """The metrics of a run, one dictionary per step; a line that is damaged or was cut off is left out, and what is no number."""
    file = Path(folder) / "metrics.jsonl"
    try:
        lines = read_bytes(file, _LONGEST_METRICS).decode(errors="replace").split("\n") if file.exists() else []
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}") from error
    records = []
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and isinstance(record.get("step"), int):
            records.append({name: value for name, value in record.items() if isinstance(value, (int, float))})
    return records


def read_result(folder: PathLike) -> dict[str, Any] | None:
    """The result of a run, or None if it is not finished."""
    file = Path(folder) / "result.json"
    try:
        content = json.loads(read_text(file)) if file.exists() else None
        if content is not None and not isinstance(content, dict):
            raise ValueError(f"expected a table of names and values, got {type(content).__name__}")
        for name in ("lam", "seconds", "steps", "test_accuracy"):
            _require_kind(file, content or {}, name, (int, float))
        for name in ("start", "head"):
            _require_kind(file, content or {}, name, dict)
            _require_kind(file, (content or {}).get(name) or {}, "accuracy", (int, float))
        return content
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{file} is damaged ({error}); delete it, and resume the run to have it again") from error


def summary(folder: PathLike) -> dict[str, Any]:
    """A run in a line: what it is, how far it is, how well it did."""
    config, metrics, result = read_config(folder), read_metrics(folder), read_result(folder)
    settings, training = config.get("settings", {}), config.get("training", {})
    taken = [record["valid_accuracy"] for record in metrics if "valid_accuracy" in record]
    final = ((result or {}).get("head") or {}).get("accuracy")
    made = metrics[-1]["step"] if metrics else 0
    return {
        "run": str(folder),
        "network": f"{settings.get('network')} ({settings.get('kind', 'ckn')})" if settings else config.get("network"),
        "method": training.get("method"),
        "steps": training.get("steps"),
        "steps_done": made,
        "finished": result is not None,
        "validation": final if final is not None else (taken[-1] if taken else None),
        "test": (result or {}).get("test_accuracy"),
        "seconds": (result or {}).get("seconds", metrics[-1].get("seconds") if metrics else None),
        "state": "finished" if result else f"{made} of {training.get('steps')} steps",
    }


def to_plain(value: Any) -> Any:
    """For TOML and JSON: no None, no tuples."""
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items() if item is not None}
    return [to_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def to_json(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
