"""Progress bars, shown only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

#: updates a progress bar and its text: ``report(done, "loss 0.12")``
Report = Callable[[int, str], None]

_active: ContextVar[Progress | None] = ContextVar("progress", default=None)


@contextmanager
def progress(description: str, total: int | None = None, show: bool | None = None) -> Iterator[Report]:
    """A progress bar on the terminal; yields the function that updates it: ``report(done, "loss 0.12")``.

    Args:
        total: number of units of work; ``None`` if it is not known.
        show: whether to show it; by default, if standard error is a terminal. A nested bar is shown below the outer one.
    """
    if not (sys.stderr.isatty() if show is None else show):
        yield _no_report
        return
    outer = _active.get()
    display = outer or _new_display()
    token = _active.set(display)
    try:
        if outer is None:
            display.start()
        task = display.add_task(description, total=total, text="")

        def report(done: int, text: str) -> None:
            display.update(task, completed=done, text=text)

        yield report
        if outer is not None:
            display.remove_task(task)
    finally:
        _active.reset(token)
        if outer is None:
            display.stop()


def _no_report(done: int, text: str) -> None:
    pass


def _new_display() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=16),
        TaskProgressColumn(),
        TextColumn("{task.fields[text]}"),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=Console(stderr=True),
        transient=True,
    )
