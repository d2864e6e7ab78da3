"""Time and memory, measured so that noise on the machine affects all candidates equally.

Everything is measured on torch's default device, which ``python -m benchmarks --device cuda`` sets.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import nn


def placed(module: nn.Module) -> nn.Module:
    """The module on the device that is measured."""
    return module.to(torch.get_default_device())


def synchronize() -> None:
    """Wait for the device: on a GPU, what has been called is not yet computed."""
    if torch.get_default_device().type == "cuda":
        torch.cuda.synchronize()


def median_times(
    candidates: Mapping[str, Callable[[], object]], rounds: int = 9, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Median seconds per call. Candidates are called in turn, so that a slow phase of the machine affects all of them.

    ``clock=time.process_time`` counts the time of the processor, which other work on the machine changes little.
    """
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for call in candidates.values():
        call()
    synchronize()
    for _ in range(rounds):
        for name, call in candidates.items():
            start = clock()
            call()
            synchronize()
            times[name].append(clock() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def _peak(prepare: Callable[[], Callable[[], object]], device: str, connection: Connection) -> None:
    torch.set_default_device(device)
    call = prepare()
    before = high_water()
    call()
    connection.send((high_water() - before) / 1024)


def high_water() -> float:
    """Peak memory of this process in kilobytes: on a GPU its own. (``getrusage`` would include that of the parent process.)"""
    if torch.get_default_device().type == "cuda":
        return torch.cuda.max_memory_allocated() / 1024
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")))


def peak_memory(prepare: Callable[[], Callable[[], object]]) -> float:
    """Peak memory of a call in megabytes, beyond the memory before it, measured in a separate process. (On a CPU: Linux.)"""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_peak, args=(prepare, str(torch.get_default_device()), sender))
    process.start()
    sender.close()
    try:
        return float(receiver.recv())
    finally:
        process.join()
