"""Memory that a program has freed, kept for its next step, and how much there is.

A training step frees tens of megabytes and asks for as many again. glibc gives such pieces back to the system at once, and gets
them back page by page, which takes up to a fifth of the time of a step. How memory is kept is a decision of a whole process, so
no function of this library makes it; the command ``torchckn`` and the benchmarks do. In your own program, call
:func:`keep_freed_memory` first, or set the environment variables ``MALLOC_TRIM_THRESHOLD_`` and ``MALLOC_MMAP_THRESHOLD_``.
"""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_... of malloc.h
#: bytes of the largest piece that is kept (the second number: the most that older versions of glibc allow), and of all of them
_LARGEST, _KEPT = (2**30, 2**25), 2**30


def keep_freed_memory() -> bool:
    """Ask the allocator of this process to keep up to 1 GB of freed memory; whether it can (glibc on Linux)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return False
    return any(mallopt(_MMAP_THRESHOLD, size) for size in _LARGEST) and bool(mallopt(_TRIM_THRESHOLD, _KEPT))


def most_memory() -> int:
    """Bytes that this process can have at most: those of the machine, or fewer where it is limited."""
    import resource  # which Windows does not have

    limits = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(machine, *(machine if limit == resource.RLIM_INFINITY else limit for limit in limits))


def require_memory(size: int) -> None:
    """A MemoryError if the system does not give this process ``size`` bytes more; some libraries would ask for them forever."""
    import mmap

    if not hasattr(mmap, "MAP_ANONYMOUS"):  # Windows
        return
    try:
        mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError as error:
        raise MemoryError(f"cannot get {size} bytes") from error
