"""The two networks side by side, as SVG: the ConvNet's operations on the left, the CKN's layers on the right.

Long ones are folded by blocks: an operation is drawn once for all that it stands for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from .escaping import fill, joined
from .folding import Heading, Line, counts, folded, loss_texts, unfolded
from .rows import Row

_GAP, _HEIGHT, _STEP, _MARGIN, _TOP, _TEXT = 90, 40, 56, 70, 64, 18
#: boxes are as wide as their texts, but not narrower than this
_NARROW = 220


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
            '<text x="{x_text}" y="{y_title}" class="title">{title}</text>'
            '<text x="{x_text}" y="{y_detail}" class="detail">{detail}</text></g>',
            style=self.style,
            title=self.title,
            detail=self.detail,
            x=x,
            y=self.y,
            width=width,
            height=_HEIGHT,
            x_text=x + 10,
            y_title=self.y + 17,
            y_detail=self.y + 32,
        )


def to_svg(network: str, rows: Sequence[Row], *, expand: bool = False) -> Markup:
    """An SVG document. Colors repeat what the words say; it follows the reader's light or dark mode."""
    notes = [", ".join(f"{number} {correspondence}" for correspondence, number in counts(rows).items()), *loss_texts(rows)]
    plan = _Plan(rows, unfolded(rows) if expand else folded(rows), _TOP + _TEXT * len(notes))
    left_width, right_width = _width(plan.left), _width(plan.right)
    x_right = _MARGIN + left_width + _GAP
    columns = ((_MARGIN, left_width, plan.edges, True), (x_right, right_width, plan.layer_edges, False))
    lines = [_edge(x, width, a, b, plan.order(left=left), left=left) for x, width, edges, left in columns for a, b in edges]
    for y, layer_y, kind in plan.matches:
        ends = {"x1": _MARGIN + left_width, "y1": y + _HEIGHT // 2, "x2": x_right, "y2": layer_y + _HEIGHT // 2}
        lines.append(fill('<path class="match {kind}" d="M{x1},{y1} L{x2},{y2}"/>', kind=kind, **ends))
    boxes = [*(box.draw(_MARGIN, left_width) for box in plan.left), *(box.draw(x_right, right_width) for box in plan.right)]
    texts = [*((text, 40 + _TEXT * (i + 1)) for i, text in enumerate(notes)), *plan.headings]
    width = max(x_right + right_width + _MARGIN, _MARGIN + 7 * max(len(text) for text, _ in texts))
    return fill(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        'aria-label="{network} and its kernel counterpart, layer against layer"><style>{style}</style>'
        '<rect class="page" width="{width}" height="{height}"/>'
        '<text x="{x_left}" y="40" class="head">{network}, the ConvNet</text>'
        '<text x="{x_right}" y="40" class="head">its kernel counterpart</text>{lines}{boxes}{texts}</svg>',
        width=width,
        height=plan.end,
        network=network,
        style=_STYLE,
        x_left=_MARGIN,
        x_right=x_right,
        lines=joined(lines),
        boxes=joined(boxes),
        texts=joined(fill('<text x="{x}" y="{y}" class="title">{text}</text>', x=_MARGIN, y=y, text=t) for t, y in texts),
    )


class _Plan:
    """Where everything is drawn, from top to bottom."""

    def __init__(self, rows: Sequence[Row], entries: Sequence[Line | Heading], top: int) -> None:
        self.rows, self.end = rows, top
        self.left: list[_Box] = []
        self.right: list[_Box] = []
        self.headings: list[tuple[str, int]] = []
        self.matches: list[tuple[int, int, str]] = []
        self._places: dict[str, int] = {}
        self._layers: dict[str, int] = {}
        for entry in entries:
            self._add_heading(entry) if isinstance(entry, Heading) else self._add_line(entry)
        self.edges = self._joined({row.name: set(row.inputs) for row in rows if row.name}, self._places)
        self.layer_edges = self._joined(_layer_inputs(rows), self._layers)

    def order(self, *, left: bool) -> list[int]:
        return [box.y for box in (self.left if left else self.right)]

    def _add_heading(self, heading: Heading) -> None:
        if not heading.folded:
            self.headings.append((heading.text, self.end + 8))
            self.end += _TEXT
            return
        names = [row.name for row in heading.folded]
        self._places.update(dict.fromkeys(names, self.end))
        self._layers |= {row.layer: self.end for row in heading.folded if row.layer}
        self.left.append(_Box(self.end, heading.text, f"{len(names)} operations", "folded"))
        self.right.append(_Box(self.end, "the same layers again", "", "layer"))
        self.end += _STEP

    def _add_line(self, shown: Line) -> None:
        row, y = shown.row, self.end
        if row.name:
            self._places.update(dict.fromkeys((each.name for each in (row, *shown.folded)), y))
            self.left.append(_operation_box(shown, y))
        if row.layer and row.layer not in self._layers:  # beside the first operation that it stands for
            self.right.append(_layer_box(row.layer, self.rows, y))
        for each in (row, *shown.folded):
            if each.layer:
                self._layers.setdefault(each.layer, y)
        if row.layer and row.name:
            self.matches.append((y, self._layers[row.layer], row.correspondence))
        self.end += _STEP

    def _joined(self, inputs: dict[str, set[str]], places: dict[str, int]) -> list[tuple[int, int]]:
        """From where to where edges are drawn, each once."""
        ends = {
            (places[i], places[name]) for name, before in inputs.items() for i in before if i in places and name in places
        }
        return sorted((start, end) for start, end in ends if start < end)


def _operation_box(shown: Line, y: int) -> _Box:
    row = shown.row
    title = f"{shown.name} · {row.operation}" + "".join(f", {part.name} {part.correspondence}" for part in row.parts)
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
    return max([_NARROW, *(box.text_width for box in boxes)])


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


_STYLE = Markup(
    "svg{font-family:system-ui,sans-serif;--page:#fff;--ink:#1f2937;--soft:#6b7280;--line:#9ca3af;--layer:#eef2ff}"
    "text{fill:#1f2937}rect{fill:#fff}.edge{stroke:#9ca3af}.layer rect{fill:#eef2ff}"  # for viewers without variables
    ".page{fill:var(--page)}.head{font-size:16px;font-weight:600;fill:var(--ink)}.title{font-size:12.5px;fill:var(--ink)}"
    ".detail{font-size:11px;fill:var(--soft)}rect{stroke-width:1.5;fill:var(--page)}path{fill:none}"
    ".edge{stroke:var(--line);stroke-width:1.5}.match{stroke-width:2;stroke-dasharray:5 4}"
    ".exact{stroke:#1a7f4b}.inexact{stroke:#b45309}.kept{stroke:#2563eb}.dropped{stroke:#b42318;stroke-dasharray:3 3}"
    ".folded{stroke:#6b7280;stroke-dasharray:3 3}.layer{stroke:#4f46e5}.layer rect{fill:var(--layer)}text{stroke:none}"
    "@media(prefers-color-scheme:dark){svg{--page:#111827;--ink:#f3f4f6;--soft:#9ca3af;--line:#6b7280;--layer:#1e1b4b}}"
)
