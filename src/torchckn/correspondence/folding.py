"""A long report folded by blocks: repeated blocks once with their number, blocks that were shown before by name.

The paths of modules are a tree. Blocks side by side that have become the same, but for their numbers of filters and the sizes of
their images, are folded. Read next: ``table.py``, ``page.py``, ``drawing.py``, which show lines and headings.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from ..choices import Correspondence
from ..tables import shape_text
from .rows import Row, short_sources

#: reports of more operations than this are folded
LONGEST_UNFOLDED = 60
#: blocks of fewer operations are not worth a heading, and of those with more, blocks inside are looked for
_LEAST, _MOST = 4, 24
#: so many blocks and operations side by side, at most, that repeat are recognized
_LONGEST_PERIOD = 4


@dataclass(frozen=True)
class Line:
    """An operation, and all operations that it stands for."""

    row: Row
    name: str
    """below a heading, relative to it"""
    folded: tuple[Row, ...] = ()
    """the same operation in the other blocks"""
    indented: bool = False

    @property
    def last(self) -> Row:
        return self.folded[-1] if self.folded else self.row


@dataclass(frozen=True)
class Heading:
    """The name of a block and how often it is repeated. The operations in ``folded``, if any, are not shown."""

    text: str
    folded: tuple[Row, ...] = ()


Entry = Line | Heading


def folded(rows: Sequence[Row]) -> list[Entry]:
    """The rows as lines, if there are few, and otherwise folded."""
    if len(rows) <= LONGEST_UNFOLDED:
        return unfolded(rows)
    paths = [(*(row.module.split(".") if row.module else ()), row.source.rpartition(".")[2]) for row in rows]
    return _Folding().entries([_Unit((row,), path) for row, path in zip(rows, paths, strict=True)], 0)


def unfolded(rows: Sequence[Row]) -> list[Entry]:
    return [Line(row, name) for row, name in zip(rows, short_sources(rows), strict=True)]


def counts(rows: Sequence[Row]) -> dict[Correspondence, int]:
    """How many operations have each correspondence, of those that occur."""
    numbers = Counter(row.correspondence for row in rows)
    order: tuple[Correspondence, ...] = ("exact", "inexact", "dropped", "kept")
    return {correspondence: numbers[correspondence] for correspondence in order if numbers[correspondence]}


def loss_texts(rows: Sequence[Row]) -> list[str]:
    """The most common reasons in words, for reports that are too long to see them at once."""
    return [f"{number} times: {why}" for why, number in common_losses(rows)] if len(rows) > LONGEST_UNFOLDED else []


def common_losses(rows: Sequence[Row], most: int = 3) -> list[tuple[str, int]]:
    """The most common reasons why operations, or parts of them, have no exact counterpart, with their numbers."""
    reasons: Counter[str] = Counter()
    for row in rows:
        if not row.faithful:
            # The first reason of what is inexact is why it is that counterpart at all.
            own = row.reasons[1:] if row.correspondence == "inexact" and len(row.reasons) > 1 else row.reasons
            reasons.update(own[:1])
        reasons.update(part.note for part in row.parts if not part.faithful)
    return reasons.most_common(most)


@dataclass(frozen=True)
class _Unit:
    """Operations whose paths begin alike: a block, or one operation."""

    rows: tuple[Row, ...]
    path: tuple[str, ...]
    inner: tuple[_Unit, ...] = ()

    @property
    def alike(self) -> Hashable:
        """What two units have in common if one stands for the other."""
        order = {row.name: i for i, row in enumerate(self.rows)}
        depth = len(self.path)
        return tuple(
            (
                row.operation,
                row.correspondence,
                row.reasons,
                row.parts,
                row.counterpart,
                row.kernel,
                row.trained,
                tuple(order.get(name, -1) for name in row.inputs),
                tuple(unit.path[depth:-1] for unit in self.inner[i : i + 1]),
            )
            for i, row in enumerate(self.rows)
        )


class _Folding:
    """The entries of a report, with the blocks that have been shown so far."""

    def __init__(self) -> None:
        self._shown: dict[Hashable, str] = {}

    def entries(self, rows: Sequence[_Unit], depth: int) -> list[Entry]:
        """Of operations whose paths have the first ``depth`` parts in common."""
        units, entries, start = _blocks(rows, depth), [], 0
        keys = [unit.alike for unit in units]
        while start < len(units):
            period, times = _repetition(units, keys, start)
            some = units[start : start + period * times]
            start += len(some)
            entries += self._repeated(some, period, times) if times > 1 else self._single(some[0])
        return entries

    def _single(self, unit: _Unit) -> list[Entry]:
        if len(unit.rows) < _LEAST:
            return [Line(row, ".".join(own.path)) for row, own in zip(unit.rows, unit.inner or (unit,), strict=True)]
        earlier = self._shown.get(unit.alike)
        title = ".".join(unit.path)
        if earlier is not None:
            return [_reference(f"{title}: as {earlier}", unit.rows)]
        if _has_blocks(unit):
            return self.entries(unit.inner, len(unit.path))
        self._shown[unit.alike] = title
        return [Heading(title), *_lines([unit], len(unit.path))]

    def _repeated(self, units: Sequence[_Unit], period: int, times: int) -> list[Entry]:
        """``period`` units side by side, ``times`` times."""
        rounds = [units[i : i + period] for i in range(0, len(units), period)]
        blocks = [unit for unit in units if len(unit.rows) > 1]
        first, last = ".".join(blocks[0].path), blocks[-1].path[-1]
        title = f"{first} to {last}: {times} identical blocks"
        earlier = [self._shown.get(unit.alike) for unit in rounds[0] if len(unit.rows) > 1]
        if all(name is not None for name in earlier):
            return [_reference(f"{title}, as {earlier[0]}", tuple(row for unit in units for row in unit.rows))]
        entries: list[Entry] = [Heading(title)]
        for i, unit in enumerate(rounds[0]):
            if len(unit.rows) > 1:
                self._shown.setdefault(unit.alike, ".".join(unit.path))
            depth = len(unit.path) if unit.inner else len(unit.path) - 1
            entries += _lines([each[i] for each in rounds], depth)
        return entries


def _reference(text: str, rows: tuple[Row, ...]) -> Heading:
    return Heading(f"{text} ({shape_text(rows[-1].output_shape)})", rows)


def _lines(units: Sequence[_Unit], depth: int) -> list[Entry]:
    """The operations of the first unit, each standing for the same one in all others."""
    paths = [own.path[depth:] for own in units[0].inner or units[:1]]
    return [
        Line(row, ".".join(path), tuple(unit.rows[i] for unit in units[1:]), indented=True)
        for i, (row, path) in enumerate(zip(units[0].rows, paths, strict=True))
    ]


def _blocks(rows: Sequence[_Unit], depth: int) -> list[_Unit]:
    """Operations that follow each other and have one more part of their paths in common, put together."""
    units: list[_Unit] = []
    for part, group in itertools.groupby(rows, lambda unit: (len(unit.path) > depth + 1, unit.path[depth])):
        own = tuple(group)
        is_block = part[0]
        units += [_Unit(tuple(u.rows[0] for u in own), _common([u.path[:-1] for u in own]), own)] if is_block else own
    return units


def _common(paths: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The parts that all paths begin with."""
    shared = itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))
    return tuple(parts[0] for parts in shared)


def _has_blocks(unit: _Unit) -> bool:
    """Whether a large unit has smaller ones that are worth a heading."""
    return len(unit.rows) > _MOST and any(len(u.rows) >= _LEAST for u in _blocks(unit.inner, len(unit.path)))


def _repetition(units: Sequence[_Unit], keys: Sequence[Hashable], start: int) -> tuple[int, int]:
    """How many units from ``start`` on, one of them a block, are repeated, and how often they are there: (1, 1) if not."""
    for period in range(1, _LONGEST_PERIOD + 1):
        pattern, times = keys[start : start + period], 1
        while keys[start + times * period : start + (times + 1) * period] == pattern:
            times += 1
        if times > 1 and sum(len(unit.rows) > 1 for unit in units[start : start + period]) == 1:
            return period, times
    return 1, 1
