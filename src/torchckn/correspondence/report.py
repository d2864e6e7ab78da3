"""What became of each operation of a ConvNet, and why: as a table, as data, as HTML. The drawing is in ``drawing.py``."""

from __future__ import annotations

import html
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from ..choices import Correspondence
from ..errors import ConfigError
from ..summary import render


@dataclass(frozen=True)
class Row:
    """One operation of the ConvNet."""

    source: str
    """its name in the ConvNet"""
    operation: str
    """its type, such as ``Conv2d``"""
    layer: str
    """the CKN's node that stands for it; empty if there is none"""
    label: str
    """that node in words"""
    output_shape: tuple[int, ...]
    """in the CKN, without the batch"""
    correspondence: Correspondence
    why: str
    faithful: bool
    """whether ``strict=True`` lets it pass"""
    name: str = ""
    """the operation's own name, unique even where a module is used twice; empty for what is part of another row"""
    inputs: tuple[str, ...] = ()
    """the names of the operations it gets its input from"""


@dataclass(frozen=True)
class Report:
    """The translation of a ConvNet, row by row. ``print(report)`` shows the table."""

    network: str
    rows: tuple[Row, ...]

    def __str__(self) -> str:
        return render(self.__rich__())

    def __rich__(self) -> Table:
        """The table, for a rich console, which knows how wide it is."""
        counts = {c: sum(row.correspondence == c for row in self.rows) for c in ("exact", "inexact", "kept", "dropped")}
        caption = f"{self.network}: " + ", ".join(f"{n} {c}" for c, n in counts.items() if n)
        table = Table(caption=caption, caption_justify="left")
        for column in ("ConvNet", "", "CKN layer", "output", "correspondence", "why"):
            table.add_column(column)
        for row in self.rows:
            shape = " x ".join(map(str, row.output_shape))
            table.add_row(row.source, row.operation, row.label, shape, row.correspondence, row.why)
        return table

    def to_json(self) -> dict[str, Any]:
        return {"network": self.network, "rows": [asdict(row) for row in self.rows]}

    @staticmethod
    def from_json(plain: Any) -> Report:
        try:
            rows = [
                Row(**{**row, "output_shape": tuple(row["output_shape"]), "inputs": tuple(row["inputs"])})
                for row in plain["rows"]
            ]
            return Report(plain["network"], tuple(rows))
        except (KeyError, TypeError) as error:
            raise ConfigError(f"this is not a report that Report.to_json wrote: {error!r}") from error

    def to_html(self) -> str:
        """The table as HTML, to stand in a page or a notebook by itself."""
        head = "".join(
            f"<th scope='col'>{text}</th>" for text in ("ConvNet", "type", "CKN layer", "output", "correspondence", "why")
        )
        body = []
        for row in self.rows:
            shape = " × ".join(map(str, row.output_shape))
            body.append(
                f"<tr><th scope='row'>{html.escape(row.source)}</th><td>{html.escape(row.operation)}</td>"
                f"<td>{html.escape(row.label)}</td><td class='shape'>{shape}</td>"
                f"<td class='{row.correspondence}'>{row.correspondence}</td><td>{html.escape(row.why)}</td></tr>"
            )
        return (
            f"<table class='ckn-report'><style>{_STYLE}</style><caption>Translation of {html.escape(self.network)}</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
        )

    _repr_html_ = to_html

    def to_svg(self) -> str:
        """The two networks side by side, layer against layer."""
        from .drawing import draw

        return draw(self)


_STYLE = (
    ".ckn-report{border-collapse:collapse;font:14px/1.4 system-ui,sans-serif}"
    ".ckn-report caption{font-weight:600;text-align:left;padding:.4em 0}"
    ".ckn-report th,.ckn-report td{padding:.3em .7em;text-align:left;vertical-align:top;border-bottom:1px solid #8886}"
    ".ckn-report thead th{border-bottom:2px solid currentColor}.ckn-report tbody th{font-weight:600}"
    ".ckn-report .shape{white-space:nowrap}"
    ".ckn-report .exact{color:#1a7f4b}.ckn-report .inexact{color:#b45309}.ckn-report .kept{color:#2563eb}"
    ".ckn-report .dropped{color:#b42318}"
    "@media(prefers-color-scheme:dark){.ckn-report .exact{color:#4ade80}.ckn-report .inexact{color:#fbbf24}"
    ".ckn-report .kept{color:#93c5fd}.ckn-report .dropped{color:#fca5a5}}"
)
