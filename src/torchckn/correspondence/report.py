"""The report of a translation: its rows, and ways to look at them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ..errors import ConfigError
from .drawing import to_svg
from .page import to_html
from .rows import Row, loss_lines
from .table import ReportTable


@dataclass(frozen=True)
class Report:
    """The translation of a ConvNet, row by row. ``print(report)`` shows the table.

    Each row begins with ✓ exact, ≈ inexact, ✗ dropped or = kept (+, ~, x and = where only ASCII can be shown), and ends with
    the numbers of the notes that say why.
    """

    network: str
    """the name of the ConvNet's class"""
    rows: tuple[Row, ...]

    def __str__(self) -> str:
        return str(self.table())

    def __rich__(self) -> ReportTable:
        return self.table()

    def table(self, *, why: bool = False) -> ReportTable:
        """The table, for ``print`` and for a rich console; with ``why``, every row has its reasons with it."""
        return ReportTable(self.network, self.rows, why)

    def losses(self) -> list[str]:
        """A line for everything that ``strict=True`` does not accept."""
        return loss_lines(self.rows)

    def to_html(self) -> str:
        """The table as HTML, to stand in a page or a notebook by itself."""
        return to_html(self.network, self.rows)

    _repr_html_ = to_html

    def to_svg(self) -> str:
        """A drawing of the two networks side by side, layer against layer."""
        return to_svg(self.network, self.rows)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(plain: Any) -> Report:
        try:
            return TypeAdapter(Report).validate_python(plain)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ConfigError(
                f"expected a report that Report.to_json wrote, got another at {where!r}: {first['msg']}"
            ) from None
