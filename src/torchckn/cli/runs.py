"""Runs: list, show, compare."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ..errors import CKNError, ConfigError
from .options import AsJSON, print_json, show

runs_app = typer.Typer(no_args_is_help=True, help="Runs: list, show, compare.")


@runs_app.command("list")
def runs_list(
    folder: Annotated[Path, typer.Argument(help="The folder that has runs in it.")] = Path("runs"), as_json: AsJSON = False
) -> None:
    """List the runs in a folder.

    Example: [bold]torchckn runs list .[/bold]
    """
    from .. import runs

    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder; torchckn train makes runs in ./runs, or where --run says")
    found = []
    for path in sorted(folder.glob("**/config.toml")):
        try:
            found.append(runs.summary(path.parent))
        except CKNError as error:
            show(as_json, f"left out: {error}")
    _print_table(found, as_json)


@runs_app.command("show")
def runs_show(run: Annotated[Path, typer.Argument(help="The folder of a run.")], as_json: AsJSON = False) -> None:
    """Show what is known of a run.

    Example: [bold]torchckn runs show runs/first[/bold]
    """
    from .. import runs

    found = runs.summary(run) | {"config": runs.read_config(run)}
    if as_json:
        print_json(found)
        return
    table = Table("", "", show_header=False)
    for key, value in found.items():
        entries = value.items() if isinstance(value, dict) else [("", value)]
        table.add_row(key, "\n".join(f"{name} = {json.dumps(item)}" if name else str(item) for name, item in entries))
    Console().print(table)


@runs_app.command("compare")
def runs_compare(runs_given: Annotated[list[Path], typer.Argument(metavar="RUNS...")], as_json: AsJSON = False) -> None:
    """Compare runs side by side.

    Example: [bold]torchckn runs compare runs/first runs/second[/bold]
    """
    from .. import runs

    _print_table([runs.summary(run) for run in runs_given], as_json)


def _print_table(found: Sequence[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(list(found))
        return
    columns = ("run", "network", "method", "steps", "validation", "test", "seconds", "state")
    table = Table()
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in ("validation", "test", "state"))
    for row in found:
        table.add_row(*(_shown(row[column]) for column in columns))
    Console().print(table)


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{100 * value:.2f} %" if value <= 1 else f"{value:.1f}"
    return "" if value is None else str(value)
