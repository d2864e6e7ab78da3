"""Time and memory, measured so that noise on the machine falls on all candidates alike."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path


def median_times(candidates: Mapping[str, Callable[[], object]], rounds: int = 9) -> dict[str, float]:
    """Median seconds a call. Candidates take turns, so that a slow moment of the machine slows all of them."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for call in candidates.values():
        call()
    for _ in range(rounds):
        for name, call in candidates.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def _peak(prepare: Callable[[], Callable[[], object]], connection: Connection) -> None:
    call = prepare()
    before = high_water()
    call()
    connection.send((high_water() - before) / 1024)


def high_water() -> int:
    """The most memory this process ever had, in kilobytes. (``getrusage`` would count its parent's as well.)"""
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")))


def peak_memory(prepare: Callable[[], Callable[[], object]]) -> float:
    """Megabytes that a call takes at its peak beyond what was there before it, in a process of its own. (Linux)"""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_peak, args=(prepare, sender))
    process.start()
    sender.close()
    try:
        return float(receiver.recv())
    finally:
        process.join()
