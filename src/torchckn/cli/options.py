"""What commands share: options that several have, ways to print, and options made of the settings' fields."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.console import Console

from ..errors import ConfigError
from ..settings import Settings

AsJSON = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Where data sets are kept; also TORCHCKN_DATA.")]
Model = Annotated[Path, typer.Argument(help="The folder of a finished run, or a file that torchckn.save wrote.")]
Runs = Annotated[list[Path], typer.Argument(help="Folders of runs.")]


def show(quiet: bool, *what: Any) -> None:
    if not quiet:
        Console(markup=False).print(*what, soft_wrap=True, highlight=False)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def settings_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options that these fields of the settings describe (all of them by default).

    The command gets them as one dictionary ``given``, with only what was said on the command line.
    """
    chosen = names or tuple(name for name in Settings.model_fields if name != "network")

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "given"]
        added = [_option(name) for name in chosen]

        def wrapped(**values: Any) -> None:
            given = {name: values.pop(name) for name in chosen}
            command(**values, given=_said(given))

        wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
        wrapped.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
        return wrapped

    return decorate


def _option(name: str) -> inspect.Parameter:
    field = Settings.model_fields[name]
    kinds = [kind for kind in get_args(field.annotation) or (field.annotation,) if kind is not type(None)]
    panel = next((title for title, names in _PANELS.items() if name in names), "Training")
    flag = "--" + name.replace("_", "-")
    default = "" if field.default is None or field.default is False else f" [dim]\\[default: {field.default}][/dim]"
    literals = [value for kind in (field.annotation, *kinds) for value in get_args(kind) if isinstance(value, str)]
    text = f"{field.description}{f' One of {chr(44).join(literals)}.' if literals else ''}{default}"
    kind: Any = int if int in kinds else float if kinds == [float] else str
    if name == "options":
        flag, text, kind = "--option", f"{field.description} May be repeated.", list[str]
    elif field.annotation is bool:
        flag, kind = f"{flag}/--no-{flag[2:]}", bool
    option = Annotated[kind | None, typer.Option(flag, help=text, show_default=False, rich_help_panel=panel)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)


#: under which heading of the help a setting stands; the others are about training
_PANELS = {
    "Network": {"filters", "options", "kind", "kernel", "linear_kernel", "inverse_sqrt", "centering", "init_std"},
    "Images": {"data", "validation", "whiten"},
}


def _said(given: dict[str, Any]) -> dict[str, Any]:
    """What was said on the command line, with its numbers and lists understood."""
    said = {name: value for name, value in given.items() if value is not None}
    if "options" in said:
        said["options"] = dict(pair(text) for text in said["options"])
    if "lr" in said:
        parts = [_number_or_text(part) for part in said["lr"].split(",")]
        said["lr"] = parts if len(parts) > 1 else parts[0]
    return said


def pair(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"--option expected name=value, got {text!r}")
    return name, _literal(value)


def _number_or_text(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _literal(text: str) -> Any:
    """A number or truth value as JSON has it, or the text itself."""
    try:
        return json.loads(text.lower() if text in ("True", "False") else text)
    except json.JSONDecodeError:
        return text
