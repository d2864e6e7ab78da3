"""Data files that were damaged in many ways are read, or refused with a designed message; nothing else happens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import torchckn

SCRIPT = Path(__file__).with_name("data_files.py")
#: files of each kind: in the default suite, and in all
FILES = {"npz": (10, 75), "images": (10, 100), "idx": (10, 50), "cache": (10, 75)}


def damage_and_read(kind: str, first: int, count: int) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(torchckn.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), kind, str(first), str(count)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    assert [entry for entry in outcomes if entry["outcome"] == "failed"] == []
    assert (done.returncode, len(outcomes)) == (0, count), done.stderr[-2000:]  # else it hung, or was out of memory
    print(f"{kind}: {dict(Counter(entry['outcome'] for entry in outcomes))}")


@pytest.mark.parametrize("kind", FILES)
def test_damaged_data_files_are_read_or_refused(kind: str) -> None:
    damage_and_read(kind, 0, FILES[kind][0])


@pytest.mark.slow
@pytest.mark.parametrize("kind", FILES)
def test_many_damaged_data_files_are_read_or_refused(kind: str) -> None:
    some, all_of_them = FILES[kind]
    damage_and_read(kind, some, all_of_them - some)
