"""What an experiment is: a TOML file with a grid of variables, settings that depend on them, and two scales.

An experiment's cells are all combinations of its variables, once for each seed. What a cell is run with is gathered from rules,
in this order: the scale's preset, the experiment's own rules, the scale's. A rule counts where all that it matches is equal,
and later ones take precedence. Read next: :mod:`torchckn.experiments.shared`.
"""

from __future__ import annotations

import hashlib
import itertools
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from pydantic import Field, model_validator

from .. import kernels
from ..choices import FigureKind, Measure, ScaleName
from ..config import Config
from ..errors import ConfigError, unknown_name
from ..settings import Settings, read_settings, settings_from
from .extras import NEEDED, Extras

Model = TypeVar("Model", bound=Config)
SCALES: tuple[ScaleName, ...] = get_args(ScaleName)


class Rule(Config):
    """Settings for the cells whose variables match."""

    match: dict[str, Any] = Field({})
    settings: dict[str, Any] = Field({})
    """of :class:`torchckn.settings.Settings`, or of the measure"""
    seeds: int | None = Field(None, ge=1)
    skip: bool = False

    def fits(self, variables: dict[str, Any]) -> bool:
        return all(_equal_or_among(variables.get(name), wanted) for name, wanted in self.match.items())


class Scale(Config):
    """How much of an experiment is run, and on what."""

    preset: str | None = None
    grid: dict[str, list[Any]] = Field({})
    seeds: int = Field(1, ge=1)
    first_seed: int = Field(0, ge=0)
    """seeds that a protocol was chosen with are no test of it"""
    rules: list[Rule] = Field([])


class Mark(Config):
    """Accuracies that others published, drawn beside the curves of the same variables."""

    label: str
    match: dict[str, Any]
    points: list[tuple[int, float]]
    """steps, and the accuracy (%) after them"""

    def is_of(self, names: Sequence[str], values: Sequence[Any]) -> bool:
        return all(self.match.get(name, value) == value for name, value in zip(names, values, strict=True))


class Figure(Config):
    """How an experiment is drawn: see :mod:`torchckn.experiments.figures`."""

    kind: FigureKind
    over: list[Literal["steps", "seconds"]] = Field(["steps", "seconds"], min_length=1)
    """what curves are drawn over, a figure for each"""
    zoom: bool = False
    """whether the axis of accuracies begins just below the ends of the curves"""
    marks: list[Mark] = Field([])
    beside: dict[str, Any] = Field({})
    """results of another experiment that are drawn as well: its name, and what their variables must be"""
    panels: list[str] = Field([])
    """variables that distinguish the panels of a figure"""
    lines: list[str] = Field([])
    """variables that distinguish the lines of a panel"""


class Experiment(Config):
    """One table or figure of the paper, or a question beyond it."""

    name: str = Field(pattern=r"^[\w-]+$")
    title: str
    paper: str
    """where the paper has it"""
    about: str
    measure: Measure = "train"
    grid: dict[str, list[Any]] = Field({})
    rules: list[Rule] = Field([])
    figure: Figure
    scale: dict[ScaleName, Scale] = Field(min_length=1)

    @model_validator(mode="after")
    def _fits_together(self) -> Experiment:
        """Mistakes that would show after all cells have run are found before."""
        drawn, grids = self.figure, [self.grid, *(scale.grid for scale in self.scale.values())]
        for name in (*drawn.panels, *drawn.lines):
            if name not in self.grid:
                raise ValueError(f"figure: {name!r} is not among the variables of grid: {', '.join(self.grid)}")
        if (drawn.kind == "errors") != (self.measure == "gradient"):
            raise ValueError("figure: the kind 'errors' is for the measure 'gradient', and that measure for this kind only")
        if drawn.kind in ("errors", "over-filters") and "filters" not in self.grid:
            raise ValueError(f"figure: the kind {drawn.kind!r} needs filters in grid")
        if (drawn.kind == "over-labels") != (self.measure == "few-labels"):
            raise ValueError(
                "figure: the kind 'over-labels' is for the measure 'few-labels', and that measure for this kind only"
            )
        if drawn.beside and "experiment" not in drawn.beside:
            raise ValueError("figure.beside: expected an experiment's name, as experiment = ...")
        for name, values in (pair for grid in grids for pair in grid.items()):
            if name == "seed":
                raise ValueError("grid: seed is not a variable; say how many in scale.cpu.seeds")
            if name not in self.grid:
                raise ValueError(f"grid: a scale has the variable {name!r}, which the experiment's own grid does not have")
            if not values:
                raise ValueError(f"grid.{name}: expected at least one value")
            for value in values:
                if not isinstance(value, (str, int, float)):
                    raise ValueError(f"grid.{name}: expected numbers, texts, true or false, got {value!r}")
            told_apart = {*drawn.panels, *drawn.lines} | ({"filters"} if drawn.kind == "over-filters" else set())
            if drawn.kind in ("curves", "over-filters") and len(values) > 1 and name not in told_apart:
                raise ValueError(f"figure: {name!r} has several values; expected it among panels or lines, which it is not")
        return self

    def cells(self, scale: ScaleName, seeds: int | None = None) -> list[Cell]:
        """All cells, the first seed of each first, so that first results come early."""
        if scale not in self.scale:
            raise ConfigError(f"{self.name} has no scale {scale!r}; it has {', '.join(self.scale)}")
        at_scale = self.scale[scale]
        common = preset(at_scale.preset).rules if at_scale.preset else []
        rules = [*common, *self.rules, *at_scale.rules]
        grid = self.grid | at_scale.grid
        for name in (name for rule in rules for name in (*rule.match, *rule.settings)):
            _require_known(name, self.name)
        cells = []
        for values in itertools.product(*grid.values()):
            variables = dict(zip(grid, values, strict=True))
            fitting = [rule for rule in rules if rule.fits({"kind": "ckn"} | variables)]
            if any(rule.skip for rule in fitting):
                continue
            given: dict[str, Any] = {}
            for rule in fitting:
                given |= rule.settings
            own = [rule.seeds for rule in fitting if rule.seeds is not None]
            count = seeds or (own[-1] if own else at_scale.seeds)
            numbers = range(at_scale.first_seed, at_scale.first_seed + count)
            cells += [Cell(self.name, scale, self.measure, variables, given, seed) for seed in numbers]
        names = [cell.name for cell in cells]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"{self.name} has two cells of the name {twice}; no value may occur twice in its grid")
        return sorted(cells, key=lambda cell: cell.seed)


@dataclass(frozen=True)
class Cell:
    """One network, trained and measured once."""

    experiment: str
    scale: ScaleName
    measure: str
    variables: dict[str, Any]
    given: dict[str, Any]
    seed: int

    @property
    def name(self) -> str:
        """A file name that is unique: experiment/lenet5-8-ulr-seed0"""
        values = "-".join(_in_words(key, value) for key, value in self.variables.items())
        return f"{self.experiment}/{values}-seed{self.seed}"

    def check(self) -> None:
        """An error for what this cell could not be run with."""
        settings = self.settings
        try:
            Extras(**self.extras)
        except ConfigError as error:
            raise ConfigError(f"{self.name}: {error}") from None
        for kernel in (settings.kernel, settings.linear_kernel):
            kernels.parse(kernel)
        for name, example in NEEDED.get(self.measure, {}).items():
            if name not in self.extras:
                raise ConfigError(f"{self.name}: the measure {self.measure!r} needs {name}, as in {example}")
        if settings.training.start_images is not None:
            raise ConfigError(f"{self.name}: experiments fit the first classifier to all images; remove start_images")
        if settings.validation == 0:
            raise ConfigError(f"{self.name}: experiments choose on validation images, expected validation >= 1, got 0")
        if settings.training.epochs is not None:
            raise ConfigError(f"{self.name}: experiments count steps, expected steps, got epochs; use steps = ...")
        if self.measure == "train" and settings.training.steps == 0:
            raise ConfigError(
                f"{self.name}: steps expected at least 1, got 0; without training, use the measure 'unsupervised'"
            )
        if self.measure != "train" and settings.kind != "ckn":
            raise ConfigError(f"{self.name}: the measure {self.measure!r} is for kind = 'ckn', got {settings.kind!r}")

    @property
    def source_digest(self) -> str | None:
        """Of the code of a network of one's own, ``file.py:ClassName``."""
        from ..building import own_source

        network = self.settings.network
        return hashlib.sha256(own_source(network).encode()).hexdigest() if ":" in network else None

    @property
    def settings(self) -> Settings:
        for name in self.variables:
            _require_known(name, self.experiment)
        of_settings = {key: value for key, value in self._all.items() if key in Settings.all_options()}
        options = of_settings.get("options", {}) | {k[8:]: v for k, v in self._all.items() if k.startswith("options.")}
        return settings_from(of_settings | {"options": options, "seed": self.seed}, self.name)

    @property
    def extras(self) -> dict[str, Any]:
        """What is not a setting of training: parameters of the measure."""
        settings = Settings.all_options()
        return {key: value for key, value in self._all.items() if key not in settings and not key.startswith("options.")}

    @property
    def _all(self) -> dict[str, Any]:
        return self.given | self.variables


def experiments() -> dict[str, Experiment]:
    """All experiments, in the paper's order."""
    files = sorted((item for item in (_here() / "specs").iterdir() if item.name.endswith(".toml")), key=lambda f: f.name)
    all_experiments = [_validated(Experiment, file.name, tomllib.loads(file.read_text(encoding="utf-8"))) for file in files]
    return {experiment.name: experiment for experiment in all_experiments}


def experiment(name: str) -> Experiment:
    """One of them by its name, or one of your own: a TOML file made in the same way."""
    packaged = experiments()
    if name.endswith(".toml"):
        own = _validated(Experiment, name, read_settings(Path(name), "torchckn reproduce"))
        if own.name in packaged:
            raise ConfigError(f"{name}: {own.name!r} is the name of an experiment of the paper; choose another one")
        return own
    if name not in packaged:
        raise unknown_name("experiment", name, packaged, "Or give your own .toml file.")
    return packaged[name]


class Preset(Config):
    """Rules that several experiments have in common."""

    about: str
    rules: list[Rule]


def preset(name: str) -> Preset:
    file = _here() / "presets" / f"{name}.toml"
    if not file.is_file():
        presets = [item.name.removesuffix(".toml") for item in (_here() / "presets").iterdir()]
        raise unknown_name("preset", name, presets)
    return _validated(Preset, file.name, tomllib.loads(file.read_text(encoding="utf-8")))


def _require_known(name: str, source: str) -> None:
    names = [*Settings.all_options(), *Extras.model_fields]
    if name not in names and not name.startswith("options."):
        raise unknown_name(f"setting of {source}", name, names)


def _here() -> Any:
    return resources.files(__package__)


def _validated(model: type[Model], source: str, values: dict[str, Any]) -> Model:
    try:
        return model(**values)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def _equal_or_among(value: Any, wanted: Any) -> bool:
    return value in wanted if isinstance(wanted, list) else value == wanted


def _in_words(key: str, value: Any) -> str:
    if isinstance(value, bool):
        short = key.rpartition(".")[2]
        return short if value else f"no-{short}"
    return str(value).replace(":", "").replace("/", "-")
