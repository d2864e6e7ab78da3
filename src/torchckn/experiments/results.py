"""The JSON files that cells wrote, read again: all that figures, tables and claims are made from.

Read next: :mod:`torchckn.experiments.figures`, :mod:`torchckn.experiments.claims`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DataError


@dataclass(frozen=True)
class Result:
    """What came out of one cell."""

    experiment: str
    variables: dict[str, Any]
    seed: int
    measured: dict[str, Any]
    history: list[dict[str, Any]]
    settings: dict[str, Any]
    seconds: float
    environment: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        """A variable, or what was measured, by name."""
        return self.variables[name] if name in self.variables else self.measured.get(name)

    def fits(self, wanted: dict[str, Any]) -> bool:
        return all(self.variables.get(name) == value for name, value in wanted.items())

    def seconds_at(self, record: dict[str, Any]) -> float:
        """From nothing to this record: what the network was before its first step took time as well."""
        return float(record["seconds"]) + float(self.measured.get("start_seconds", 0))


@dataclass(frozen=True)
class Results:
    """All that came out, to ask questions of."""

    all: Sequence[Result]

    def of(self, experiment: str, **wanted: Any) -> list[Result]:
        return [result for result in self.all if result.experiment == experiment and result.fits(wanted)]

    def values(self, experiment: str, value: str = "test_accuracy", **wanted: Any) -> list[float]:
        """What was measured, seed by seed."""
        return [result[value] for result in sorted(self.of(experiment, **wanted), key=lambda r: r.seed)]

    def mean(self, experiment: str, value: str = "test_accuracy", **wanted: Any) -> float | None:
        found = self.values(experiment, value, **wanted)
        return sum(found) / len(found) if found else None


def read_results(folder: Path, scale: str) -> Results:
    """What there is, of all experiments."""
    return Results([_read(file) for file in sorted((folder / "results" / scale).glob("*/*.json"))])


def seconds_of(folder: Path, scale: str) -> dict[str, float]:
    """How long each finished cell took, by name."""
    root = folder / "results" / scale
    return {str(file.relative_to(root).with_suffix("")): _read(file).seconds for file in root.glob("*/*.json")}


def _read(file: Path) -> Result:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return Result(**{name: content[name] for name in Result.__dataclass_fields__})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file} is not a result of torchckn reproduce ({error}); delete it, and run it again") from error
