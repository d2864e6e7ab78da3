"""``python -m tests.faults.killing N ARGUMENTS``: ``python -m torchckn ARGUMENTS``, which dies at its N-th write.

A write is a file that is opened for writing, an ``os.fsync`` or an ``os.replace``, in the run folder. The process kills itself
with kill -9: nothing is flushed, nothing is closed. With N = 0 it lives, and prints how many writes there were.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from typing import Any


def main(at: int, arguments: list[str]) -> None:
    made = 0

    def write() -> None:
        nonlocal made
        made += 1
        if made == at:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            write()
            return function(*args, **kwargs)

        return call

    def heard(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(args[0], (str, bytes)) and args[2] & (os.O_WRONLY | os.O_RDWR):
            name = os.fsdecode(args[0])
            if folder in os.path.abspath(name) and not name.endswith(".lock"):
                write()

    folder = os.path.abspath(arguments[arguments.index("--run" if "--run" in arguments else "--resume") + 1])
    os.replace, os.fsync = counted(os.replace), counted(os.fsync)
    sys.addaudithook(heard)
    sys.argv = ["torchckn", *arguments]
    try:
        runpy.run_module("torchckn", run_name="__main__")
    finally:
        print(made, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
