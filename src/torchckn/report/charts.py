"""Curves as data: what ``template/page.js`` draws, and the same in words and numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..formats import number, percent
from ..plots import COLOURS
from .folder import RunFolder

#: lines of different runs can be distinguished without color as well
DASHES = ("", "7 4", "2 3", "9 3 2 3", "12 5", "5 2 2 2 2 2")
#: points of a line at most; neighbors are averaged beyond that
POINTS = 300


@dataclass(frozen=True)
class Series:
    """One line. ``x`` has the positions of its points on each axis that the reader can choose."""

    name: str
    colour: str
    dash: str
    x: list[list[float]]
    y: list[float | None]
    minor: bool = False
    """hidden until the reader selects it, if there are others"""
    marked: int | None = None
    """a point with a ring around it"""


@dataclass(frozen=True)
class Chart:
    """A chart of lines; ``axes`` are (label, format of a position)."""

    name: str
    title: str
    label: str
    form: str
    """of the values: "percent" or "number" """
    axes: list[tuple[str, str]]
    series: list[Series] = field(default_factory=list)

    @property
    def summary(self) -> list[str]:
        """Each line in words."""
        return [
            f"{line.name}: from {_write(self.form, finite[0])} to {_write(self.form, finite[-1])}, "
            f"between {_write(self.form, min(finite))} and {_write(self.form, max(finite))}"
            for line in self.series
            if (finite := [y for y in line.y if y is not None])
        ]

    @property
    def has_minor(self) -> bool:
        """Whether there is something to show or hide."""
        return len({line.minor for line in self.series}) == 2

    def rows(self) -> list[tuple[str, list[str], str]]:
        """The points of all major lines: name, positions, value."""
        shown = [line for line in self.series if not line.minor] or self.series
        return [
            (line.name, [f"{x:.6g}" for x in places], "not finite" if y is None else _write(self.form, y))
            for line in shown
            for *places, y in zip(*line.x, line.y, strict=True)
        ]


def _write(form: str, value: float) -> str:
    return percent(value) if form == "percent" else number(value)


def style(index: int) -> tuple[str, str]:
    """Color and dash of the run of this index; no pair repeats before all have been used."""
    colours = len(COLOURS)
    return COLOURS[index % colours], DASHES[(index + index // colours) % len(DASHES)]


def training_charts(runs: Sequence[RunFolder]) -> list[Chart]:
    """Accuracy and loss over steps and over seconds."""
    axes = [("steps", "step"), ("seconds of training", "seconds")]
    charts = [
        Chart("accuracy", "Accuracy", "accuracy", "percent", axes),
        Chart("loss", "Loss", "loss", "number", axes),
    ]
    for chart in charts:
        for index, run in enumerate(runs):
            for key, what in ((f"valid_{chart.name}", "validation"), (chart.name, "mini-batches")):
                records = thinned([r for r in run.metrics if key in r], ("step", "seconds", key))
                if records:
                    x = [[r["step"] for r in records], [r["seconds"] for r in records]]
                    y = [_finite(r[key]) for r in records]
                    chart.series.append(Series(f"{run.name}, {what}", *style(index), x, y, what == "mini-batches"))
    return charts


def penalty_chart(runs: Sequence[RunFolder]) -> Chart:
    """Validation accuracy over the L2 penalty, for the classifiers before and after training."""
    chart = Chart("penalty", "Accuracy over lambda", "validation accuracy", "percent", [("log2 of lambda", "power")])
    for index, run in enumerate(runs):
        for key, when in (("start", "before training"), ("head", "after training")):
            fit = (run.result or {}).get(key) or {}
            scores = sorted((s for s in fit.get("curve", []) if s["lam"] > 0), key=lambda s: s["lam"])
            if not scores:
                continue
            lams = [score["lam"] for score in scores]
            marked = lams.index(fit["lam"]) if fit["lam"] in lams else None
            # Two lines per run: the dash distinguishes before from after as well.
            colour, dash = style(index)
            chart.series.append(
                Series(
                    f"{run.name}, {when}",
                    colour,
                    "3 4" if key == "start" else dash,
                    [[math.log2(lam) for lam in lams]],
                    [_finite(score["accuracy"]) for score in scores],
                    marked=marked,
                )
            )
    return chart


def thinned(records: Sequence[Mapping[str, Any]], keys: Iterable[str], points: int = POINTS) -> list[dict[str, Any]]:
    """At most ``points`` records: neighbors are averaged."""
    keys = list(keys)
    size = math.ceil(len(records) / points) or 1
    groups = [records[i : i + size] for i in range(0, len(records), size)]
    return [{key: sum(r[key] for r in group) / len(group) for key in keys} for group in groups]


def _finite(value: float) -> float | None:
    """None for NaN and infinity, which JSON does not have."""
    return value if math.isfinite(value) else None
