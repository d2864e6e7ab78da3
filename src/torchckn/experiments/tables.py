"""Tables of results in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def mean_and_range(values: Sequence[float], digits: int = 2) -> str:
    """``98.70 (98.60 to 98.90)``; without the range if there is one value."""
    spread = f" ({min(values):.{digits}f} to {max(values):.{digits}f})" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{spread}"


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
