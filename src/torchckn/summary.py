"""The summary table of a network: layer, operation, kernel, filters, output shape, parameters."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.text import Text

from .tables import Column, TextTable, clean, fitted, line, shape_text, table_lines, total_width


@dataclass(frozen=True)
class SummaryRow:
    """One layer."""

    name: str
    operation: str
    kernel: str
    filters: int | None
    output_shape: tuple[int, ...]
    parameters: int
    trainable: int
    """number of parameters that are trained"""


@dataclass(frozen=True)
class Summary(TextTable):
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

    def lines(self, width: int, ascii_only: bool) -> list[Text]:
        columns = self._columns(ascii_only, full=True)
        if total_width(columns) > width:
            columns = fitted(self._columns(ascii_only, full=False), width, ascii_only)
        fixed = self.parameters - self.trainable
        note = f", {fixed:,} of them fixed" if fixed else ""
        return [*table_lines(columns), line([(f"{self.parameters:,} parameters{note}", "")])]

    def _columns(self, ascii_only: bool, full: bool) -> list[Column]:
        """Without room, the number of filters is left out: it is the first number of the output shape."""

        def column(title: str, texts: list[str], **options: Any) -> Column:
            return Column(title, tuple(clean(text, ascii_only) for text in texts), **options)

        filters = [column("filters", [str(row.filters or "") for row in self.rows], right=True)]
        return [
            column("layer", [row.name for row in self.rows], cut="start"),
            column("operation", [row.operation for row in self.rows], cut="end"),
            column("kernel", [row.kernel for row in self.rows]),
            *(filters if full else []),
            column("output", [shape_text(row.output_shape) for row in self.rows], right=True),
            column("parameters" if full else "params", [f"{row.parameters:,}" for row in self.rows], right=True),
        ]
