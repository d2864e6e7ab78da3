"""The only way from data to HTML and SVG: a template that is written in the code, and values that are escaped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import LiteralString

from markupsafe import Markup, escape

from ..tables import clean


def fill(template: LiteralString, **values: object) -> Markup:
    """The template with its values. A value is text, and is escaped, unless it comes from a template itself.

    Example:
        >>> fill("<b title='{name}'>{name}</b>", name="a'<i>")
        Markup("<b title='a&#39;&lt;i&gt;'>a&#39;&lt;i&gt;</b>")
    """
    return Markup(template).format(**{name: _escaped(value) for name, value in values.items()})


def joined(parts: Iterable[Markup]) -> Markup:
    return Markup().join(parts)


def _escaped(value: object) -> Markup:
    """XML has no control characters, not even escaped ones."""
    return value if isinstance(value, Markup) else escape(clean(str(value)))
