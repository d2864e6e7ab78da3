"""The report as lines of text: one line per operation, with numbered notes for the reasons."""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from ..choices import Correspondence
from ..tables import GAP, Column, TextTable, clean, line, paragraph, shape_text, shortened, table_lines, total_width
from .rows import Row, layer_text, short_sources

SYMBOLS: dict[Correspondence, str] = {"exact": "✓", "inexact": "≈", "dropped": "✗", "kept": "="}
ASCII_SYMBOLS: dict[Correspondence, str] = {"exact": "+", "inexact": "~", "dropped": "x", "kept": "="}
STYLES: dict[Correspondence, str] = {"exact": "green", "inexact": "yellow", "dropped": "red", "kept": "blue"}

#: neither names of operations nor layers are cut below this width
_LEAST = 16


@dataclass(frozen=True)
class ReportTable(TextTable):
    """Prints the report of ``network``; with ``why``, the reasons are beside or below each row, not in numbered notes."""

    network: str
    rows: tuple[Row, ...]
    why: bool = False

    def lines(self, width: int, ascii_only: bool) -> list[Text]:
        layout = _Layout(self.network, self.rows, width, ascii_only)
        return [*layout.caption(), *(layout.rows_with_reasons() if self.why else layout.rows_with_notes())]


class _Layout:
    """A report on a console of this width."""

    def __init__(self, network: str, rows: tuple[Row, ...], width: int, ascii_only: bool) -> None:
        self.network, self.rows, self.width, self.ascii_only = network, rows, width, ascii_only
        self.symbols = ASCII_SYMBOLS if ascii_only else SYMBOLS
        self.names = [clean(name, ascii_only) or "(none)" for name in short_sources(rows)]
        self.types = [clean(row.operation, ascii_only) for row in rows]

    def caption(self) -> list[Text]:
        counts = {c: sum(row.correspondence == c for row in self.rows) for c in SYMBOLS}
        legend = ", ".join(f"{self.symbols[c]} {n} {c}" for c, n in counts.items() if n)
        name = clean(self.network, self.ascii_only)
        texts = [f"{name}: {legend}"]
        if cell_len(texts[0]) > self.width:
            texts = [shortened(name, self.width, "end", self.ascii_only), legend]
        return [line([(text, "bold")]) for text in texts]

    def rows_with_notes(self) -> list[Text]:
        numbers: dict[str, str] = {}
        cells = []
        for row in self.rows:
            notes = [(reason, "") for reason in row.reasons]
            notes += [(part.note, self.symbols[part.correspondence]) for part in row.parts]
            cells.append(" ".join(numbers.setdefault(note, f"{mark}{len(numbers) + 1}") for note, mark in notes))
        lines = [*self._table(Column("notes", tuple(cells))), line([])]
        indent = max((len(number) for number in numbers.values()), default=0)
        for note, number in numbers.items():
            lines += paragraph(f"{number:>{indent}}  ", clean(note, self.ascii_only), self.width)
        return lines

    def rows_with_reasons(self) -> list[Text]:
        reasons = [
            clean("; ".join([*row.reasons, *(part.note for part in row.parts)]), self.ascii_only) for row in self.rows
        ]
        beside = Column("why", tuple(reasons))
        lines = self._table()
        if max(map(len, lines)) + GAP + beside.width <= self.width:
            return self._table(beside)
        head, *rows = lines
        return [head, *(text for row, why in zip(rows, reasons, strict=True) for text in (row, *self._below(why)))]

    def _below(self, why: str) -> list[Text]:
        return paragraph("    ", why, self.width) if why else []

    def _table(self, *last: Column) -> list[Text]:
        """The rows, in full words if they fit. ``last`` is one more column, or none."""
        outputs = Column("output", tuple(shape_text(row.output_shape) for row in self.rows), right=True)
        for full in (True, False):
            layers = Column("CKN layer", tuple(self._layers(full)))
            room = self.width - total_width([Column("", ("✓ ",)), layers, outputs, *last])
            if self._left_width(layers) <= room:
                break
        least = max(len("ConvNet"), min(_LEAST, max(map(cell_len, self.names), default=0)))
        if room < least:
            layers = layers.cut_to(max(layers.width - (least - room), _LEAST), self.ascii_only)
        left = max(least, min(self._left_width(layers), room))
        both = [
            f"{self.symbols[row.correspondence]} {_padded(cell, left)}{layer}"
            for row, cell, layer in zip(self.rows, self._left(layers, left), layers.cells, strict=True)
        ]
        head, *lines = table_lines([Column(f"  {_padded('ConvNet', left)}CKN layer", tuple(both)), outputs, *last])
        for row, text in zip(self.rows, lines, strict=True):
            text.stylize(STYLES[row.correspondence], 0, 1)
        return [head, *lines]

    def _layers(self, full: bool) -> list[str]:
        """In full with filters and kernel; else the kernel is where it is decided, and filters are in the output shape."""
        decided = {row.layer for row in self.rows if row.decides_kernel}
        texts = []
        for row in self.rows:
            if row.decides_kernel:
                texts.append(f"kernel {row.kernel}")
            else:
                texts.append(layer_text(row, filters=full, kernel=full or row.layer not in decided))
        return [clean(text, self.ascii_only) for text in texts]

    def _left_width(self, layers: Column) -> int:
        """What names and types need. What has no layer has the space beside it, and needs no room for its type."""
        types = (cell_len(text) for text, layer in zip(self.types, layers.cells, strict=True) if layer)
        return max(map(cell_len, self.names), default=0) + 1 + max(types, default=0)

    def _left(self, layers: Column, width: int) -> list[str]:
        """Names, and types where there is room for them."""
        names = [shortened(name, width, "start", self.ascii_only) for name in self.names]
        widest = max(map(cell_len, names), default=0)
        cells = []
        for name, kind, layer in zip(names, self.types, layers.cells, strict=True):
            both = f"{name}{' ' * (widest - cell_len(name))} {kind}"
            cells.append(both if cell_len(both) <= (width if layer else width + GAP + layers.width) else name)
        return cells


def _padded(text: str, width: int) -> str:
    return text + " " * max(width + GAP - cell_len(text), 0)
