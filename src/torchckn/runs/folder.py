"""A run folder that is written to: everything atomically, by one process at a time. Read next: :mod:`torchckn.runs.callbacks`."""

from __future__ import annotations

import fnmatch
import json
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from filelock import FileLock, Timeout
from torch import Tensor

from ..choices import PLACES
from ..errors import ConfigError, DataError
from ..files import check_output, partial_files, remove_partial_files, write_atomically, write_tensors
from ..fit.config import TrainConfig
from ..fit.result import TrainResult
from ..network import Classifier
from ..storage import load_weights, save
from .checkpoints import CHECKPOINTS, checkpoint_file, read_checkpoint, write_checkpoint
from .environment import environment
from .reading import model_file, read_config, read_metrics, read_result, to_json, to_plain

#: options that may change when a run is trained further, with more steps
FURTHER = ("lr", "head_update", "augment")
#: options that may change when a run is resumed: it is trained further, or in less memory (then with other rounding errors)
MAY_DIFFER = ("steps", "chunk", *FURTHER)
#: the files that a run writes, by folder
_WRITTEN = {
    ".": ("config.toml", "environment.json", "metrics.jsonl", "result.json"),
    "checkpoint": ("last.safetensors", "previous.safetensors", "filters-*.safetensors"),
    "model": ("model.safetensors",),
}


def output_file(path: Path) -> Path:
    """``path``, as a file that a user has named for output; an error if it cannot be one, or is one of a run's own files."""
    place = Path(os.path.realpath(path))
    for part, names in _WRITTEN.items():
        folder = place.parent if part == "." else place.parent.parent
        is_there = place.parent == folder / part and (folder / "config.toml").exists()
        if is_there and any(fnmatch.fnmatchcase(place.name, name) for name in names):
            raise ConfigError(f"{path} is a file of the run {folder}, which would lose it; choose another name")
    return check_output(path)


class Run:
    """A run folder that this process writes to; no other can meanwhile.

    Args:
        config: what ``config.toml`` says: digests, descriptions, and the training configuration as a table ``training``.
        resume: continue the run that is there, if it has the same configuration; with more steps, it is trained further, also
            with other values of :data:`FURTHER`.
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
        self._made_folder = not self.folder.exists()
        self._is_new = not (self.folder / "config.toml").exists()
        self._lock = _claim(self.folder)
        try:
            self._begin(config, resume, free)
        except BaseException:
            self.close()
            raise
        self._metrics = (self.folder / "metrics.jsonl").open("a", encoding="utf-8")

    def _begin(self, config: dict[str, Any], resume: bool, free: Collection[str]) -> None:
        config = to_plain(config)
        if not (self.folder / "config.toml").exists():
            remove_partial_files(self.folder, "config.toml")  # of a process that was killed before there was a run
            self._write_config(config)
            write_atomically(self.folder / "environment.json", to_json(environment()))
            return
        if not resume:  # another process began it meanwhile
            raise _already_a_run(self.folder)
        for part, names in _WRITTEN.items():
            remove_partial_files(self.folder / part, *names)  # of a process that was killed while it wrote
        if not (self.folder / "environment.json").exists():
            write_atomically(self.folder / "environment.json", to_json(environment()))
        self._continue(read_config(self.folder), config, free)

    def _continue(self, before: dict[str, Any], config: dict[str, Any], free: Collection[str]) -> None:
        """Write down what may differ in the run that is there; an error if anything else does."""
        old, new = _lines(before), _lines(config)
        # what a run has that was begun before there were these options, or this digest
        usual = TrainConfig().to_plain() | {"test_data": new.get("test_data")}
        old = {name: usual[name] for name in new.keys() & usual.keys() - old.keys()} | old
        differing = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key) and key not in free)
        is_further = new.get("steps", 0) > old.get("steps", 0)
        allowed = {*MAY_DIFFER} if is_further else {*MAY_DIFFER} - {*FURTHER, "steps"}
        if not {*differing} <= allowed:
            key = differing[0]
            raise ConfigError(
                f"{self.folder} has a run of another configuration: {', '.join(differing)} (expected {key} = "
                f"{old.get(key)!r}, got {new.get(key)!r}); nothing was changed. Resume it with the same configuration (chunk may "
                f"differ, steps may grow, and with more steps {', '.join(FURTHER)} may differ), or choose another folder"
            )
        after = before | ({"settings": config["settings"]} if "settings" in config else {})  # with new places
        if differing:
            kept = {name: value for name, value in before["training"].items() if name not in differing}
            after["training"] = kept | {name: new[name] for name in differing if name in new}
        if is_further:
            after["earlier"] = [*before.get("earlier", []), self._reached(old)]
            (self.folder / "result.json").unlink(missing_ok=True)  # no longer finished
        if after != before:
            self._write_config(after)

    def _reached(self, options: dict[str, Any]) -> dict[str, Any]:
        """The steps that were taken with these options, and what of them may change now."""
        checkpoint = self.load_checkpoint()
        steps = checkpoint[1].get("step", 0) if checkpoint else 0
        return {"steps": steps} | {name: options[name] for name in FURTHER if name in options}

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

    def load_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The checkpoint to continue from, if there is one."""
        return read_checkpoint(self.folder)

    def save_checkpoint(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Keep this checkpoint and the one before it, whichever moment the process is killed at.

        The history is one of its facts, because the next step may depend on it, and the file of metrics has no digest.
        """
        self._require_folder()
        last, previous = (checkpoint_file(self.folder, name) for name in CHECKPOINTS)
        if last.exists():
            os.replace(last, previous)
        write_checkpoint(self.folder, tensors, facts)

    def save_filters(self, step: int, filters: Tensor) -> None:
        """The first layer's filters, for pictures."""
        self._require_folder()
        write_tensors(self.folder / "checkpoint" / f"filters-{step:06d}.safetensors", "filters", {}, {"filters": filters})

    def load_result(self, net: Classifier) -> TrainResult | None:
        """The result of a run that is finished, whose weights the network gets; None if it is not finished."""
        content = read_result(self.folder)
        if content is None:
            return None
        load_weights(net, model_file(self.folder))
        try:
            return TrainResult.from_json(content, read_metrics(self.folder))
        except (KeyError, TypeError) as error:
            file = self.folder / "result.json"
            raise DataError(f"{file} is not the result of a training ({error!r}); delete it, and resume the run") from error

    def save_result(self, net: Classifier, result: TrainResult) -> None:
        """The trained network, and then the result: with it, the run is finished."""
        self._require_folder()
        save(net, model_file(self.folder))
        write_atomically(self.folder / "result.json", to_json(result.to_json()))

    def close(self) -> None:
        if hasattr(self, "_metrics"):
            self._metrics.close()
        self._lock.release()

    def discard(self) -> None:
        """Close it; and if it was begun here and has no checkpoint yet, leave nothing behind, so that it can be begun again."""
        if not self._is_new or not self.folder.exists() or (self.folder / "checkpoint").exists():
            self.close()
            return
        for name in _WRITTEN["."]:
            (self.folder / name).unlink(missing_ok=True)
        self.close()
        (self.folder / ".lock").unlink(missing_ok=True)
        if self._made_folder and not any(self.folder.iterdir()):
            self.folder.rmdir()


def add_to_result(folder: str | os.PathLike[str], more: dict[str, Any]) -> None:
    """Add to the result of a finished run; an error while another process trains it further."""
    _require_own_files(Path(folder))
    with _claim(Path(folder)):
        result = read_result(folder)
        if result is None:
            raise DataError(f"the run in {folder} is not finished, so it has no result that could be added to")
        write_atomically(Path(folder) / "result.json", to_json(result | more))


def _claim(folder: Path) -> FileLock:
    """A folder for this process alone."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock")
        lock.acquire(timeout=0)
    except Timeout:
        raise ConfigError(f"another process is training in {folder}; wait for it, or choose another folder") from None
    except OSError as error:
        raise ConfigError(f"cannot use {folder} for a run: {error.strerror}; choose another folder") from error
    return lock


def _require_own_files(folder: Path) -> None:
    """An error for a file of a run that is a link to somewhere else, where a run must not write, or a pipe or a device."""
    home = Path(os.path.realpath(folder))
    for part, names in _WRITTEN.items():
        place = folder / part
        for file in [place, *(place.iterdir() if place.is_dir() else ())]:
            if file != place and not any(fnmatch.fnmatchcase(file.name, name) for name in names):
                continue
            target = Path(os.path.realpath(file))
            if not target.is_relative_to(home):
                raise DataError(
                    f"{file} is a link that leads out of the run folder, to {target}, which a run would write to; put what it "
                    "links to in its place"
                )
            if file.exists() and not (file.is_dir() if file == place else file.is_file()):
                raise DataError(f"{file} is not a {'folder' if file == place else 'regular file'}; remove it")


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
        _require_own_files(folder)
        return
    ours = {folder / ".lock", *partial_files(folder, "config.toml")}  # of a process that was killed before there was a run
    others = [item.name for item in folder.iterdir() if item not in ours]
    if others:
        raise ConfigError(f"{folder} is not empty and not a run (it has {others[0]!r}); choose an empty or new folder")


def _lines(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration with the options of training beside all else, but for those of earlier steps and the places of images."""
    lines = {key: value for key, value in config.items() if key not in ("training", "earlier")} | config.get("training", {})
    if "settings" in lines:
        lines["settings"] = {name: value for name, value in lines["settings"].items() if name not in PLACES}
    return lines
