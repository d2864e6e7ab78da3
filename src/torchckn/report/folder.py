"""What a run folder has, and what is missing: a run may be unfinished, or files may have been deleted."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
from torch import Tensor

from ..errors import CKNError, ConfigError, DataError, PathError
from ..files import read_text
from ..network import CKN, Classifier
from ..runs import read_config, read_filters, read_metrics, read_result
from ..trained import load_trained
from .contents import Configuration, Result, check, check_filters, usable

PathLike = str | os.PathLike[str]


@dataclass
class RunFolder:
    """One run: all that its folder has."""

    name: str
    """its name on the page, which no other run has"""
    folder: Path
    config: dict[str, Any]
    environment: dict[str, Any]
    metrics: list[dict[str, Any]]
    result: dict[str, Any] | None
    filters: dict[int, Tensor]
    model: Classifier | None
    missing: list[str] = field(default_factory=list)
    """what is missing, in sentences"""

    @property
    def ckn(self) -> CKN | None:
        """The saved network, if it is a kernel network."""
        return self.model if isinstance(self.model, CKN) else None

    @property
    def is_convnet(self) -> bool:
        """Only kernel networks leave filters, and both leave a result."""
        kind = self.config.get("settings", {}).get("kind")
        return kind == "convnet" if kind else self.ckn is None and self.result is not None and not self.filters

    @property
    def network(self) -> str:
        """What was trained, as far as the folder says."""
        report = self.ckn.report if self.ckn else None
        name = report.network if report else self.config.get("settings", {}).get("network")
        if self.is_convnet:
            return f"{name}, a ConvNet" if name else "ConvNet"
        if name:
            return f"kernel counterpart of {name}"
        return "kernel network" if self.ckn or self.filters else "unknown network"

    @property
    def data(self) -> str | None:
        """The data set that it was trained on, if the folder says so."""
        return self.config.get("settings", {}).get("data")

    @property
    def method(self) -> str:
        return str(self.config.get("training", {}).get("method", "unknown method"))

    @property
    def steps(self) -> int:
        """The number of steps that are done."""
        return int(self.metrics[-1]["step"]) if self.metrics else 0

    @property
    def seconds(self) -> float | None:
        last = self.metrics[-1].get("seconds") if self.metrics else None
        return (self.result or {}).get("seconds", last)

    @property
    def start_accuracy(self) -> float | None:
        """On the validation data, before the first step."""
        return self.metrics[0].get("valid_accuracy") if self.metrics else None

    @property
    def end_accuracy(self) -> float | None:
        """On the validation data, with the last classifier."""
        head = (self.result or {}).get("head") or {}
        taken = [record["valid_accuracy"] for record in self.metrics if "valid_accuracy" in record]
        return head.get("accuracy", taken[-1] if taken else None)

    @property
    def test_accuracy(self) -> float | None:
        """As it was measured by ``torchckn evaluate``, if it was."""
        return (self.result or {}).get("test_accuracy")


def read_runs(folders: PathLike | Sequence[PathLike]) -> list[RunFolder]:
    """All runs, in the order given."""
    if isinstance(folders, (str, os.PathLike)):
        folders = [folders]
    paths = [Path(folder) for folder in folders]
    if not paths:
        raise ConfigError("a report expected at least one run folder, got none; training writes one with run_dir=...")
    return [_read(path, name) for path, name in zip(paths, _names(paths), strict=True)]


def _names(paths: Sequence[Path]) -> list[str]:
    """The folders' names, with as many parent folders as it takes to distinguish them, and numbers for the same folder."""
    parts = [path.resolve().parts for path in paths]
    depth = 1
    names = ["/".join(part[-depth:]) for part in parts]
    while len(set(names)) < len(set(parts)):
        depth += 1
        names = ["/".join(part[-depth:]) for part in parts]
    counts = [names[:i].count(name) for i, name in enumerate(names)]
    return [f"{name} ({count + 1})" if count else name for name, count in zip(names, counts, strict=True)]


def _read(folder: Path, name: str) -> RunFolder:
    if not folder.is_dir():
        raise PathError(f"{folder} does not exist; expected a run folder, which training writes with run_dir=...")
    config, damaged = read_config(folder), {}
    check(str(folder / "config.toml"), config, Configuration)

    def part(file: str, read: Callable[[Path], Any], otherwise: Any) -> Any:
        try:
            content = read(folder)
        except (OSError, ValueError, KeyError, RecursionError, safetensors.SafetensorError) as error:
            damaged[file] = str(error)
            return otherwise
        return otherwise if content is None else content

    model, problem = _model(folder)
    run = RunFolder(
        name,
        folder,
        config,
        environment=part("environment.json", _environment, {}),
        metrics=part("metrics.jsonl", _metrics, []),
        result=part("result.json", _result, None),
        filters=part("checkpoint/", _filters, {}),
        model=model,
    )
    run.missing = [f"{file} cannot be read: {error}" for file, error in damaged.items()]
    run.missing += [sentence for file, sentence in _missing(run) if file not in damaged]
    if problem:
        run.missing.append(f"There are no predictions: {problem}.")
    return run


def _model(folder: Path) -> tuple[Classifier | None, str | None]:
    """The trained network, or why there is none. A report executes no code of others."""
    try:
        return load_trained(folder).net, None
    except CKNError as error:
        return None, str(error)
    except KeyError as error:
        return None, f"config.toml has no {error}"


def _environment(folder: Path) -> dict[str, Any] | None:
    file = folder / "environment.json"
    content = json.loads(read_text(file)) if file.exists() else None
    if content is not None and not isinstance(content, dict):
        raise DataError(f"expected a table of names and values, got {type(content).__name__}")
    return content


def _metrics(folder: Path) -> list[dict[str, Any]]:
    return [record for record in read_metrics(folder) if usable(record)]


def _result(folder: Path) -> dict[str, Any] | None:
    content = read_result(folder)
    if content is not None:
        check("it", content, Result)
    return content


def _filters(folder: Path) -> dict[int, Tensor]:
    filters = read_filters(folder)
    check_filters(filters)
    return filters


def _missing(run: RunFolder) -> Iterator[tuple[str, str]]:
    """The files that are missing, and a sentence about each."""
    if run.result is None:
        training = run.config.get("training", {})
        of = f" of {training['steps']}" if "steps" in training else ""
        yield "result.json", f"The run is not finished: {run.steps}{of} steps are done, and there is no result.json."
    if not run.metrics:
        yield "metrics.jsonl", "There are no metrics (metrics.jsonl), so there are no curves."
    elif not any("valid_accuracy" in record for record in run.metrics):
        yield "validation", "The run has no validation data, so the curves show mini-batches of training only."
    if not run.filters and not run.is_convnet:
        yield "checkpoint/", "There are no filters in checkpoint/."
    if not run.environment:
        yield "environment.json", "There is no environment.json."
