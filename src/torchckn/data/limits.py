"""What is checked before a file of unknown origin is read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ..errors import DataError
from ..memory import most_memory


def shown(path: object) -> str:
    """A path as text that can be printed, whatever bytes its name has: those that move a terminal's cursor are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(path))


#: characters that the name of a class may have: as many as the name of a folder
_LONGEST_NAME = 255


def check_class(name: str, where: str) -> None:
    """An error for a class whose name cannot be shown; it would be part of tables, pages and files."""
    if not name.isprintable() or len(name) > _LONGEST_NAME:
        raise DataError(
            f"{where} expected printable folder names of at most {_LONGEST_NAME} characters, because they are the "
            f"class names, got {shown(name)[:100]!r}; rename the folder"
        )


def check_regular(file: str | Path) -> None:
    """An error for a pipe, a socket or a device, which may have no end, or never begin."""
    if not stat.S_ISREG(os.stat(file).st_mode):
        raise ValueError("it is not a regular file")


def check_memory(needed: int, what: str) -> None:
    """An error if this machine does not have so many bytes of memory, before they are asked for."""
    memory = most_memory()
    if needed > memory:
        raise DataError(f"{what} would need {needed / 1e9:.1f} GB of memory, this machine has {memory / 1e9:.1f} GB")
