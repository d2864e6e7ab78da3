"""The summary table of a network: layer, operation, kernel, filters, output shape, parameters."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.cells import cell_len
from rich.text import Text

from .tables import GAP, Column, TextTable, clean, fitted, line, shape_text, table_lines, total_width


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
        above: list[list[Text]] = [[] for _ in self.rows]
        if total_width(columns) > width:
            names, *others = self._columns(ascii_only, full=False)
            # A name that is too long has a line of its own.
            room = max(width - total_width(others) - GAP, len(names.title))
            above = [[line([(name, "")])] if cell_len(name) > room else [] for name in names.cells]
            short = tuple("" if before else name for before, name in zip(above, names.cells, strict=True))
            columns = fitted([replace(names, cells=short), *others], width, ascii_only)
        fixed = self.parameters - self.trainable
        note = f", {fixed:,} of them fixed" if fixed else ""
        head, *rows = table_lines(columns)
        lines = [text for before, row in zip(above, rows, strict=True) for text in (*before, row)]
        return [head, *lines, line([(f"{self.parameters:,} parameters{note}", "")])]

    def _columns(self, ascii_only: bool, full: bool) -> list[Column]:
        """Without room, the number of filters is left out: it is the first number of the output shape."""

        def column(title: str, texts: list[str], **options: Any) -> Column:
            return Column(title, tuple(clean(text, ascii_only) for text in texts), **options)

        filters = [column("filters", [str(row.filters or "") for row in self.rows], right=True)]
        return [
            column("layer", [row.name for row in self.rows]),
            column("operation", [row.operation for row in self.rows], cut="end"),
            column("kernel", [row.kernel for row in self.rows]),
            *(filters if full else []),
            column("output", [shape_text(row.output_shape) for row in self.rows], right=True),
            column("parameters" if full else "params", [f"{row.parameters:,}" for row in self.rows], right=True),
        ]
