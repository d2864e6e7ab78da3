"""What commands share: options that several have, ways to print, and options made of the settings' fields."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo
from rich.console import Console
from rich.markup import escape

from ..choices import DataSetName, KernelNetworkName
from ..config import metadata_of
from ..errors import ConfigError, Interrupted
from ..settings import Settings
from ..tables import printable
from ..zoo.catalogue import names

AsJSON = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors and warnings only.")]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Folder of the data sets; or set TORCHCKN_DATA.")]
OtherData = Annotated[str | None, typer.Option("--data", help="Images with labels; by default those of the run.")]
Model = Annotated[Path, typer.Argument(help="The folder of a finished run, or a file that torchckn.save wrote.")]
Trust = Annotated[bool, typer.Option("--trust", help="Execute the Python code that a run folder contains.")]
Runs = Annotated[list[Path], typer.Argument(help="Folders of runs.")]


def show(quiet: bool, *what: Any) -> None:
    if not quiet:
        texts = (printable(item) if isinstance(item, str) else item for item in what)
        Console(markup=False).print(*texts, soft_wrap=True, highlight=False)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def interruptible(command: Callable[..., None]) -> Callable[..., None]:
    """A command that says so when it is interrupted, instead of being aborted."""

    @functools.wraps(command)
    def guarded(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except KeyboardInterrupt as stop:
            raise Interrupted(str(stop) or "interrupted") from None

    return guarded


def with_plain_types(command: Any) -> Any:
    """A command whose help shows no type beside flags such as ``--json``, and ``<path>`` for each of several paths.

    Its sub-commands likewise.
    """
    for option in command.params:
        if getattr(option, "is_flag", False):
            option.metavar = " "
        elif option.nargs == -1 and hasattr(option, "display_type"):  # newer typer shows <list[Path]>
            option.display_type = lambda context: "<path>"
    help_option = command.get_help_option

    def get_help_option(context: Any) -> Any:
        option = help_option(context)
        if option is not None:
            option.metavar = " "
        return option

    command.get_help_option = get_help_option
    for sub_command in getattr(command, "commands", {}).values():
        with_plain_types(sub_command)
    return command


def settings_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of these settings, of all but the network by default, under the headings that they have.

    The command gets them as one dictionary ``given``, with only what was given on the command line.
    """
    options = Settings.all_options()
    fields = {name: options[name] for name in (names or options) if name != "network"}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "given"]

        def with_options(**values: Any) -> None:
            given = {name: values.pop(name) for name in fields}
            command(**values, given={name: _parsed(name, value) for name, value in given.items() if value is not None})

        with_options.__name__, with_options.__doc__ = command.__name__, command.__doc__
        added = [_parameter(name, field) for name, field in fields.items()]
        with_options.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
        return with_options

    return decorate


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    types = _types(field.annotation)
    flag = "--" + name.replace("_", "-")
    more: dict[str, Any] = {}
    kind: Any = str
    if name == "options":
        flag, kind = "--option", list[str]
        more["metavar"] = "NAME=VALUE"
    elif types == [bool]:
        flag, kind = f"{flag}/--no-{flag[2:]}", bool
    elif len(types) == 1 and get_origin(types[0]) is Literal:
        words = get_args(types[0])
        more |= {"metavar": "|".join(words), "autocompletion": completion(words)}
    elif types in ([int], [float]):
        kind = types[0]
    if name in _COMPLETIONS:
        more["autocompletion"] = _COMPLETIONS[name]
    option = Annotated[
        kind | None,
        typer.Option(
            flag,
            *_ALIASES.get(name, ()),
            help=_help(name, field),
            show_default=False,
            rich_help_panel=metadata_of(field)["heading"],
            **more,
        ),
    ]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)


def _types(annotation: Any) -> list[Any]:
    """The types of an annotation such as ``int | None``, without None."""
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return [member for member in members if member is not type(None)]


def _help(name: str, field: FieldInfo) -> str:
    text = escape(field.description or "") + (" May be repeated." if name == "options" else "")
    default = field.default
    if default is None or isinstance(default, (bool, dict)):
        return text
    return f"{text} [dim]\\[default: {default}][/dim]"


def completion(words: Sequence[str]) -> Callable[[str], list[str]]:
    """What Tab offers for an option that takes one of these words."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete


#: further names of options
_ALIASES = {"resize": ("--image-size",), "unlabeled": ("--unlabelled",)}
COMPLETE_DATA = completion(get_args(DataSetName))
_COMPLETIONS = {"data": COMPLETE_DATA}
COMPLETE_NETWORKS = completion(names())
COMPLETE_TRAINABLE = completion([*names(), *get_args(KernelNetworkName)])


def _parsed(name: str, value: Any) -> Any:
    """A value of the command line as a file has it: numbers as numbers, lists as lists."""
    if name == "options":
        return dict(name_and_value(text) for text in value)
    types = _types(Settings.all_options()[name].annotation)
    if not isinstance(value, str) or types == [str]:
        return value
    if any(get_origin(kind) is tuple for kind in types):
        return [_number_or_text(part) for part in value.split(",")]
    parts = [_number_or_text(part) for part in value.split(",")]
    return parts if len(parts) > 1 else parts[0]


def name_and_value(text: str) -> tuple[str, Any]:
    """Of an option ``name=value``; the value is a number or truth value as JSON has it, or text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"--option: expected name=value, got {text!r}")
    try:
        return name, json.loads(value.lower() if value in ("True", "False") else value)
    except (json.JSONDecodeError, RecursionError):
        return name, value


def _number_or_text(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
