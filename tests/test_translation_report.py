"""The report: as data, as a table that fits the console, as HTML, as a drawing."""

from __future__ import annotations

import io
import json
import sys
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest
from rich.console import Console
from torch import nn

from torchckn import translate, zoo
from torchckn.correspondence import Part, Report
from torchckn.correspondence.rows import short_sources
from torchckn.errors import ConfigError
from torchckn.kernels import ArcCosine, Linear, RBFSphere

from .networks import NETWORKS, Functional, Nested, Written, conv, end, rows_of
from .translation_reports import lines_of, network, report_of, row

# Data


def test_the_report_says_what_was_lost_and_why() -> None:
    rows = rows_of(translate(Nested(), (1, 12, 12)))
    assert rows["blocks.0.body.1"].correspondence == "dropped"
    assert "normalize" in rows["blocks.0.body.1"].why
    assert rows["max_pool2d"].correspondence == "kept"
    assert not rows["max_pool2d"].faithful
    assert rows["blocks.0.body.2"].label == "blocks_0_body_0: ArcCosine(1)"
    assert rows["out"].layer == "head"


def test_biases_are_reported_but_the_head_keeps_its_own() -> None:
    rows = rows_of(translate(Functional(), (1, 12, 12)))
    assert rows["conv1"].parts == (Part("bias", "dropped", "kernel layers have no biases", faithful=False),)
    assert rows["out"].parts == ()


def test_a_row_has_the_layer_s_operation_filters_and_kernel_as_fields() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.AvgPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3))
    conv1, pool, relu, flatten, head = translate(net, (1, 12, 12)).report.rows  # type: ignore[union-attr]
    assert (conv1.counterpart, conv1.filters, conv1.kernel) == ("conv 3x3, stride 2, pad 1", 4, "Linear()")
    assert conv1.label == "_0: conv 3x3, stride 2, pad 1, 4 filters, Linear()"
    assert (pool.counterpart, pool.filters, pool.kernel) == ("average pooling 2x2, stride 2", None, "")
    assert (relu.counterpart, relu.kernel, relu.trained) == ("identity 1x1", "ArcCosine(1)", False)
    assert (flatten.layer, flatten.label) == ("", "")
    assert (head.layer, head.counterpart) == ("head", "linear classifier")


def test_a_nonlinearity_that_decides_a_layer_s_kernel_has_no_operation_of_its_own() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(400, 3))
    rows = rows_of(translate(net, (1, 12, 12)))
    assert (rows["1"].layer, rows["1"].counterpart, rows["1"].kernel) == ("_0", "", "ArcCosine(1)")
    assert rows["1"].decides_kernel
    assert not rows["0"].decides_kernel


def test_a_chosen_kernel_is_reported_in_linear_layers_too_and_counts_as_meant() -> None:
    net = Written(lambda s, x: end(s.relu(s.pool(s.a(x)))), a=conv(), pool=nn.AvgPool2d(2), relu=nn.ReLU())
    rows = rows_of(translate(net, (1, 8, 8), RBFSphere(0.6), linear_kernel=RBFSphere(0.6), strict=True))
    assert rows["a"].correspondence == rows["relu"].correspondence == "inexact"
    assert rows["a"].reasons[-1] == "RBFSphere(0.6) replaces Linear(), which would match"
    assert rows["relu"].reasons[0] == "RBFSphere(0.6) replaces ArcCosine(1), which would match"


def test_a_chosen_kernel_that_matches_is_exact() -> None:
    net = Written(lambda s, x: end(s.relu(s.pool(s.a(x)))), a=conv(), pool=nn.AvgPool2d(2), relu=nn.ReLU())
    chosen = translate(net, (1, 8, 8), ArcCosine(1), linear_kernel=Linear()).report
    assert chosen == translate(net, (1, 8, 8)).report
    close = Written(lambda s, x: end(s.gelu(s.a(x))), a=conv(), gelu=nn.GELU())
    row = rows_of(translate(close, (1, 8, 8), ArcCosine(1), strict=True))["gelu"]  # strict lets it pass, as it was chosen
    assert (row.correspondence, row.faithful) == ("inexact", True)


def test_a_divisor_of_one_s_own_is_a_part_of_its_pooling() -> None:
    net = Written(lambda s, x: end(s.pool(s.a(x))), a=conv(), pool=nn.AvgPool2d(2, divisor_override=3))
    ckn = translate(net, (1, 8, 8))
    (part,) = rows_of(ckn)["pool"].parts
    assert (part.name, part.correspondence, part.faithful) == ("divisor_override", "inexact", False)
    assert rows_of(ckn)["pool"].correspondence == "exact"


@pytest.mark.parametrize("name", ["lenet5", "resnet20", "nin"])
def test_a_report_is_the_same_after_json(name: str) -> None:
    report = report_of(name)
    assert Report.from_json(json.loads(json.dumps(report.to_json()))) == report


def plain_report(**fields: Any) -> dict[str, Any]:
    """A report of one row as JSON has it, with other fields."""
    plain = Report("Net", (row(reasons=("why",), faithful=True, output_shape=(4, 8, 8)),)).to_json()
    plain["rows"][0].update(fields)
    return plain


PART = {"name": "bias", "correspondence": "dropped", "why": "", "faithful": False}


@pytest.mark.parametrize(
    ("plain", "place"),
    [
        ({"rows": []}, "network"),
        ({"network": "Net", "rows": [{"name": "conv"}]}, "rows.0.source"),
        ([], ""),
        (None, ""),
        ({"network": "Net", "rows": "rows"}, "rows"),
        ({"network": "N" * 2001, "rows": []}, "network"),
        ({"network": "Net", "rows": [], "script": "alert(1)"}, "script"),
        (
            {"network": "Net", "rows": [], "other_numbers": [{"what": "b", "images": 1, "convnet": 3}]},
            "other_numbers.0.what",
        ),
        (plain_report(onload="alert(1)"), "rows.0.onload"),
        (plain_report(parts=[PART | {"onload": "alert(1)"}]), "rows.0.parts.0.onload"),
        (plain_report(parts=[PART | {"correspondence": "<script>"}]), "rows.0.parts.0.correspondence"),
        (plain_report(parts=[PART] * 1001), "rows.0.parts"),
        (plain_report(correspondence="exact'><script>alert(1)</script>"), "rows.0.correspondence"),
        (plain_report(output_shape=["<script>alert(1)</script>"]), "rows.0.output_shape.0"),
        (plain_report(output_shape=["4"]), "rows.0.output_shape.0"),
        (plain_report(output_shape=[4, 0]), "rows.0.output_shape.1"),
        (plain_report(output_shape=[True]), "rows.0.output_shape.0"),
        (plain_report(output_shape=[2**31]), "rows.0.output_shape.0"),
        (plain_report(output_shape={"4": 4}), "rows.0.output_shape"),
        (plain_report(filters="<b>"), "rows.0.filters"),
        (plain_report(filters=10**400), "rows.0.filters"),
        (plain_report(faithful="yes"), "rows.0.faithful"),
        (plain_report(source=3), "rows.0.source"),
        (plain_report(source="x" * 2001), "rows.0.source"),
        (plain_report(source="\ud800"), "rows.0.source"),
        (plain_report(reasons="why"), "rows.0.reasons"),
        (plain_report(reasons=[["why"]]), "rows.0.reasons.0"),
    ],
)
def test_a_report_with_anything_else_in_it_is_refused(plain: Any, place: str) -> None:
    with pytest.raises(ConfigError, match=f"expected a report that Report.to_json wrote, got another at '{place}': "):
        Report.from_json(plain)


def test_a_report_that_could_not_be_read_again_cannot_be_made() -> None:
    with pytest.raises(ConfigError, match=r"got another at 'rows\.0\.correspondence': Input should be 'exact', 'inexact'"):
        Report("Net", (row(reasons=(), faithful=True, correspondence="close"),))


# The table


@pytest.mark.parametrize("width", [80, 100, 160])
@pytest.mark.parametrize("chosen", [False, True], ids=["match", "rbf"])
@pytest.mark.parametrize("name", zoo.names())  # one after the other, for a network is translated once in each process
def test_the_table_of_every_zoo_network_has_one_line_per_operation_that_fits(name: str, chosen: bool, width: int) -> None:
    report = report_of(name, chosen)
    lines = [line.plain for line in report.table(expand=True).lines(width, ascii_only=False)]
    assert max(map(len, lines)) <= width
    assert not any("…" in text for text in lines)
    first = next(i for i, text in enumerate(lines) if text.startswith("  ConvNet")) + 1
    rows = iter(lines[first:])
    for source, entry in zip(short_sources(report.rows), report.rows, strict=True):
        text = next(rows)
        if text == f"  {source}":  # a long name has a line of its own
            text = next(rows)
        else:
            assert text.split()[1] == (source or "(none)")
        assert "x".join(map(str, entry.output_shape)) in text
    assert next(rows) == ""


def test_each_reason_is_one_note_and_rows_have_its_number() -> None:
    report = report_of("lenet5")
    lines = lines_of(report)
    notes = lines[lines.index("") + 1 :]
    reasons = {reason for entry in report.rows for reason in entry.reasons}
    parts = {part.note for entry in report.rows for part in entry.parts}
    assert len(notes) == len(reasons | parts)
    number = {note.split(maxsplit=1)[1]: note.split()[0] for note in notes}
    assert number.keys() == reasons | parts
    for text, entry in zip(lines[2:], report.rows, strict=False):
        expected = [number[note] for note in (*entry.reasons, *(part.note for part in entry.parts))]
        assert text.endswith("  " + " ".join(expected))
    assert number["bias dropped: kernel layers have no biases"].startswith("✗")


def test_with_why_the_reasons_are_below_their_rows_or_beside_them_where_there_is_room() -> None:
    report = report_of("lenet5")
    narrow, wide = lines_of(report, 80, why=True), lines_of(report, 240, why=True)
    assert max(map(len, narrow)) <= 80
    assert narrow[3].strip().startswith(report.rows[0].reasons[0])
    assert len(wide) == 2 + len(report.rows)
    for text, entry in zip(wide[2:], report.rows, strict=True):
        assert entry.why in text


def test_a_wider_table_has_filters_and_kernels_in_every_row() -> None:
    report = report_of("allcnn")
    assert not any("filters" in text for text in lines_of(report, 80)[: len(report.rows)])
    wide = lines_of(report, 100)
    assert sum("filters, ArcCosine(1)" in text for text in wide) == 9


def test_long_names_have_a_line_of_their_own_and_rows_keep_their_notes() -> None:
    source = ".".join(["features", *("denseblock",) * 6, "conv1"])
    shown = row(source, reasons=("why",), faithful=True, layer="c", counterpart="conv 3x3, pad 1", kernel="Linear()")
    for width in (60, 80):
        name, text = lines_of(Report("Net", (shown, row("classifier.out", reasons=("other",), faithful=True))), width)[2:4]
        assert name.strip() == source
        assert len(text) <= width
        assert "conv 3x3, pad 1, Linear()" in text
        assert text.endswith("  1")


def test_a_beginning_that_all_modules_share_is_left_out_unless_names_would_be_the_same() -> None:
    assert short_sources([row(s, reasons=(), faithful=True) for s in ("net.a.conv", "net.a.relu", "add")]) == [
        "conv",
        "relu",
        "add",
    ]
    same = ["net.add", "add"]
    assert short_sources([row(s, reasons=(), faithful=True) for s in same]) == same


def test_what_the_table_shows_is_not_read_as_markup() -> None:
    kind = type("[/bold]x", (nn.Sequential,), {})
    net = kind()
    net.add_module("[red]a", nn.Conv2d(1, 4, 3))
    net.add_module("flat", nn.Flatten())
    net.add_module("out", nn.Linear(400, 3))
    report = translate(net, (1, 12, 12)).report
    file = io.StringIO()
    Console(file=file, width=80).print(report)
    assert "[/bold]x: ✓ 1 exact" in file.getvalue()
    assert "[red]a" in file.getvalue()
    assert str(report) in file.getvalue()


@pytest.mark.parametrize("title", ["Net", "Réseau\n\x1b[31m"])
def test_a_console_without_unicode_gets_ascii(title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    report = Report(title, report_of("lenet5").rows)
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setenv("COLUMNS", "80")
    print(report)
    print(network("lenet5").summary())
    Console(file=stdout, width=80).print(report)
    stdout.flush()
    text = stdout.buffer.getvalue().decode("ascii")  # type: ignore[attr-defined]
    assert text.count(": + 6 exact, ~ 4 inexact, x 2 dropped, = 2 kept\n") == 2
    assert "\x1b" not in text


def test_print_fits_80_columns_where_the_console_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(sys, "__stdout__", io.StringIO())
    ckn = network("resnet20", chosen=True)
    for text in (str(ckn.report), str(ckn.summary())):
        assert max(map(len, text.splitlines())) <= 80
        assert "…" not in text
    monkeypatch.setenv("COLUMNS", "120")
    assert max(map(len, str(ckn.summary()).splitlines())) > 80


@pytest.mark.parametrize("width", [80, 100, 160])
@pytest.mark.parametrize("name", zoo.names())
def test_the_summary_of_every_zoo_network_fits(name: str, width: int) -> None:
    ckn = network(name, chosen=True)
    lines = [line.plain for line in ckn.summary().lines(width, ascii_only=False)]
    assert max(map(len, lines)) <= width
    own = [line for line in lines if len(line.split()) > 1]  # a long name has a line of its own
    assert len(own) == len(ckn.graph.nodes) + 4  # titles, images, head, number of parameters
    assert {node.name for node in ckn.graph.nodes} <= {line.split()[0] for line in lines}


# The page and the drawing


def test_the_page_and_the_drawing_have_every_operation_and_are_well_formed() -> None:
    report = report_of("lenet5")
    page, drawing = report.to_html(), report.to_svg()
    for entry in report.rows:
        assert entry.source in page
        assert entry.source.removeprefix("layers.") in drawing
    assert drawing.startswith("<svg")
    ElementTree.fromstring(drawing)
    ElementTree.fromstring(page)


def test_names_in_the_drawing_and_the_page_are_escaped() -> None:
    fields: dict[str, Any] = {
        "operation": "a&b",
        "reasons": ("<s>",),
        "layer": "l'\"",
        "counterpart": "<u>",
        "kernel": "<k>",
    }
    parts = (Part("<p>", "dropped", "<w>", faithful=False),)
    shown = row("<i>\x00", **fields, faithful=True, parts=parts, filters=3, output_shape=(1,))
    report = Report("<b>", (shown,))
    for text in (report.to_html(), report.to_svg()):
        for name in "biuskpw":
            assert f"<{name}>" not in text
    ElementTree.fromstring(report.to_svg())


def test_the_drawing_joins_every_layer_to_those_before_it() -> None:
    report = translate(NETWORKS["pre-activation residual"](), (1, 12, 12)).report
    assert report is not None
    drawing = ElementTree.fromstring(report.to_svg())
    edges = [path for path in drawing.iter("{http://www.w3.org/2000/svg}path") if path.get("class") == "edge"]
    between_operations = sum(len(entry.inputs) for entry in report.rows) - 1  # but for the image
    # On the right: stem to relu and add, relu to conv1, conv1 to conv2, conv2 to add, add to relu, relu to mean, mean to head.
    assert len(edges) == between_operations + 8
