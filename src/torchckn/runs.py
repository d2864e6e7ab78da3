"""A run folder: all that training produced, written so that nothing is ever half there.

=====================  ======================================================================
``config.toml``        what was asked for
``environment.json``   versions, hardware, git state
``metrics.jsonl``      one line a step: loss, accuracy, step size, seconds; validation where taken
``checkpoint/``        ``last.safetensors`` to resume from, ``filters-*.safetensors`` to look at
``model/``             the trained network, once it is finished
``result.json``        what came out, once it is finished
``figures/``           pictures
=====================  ======================================================================
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import safetensors
import tomli_w
import torch
from filelock import FileLock, Timeout
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor

from .errors import ConfigError, DataError
from .storage import write_atomically

#: files of a run that were not moved to their place yet
_HALF_WRITTEN = re.compile(r"\.(\w[\w-]*\.safetensors|metrics\.jsonl|(config|environment|result)\.(toml|json))\.\w+")


class Run:
    """A run folder that this process writes to; no other can meanwhile."""

    def __init__(self, folder: str | os.PathLike[str], config: dict[str, Any], resume: bool = False) -> None:
        self.folder = Path(folder)
        self._lock = self._claim()
        try:
            self._begin(config, resume)
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

    def _begin(self, config: dict[str, Any], resume: bool) -> None:
        config = _plain(config)
        file = self.folder / "config.toml"
        for leftover in self.folder.rglob(".*"):  # of a process that was killed while it wrote
            if _HALF_WRITTEN.fullmatch(leftover.name):
                leftover.unlink()
        if not file.exists():
            others = [item.name for item in self.folder.iterdir() if not item.name.startswith(".")]
            if others:
                raise ConfigError(
                    f"{self.folder} is not empty and not a run (it has {others[0]!r}); choose an empty or new folder"
                )
            try:
                content = tomli_w.dumps(config).encode()
            except TypeError as error:
                raise ConfigError(f"a run's configuration is made of numbers, texts and lists of them: {error}") from error
            write_atomically(file, content)
            write_atomically(self.folder / "environment.json", _json(environment()))
            return
        if not resume:
            raise ConfigError(
                f"{self.folder} has a run already; go on with it (resume=True, or --resume), or choose another folder"
            )
        before = read_config(self.folder)
        differing = sorted(key for key in before.keys() | config.keys() if before.get(key) != config.get(key))
        if differing:
            key = differing[0]
            raise ConfigError(
                f"{self.folder} has a run of another configuration: {', '.join(differing)} differ ({key} was "
                f"{before.get(key)!r}, is {config.get(key)!r}); nothing was changed. Resume with the same, or choose a new one"
            )

    def log(self, record: dict[str, Any]) -> None:
        """Add a line to the metrics."""
        self._metrics.write(json.dumps(record) + "\n")
        self._metrics.flush()

    def keep_metrics(self, step: int) -> list[dict[str, Any]]:
        """Forget the metrics of steps after ``step``, which will be made again, and tell the others."""
        kept = [record for record in read_metrics(self.folder) if record["step"] <= step]
        self._metrics.close()
        write_atomically(self.folder / "metrics.jsonl", "".join(json.dumps(record) + "\n" for record in kept).encode())
        self._metrics = (self.folder / "metrics.jsonl").open("a", encoding="utf-8")
        return kept

    def save_checkpoint(self, tensors: dict[str, Tensor], info: dict[str, Any]) -> None:
        content = to_bytes({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, {"info": json.dumps(info)})
        write_atomically(self.folder / "checkpoint" / "last.safetensors", content)

    def save_filters(self, step: int, filters: Tensor) -> None:
        """The first layer's filters, to look at."""
        content = to_bytes({"filters": filters.detach().cpu().contiguous()})
        write_atomically(self.folder / "checkpoint" / f"filters-{step:06d}.safetensors", content)

    def save_result(self, result: dict[str, Any]) -> None:
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


def read_config(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The configuration of a run."""
    file = Path(folder) / "config.toml"
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{folder} is not a run folder: it has no config.toml") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"{file} cannot be read: {error}") from error


def read_metrics(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The metrics of a run, one dictionary a step; a last line that was cut off is left out."""
    file = Path(folder) / "metrics.jsonl"
    records = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return records


def read_checkpoint(folder: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The tensors and the plain facts of a run's last checkpoint, if it has one."""
    path = Path(folder) / "checkpoint" / "last.safetensors"
    if not path.exists():
        return None
    try:
        with safetensors.safe_open(path, "pt") as file:
            info = json.loads(file.metadata()["info"])
        return from_bytes(path.read_bytes()), info
    except (OSError, KeyError, ValueError, TypeError, safetensors.SafetensorError) as error:
        raise DataError(f"{path} is damaged ({error}); delete the checkpoint folder to start this run anew") from error


def read_result(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    """What came out of a run, or None if it is not finished."""
    file = Path(folder) / "result.json"
    try:
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
    except (OSError, ValueError) as error:
        raise DataError(f"{file} is damaged ({error}); delete it, and resume the run to have it again") from error


def add_to_result(folder: str | os.PathLike[str], more: dict[str, Any]) -> None:
    """Say more about what came out of a finished run."""
    write_atomically(Path(folder) / "result.json", _json((read_result(folder) or {}) | more))


def summary(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """A run in a line: what it is, how far it is, how well it did."""
    config, metrics, result = read_config(folder), read_metrics(folder), read_result(folder)
    settings = config.get("settings", {})
    taken = [record["valid_accuracy"] for record in metrics if "valid_accuracy" in record]
    final = ((result or {}).get("head") or {}).get("accuracy")
    made = metrics[-1]["step"] if metrics else 0
    return {
        "run": str(folder),
        "network": f"{settings.get('network')} ({settings.get('kind', 'ckn')})" if settings else config.get("network"),
        "method": config.get("method"),
        "steps": config.get("steps"),
        "validation": final if final is not None else (taken[-1] if taken else None),
        "test": (result or {}).get("test_accuracy"),
        "seconds": (result or {}).get("seconds", metrics[-1].get("seconds") if metrics else None),
        "state": "finished" if result else f"{made} of {config.get('steps')} steps",
    }


def read_filters(folder: str | os.PathLike[str]) -> dict[int, Tensor]:
    """The first layer's filters that were kept, by step."""
    files = sorted((Path(folder) / "checkpoint").glob("filters-*.safetensors"))
    return {int(file.stem.split("-")[1]): from_bytes(file.read_bytes())["filters"] for file in files}


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
    """Of the repository that torchckn itself is in, if it is in one."""
    try:
        here = Path(__file__).parent
        done = subprocess.run(["git", "-C", str(here), *arguments], capture_output=True, text=True, timeout=10)
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
