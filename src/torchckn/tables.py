"""Tables as lines of plain text that fit the console: aligned columns without boxes, and nothing that is read as markup."""

from __future__ import annotations

import functools
import io
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

#: between two columns
GAP = 2
#: what is never cut below this width, however narrow the console is
_LEAST = 8
#: characters that tables use and that an ASCII console does not have
_BEYOND_ASCII = "✓≈✗…"


class TextTable:
    """Lines of text that fit the console, for ``print`` and for rich alike."""

    def lines(self, width: int, ascii_only: bool) -> list[Text]:
        raise NotImplementedError

    def __str__(self) -> str:
        width = shutil.get_terminal_size((80, 24)).columns
        return "\n".join(line.plain.rstrip() for line in self.lines(width, not _can_print(_BEYOND_ASCII)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self.lines(options.max_width, options.ascii_only)


@dataclass(frozen=True)
class Column:
    title: str
    cells: tuple[str, ...]
    right: bool = False
    """whether its cells end at the same place, as numbers should"""
    cut: Literal["start", "end"] | None = None
    """where its cells may be cut if the table is too wide"""

    @functools.cached_property
    def width(self) -> int:
        return max(cell_len(text) for text in (self.title, *self.cells))

    def cut_to(self, width: int, ascii_only: bool) -> Column:
        cells = tuple(shortened(cell, width, self.cut or "end", ascii_only) for cell in self.cells)
        return replace(self, cells=cells, title=shortened(self.title, width, "end", ascii_only))


def total_width(columns: Sequence[Column]) -> int:
    return sum(column.width for column in columns) + GAP * (len(columns) - 1)


def fitted(columns: Sequence[Column], width: int, ascii_only: bool) -> list[Column]:
    """The columns, with the widest of those that may be cut made narrower until all of them fit."""
    columns = list(columns)
    while total_width(columns) > width:
        wide = [i for i, column in enumerate(columns) if column.cut and column.width > _LEAST]
        if not wide:
            break
        widest = max(wide, key=lambda i: columns[i].width)
        columns[widest] = columns[widest].cut_to(columns[widest].width - 1, ascii_only)
    return columns


def table_lines(columns: Sequence[Column]) -> list[Text]:
    """The titles and the rows."""
    head = line([(_padded(column.title, column), "bold") for column in columns])
    rows = zip(*(column.cells for column in columns), strict=True)
    return [head, *(line([(_padded(cell, column), "") for cell, column in zip(row, columns, strict=True)]) for row in rows)]


def _padded(text: str, column: Column) -> str:
    space = " " * (column.width - cell_len(text))
    return space + text if column.right else text + space


def line(parts: Iterable[tuple[str, str]], gap: int = GAP) -> Text:
    """One line of parts with their styles, which a console neither breaks nor reads as markup."""
    text = Text(no_wrap=True, overflow="ignore", end="\n")
    for i, (part, style) in enumerate(parts):
        text.append(" " * gap if i else "").append(part, style or None)
    text.rstrip()
    return text


def paragraph(first: str, text: str, width: int) -> list[Text]:
    """``text`` behind ``first``, broken into lines that all begin behind it."""
    indent = " " * cell_len(first)
    broken = textwrap.wrap(text, max(width - len(indent), 20), break_long_words=False, break_on_hyphens=False) or [""]
    return [line([((indent if i else first) + part, "")]) for i, part in enumerate(broken)]


def clean(text: str, ascii_only: bool = False) -> str:
    """A name as it can be shown: on one line, without control characters, in ASCII if it must be."""
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text.encode("ascii", "backslashreplace").decode() if ascii_only else text


def printable(text: str) -> str:
    """A text of several lines without control characters: names in it may come from others, and could move the cursor."""
    return "\n".join(map(clean, text.split("\n")))


def shortened(text: str, width: int, cut: Literal["start", "end"], ascii_only: bool) -> str:
    """``text`` in at most ``width`` cells, with dots where it is cut."""
    if cell_len(text) <= width:
        return text
    dots = "..." if ascii_only else "…"
    room = max(width - len(dots), 1)
    if cut == "end":
        return set_cell_size(text, room).rstrip() + dots
    while cell_len(text) > room:
        text = text[1:]
    return dots + text


def shape_text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def render(table: Table) -> str:
    """A rich table as plain text that fits the console."""
    encoding = "utf-8" if _can_print(_BEYOND_ASCII) else "ascii"
    file = io.TextIOWrapper(io.BytesIO(), encoding, errors="backslashreplace")
    Console(file=file, width=shutil.get_terminal_size((80, 24)).columns).print(table)
    file.seek(0)
    return file.read().rstrip()


def _can_print(text: str) -> bool:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True
