"""The JSON files that cells wrote, read again: all that figures, tables and claims are made from.

Read next: :mod:`torchckn.experiments.labels`, :mod:`torchckn.experiments.claims`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import ConfigError, DataError
from ..fit.config import TrainConfig
from ..settings import Settings, settings_from
from .spec import Cell


@dataclass(frozen=True)
class Result:
    """The result of one cell."""

    experiment: str
    measure: str
    variables: dict[str, Any]
    seed: int
    measured: dict[str, Any]
    history: list[dict[str, Any]]
    settings: dict[str, Any]
    extras: dict[str, Any]
    seconds: float
    environment: dict[str, Any]
    clock: str = "wall"
    """whether times are CPU time (``"cpu"``) or wall-clock time"""
    source_digest: str | None = None
    """of the code of a network of one's own"""
    copied_from: str | None = None
    """an experiment, and the values of its variables, that measure the very same"""

    def __getitem__(self, name: str) -> Any:
        """A variable, or what was measured, by name."""
        return self.variables[name] if name in self.variables else self.measured.get(name)

    def fits(self, wanted: dict[str, Any]) -> bool:
        return all(self.variables.get(name) == value for name, value in wanted.items())

    def is_of(self, cell: Cell) -> bool:
        """Whether this is what the cell would measure, as its experiment has it now."""
        try:
            own = identity(settings_from(self.settings, self.experiment), self.extras, self.measure)
        except ConfigError:  # of options that there are no longer
            return False
        same_code = self.source_digest == cell.source_digest
        return same_code and self.measure == cell.measure and own == identity(cell.settings, cell.extras, cell.measure)

    def seconds_at(self, record: dict[str, Any]) -> float:
        """Total time up to this record, including the unsupervised filters and the first classifier."""
        return float(record["seconds"]) + float(self.measured.get("start_seconds", 0))

    @property
    def machine(self) -> tuple[str, str, str]:
        """Its processor, by name and model, and its platform: times on other machines cannot be compared with its own.

        Older results have no model.
        """
        names = ("processor", "processor_model", "platform")
        name, model, platform = (str(self.environment.get(key) or "unknown") for key in names)
        return name, model, platform

    @property
    def total_seconds(self) -> float:
        """Of training, including the unsupervised filters and the first classifier."""
        return self.seconds_at(self.history[-1]) if self.history else 0.0

    @property
    def training_seconds(self) -> float:
        return float(self.history[-1]["seconds"]) if self.history else 0.0


def start_settings(settings: Settings) -> dict[str, Any]:
    """The settings that decide what a network is before its first training step."""
    later = TrainConfig.option_names(shapes_start=False) | {"device"}
    if settings.training.copies:
        later -= {"augment"}
    return {name: value for name, value in settings.to_flat().items() if name not in later}


def identity(settings: Settings, extras: dict[str, Any], measure: str) -> dict[str, Any]:
    """What a result depends on, whatever it is called: two cells of the same identity give the same result."""
    unused = {"budget", "refit", "penalty"}  # names of what other settings do
    if settings.training.lr is not None or measure != "train":
        unused |= {"lrs", "trial_steps"}
    plain = {key: value for key, value in extras.items() if key not in unused and value != "none"}
    if measure != "train":
        return start_settings(settings) | {"extras": plain}
    free = TrainConfig.option_names(bookkeeping=True) | {"device"}
    flat = {name: value for name, value in settings.to_flat().items() if name not in free}
    return flat | {"method": settings.method, "extras": plain}


@dataclass(frozen=True)
class Results:
    """All results, with a way to select them."""

    all: Sequence[Result]
    outdated: int = 0
    """results that were left out, because their experiments have been changed since"""

    def of(self, experiment: str, **wanted: Any) -> list[Result]:
        return [result for result in self.all if result.experiment == experiment and result.fits(wanted)]


def paired(first: Sequence[Result], second: Sequence[Result]) -> list[tuple[Result, Result]]:
    """Results of two kinds, seed by seed: a difference between other seeds would be one between other images."""
    other = {result.seed: result for result in second}
    return [(result, other[result.seed]) for result in first if result.seed in other]


def accuracies_by_labels(results: Sequence[Result]) -> dict[int, list[float]]:
    """Test accuracies (%) of all draws, by the number of labels."""
    accuracies: dict[int, list[float]] = {}
    for result in results:
        for record in result.history:
            accuracies.setdefault(record["labels"], []).append(100 * record["test_accuracy"])
    return accuracies


def read_results(folder: Path, scale: str, cells: Sequence[Cell] = ()) -> Results:
    """What there is, of all experiments; without what one of ``cells``, whatever its seed, would not give as it is now."""
    results = [read_result(file) for file in sorted((folder / "results" / scale).glob("*/*.json"))]
    cell_of = {_variables(cell): cell for cell in cells}
    current = []
    for result in results:
        cell = cell_of.get(_variables(result))
        if cell is None or result.is_of(replace(cell, seed=result.seed)):
            current.append(result)
    return Results(current, len(results) - len(current))


def _variables(of: Result | Cell) -> str:
    return json.dumps([of.experiment, of.variables], sort_keys=True)


def result_file(folder: Path, cell: Cell) -> Path:
    return folder / "results" / cell.scale / f"{cell.name}.json"


def is_finished(folder: Path, cell: Cell) -> bool:
    """Whether there is a result, and the experiment has not been changed since."""
    file = result_file(folder, cell)
    return file.exists() and read_result(file).is_of(cell)


def with_fewer_labels(folder: Path, cell: Cell) -> Result | None:
    """What was measured before the cell's experiment had its last numbers of labels, all else being equal."""
    file = result_file(folder, cell)
    if not file.exists():
        return None
    result, counts = read_result(file), cell.extras["label_counts"]
    done = len(result.history)
    earlier = replace(cell, given=cell.given | {"label_counts": counts[:done]})
    return result if 0 < done < len(counts) and result.is_of(earlier) else None


def read_result(file: Path) -> Result:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return Result(**{name: value for name, value in content.items() if name in Result.__dataclass_fields__})
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise DataError(f"{file} is not a result of torchckn reproduce ({error}); delete it, and run it again") from error
