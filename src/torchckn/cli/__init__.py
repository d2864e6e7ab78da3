"""The ``torchckn`` command.

Everything heavy is imported inside the commands: ``torchckn --help`` answers before torch would have been loaded.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from ..errors import CKNError, ConfigError, Interrupted, is_out_of_memory
from ..memory import keep_freed_memory
from ..tables import printable
from .data import data_app
from .experiments import reproduce
from .networks import bench, translate, zoo
from .options import interruptible, with_plain_types
from .runs import runs_app
from .trained import draw, evaluate, export, predict, report
from .training import demo, train

app = typer.Typer(
    name="torchckn",
    help="Translate a ConvNet into the kernel network that it approximates, train it, and inspect the result.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (demo, zoo, translate, train, evaluate, predict, export, report, draw, reproduce, bench):
    app.command()(interruptible(command))
app.add_typer(data_app, name="data")
app.add_typer(runs_app, name="runs")


def main() -> None:
    """Run the command: status 0 if it did what it should, 1 if it failed, 2 for wrong arguments, 130 after Ctrl-C."""
    if not _is_first():  # one of several processes: the first one shows what there is to show
        sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    keep_freed_memory()
    if not os.environ.get("TORCHCKN_DEBUG"):
        warnings.formatwarning = _warning
    try:
        with_plain_types(typer.main.get_command(app))()
    except Interrupted as stop:
        _complain(str(stop))
        sys.exit(130)
    except CKNError as error:
        _complain(str(error))
        sys.exit(2 if isinstance(error, ConfigError) else 1)
    except OSError as error:
        _complain(f"{error.strerror}: {error.filename}" if error.filename else str(error))
        sys.exit(1)
    except Exception as error:
        if os.environ.get("TORCHCKN_DEBUG"):
            raise
        if is_out_of_memory(error):
            what = str(error).splitlines()[0] if str(error) else "out of memory"
            _complain(f"there is not enough memory ({what}); use fewer filters, smaller batches or fewer images")
            sys.exit(1)
        what = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
        _complain(f"unexpected {what}. This is a bug: please report it, with the traceback that TORCHCKN_DEBUG=1 shows")
        sys.exit(1)


def _warning(message: Warning | str, *_place: object, **_line: object) -> str:
    """A warning as one line, without the place in the source; it may have names from elsewhere in it."""
    return f"warning: {printable(_shortened(str(message)))}\n"


def _is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"


#: characters of a message that are shown at its beginning and its end: what was given may have any length
_BEGINNING, _END = 1500, 500


def _shortened(message: str) -> str:
    return message if len(message) <= _BEGINNING + _END else f"{message[:_BEGINNING]} ... {message[-_END:]}"


def _complain(message: str) -> None:
    Console(file=sys.stderr if _is_first() else sys.__stderr__).print(
        f"[red]error:[/red] {escape(printable(_shortened(message)))}", soft_wrap=True, highlight=False
    )


def _version(is_given: bool) -> None:
    if is_given:
        from .. import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass
