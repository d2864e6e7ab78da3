"""Data files that were damaged in many ways are read, or refused with a designed message; nothing else happens."""

from __future__ import annotations

import json

import pytest

from .harness import in_a_process, require_none_failed

#: files of each kind: in the default suite, and in all
FEW = {"npz": 10, "images": 10, "idx": 10, "cache": 10, "shards": 10}
MANY = {"npz": 60, "images": 80, "idx": 40, "cache": 60, "shards": 60}


@pytest.mark.parametrize("counts", [FEW, pytest.param(MANY, marks=pytest.mark.slow)], ids=["few", "many"])
def test_damaged_data_files_are_read_or_refused(counts: dict[str, int]) -> None:
    require_none_failed("data files", in_a_process("data_files", json.dumps(counts)), sum(counts.values()))
