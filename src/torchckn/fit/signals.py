"""Ctrl-C and its like during training: the first one asks to stop after the step, the second one stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C, SIGTERM or SIGHUP only asks to stop; the second one stops."""
    stop_requested = False

    def request_stop(number: int, frame: Any) -> None:
        nonlocal stop_requested
        if stop_requested:
            raise KeyboardInterrupt
        stop_requested = True

    with on_signals(request_stop):
        yield lambda: stop_requested


@contextmanager
def on_signals(handler: Callable[[int, Any], Any]) -> Iterator[None]:
    """Within this context, Ctrl-C, SIGTERM and SIGHUP call ``handler``, unless they are ignored, as nohup has it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    handled = [number for number in numbers if before[number] not in (signal.SIG_IGN, None)]
    try:
        for number in handled:
            signal.signal(number, handler)
        yield
    finally:
        for number in handled:
            signal.signal(number, before[number])
