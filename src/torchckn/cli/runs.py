"""Runs: list, show, compare."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from ..errors import CKNError, PathError
from ..formats import percent
from ..tables import Column, TextTable, clean, fitted, line, shortened, table_lines
from .options import AsJSON, Runs, print_json, show

runs_app = typer.Typer(no_args_is_help=True, help="Runs: list, show, compare.")


@runs_app.command("list")
def runs_list(
    folder: Annotated[Path, typer.Argument(help="The folder that contains the runs.")] = Path("runs"),
    as_json: AsJSON = False,
) -> None:
    """List the runs in a folder.

    Example: [bold]torchckn runs list .[/bold]
    """
    from .. import runs

    if not folder.is_dir():
        raise PathError(f"{folder} is not a folder; torchckn train makes runs in ./runs, or where --run says")
    summaries = []
    for path in sorted(folder.glob("**/config.toml")):
        try:
            if "training" in runs.read_config(path.parent):  # another program's file may have this name
                summaries.append(runs.summary(path.parent))
        except CKNError as error:
            show(as_json, f"left out: {error}")
    if as_json:
        print_json(summaries)
    else:
        Console().print(_RunTable(summaries, within=folder))


@runs_app.command("show")
def runs_show(run: Annotated[Path, typer.Argument(help="The folder of a run.")], as_json: AsJSON = False) -> None:
    """Show the configuration, progress and result of a run.

    Example: [bold]torchckn runs show runs/first[/bold]
    """
    from .. import runs
    from ..runs.reading import DIGESTS

    summary, config = runs.summary(run), runs.read_config(run)
    if as_json:
        print_json(summary | {"config": config})
    else:
        digests = {text: config.pop(name) for name, text in DIGESTS.items() if name in config}
        Console().print(_Entries(_shown(summary) | {"config": config | {"digests": digests}}))


@runs_app.command("compare")
def runs_compare(runs: Runs, as_json: AsJSON = False) -> None:
    """Compare runs, one line per run.

    Example: [bold]torchckn runs compare runs/first runs/second[/bold]
    """
    from ..runs import summary

    summaries = [summary(run) for run in runs]
    if as_json:
        print_json(summaries)
    else:
        parents = {run.parent for run in runs}
        Console().print(_RunTable(summaries, within=parents.pop() if len(parents) == 1 else None))


class _RunTable(TextTable):
    """One line per run. ``within`` is a folder that their names need not repeat."""

    def __init__(self, summaries: Sequence[dict[str, Any]], within: Path | None = None) -> None:
        self.summaries, self.within = summaries, within

    def lines(self, width: int, ascii_only: bool) -> list[Text]:
        def column(title: str, texts: Iterator[str], **options: Any) -> Column:
            return Column(title, tuple(clean(text, ascii_only) for text in texts), **options)

        rows = [_shown(summary) for summary in self.summaries]
        columns = [
            column("run", (self._name(summary["run"]) for summary in self.summaries), cut="start"),
            column("network", (Path(row["network"]).name for row in rows), cut="start"),
            column("method", (row["method"] for row in rows)),
            column("steps", (row["steps"] for row in rows), right=True),
            column("valid", (row["validation"] for row in rows), right=True),
            column("test", (row["test"] for row in rows), right=True),
            column("seconds", (row["seconds"] for row in rows), right=True),
        ]
        return table_lines(fitted(columns, width, ascii_only))

    def _name(self, run: str) -> str:
        folder = Path(run)
        if self.within is not None and folder != self.within and folder.is_relative_to(self.within):
            return str(folder.relative_to(self.within))
        return run


class _Entries(TextTable):
    """One line per entry, entries of entries below their name. What is longer is cut; ``--json`` has all of it."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content

    def lines(self, width: int, ascii_only: bool) -> list[Text]:
        entries = [*_flat(self.content)]
        widest = max((cell_len(name) for name, _ in entries), default=0)
        lines = []
        for name, value in entries:
            if isinstance(value, dict):
                lines.append(line([(clean(name, ascii_only), "bold")]))
                continue
            text = clean(value if isinstance(value, str) else json.dumps(value), ascii_only)
            text = shortened(text, width - widest - 2, "start" if isinstance(value, str) else "end", ascii_only)
            lines.append(line([(clean(name, ascii_only).ljust(widest), ""), (text, "")]))
        return lines


def _flat(content: dict[str, Any], indent: str = "") -> Iterator[tuple[str, Any]]:
    """All entries; those that have entries of their own come last, each before its entries."""
    for name, value in content.items():
        if not isinstance(value, dict):
            yield f"{indent}{name}", value
    for name, value in content.items():
        if isinstance(value, dict) and value:
            yield f"{indent}{name}", value
            yield from _flat(value, indent + "  ")


def _shown(summary: dict[str, Any]) -> dict[str, str]:
    """What ``runs.summary`` gives, as texts."""
    steps = summary["steps"] if summary["finished"] else f"{summary['steps_done']} of {summary['steps']}"
    seconds = summary["seconds"]
    return {
        "run": summary["run"],
        "network": summary["network"] or "",
        "method": summary["method"] or "",
        "steps": "" if steps is None else str(steps),
        "validation": _percent(summary["validation"]),
        "test": _percent(summary["test"]),
        "seconds": "" if seconds is None else f"{seconds:.0f}",
    }


def _percent(value: float | None) -> str:
    return "" if value is None else percent(value, 2)
