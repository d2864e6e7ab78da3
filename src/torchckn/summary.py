"""The summary table of a network: layer, kernel, filters, output shape, parameters."""

from __future__ import annotations

import io
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class SummaryRow:
    name: str
    operation: str
    kernel: str
    filters: int | None
    output_shape: tuple[int, ...]
    parameters: int
    trainable: int


@dataclass(frozen=True)
class Summary:
    """Prints as a table; ``rows`` and ``to_json`` give the same as data."""

    rows: list[SummaryRow]

    @property
    def parameters(self) -> int:
        return sum(row.parameters for row in self.rows)

    @property
    def trainable(self) -> int:
        return sum(row.trainable for row in self.rows)

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(row) for row in self.rows]

    def __str__(self) -> str:
        fixed = self.parameters - self.trainable
        note = f", {fixed:,} of them fixed" if fixed else ""
        table = Table(caption=f"{self.parameters:,} parameters{note}", caption_justify="left")
        for column in ("layer", "operation", "kernel"):
            table.add_column(column)
        for column in ("filters", "output", "parameters"):
            table.add_column(column, justify="right")
        for row in self.rows:
            shape = " x ".join(map(str, row.output_shape))
            table.add_row(row.name, row.operation, row.kernel, str(row.filters or ""), shape, f"{row.parameters:,}")
        return render(table)


def render(table: Table, width: int = 160) -> str:
    """A rich table as plain text, as wide as it needs to be up to ``width``."""
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().rstrip()
