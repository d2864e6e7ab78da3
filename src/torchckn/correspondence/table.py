"""The report as lines of text: one line per operation, with numbered notes for the reasons; long ones folded by blocks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from ..choices import Correspondence
from ..tables import GAP, Column, TextTable, clean, line, paragraph, shape_text, shortened, table_lines, total_width
from .folding import Heading, Line, counts, folded, loss_texts, unfolded
from .rows import Row, layer_text

SYMBOLS: dict[Correspondence, str] = {"exact": "✓", "inexact": "≈", "dropped": "✗", "kept": "="}
ASCII_SYMBOLS: dict[Correspondence, str] = {"exact": "+", "inexact": "~", "dropped": "x", "kept": "="}
STYLES: dict[Correspondence, str] = {"exact": "green", "inexact": "yellow", "dropped": "red", "kept": "blue"}

#: neither names of operations nor layers are cut below this width
_LEAST = 16


@dataclass(frozen=True)
class ReportTable(TextTable):
    """Prints the report of ``network``; with ``why``, the reasons are beside or below each row, not in numbered notes.

    Long reports are folded by blocks, unless ``expand`` or ``why``.
    """

    network: str
    rows: tuple[Row, ...]
    why: bool = False
    expand: bool = False

    def lines(self, width: int, ascii_only: bool) -> list[Text]:
        layout = _Layout(self.network, self.rows, width, ascii_only, fold=not (self.why or self.expand))
        return [*layout.caption(), *(layout.rows_with_reasons() if self.why else layout.rows_with_notes())]


class _Layout:
    """A report on a console of this width."""

    def __init__(self, network: str, rows: tuple[Row, ...], width: int, ascii_only: bool, *, fold: bool) -> None:
        self.network, self.all_rows, self.width, self.ascii_only = network, rows, width, ascii_only
        self.symbols = ASCII_SYMBOLS if ascii_only else SYMBOLS
        self.entries = folded(rows) if fold else unfolded(rows)
        self.shown = [entry for entry in self.entries if isinstance(entry, Line)]
        self.rows = [shown.row for shown in self.shown]
        self.names = ["  " * shown.indented + (clean(shown.name, ascii_only) or "(none)") for shown in self.shown]
        self.types = [clean(row.operation, ascii_only) for row in self.rows]

    def caption(self) -> list[Text]:
        legend = ", ".join(f"{self.symbols[c]} {n} {c}" for c, n in counts(self.all_rows).items())
        name = clean(self.network, self.ascii_only)
        texts = [f"{name}: {legend}"]
        if cell_len(texts[0]) > self.width:
            texts = [shortened(name, self.width, "end", self.ascii_only), legend]
        return [line([(text, "bold")]) for text in texts] + self._losses()

    def _losses(self) -> list[Text]:
        """The most common reasons for what is not exact, if the table is too long to see them at once."""
        texts = loss_texts(self.all_rows)
        if not texts:
            return []
        broken = [paragraph("  ", clean(text, self.ascii_only), self.width) for text in texts]
        return [line([("The most common reasons why not:", "")]), *itertools.chain.from_iterable(broken), line([])]

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
        return self._table(below=[paragraph("    ", why, self.width) if why else [] for why in reasons])

    def _table(self, *last: Column, below: Sequence[list[Text]] = ()) -> list[Text]:
        """The rows, in full words if they fit. ``last`` is one more column, or none; ``below`` has lines below each row."""
        outputs = Column("output", tuple(map(_output, self.shown)), right=True)
        for full in (True, False):
            layers = Column("CKN layer", tuple(self._layers(full)))
            room = self.width - total_width([Column("", ("✓ ",)), layers, outputs, *last])
            if self._left_width(layers) <= room:
                break
        least = len("ConvNet")  # names that are longer have lines of their own
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
        above = [[line([(f"  {name}", "")])] if cell_len(name) > left else [] for name in self.names]
        return [head, *self._with_headings(lines, above, below or [[] for _ in lines])]

    def _with_headings(
        self, lines: Sequence[Text], above: Sequence[list[Text]], below: Sequence[list[Text]]
    ) -> Iterator[Text]:
        """The lines, each with its name above it if it is too long to stand in it, and the headings of blocks."""
        rows = zip(above, lines, below, strict=True)
        for entry in self.entries:
            if isinstance(entry, Heading):
                yield from paragraph("  ", clean(entry.text, self.ascii_only), self.width)
            else:
                before, text, after = next(rows)
                yield from (*before, text, *after)

    def _layers(self, full: bool) -> list[str]:
        """In full with filters and kernel; else the kernel is where it is decided, and filters are in the output shape."""
        decided = {row.layer for row in self.rows if row.decides_kernel}
        texts = []
        for shown in self.shown:
            row = shown.row
            if row.decides_kernel:
                texts.append(f"kernel {row.kernel}")
            else:
                filters = full and row.filters == shown.last.filters
                texts.append(layer_text(row, filters=filters, kernel=full or row.layer not in decided))
        return [clean(text, self.ascii_only) for text in texts]

    def _left_width(self, layers: Column) -> int:
        """What names and types need. What has no layer has the space beside it, and needs no room for its type."""
        types = (cell_len(text) for text, layer in zip(self.types, layers.cells, strict=True) if layer)
        return max(map(cell_len, self.names), default=0) + 1 + max(types, default=0)

    def _left(self, layers: Column, width: int) -> list[str]:
        """Names, and types where there is room for them. A name that is too long has a line of its own."""
        names = [name if cell_len(name) <= width else "" for name in self.names]
        widest = max(map(cell_len, names), default=0)
        cells = []
        for name, kind, layer in zip(names, self.types, layers.cells, strict=True):
            both = f"{name}{' ' * (widest - cell_len(name))} {kind}"
            cells.append(both if cell_len(both) <= (width if layer else width + GAP + layers.width) else name)
        return cells


def _output(shown: Line) -> str:
    """The shape of the result; of an operation that stands for others, whose results differ, that of the last one."""
    first, last = shape_text(shown.row.output_shape), shape_text(shown.last.output_shape)
    return first if first == last else f"to {last}"


def _padded(text: str, width: int) -> str:
    return text + " " * max(width + GAP - cell_len(text), 0)
