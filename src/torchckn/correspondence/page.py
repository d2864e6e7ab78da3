"""The report as an HTML table, to stand in a page or a notebook; long ones folded by blocks."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from .escaping import fill, joined
from .folding import Entry, Heading, Line, counts, folded, loss_texts, unfolded
from .rows import Row


def to_html(network: str, rows: Sequence[Row], *, expand: bool = False) -> Markup:
    titles = ("ConvNet", "type", "CKN layer", "output", "correspondence", "why")
    return fill(
        "<table class='ckn-report'><style>{style}</style><caption>Translation of {network}: {counts}{losses}</caption>"
        "<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>",
        style=STYLE,
        network=network,
        counts=", ".join(f"{number} {correspondence}" for correspondence, number in counts(rows).items()),
        losses=_losses(loss_texts(rows)),
        head=joined(fill("<th scope='col'>{title}</th>", title=title) for title in titles),
        body=joined(map(_entry, unfolded(rows) if expand else folded(rows))),
    )


def _losses(texts: Sequence[str]) -> Markup:
    items = joined(fill("<li>{text}</li>", text=text) for text in texts)
    return fill("<p>The most common reasons why not:</p><ul>{items}</ul>", items=items) if texts else Markup()


def _entry(entry: Entry) -> Markup:
    if isinstance(entry, Heading):
        return fill("<tr class='block'><th scope='rowgroup' colspan='6'>{text}</th></tr>", text=entry.text)
    return _row(entry)


def _row(shown: Line) -> Markup:
    row = shown.row
    shape = " × ".join(map(str, shown.last.output_shape))
    return fill(
        "<tr{indented}><th scope='row' title='{source}'>{name}</th><td>{operation}</td><td>{layer}</td>"
        "<td class='shape'>{shape}</td><td class='{correspondence}'>{correspondence}</td><td>{why}</td></tr>",
        indented=Markup(" class='inner'") if shown.indented else "",
        source=row.source,
        name=shown.name,
        operation=row.operation,
        layer=row.label,
        shape=shape if row.output_shape == shown.last.output_shape else f"to {shape}",
        correspondence=row.correspondence,
        why="; ".join([*row.reasons, *(part.note for part in row.parts)]),
    )


#: the table's style sheet; the page of a report allows it by its hash
STYLE = Markup(
    ".ckn-report{border-collapse:collapse;font:14px/1.4 system-ui,sans-serif}"
    ".ckn-report caption{font-weight:600;text-align:left;padding:.4em 0}"
    ".ckn-report th,.ckn-report td{padding:.3em .7em;text-align:left;vertical-align:top;border-bottom:1px solid #8886}"
    ".ckn-report thead th{border-bottom:2px solid currentColor}.ckn-report tbody th{font-weight:600}"
    ".ckn-report .shape{white-space:nowrap}.ckn-report tbody .inner th{padding-left:2em}"
    ".ckn-report .block th{background:#8882}.ckn-report caption p,.ckn-report caption ul{font-weight:400;margin:.3em 0}"
    ".ckn-report .exact{color:#1a7f4b}.ckn-report .inexact{color:#b45309}.ckn-report .kept{color:#2563eb}"
    ".ckn-report .dropped{color:#b42318}"
    "@media(prefers-color-scheme:dark){.ckn-report .exact{color:#4ade80}.ckn-report .inexact{color:#fbbf24}"
    ".ckn-report .kept{color:#93c5fd}.ckn-report .dropped{color:#fca5a5}}"
)
