"""Changes that mkdocs makes to pages and docstrings: formulas to MathML, docstrings to Markdown, a table of command-line options.

mkdocs.yml names this file as a hook, and :class:`Docstrings` as an extension of griffe, which reads the docstrings.
"""

from __future__ import annotations

import importlib
import itertools
import re
import textwrap
from typing import Any

import griffe
import typer.main
from latex2mathml.converter import convert

from torchckn.cli import app

#: where a page has this comment, the table of options is inserted
OPTIONS = "<!-- options of torchckn train -->"


class Docstrings(griffe.Extension):
    """Converts every docstring to Markdown when it is loaded."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            module = obj if isinstance(obj, griffe.Module) else obj.module
            obj.docstring.value = translated(obj.docstring.value, obj.path, module.path)


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """Fenced blocks of ``math`` as MathML, and the table of options where a page asks for it."""
    if OPTIONS in markdown:
        markdown = markdown.replace(OPTIONS, options_table())
    return re.sub(r"^```math\n(.*?)^```", lambda match: mathml(match[1]), markdown, flags=re.DOTALL | re.MULTILINE)


def options_table() -> str:
    """The options of ``torchckn train`` under the headings that ``--help`` has, a table each, from the command itself."""
    train: Any = typer.main.get_command(app)
    headings: dict[str, list[str]] = {}
    for parameter in train.commands["train"].params:
        heading = getattr(parameter, "rich_help_panel", None)
        if heading:  # options without a heading, such as --resume, are described on the page itself
            names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
            text = re.sub(r"(?<!\\)\[/?\w+\]", "", parameter.help or "").replace("\\[", "[").replace("|", "&#124;")
            text, _, default = text.partition(" [default: ")
            default = f"`{default.removesuffix(']')}`" if default else ""
            words = (
                ", ".join(f"`{word}`" for word in (parameter.metavar or "").split("|"))
                if "|" in (parameter.metavar or "")
                else ""
            )
            headings.setdefault(heading, []).append(
                f"| {names} | {default} | {text}{f' One of {words}.' if words else ''} |"
            )
    return "\n\n".join(
        "\n".join([f"**{name}**", "", "| option | default | |", "|---|---|---|", *rows]) for name, rows in headings.items()
    )


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
    return re.sub(r":(?:mod|func|class|meth|attr):`(~?)([\w.]+)`", lambda match: _reference(match, path, module), text)


def _formula(match: re.Match[str]) -> str:
    return f"\n{match[1]}{mathml(match[2])}\n\n"


def _table(match: re.Match[str]) -> str:
    starts = [edge.start() for edge in re.finditer(r"=+", match[1])] + [None]
    columns = list(itertools.pairwise(starts))

    def row(line: str) -> str:
        return "| " + " | ".join(line[start:end].strip().replace("|", "&#124;") for start, end in columns) + " |"

    head = row(match[2]) if match[2] is not None else row("")
    rule = "|" + "---|" * len(columns)
    return "\n".join([head, rule, *(row(line) for line in match[3].splitlines())])


def _definition(match: re.Match[str]) -> str:
    return f"{match[1]}\n:   {match[2].strip()}\n\n"


def _arguments(match: re.Match[str]) -> str:
    """``a, b: text`` is about two arguments."""
    return "\n".join(f"    {name}: {match[2]}" for name in match[1].split(", "))


def _reference(match: re.Match[str], path: str, module: str) -> str:
    """A link to the object where it is at home; only its name, where the reference does not have it."""
    short, name = match[1], match[2]
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
            value: Any = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        if length == len(parts):
            return name
        try:
            for part in parts[length:]:
                value = getattr(value, part)
        except AttributeError:
            return ""
        home, own = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        return f"{home}.{own}" if home and own else name
    return ""
