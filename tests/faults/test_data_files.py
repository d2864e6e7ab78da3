"""Data files that were damaged in many ways are read, or refused with a designed message; nothing else happens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import torchckn

from .harness import require_none_failed

SCRIPT = Path(__file__).with_name("data_files.py")
#: files of each kind: in the default suite, and in all
FILES = {"npz": (10, 75), "images": (10, 100), "idx": (10, 50), "cache": (10, 75)}


def damage_and_read(kind: str, count: int) -> list[tuple[str, str]]:
    environment = os.environ | {"PYTHONPATH": str(Path(torchckn.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), kind, "0", str(count)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200)
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, len(outcomes)) == (0, count), done.stderr[-2000:]  # else it hung, or was out of memory
    return [
        (f"{kind} {entry['seed']}", f"FAILED {entry['message']}" if entry["outcome"] == "failed" else entry["outcome"])
        for entry in outcomes
    ]


@pytest.mark.parametrize("kind", FILES)
def test_damaged_data_files_are_read_or_refused(kind: str) -> None:
    require_none_failed(f"data files ({kind})", damage_and_read(kind, FILES[kind][0]), FILES[kind][0])


@pytest.mark.slow
def test_many_damaged_data_files_are_read_or_refused() -> None:
    outcomes = [outcome for kind, (_, count) in FILES.items() for outcome in damage_and_read(kind, count)]
    require_none_failed("data files", outcomes, 300)
