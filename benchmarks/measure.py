"""Time and memory, measured so that noise on the machine affects all candidates equally."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path


def median_times(candidates: Mapping[str, Callable[[], object]], rounds: int = 9) -> dict[str, float]:
    """Median seconds per call. Candidates are called in turn, so that a slow phase of the machine affects all of them."""
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
    """Peak memory of this process in kilobytes. (``getrusage`` would include that of its parent.)"""
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")))


def peak_memory(prepare: Callable[[], Callable[[], object]]) -> float:
    """Peak memory of a call in megabytes, beyond the memory before it, measured in a separate process. (Linux)"""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_peak, args=(prepare, sender))
    process.start()
    sender.close()
    try:
        return float(receiver.recv())
    finally:
        process.join()
