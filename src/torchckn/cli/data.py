"""Data sets: list, download, verify, where they are."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console

from ..tables import Column, table_lines
from .options import COMPLETE_DATA, AsJSON, DataDir, Quiet, print_json, show

data_app = typer.Typer(no_args_is_help=True, help="Data sets: list, download, verify, print their folder.")


Name = Annotated[str, typer.Argument(help="Name of a data set.", autocompletion=COMPLETE_DATA)]

#: what is said of a data set whose content has no digest to compare with
_NOT_VERIFIED = (
    "not verified: its pixel statistics and numbers of images are as published, but digests are published for its compressed "
    "files (.gz) only; fetch it from these for certainty"
)


@data_app.command("list")
def data_list(data_dir: DataDir = None, as_json: AsJSON = False) -> None:
    """List the data sets that are available by name, and whether they have been downloaded.

    Example: [bold]torchckn data list[/bold]
    """
    from .. import data

    rows: list[dict[str, Any]] = [{"name": name, "downloaded": data.is_here(name, data_dir)} for name in data.names()]
    if as_json:
        print_json(rows)
        return
    names = Column("name", tuple(row["name"] for row in rows))
    states = Column(
        "downloaded", tuple("yes" if row["downloaded"] else "no; downloaded when it is first used" for row in rows)
    )
    for text in table_lines([names, states]):
        Console().print(text)


@data_app.command("fetch")
def data_fetch(name: Name, data_dir: DataDir = None, quiet: Quiet = False) -> None:
    """Download a data set now.

    Example: [bold]torchckn data fetch mnist-mini[/bold]
    """
    from .. import data

    whole = data.load(name, data_dir, progress=not quiet)
    parts = {"training": whole.train, "validation": whole.valid, "test": whole.test}
    counts = " and ".join(f"{len(part)} {kind}" for kind, part in parts.items() if part is not None)
    show(quiet, f"{whole.name}: {counts} images, {len(whole.classes)} classes")
    if name in data.names() and not data.verify(name, data_dir):
        show(quiet, f"{name} was {_NOT_VERIFIED}")


@data_app.command("verify")
def data_verify(name: Name, data_dir: DataDir = None) -> None:
    """Check the content of a data set that has been downloaded.

    Example: [bold]torchckn data verify mnist-mini[/bold]
    """
    from .. import data
    from ..errors import DataError

    if not data.verify(name, data_dir):
        raise DataError(f"{name} was {_NOT_VERIFIED}")
    show(False, f"{name} has the expected content")


@data_app.command("where")
def data_where(data_dir: DataDir = None) -> None:
    """Print the folder of the data sets.

    Example: [bold]torchckn data where[/bold]
    """
    from ..data import data_folder

    print(data_folder(data_dir))
