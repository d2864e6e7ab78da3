"""Model files that are damaged, or made to do harm."""

from __future__ import annotations

from pathlib import Path

import pytest

from .harness import in_a_process, require_none_failed


@pytest.mark.parametrize("count", [50, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_damaged_or_hostile_model_file_is_refused_or_computes_and_takes_no_more_than_its_size(
    tmp_path: Path, count: int
) -> None:
    require_none_failed("model files", in_a_process("models", tmp_path, count), count)
