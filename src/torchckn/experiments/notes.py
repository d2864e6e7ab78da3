"""Numbers in the text about results, taken from the results when the page is written.

In ``notes.md``, ``{ckn-convnet test network=allcnn filters=8 kind=ckn}`` stands for the mean test accuracy of these runs in
percent, ``valid`` for the validation accuracy, ``start`` for that before the first step, ``seconds`` for the training time. What
has no run behind it cannot be written. Read next: :mod:`torchckn.experiments.page`.
"""

from __future__ import annotations

import re
import statistics

from ..errors import DataError, unknown_name
from ..formats import percent
from .results import Result, Results

_PLACE = re.compile(r"\{([\w-]+) (\w+)((?: [^\s=}]+=[^\s}]+)*)\}")
_KEYS = {"test": "test_accuracy", "valid": "valid_accuracy", "start": "start_valid_accuracy"}


def filled(text: str, results: Results) -> str:
    """The text with its numbers."""
    return _PLACE.sub(lambda place: _number(place, results), text)


def _number(place: re.Match[str], results: Results) -> str:
    experiment, key, given = place.groups()
    wanted = dict(pair.split("=", 1) for pair in given.split())
    runs = [run for run in results.of(experiment) if _fits(run, wanted)]
    if not runs:
        raise DataError(f"notes.md: {place.group()} names no run in the results; run it, or correct the text")
    if key not in (*_KEYS, "seconds"):
        raise unknown_name(f"number in notes.md, {place.group()}:", key, (*_KEYS, "seconds"))
    if key == "seconds":
        return f"{statistics.fmean(run.training_seconds for run in runs):.0f} s"
    return percent(statistics.fmean(run[_KEYS[key]] for run in runs))


def _fits(run: Result, wanted: dict[str, str]) -> bool:
    return all(str(run.variables.get(name)).lower() == value for name, value in wanted.items())
