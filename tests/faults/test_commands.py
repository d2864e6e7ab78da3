"""Command lines that are wrong, and files that are odd."""

from __future__ import annotations

from pathlib import Path

import pytest

from .harness import in_a_process, require_none_failed


@pytest.mark.parametrize("count", [15, pytest.param(300, marks=pytest.mark.slow)])
def test_a_wrong_command_line_ends_with_a_message_and_leaves_nothing(tmp_path: Path, count: int) -> None:
    require_none_failed("command lines", in_a_process("commands", tmp_path, count), count)
