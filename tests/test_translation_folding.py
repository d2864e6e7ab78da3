"""Reports of large networks: blocks that are repeated are folded."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from torchckn import zoo
from torchckn.correspondence import Report, Row
from torchckn.correspondence.folding import Heading, Line, folded

from .translation_reports import lines_of, report_of, row


@pytest.mark.parametrize("name", zoo.names())
@pytest.mark.parametrize("chosen", [False, True], ids=["match", "rbf"])
def test_the_report_of_every_zoo_network_is_folded_to_few_lines_and_stands_for_every_operation(
    name: str, chosen: bool
) -> None:
    report = report_of(name, chosen)
    entries = folded(report.rows)
    shown = [entry.row for entry in entries if isinstance(entry, Line)]
    hidden = [other for entry in entries for other in entry.folded]
    assert sorted(id(entry) for entry in (*shown, *hidden)) == sorted(map(id, report.rows))
    assert len(entries) <= 110
    for width in (80, 160):
        lines = lines_of(report, width)
        assert max(map(len, lines)) <= width
        assert not any("…" in text for text in lines)


def residual(names: str, **fields: Any) -> list[Row]:
    """A block of four operations, the last of which is in the forward of the network."""
    kinds = ("conv1", "norm", "conv2", "relu")
    return [row(f"{names}.{kind}", reasons=("why",), faithful=True, module=names, **fields) for kind in kinds]


def test_blocks_that_are_repeated_are_shown_once_and_later_ones_by_name() -> None:
    rows = [row("stem", reasons=("why",), faithful=True)]
    for i in range(20):
        stride = {"counterpart": "conv 3x3, stride 2" if i in (5, 12) else "conv 3x3"}
        rows += residual(f"stages.{i}", output_shape=(8 + i, 4, 4), **stride)
        rows.append(row(f"add_{i}", reasons=("why",), faithful=True, operation="operator.add"))
    entries = folded(rows)
    assert [entry.text for entry in entries if isinstance(entry, Heading)] == [
        "stages.0 to 4: 5 identical blocks",
        "stages.5",
        "stages.6 to 11: 6 identical blocks, as stages.0 (19x4x4)",
        "stages.12: as stages.5 (20x4x4)",
        "stages.13 to 19: 7 identical blocks, as stages.0 (27x4x4)",
    ]
    lines = [(entry.name, len(entry.folded)) for entry in entries if isinstance(entry, Line)]
    assert lines[:6] == [("stem", 0), ("conv1", 4), ("norm", 4), ("conv2", 4), ("relu", 4), ("add_0", 4)]
    table = lines_of(Report("Net", tuple(rows)))
    assert next(text for text in table if "conv1" in text).split()[-2:] == ["12x4x4", "1"]  # of the last block


def test_blocks_that_are_wired_otherwise_are_not_the_same() -> None:
    rows = [entry for i in range(20) for entry in residual(f"b.{i}")]
    for i in range(20):
        inputs = (rows[4 * i].name,) if i % 2 else ()
        rows[4 * i + 3] = dataclasses.replace(rows[4 * i + 3], inputs=inputs)
    texts = [entry.text for entry in folded(rows) if isinstance(entry, Heading)]
    assert texts[:4] == ["b.0", "b.1", "b.2: as b.0 ()", "b.3: as b.1 ()"]


def test_a_long_report_begins_with_the_three_most_common_reasons_why_not() -> None:
    report = report_of("wideresnet")
    lost = [entry for entry in report.rows if not entry.faithful]
    table = lines_of(report)
    assert table[1] == "The most common reasons why not:"
    counted = sum("normalization has no counterpart; kernel layers normalize their patches" in r.reasons for r in lost)
    first = f"{counted} times: normalization has no counterpart; kernel layers normalize their patches"
    assert " ".join(" ".join(table[2:4]).split()).startswith(first)
    assert first in report.to_html()
    assert first in report.to_svg()
    assert "times:" not in "".join(lines_of(report_of("lenet5")))


@pytest.mark.parametrize("name", ["seresnet50", "densenet"])
def test_page_and_drawing_of_a_large_network_are_folded_and_well_formed_and_can_be_expanded(name: str) -> None:
    report = report_of(name)
    for text, whole in ((report.to_html(), report.to_html(expand=True)), (report.to_svg(), report.to_svg(expand=True))):
        ElementTree.fromstring(text)
        ElementTree.fromstring(whole)
        assert len(text) < len(whole) / 2
    headings = [entry.text for entry in folded(report.rows) if isinstance(entry, Heading)]
    assert all(heading in report.to_html() and heading in report.to_svg() for heading in headings)
