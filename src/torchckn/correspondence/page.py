"""The report as an HTML table, to stand in a page or a notebook."""

from __future__ import annotations

import html
from collections.abc import Sequence

from .rows import Row, short_sources


def to_html(network: str, rows: Sequence[Row]) -> str:
    titles = ("ConvNet", "type", "CKN layer", "output", "correspondence", "why")
    head = "".join(f"<th scope='col'>{title}</th>" for title in titles)
    body = "".join(_row(name, row) for name, row in zip(short_sources(rows), rows, strict=True))
    return (
        f"<table class='ckn-report'><style>{_STYLE}</style><caption>Translation of {html.escape(network)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _row(name: str, row: Row) -> str:
    shape, correspondence = html.escape(" × ".join(map(str, row.output_shape))), html.escape(row.correspondence)
    why = "; ".join([*row.reasons, *(part.note for part in row.parts)])
    return (
        f"<tr><th scope='row' title='{html.escape(row.source)}'>{html.escape(name)}</th><td>{html.escape(row.operation)}</td>"
        f"<td>{html.escape(row.label)}</td><td class='shape'>{shape}</td>"
        f"<td class='{correspondence}'>{correspondence}</td><td>{html.escape(why)}</td></tr>"
    )


_STYLE = (
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
