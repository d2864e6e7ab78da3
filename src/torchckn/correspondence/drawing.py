"""The two networks side by side, as SVG: the ConvNet's operations on the left, the CKN's layers on the right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from .escaping import fill, joined
from .rows import Row, short_sources

_GAP, _HEIGHT, _STEP, _MARGIN, _TOP = 90, 40, 56, 70, 64
#: boxes are as wide as their texts, within these limits
_NARROW, _WIDE = 220, 460


@dataclass(frozen=True)
class _Box:
    """An operation of the ConvNet, or a layer of the CKN."""

    y: int
    title: str
    detail: str
    style: str

    @property
    def text_width(self) -> int:
        return max(round(6.9 * len(self.title)), 6 * len(self.detail)) + 24

    def draw(self, x: int, width: int) -> Markup:
        return fill(
            '<g class="{style}"><title>{title}, {detail}</title>'
            '<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>'
            '<text x="{x_text}" y="{y_title}" class="title">{short_title}</text>'
            '<text x="{x_text}" y="{y_detail}" class="detail">{short_detail}</text></g>',
            style=self.style,
            title=self.title,
            detail=self.detail,
            short_title=_short(self.title, int((width - 20) / 6.9)),
            short_detail=_short(self.detail, (width - 20) // 6),
            x=x,
            y=self.y,
            width=width,
            height=_HEIGHT,
            x_text=x + 10,
            y_title=self.y + 17,
            y_detail=self.y + 32,
        )


def to_svg(network: str, rows: Sequence[Row]) -> Markup:
    """An SVG document. Colors repeat what the words say; it follows the reader's light or dark mode."""
    drawn = [row for row in rows if row.name]
    places = {row.name: _TOP + i * _STEP for i, row in enumerate(drawn)}
    layers: dict[str, int] = {}
    for row in rows:
        if row.layer:  # beside the first operation that it stands for; below all if it stands for none
            layers.setdefault(row.layer, places.get(row.name, _TOP + len(drawn) * _STEP))
    left = [_operation_box(name, row, places[row.name]) for name, row in zip(short_sources(drawn), drawn, strict=True)]
    right = [_layer_box(name, rows, y) for name, y in layers.items()]
    left_width, right_width = _width(left), _width(right)
    x_right = _MARGIN + left_width + _GAP
    lines = []
    for row in drawn:
        y, operations = places[row.name], list(places.values())
        lines += [_edge(_MARGIN, left_width, places[i], y, operations, left=True) for i in row.inputs if i in places]
        if row.layer:
            ends = {
                "x1": _MARGIN + left_width,
                "y1": y + _HEIGHT // 2,
                "x2": x_right,
                "y2": layers[row.layer] + _HEIGHT // 2,
            }
            lines.append(fill('<path class="match {kind}" d="M{x1},{y1} L{x2},{y2}"/>', kind=row.correspondence, **ends))
    for name, before in _layer_inputs(rows).items():
        starts = sorted(layers[other] for other in before)
        lines += [_edge(x_right, right_width, y, layers[name], sorted(layers.values()), left=False) for y in starts]
    boxes = [*(box.draw(_MARGIN, left_width) for box in left), *(box.draw(x_right, right_width) for box in right)]
    width, height = x_right + right_width + _MARGIN, max([*places.values(), *layers.values()], default=_TOP) + _STEP
    return fill(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        'aria-label="{network} and its kernel counterpart, layer against layer"><style>{style}</style>'
        '<rect class="page" width="{width}" height="{height}"/>'
        '<text x="{x_left}" y="40" class="head">{network}, the ConvNet</text>'
        '<text x="{x_right}" y="40" class="head">its kernel counterpart</text>{lines}{boxes}</svg>',
        width=width,
        height=height,
        network=network,
        style=_STYLE,
        x_left=_MARGIN,
        x_right=x_right,
        lines=joined(lines),
        boxes=joined(boxes),
    )


def _operation_box(name: str, row: Row, y: int) -> _Box:
    title = f"{name} · {row.operation}" + "".join(f", {part.name} {part.correspondence}" for part in row.parts)
    return _Box(y, title, _joined(row.correspondence, _shape(row)), row.correspondence)


def _layer_box(layer: str, rows: Sequence[Row], y: int) -> _Box:
    own = [row for row in rows if row.layer == layer]
    first, shape = own[0], _shape(own[-1])
    filters = f"{first.filters} filters, {first.kernel}" + ("" if first.trained else ", fixed") if first.filters else ""
    return _Box(y, f"{layer}: {first.counterpart}", _joined(filters, shape), "layer")


def _layer_inputs(rows: Sequence[Row]) -> dict[str, set[str]]:
    """The layers that each layer gets its input from, past operations that are not layers."""
    behind: dict[str, set[str]] = {}  # the layers that give what an operation gives
    inputs: dict[str, set[str]] = {}
    for row in rows:
        given = {layer for name in row.inputs for layer in behind.get(name, ())}
        if row.layer:
            inputs[row.layer] = inputs.get(row.layer, set()) | (given - {row.layer})
        behind[row.name] = {row.layer} if row.layer else given
    return inputs


def _width(boxes: Sequence[_Box]) -> int:
    return min(max([_NARROW, *(box.text_width for box in boxes)]), _WIDE)


def _shape(row: Row) -> str:
    return " × ".join(map(str, row.output_shape))


def _joined(*texts: str) -> str:
    return " · ".join(text for text in texts if text)


def _edge(x: int, width: int, start: int, end: int, order: Sequence[int], *, left: bool) -> Markup:
    """From one box down to another: straight to the next one, around those in between otherwise."""
    if not any(start < y < end for y in order):
        straight = {"x": x + width // 2, "start": start + _HEIGHT, "end": end}
        return fill('<path class="edge" d="M{x},{start} L{x},{end}"/>', **straight)
    side, bend = (x, x - 44) if left else (x + width, x + width + 44)
    a, b = start + _HEIGHT // 2, end + _HEIGHT // 2
    curve = {"side": side, "bend": bend, "a": a, "b": b, "below_a": a + 24, "above_b": b - 24}
    return fill('<path class="edge" d="M{side},{a} C{bend},{below_a} {bend},{above_b} {side},{b}"/>', **curve)


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


_STYLE = Markup(
    "svg{font-family:system-ui,sans-serif;--page:#fff;--ink:#1f2937;--soft:#6b7280;--line:#9ca3af;--layer:#eef2ff}"
    "text{fill:#1f2937}rect{fill:#fff}.edge{stroke:#9ca3af}.layer rect{fill:#eef2ff}"  # for viewers without variables
    ".page{fill:var(--page)}.head{font-size:16px;font-weight:600;fill:var(--ink)}.title{font-size:12.5px;fill:var(--ink)}"
    ".detail{font-size:11px;fill:var(--soft)}rect{stroke-width:1.5;fill:var(--page)}path{fill:none}"
    ".edge{stroke:var(--line);stroke-width:1.5}.match{stroke-width:2;stroke-dasharray:5 4}"
    ".exact{stroke:#1a7f4b}.inexact{stroke:#b45309}.kept{stroke:#2563eb}.dropped{stroke:#b42318;stroke-dasharray:3 3}"
    ".layer{stroke:#4f46e5}.layer rect{fill:var(--layer)}text{stroke:none}"
    "@media(prefers-color-scheme:dark){svg{--page:#111827;--ink:#f3f4f6;--soft:#9ca3af;--line:#6b7280;--layer:#1e1b4b}}"
)
