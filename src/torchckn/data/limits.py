"""What is checked before a file of unknown origin is read."""

from __future__ import annotations

import os
import resource
import stat
from pathlib import Path

from ..errors import DataError


def shown(path: str | Path) -> str:
    """A path as text that can be printed, whatever bytes its name has."""
    return str(path).encode("utf-8", "backslashreplace").decode()


def check_regular(file: Path) -> None:
    """An error for a pipe, a socket or a device, which may have no end, or never begin."""
    if not stat.S_ISREG(file.stat().st_mode):
        raise ValueError("it is not a regular file")


def check_memory(needed: int, what: str) -> None:
    """An error if this machine does not have so many bytes of memory, before they are asked for."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        memory = min(memory, limit)
    if needed > memory:
        raise DataError(f"{what} would need {needed / 1e9:.1f} GB of memory, this machine has {memory / 1e9:.1f} GB")
