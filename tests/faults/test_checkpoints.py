"""Checkpoints that are damaged, missing, or of something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from .harness import in_a_process, require_none_failed


@pytest.mark.parametrize("count", [15, pytest.param(300, marks=pytest.mark.slow)])
def test_a_damaged_checkpoint_leads_to_the_same_weights_or_to_a_message(tmp_path: Path, count: int) -> None:
    require_none_failed("checkpoints", in_a_process("checkpoints", tmp_path, count), count)
