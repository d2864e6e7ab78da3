"""The report of a translation: its rows, and ways to look at them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import ConfigError
from .drawing import to_svg
from .page import to_html
from .rows import MOST_ENTRIES, MOST_ROWS, OtherNumber, Row, Text, loss_lines
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
    other_numbers: tuple[OtherNumber, ...] = ()
    """of channels or of classes, that the ConvNet was not built for"""

    def __post_init__(self) -> None:
        _checked(vars(self))  # so that whatever is saved can be read again

    def __str__(self) -> str:
        return str(self.table())

    def __rich__(self) -> ReportTable:
        return self.table()

    def table(self, *, why: bool = False, expand: bool = False) -> ReportTable:
        """The table, for ``print`` and for a rich console; with ``why``, every row has its reasons with it.

        The table of a large network is folded by blocks, and begins with the most common reasons for what is not exact. With
        ``why`` or ``expand`` it has a row for every operation.
        """
        return ReportTable(self.network, self.rows, why, expand)

    def losses(self) -> list[str]:
        """A line for everything that ``strict=True`` does not accept."""
        return loss_lines(self.rows)

    def to_html(self, *, expand: bool = False) -> str:
        """The table as HTML, to stand in a page or a notebook by itself; ``expand`` as for :meth:`table`."""
        return str(to_html(self.network, self.rows, expand=expand))

    def _repr_html_(self) -> str:
        return self.to_html()

    def to_svg(self, *, expand: bool = False) -> str:
        """A drawing of the two networks side by side, layer against layer; ``expand`` as for :meth:`table`."""
        return str(to_svg(self.network, self.rows, expand=expand))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(plain: Any) -> Report:
        """The report that :meth:`to_json` wrote. It may come from anybody: what no report has is an error."""
        content = _checked(plain)
        return Report(content.network, content.rows, content.other_numbers)


class _Content(BaseModel):
    model_config = ConfigDict(extra="forbid", defer_build=True)

    network: Text
    rows: Annotated[tuple[Row, ...], Field(max_length=MOST_ROWS)]
    other_numbers: Annotated[tuple[OtherNumber, ...], Field(max_length=MOST_ENTRIES)] = ()


def _checked(plain: Any) -> _Content:
    try:
        return _Content.model_validate(plain)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))[:100]
        raise ConfigError(f"expected a report that Report.to_json wrote, got another at {where!r}: {first['msg']}") from None
