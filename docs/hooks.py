"""What mkdocs does to pages and docstrings on the way: formulas become MathML, docstrings Markdown, settings a table.

mkdocs.yml names this file as a hook, and :class:`Docstrings` in it as an extension of griffe, which reads the docstrings.
"""

from __future__ import annotations

import importlib
import itertools
import re
import textwrap
from typing import Any

import griffe
from latex2mathml.converter import convert

from torchckn.settings import Settings

SETTINGS = "<!-- the settings of torchckn train stand here -->"


class Docstrings(griffe.Extension):
    """Translates every docstring once it is loaded."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            module = obj if isinstance(obj, griffe.Module) else obj.module
            obj.docstring.value = translated(obj.docstring.value, obj.path, module.path)


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """Fenced blocks of ``math`` as MathML, and the table of settings where a page asks for it."""
    markdown = markdown.replace(SETTINGS, settings_table())
    return re.sub(r"^```math\n(.*?)^```", lambda found: mathml(found[1]), markdown, flags=re.DOTALL | re.MULTILINE)


def settings_table() -> str:
    rows = ["| option | default | |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        option = {"network": "NETWORK", "options": "--option"}.get(name, f"--{name.replace('_', '-')}")
        default = "" if field.default in (None, False, {}) else f"`{field.default}`"
        rows.append(f"| `{option}` | {default} | {field.description} |")
    return "\n".join(rows)


def mathml(latex: str) -> str:
    return f'<div class="formula">{convert(" ".join(latex.split()), display="block")}</div>'


def translated(text: str, path: str = "", module: str = "") -> str:
    text = textwrap.dedent(text)
    text = re.sub(r"^( *)\.\. math:: *((?:.*\n?)(?:\1 +\S.*\n?)*)", _formula, text, flags=re.MULTILINE)
    text = re.sub(r"^(=+(?: +=+)+)\n(?:(.*)\n\1\n)?((?:.+\n)*?)\1$", _table, text, flags=re.MULTILINE)
    text = re.sub(r"^(:func:`\w+`) {2,}(?=\S)", r"- \1: ", text, flags=re.MULTILINE)
    text = re.sub(r"^(``\w+``)\n((?: {4}.*\n?|\n)+)", _definition, text, flags=re.MULTILINE)
    text = re.sub(r"^ {4}(\w+(?:, \w+)+): (.*(?:\n {5,}.*)*)", _arguments, text, flags=re.MULTILINE)
    text = re.sub(r"^( *)Example:$", r"\1Examples:", text, flags=re.MULTILINE)
    return re.sub(r":(?:mod|func|class|meth|attr):`(~?)([\w.]+)`", lambda found: _reference(found, path, module), text)


def _formula(found: re.Match[str]) -> str:
    return f"\n{found[1]}{mathml(found[2])}\n\n"


def _table(found: re.Match[str]) -> str:
    starts = [edge.start() for edge in re.finditer(r"=+", found[1])] + [None]
    columns = list(itertools.pairwise(starts))

    def row(line: str) -> str:
        return "| " + " | ".join(line[start:end].strip().replace("|", "&#124;") for start, end in columns) + " |"

    head = row(found[2]) if found[2] is not None else row("")
    rule = "|" + "---|" * len(columns)
    return "\n".join([head, rule, *(row(line) for line in found[3].splitlines())])


def _definition(found: re.Match[str]) -> str:
    return f"{found[1]}\n:   {found[2].strip()}\n\n"


def _arguments(found: re.Match[str]) -> str:
    """``a, b: text`` is about two arguments."""
    return "\n".join(f"    {name}: {found[2]}" for name in found[1].split(", "))


def _reference(found: re.Match[str], path: str, module: str) -> str:
    """A link to the object where it is at home; only its name, where the reference does not have it."""
    short, name = found[1], found[2]
    shown = name.rpartition(".")[2] if short else name
    for place in (name, f"{path}.{name}", f"{module}.{name}", f"{path.rpartition('.')[0]}.{name}"):
        home = _home(place)
        if home:
            return f'<autoref identifier="{home}" optional><code>{shown}</code></autoref>'
    return f"<code>{shown}</code>"


def _home(name: str) -> str:
    """The full name of an object under the module that defines it; empty if there is none."""
    parts = name.split(".")
    if parts[0] != "torchckn":
        return ""
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        if length == len(parts):
            return name
        try:
            for part in parts[length:]:
                found = getattr(found, part)
        except AttributeError:
            return ""
        home, own = getattr(found, "__module__", None), getattr(found, "__qualname__", None)
        return f"{home}.{own}" if home and own else name
    return ""
