"""The two networks side by side, as SVG: the ConvNet's operations on the left, the CKN's layers on the right."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

from .report import Report, Row

_LEFT, _RIGHT, _GAP, _HEIGHT, _STEP, _MARGIN = 250, 400, 90, 40, 56, 70
_TOP = 64


@dataclass(frozen=True)
class _Box:
    x: int
    y: int
    width: int
    title: str
    detail: str
    style: str

    def draw(self) -> str:
        limit = self.width // 8
        return (
            f'<g class="{self.style}"><title>{html.escape(f"{self.title}, {self.detail}")}</title>'
            f'<rect x="{self.x}" y="{self.y}" width="{self.width}" height="{_HEIGHT}" rx="6"/>'
            f'<text x="{self.x + 10}" y="{self.y + 17}" class="title">{html.escape(_short(self.title, limit))}</text>'
            f'<text x="{self.x + 10}" y="{self.y + 32}" class="detail">{html.escape(_short(self.detail, limit + 6))}</text></g>'
        )


def draw(report: Report) -> str:
    """An SVG document. Colours repeat what the words say; it follows the reader's light or dark mode."""
    rows = [row for row in report.rows if row.name]
    x_right = _MARGIN + _LEFT + _GAP
    places = {row.name: _TOP + i * _STEP for i, row in enumerate(rows)}
    layers: dict[str, int] = {}
    for row in report.rows:
        if row.layer and row.layer not in layers:
            layers[row.layer] = places.get(row.name, _TOP + len(rows) * _STEP)
    through = _layers_behind(rows)
    boxes, lines = [], []
    for row in rows:
        y = places[row.name]
        shape = " × ".join(map(str, row.output_shape))
        detail = f"{row.correspondence}" + (f" · {shape}" if shape else "")
        boxes.append(_Box(_MARGIN, y, _LEFT, f"{row.source} · {row.operation}", detail, row.correspondence))
        order = list(places.values())
        lines += [_edge(_MARGIN, _LEFT, places[i], y, order, left=True) for i in row.inputs if i in places]
        if row.layer:
            start, end = f"{_MARGIN + _LEFT},{y + _HEIGHT // 2}", f"{x_right},{layers[row.layer] + _HEIGHT // 2}"
            lines.append(f'<path class="match {row.correspondence}" d="M{start} L{end}"/>')
    seen: set[str] = set()
    for row in report.rows:
        if not row.layer or row.layer in seen:
            continue
        seen.add(row.layer)
        y = layers[row.layer]
        operation, filters = _FILTERS.findall(row.label)[0]
        shape = " × ".join(map(str, _final_shape(report, row.layer)))
        boxes.append(_Box(x_right, y, _RIGHT, operation, f"{filters} · {shape}" if filters else shape, "layer"))
        before = {through[i] for i in row.inputs if through.get(i)} - {row.layer}
        order = sorted(layers.values())
        lines += [_edge(x_right, _RIGHT, layers[b], y, order, left=False) for b in sorted(before) if b in layers]
    height = _TOP + (len(rows) + (1 if any(not row.source for row in report.rows) else 0)) * _STEP
    width = x_right + _RIGHT + _MARGIN
    name = html.escape(report.network)
    heads = (
        f'<text x="{_MARGIN}" y="40" class="head">{name}, the ConvNet</text>'
        f'<text x="{x_right}" y="40" class="head">its kernel counterpart</text>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{name} and its kernel counterpart, layer against layer"><style>{_STYLE}</style>'
        f'<rect class="page" width="{width}" height="{height}"/>{heads}{"".join(lines)}{"".join(b.draw() for b in boxes)}</svg>'
    )


def _layers_behind(rows: list[Row]) -> dict[str, str]:
    """Which layer gives what a source gives: its own, or that of what it passes on."""
    behind: dict[str, str] = {}
    for row in rows:
        passed_on = next((behind[i] for i in row.inputs if behind.get(i)), "")
        behind[row.name] = row.layer or passed_on
    return behind


def _final_shape(report: Report, layer: str) -> tuple[int, ...]:
    return next(row.output_shape for row in reversed(report.rows) if row.layer == layer)


def _edge(x: int, width: int, start: int, end: int, order: list[int], *, left: bool) -> str:
    """From one box down to another: straight to the next one, around those in between otherwise."""
    if not any(start < y < end for y in order):
        middle = x + width // 2
        return f'<path class="edge" d="M{middle},{start + _HEIGHT} L{middle},{end}"/>'
    side, bend = (x, x - 44) if left else (x + width, x + width + 44)
    a, b = start + _HEIGHT // 2, end + _HEIGHT // 2
    return f'<path class="edge" d="M{side},{a} C{bend},{a + 24} {bend},{b - 24} {side},{b}"/>'


#: "conv1: convolution 5x5, padding 2" and "32 filters, ArcCosine(1)"
_FILTERS = re.compile(r"^(.*?)(?:, (\d+ filters.*))?$")


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


_STYLE = (
    "svg{font-family:system-ui,sans-serif;--page:#fff;--ink:#1f2937;--soft:#6b7280;--line:#9ca3af;--layer:#eef2ff}"
    "text{fill:#1f2937}rect{fill:#fff}.edge{stroke:#9ca3af}.layer rect{fill:#eef2ff}"  # for viewers without variables
    ".page{fill:var(--page)}.head{font-size:16px;font-weight:600;fill:var(--ink)}.title{font-size:12.5px;fill:var(--ink)}"
    ".detail{font-size:11px;fill:var(--soft)}rect{stroke-width:1.5;fill:var(--page)}path{fill:none}"
    ".edge{stroke:var(--line);stroke-width:1.5}.match{stroke-width:2;stroke-dasharray:5 4}"
    ".exact{stroke:#1a7f4b}.inexact{stroke:#b45309}.kept{stroke:#2563eb}.dropped{stroke:#b42318;stroke-dasharray:3 3}"
    ".layer{stroke:#4f46e5}.layer rect{fill:var(--layer)}text{stroke:none}"
    "@media(prefers-color-scheme:dark){svg{--page:#111827;--ink:#f3f4f6;--soft:#9ca3af;--line:#6b7280;--layer:#1e1b4b}}"
)
