"""The report as an HTML table, to stand in a page or a notebook."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from .escaping import fill, joined
from .rows import Row, short_sources


def to_html(network: str, rows: Sequence[Row]) -> Markup:
    titles = ("ConvNet", "type", "CKN layer", "output", "correspondence", "why")
    return fill(
        "<table class='ckn-report'><style>{style}</style><caption>Translation of {network}</caption>"
        "<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>",
        style=STYLE,
        network=network,
        head=joined(fill("<th scope='col'>{title}</th>", title=title) for title in titles),
        body=joined(_row(name, row) for name, row in zip(short_sources(rows), rows, strict=True)),
    )


def _row(name: str, row: Row) -> Markup:
    return fill(
        "<tr><th scope='row' title='{source}'>{name}</th><td>{operation}</td><td>{layer}</td><td class='shape'>{shape}</td>"
        "<td class='{correspondence}'>{correspondence}</td><td>{why}</td></tr>",
        source=row.source,
        name=name,
        operation=row.operation,
        layer=row.label,
        shape=" × ".join(map(str, row.output_shape)),
        correspondence=row.correspondence,
        why="; ".join([*row.reasons, *(part.note for part in row.parts)]),
    )


#: the table's style sheet; the page of a report allows it by its hash
STYLE = Markup(
    ".ckn-report{border-collapse:collapse;font:14px/1.4 system-ui,sans-serif}"
    ".ckn-report caption{font-weight:600;text-align:left;padding:.4em 0}"
    ".ckn-report th,.ckn-report td{padding:.3em .7em;text-align:left;vertical-align:top;border-bottom:1px solid #8886}"
    ".ckn-report thead th{border-bottom:2px solid currentColor}.ckn-report tbody th{font-weight:600}"
    ".ckn-report .shape{white-space:nowrap}"
    ".ckn-report .exact{color:#1a7f4b}.ckn-report .inexact{color:#b45309}.ckn-report .kept{color:#2563eb}"
    ".ckn-report .dropped{color:#b42318}"
    "@media(prefers-color-scheme:dark){.ckn-report .exact{color:#4ade80}.ckn-report .inexact{color:#fbbf24}"
    ".ckn-report .kept{color:#93c5fd}.ckn-report .dropped{color:#fca5a5}}"
)
