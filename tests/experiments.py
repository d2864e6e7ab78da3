"""A small experiment, and cells that are small enough for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from torchckn.experiments import cell as cells
from torchckn.experiments.results import result_file
from torchckn.experiments.spec import Cell

SPEC = """
name = "small"
title = "A small experiment"
paper = "nowhere"
about = "Small enough for a test."

[grid]
network = ["lenet1"]
filters = [4]
kind = ["ckn", "convnet"]

[[rules]]
settings = { data = "digits.npz", steps = 30, batch_size = 64, patches = 500, lr = "cosine:0.01", checkpoint_every = 5 }

[figure]
kind = "curves"
panels = ["network"]
lines = ["kind"]

[scale.cpu]
seeds = 2
rules = [{ match = { kind = "convnet" }, seeds = 1 }]

[scale.paper]
rules = [{ settings = { steps = 100 } }, { match = { kind = "convnet" }, skip = true }]
"""


@pytest.fixture(autouse=True)
def _beside_the_digits(few_digits: Path, monkeypatch: pytest.MonkeyPatch, _few_penalties: None) -> None:
    """Cells find their few images in the current folder."""
    monkeypatch.chdir(few_digits.parent)


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    file = tmp_path / "small.toml"
    file.write_text(SPEC)
    return file


def cell(experiment: str = "one", measure: str = "train", **given: Any) -> Cell:
    common = {"data": "digits.npz", "steps": 3, "batch_size": 64, "patches": 500, "lr": 0.01, "linear_kernel": "rbf:0.6"}
    common["hessian"] = "diag"  # the quickest
    return Cell(experiment, "cpu", measure, {"network": "lenet1", "filters": 4}, common | given, 0)


def run_cell(cell: Cell, folder: Path) -> dict[str, Any]:
    cells.run_cell(cell, folder)
    return json.loads(result_file(folder, cell).read_text())
