"""A run folder: all that training produced, written so that nothing is ever half there.

=====================  ======================================================================
``config.toml``        the training configuration, digests of network and data, settings
``environment.json``   versions, hardware, git state
``metrics.jsonl``      one line per step: loss, accuracy, lr, seconds; validation where it took place
``checkpoint/``        ``last.safetensors`` to resume from, the one before it, ``filters-*.safetensors`` for pictures
``model/``             the trained network, once it is finished
``result.json``        the result, once it is finished
``figures/``           pictures
=====================  ======================================================================
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import tomllib
import warnings
from collections.abc import Collection, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import tomli_w
import torch
from filelock import FileLock, Timeout
from torch import Tensor

from .errors import ConfigError, DataError
from .files import partial_files, read_tensors, remove_partial_files, write_atomically, write_tensors

#: the last checkpoint, and the one before it
CHECKPOINTS = ("last", "previous")
#: options that a resumed run may have other values of: it is trained further, or in less memory (then with other rounding errors)
MAY_DIFFER = ("steps", "chunk")
#: the files of a run that are written beside their place first, by folder
_WRITTEN = {
    ".": ("config.toml", "environment.json", "metrics.jsonl", "result.json"),
    "checkpoint": ("last.safetensors", "filters-*.safetensors"),
    "model": ("model.safetensors",),
}


class Run:
    """A run folder that this process writes to; no other can meanwhile.

    Args:
        config: what ``config.toml`` says: digests, descriptions, and the training configuration as a table ``training``.
        resume: continue the run that is there, if it has the same configuration; with more steps, it is trained further.
        free: options of training that may differ in a resumed run.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        config: dict[str, Any],
        resume: bool = False,
        free: Collection[str] = (),
    ) -> None:
        self.folder = Path(folder)
        _require_run_or_empty(self.folder, resume)
        self._lock = self._claim()
        try:
            self._begin(config, resume, free)
        except BaseException:
            self.close()
            raise
        self._metrics = (self.folder / "metrics.jsonl").open("a", encoding="utf-8")

    def _claim(self) -> FileLock:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.folder / ".lock")
            lock.acquire(timeout=0)
        except Timeout:
            raise ConfigError(
                f"another process is training in {self.folder}; wait for it, or choose another folder"
            ) from None
        except OSError as error:
            raise ConfigError(f"cannot use {self.folder} for a run: {error.strerror}; choose another folder") from error
        return lock

    def _begin(self, config: dict[str, Any], resume: bool, free: Collection[str]) -> None:
        config = _plain(config)
        if not (self.folder / "config.toml").exists():
            remove_partial_files(self.folder, "config.toml")  # of a process that was killed before there was a run
            self._write_config(config)
            write_atomically(self.folder / "environment.json", _json(environment()))
            return
        if not resume:  # another process began it meanwhile
            raise _already_a_run(self.folder)
        for part, names in _WRITTEN.items():
            remove_partial_files(self.folder / part, *names)  # of a process that was killed while it wrote
        if not (self.folder / "environment.json").exists():
            write_atomically(self.folder / "environment.json", _json(environment()))
        before = read_config(self.folder)
        old, new = _lines(before), _lines(config)
        differing = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key) and key not in free)
        if differing and {*differing} <= {*MAY_DIFFER} and new["steps"] >= old.get("steps", 0):
            if "steps" in differing:
                (self.folder / "result.json").unlink(missing_ok=True)  # it is trained further: no longer finished
            self._write_config(before | {"training": before["training"] | {name: new[name] for name in differing}})
        elif differing:
            key = differing[0]
            raise ConfigError(
                f"{self.folder} has a run of another configuration: {', '.join(differing)} (expected {key} = "
                f"{old.get(key)!r}, got {new.get(key)!r}); nothing was changed. Resume it with the same configuration (only "
                "steps may grow, and chunk may differ), or choose another folder"
            )

    def _write_config(self, config: dict[str, Any]) -> None:
        try:
            content = tomli_w.dumps(config).encode()
        except TypeError as error:
            raise ConfigError(f"a run's configuration is made of numbers, texts and lists of them: {error}") from error
        write_atomically(self.folder / "config.toml", content)

    def _require_folder(self) -> None:
        if not (self.folder / "config.toml").exists():
            raise DataError(f"{self.folder} was removed or emptied while a run was writing to it; train in another folder")

    def log(self, record: dict[str, Any]) -> None:
        """Add a line to the metrics."""
        self._require_folder()
        self._metrics.write(json.dumps(record) + "\n")
        self._metrics.flush()

    def keep_metrics(self, records: Sequence[dict[str, Any]]) -> None:
        """Let the metrics be these records; what is logged from now on comes after them."""
        self._metrics.close()
        write_atomically(self.folder / "metrics.jsonl", "".join(json.dumps(record) + "\n" for record in records).encode())
        self._metrics = (self.folder / "metrics.jsonl").open("a", encoding="utf-8")

    def save_checkpoint(
        self, tensors: dict[str, Tensor], facts: dict[str, Any], history: Sequence[dict[str, Any]] = ()
    ) -> None:
        """Keep this checkpoint and the one before it, whichever moment the process is killed at.

        The history is kept with it, because the next step may depend on it, and the file of metrics has no digest.
        """
        self._require_folder()
        last, previous = (self.folder / "checkpoint" / f"{name}.safetensors" for name in CHECKPOINTS)
        if last.exists():
            os.replace(last, previous)
        text = bytearray(json.dumps(list(history)).encode())
        write_tensors(last, "checkpoint", facts, tensors | {"history": torch.frombuffer(text, dtype=torch.uint8)})

    def save_filters(self, step: int, filters: Tensor) -> None:
        """The first layer's filters, for pictures."""
        self._require_folder()
        write_tensors(self.folder / "checkpoint" / f"filters-{step:06d}.safetensors", "filters", {}, {"filters": filters})

    def save_result(self, result: dict[str, Any]) -> None:
        self._require_folder()
        write_atomically(self.folder / "result.json", _json(_plain(result)))

    @property
    def model_path(self) -> Path:
        return self.folder / "model" / "model.safetensors"

    @property
    def is_finished(self) -> bool:
        return (self.folder / "result.json").exists()

    def close(self) -> None:
        if hasattr(self, "_metrics"):
            self._metrics.close()
        self._lock.release()


def _already_a_run(folder: Path) -> ConfigError:
    return ConfigError(f"{folder} has a run already; resume it (resume=True, or --resume), or choose another folder")


def _require_run_or_empty(folder: Path, resume: bool) -> None:
    """An error for a folder that cannot be used, because it has a run already or other things; it is left as it is."""
    if not folder.is_dir():
        return
    if (folder / "config.toml").exists():
        if not resume:
            raise _already_a_run(folder)
        if "training" not in read_config(folder):
            raise DataError(f"{folder} is not a run folder: its config.toml has no training; choose another folder")
        return
    ours = {folder / ".lock", *partial_files(folder, "config.toml")}  # of a process that was killed before there was a run
    others = [item.name for item in folder.iterdir() if item not in ours]
    if others:
        raise ConfigError(f"{folder} is not empty and not a run (it has {others[0]!r}); choose an empty or new folder")


def _lines(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration with the options of training beside all else."""
    return {key: value for key, value in config.items() if key != "training"} | config.get("training", {})


def read_config(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The configuration of a run."""
    file = Path(folder) / "config.toml"
    try:
        config = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{folder} is not a run folder: it has no config.toml") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{file} cannot be read: {error}") from error
    _require_plain(file, config)
    required = (
        {"training": dict, "classes": list, "image_shape": list, "preprocessing": dict} if "settings" in config else {}
    )
    for name, kind in (required | {"training": dict, "settings": dict, "network": str}).items():
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
        raise DataError(f"{file} has another {name} than a run has, got {str(value)[:60]!r}")


def read_metrics(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The metrics of a run, one dictionary per step; a line that is damaged or was cut off is left out."""
    file = Path(folder) / "metrics.jsonl"
    try:
        lines = file.read_bytes().decode(errors="replace").split("\n") if file.exists() else []
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}") from error
    records = []
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        numbers = isinstance(record, dict) and all(isinstance(value, (int, float)) for value in record.values())
        if numbers and isinstance(record.get("step"), int):
            records.append(record)
    return records


def read_checkpoint(folder: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The tensors and other facts of a run's last checkpoint, if it has one; of the one before, if the last is damaged."""
    damage: DataError | None = None
    for name in CHECKPOINTS:
        path = Path(folder) / "checkpoint" / f"{name}.safetensors"
        if not path.exists():
            continue
        try:
            facts, tensors = read_tensors(path, "checkpoint")
        except DataError as error:
            damage = damage or error
            continue
        if damage:
            damaged = path.with_name(f"{CHECKPOINTS[0]}.safetensors")
            os.replace(damaged, damaged.with_name("damaged.safetensors"))  # or it would become the one before the next
            warnings.warn(f"{damage}. The run continues from the checkpoint before it, {path}", stacklevel=2)
        return tensors, facts
    if damage:
        raise DataError(f"{damage}, and there is no checkpoint before it; delete {path.parent} to start again") from damage
    return None


def read_history(tensors: dict[str, Tensor]) -> list[dict[str, Any]]:
    """The records of all steps up to a checkpoint, from its tensors."""
    return json.loads(tensors["history"].numpy().tobytes())


def read_result(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The result of a run, or None if it is not finished."""
    file = Path(folder) / "result.json"
    try:
        content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
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


def add_to_result(folder: str | os.PathLike[str], more: dict[str, Any]) -> None:
    """Add to the result of a finished run."""
    write_atomically(Path(folder) / "result.json", _json((read_result(folder) or {}) | more))


def summary(folder: str | os.PathLike[str]) -> dict[str, Any]:
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


def read_filters(folder: str | os.PathLike[str]) -> dict[int, Tensor]:
    """The first layer's filters that were kept, by step."""
    files = sorted((Path(folder) / "checkpoint").glob("filters-*.safetensors"))
    return {int(file.stem.split("-")[1]): read_tensors(file, "filters")[1]["filters"] for file in files}


def environment() -> dict[str, Any]:
    """Versions, hardware and git state, as they are now."""
    packages = ("torchckn", "torch", "numpy", "scipy", "scikit-learn")
    return {
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in packages}},
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "git": _git("rev-parse", "HEAD"),
        "git_changes": bool(_git("status", "--porcelain")),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def _git(*arguments: str) -> str | None:
    """An answer of git about torchckn's own checkout; None if torchckn is installed, wherever it is installed."""
    here = Path(__file__).parent
    checkout = here.parent.parent
    if here != checkout / "src" / "torchckn" or not (checkout / ".git").exists():
        return None
    try:
        done = subprocess.run(["git", "-C", str(checkout), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _plain(value: Any) -> Any:
    """For TOML and JSON: no None, no tuples."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
