"""What a run folder has, and what it lacks: a run may be unfinished, or have been tidied up."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
from torch import Tensor

from ..errors import ConfigError, DataError
from ..network import CKN, Classifier
from ..runs import read_config, read_filters, read_metrics, read_result
from ..storage import FORMAT, load

PathLike = str | os.PathLike[str]


@dataclass
class RunFolder:
    """One run, as far as it is there."""

    name: str
    """what it is called on the page; no two runs are called the same"""
    folder: Path
    config: dict[str, Any]
    environment: dict[str, Any]
    metrics: list[dict[str, Any]]
    result: dict[str, Any] | None
    filters: dict[int, Tensor]
    model: Classifier | None
    missing: list[str] = field(default_factory=list)
    """what is not there, in sentences"""

    @property
    def ckn(self) -> CKN | None:
        """The saved network, if it is a kernel network."""
        return self.model if isinstance(self.model, CKN) else None

    @property
    def is_convnet(self) -> bool:
        """As far as a run folder tells: only kernel networks leave filters, and both leave a result."""
        kind = self.config.get("settings", {}).get("kind")
        return kind == "convnet" if kind else self.ckn is None and self.result is not None and not self.filters

    @property
    def network(self) -> str:
        """What was trained, as far as a run folder tells."""
        report = self.ckn.report if self.ckn else None
        name = report.network if report else self.config.get("settings", {}).get("network")
        if self.is_convnet:
            return f"{name}, a ConvNet" if name else "ConvNet"
        if name:
            return f"kernel counterpart of {name}"
        return "kernel network" if self.ckn or self.filters else "not known before the end"

    @property
    def method(self) -> str:
        return str(self.config.get("method", "not known"))

    @property
    def steps(self) -> int:
        """How many were made."""
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
        """On the validation data, with the last classifier that there is."""
        head = (self.result or {}).get("head") or {}
        taken = [record["valid_accuracy"] for record in self.metrics if "valid_accuracy" in record]
        return head.get("accuracy", taken[-1] if taken else None)

    @property
    def test_accuracy(self) -> float | None:
        return (self.result or {}).get("test_accuracy")


def read_runs(folders: PathLike | Sequence[PathLike]) -> list[RunFolder]:
    """All runs, in the order given."""
    if isinstance(folders, (str, os.PathLike)):
        folders = [folders]
    paths = [Path(folder) for folder in folders]
    if not paths:
        raise ConfigError("a report needs at least one run folder, got none; training writes one with run_dir=...")
    return [_read(path, name) for path, name in zip(paths, _names(paths), strict=True)]


def _names(paths: Sequence[Path]) -> list[str]:
    """The folders' own names, with as much before them as tells them apart, and a number if nothing does."""
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
        raise DataError(f"{folder} is not a run folder: there is no such folder; pass one that training wrote (run_dir=...)")
    config, damaged = read_config(folder), {}

    def part(what: str, read: Callable[[Path], Any], otherwise: Any) -> Any:
        try:
            found = read(folder)
        except (OSError, ValueError, KeyError, safetensors.SafetensorError) as error:
            damaged[what] = str(error)
            return otherwise
        return otherwise if found is None else found

    run = RunFolder(
        name,
        folder,
        config,
        environment=part("environment.json", _environment, {}),
        metrics=part("metrics.jsonl", read_metrics, []),
        result=part("result.json", read_result, None),
        filters=part("checkpoint/", read_filters, {}),
        model=part("model/", _model, None),
    )
    run.missing = [f"{what} cannot be read: {error}" for what, error in damaged.items()]
    run.missing += [sentence for what, sentence in _missing(run) if what not in damaged]
    return run


def _environment(folder: Path) -> dict[str, Any] | None:
    file = folder / "environment.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def _model(folder: Path) -> Classifier | None:
    file = folder / "model" / "model.safetensors"
    if not file.exists():
        return None
    with safetensors.safe_open(file, "pt") as content:
        is_ckn = (content.metadata() or {}).get("format") == FORMAT
    if is_ckn:
        return load(file).eval()
    # A ConvNet's file has its weights alone. Those of the zoo can be built again; building others would execute code.
    network = str(read_config(folder).get("settings", {}).get("network", ":"))
    if ":" in network:
        return None
    from ..building import load_trained

    return load_trained(folder).net


def _missing(run: RunFolder) -> Iterator[tuple[str, str]]:
    """The parts that are not there, and a sentence about each."""
    if run.result is None:
        of = f" of {run.config['steps']}" if "steps" in run.config else ""
        yield "result.json", f"The run is not finished: {run.steps}{of} steps were made, and there is no result.json."
    if not run.metrics:
        yield "metrics.jsonl", "There are no metrics (metrics.jsonl), so there are no curves."
    elif not any("valid_accuracy" in record for record in run.metrics):
        yield "validation", "It was trained without validation data, so only its mini-batches are shown."
    if run.model is None:
        why = (
            "ConvNets can be built again if torchckn train made them from the zoo"
            if run.is_convnet
            else "it comes at the end"
        )
        yield "model/", f"There is no network that could be tried ({why}), so there are no predictions."
    if not run.filters and not run.is_convnet:
        yield "checkpoint/", "There are no filters in checkpoint/."
    if not run.environment:
        yield "environment.json", "There is no environment.json."
