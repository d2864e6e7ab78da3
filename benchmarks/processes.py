"""Two processes with one thread each, compared with one process with two threads, on the same two cores.

python -m benchmarks.processes
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

from torchckn import runs

from .training import spread

#: filters per layer and batch size of LeNet-5
CASES = ((32, 1024), (16, 256))
STEPS = 20
#: steps that are not counted: memory is allocated and code is loaded in them
FIRST = 5


def seconds_per_step(run: Path, processes: int, filters: int, batch: int) -> float:
    """The median over the steps of a training by the command, with as many threads as there are cores for each process."""
    options: dict[str, object] = {
        "filters": filters,
        "batch-size": batch,
        "chunk": 128,
        "steps": STEPS,
        "patches": 500,
        "lr": 0.01,
        "folds": 0,
    }
    options |= {"lambdas": "0.01,0.001", "processes": processes, "run": run}
    line = [sys.executable, "-m", "torchckn", "train", "lenet5", "--data", "mnist-mini"]
    line += [f"--{name}={value}" for name, value in options.items()]
    threads = {name: str(2 // processes) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    subprocess.run(line, env=os.environ | threads, check=True, capture_output=True, text=True)
    times = [record["seconds"] for record in runs.read_metrics(run)]
    return statistics.median(later - earlier for earlier, later in pairwise(times[FIRST:]))


def measure(filters: int, batch: int, rounds: int = 3) -> tuple[list[float], list[float]]:
    """Seconds per step of one process, and of two, measured in turns."""
    with tempfile.TemporaryDirectory() as folder:
        pairs = [
            [seconds_per_step(Path(folder) / f"{i}-{processes}", processes, filters, batch) for processes in (1, 2)]
            for i in range(rounds)
        ]
    return [one for one, _ in pairs], [two for _, two in pairs]


def main() -> None:
    for filters, batch in CASES:
        one, two = measure(filters, batch)
        ratios = [b / a for a, b in zip(one, two, strict=True)]
        print(
            f"LeNet-5, {filters}, {batch:,}: {spread(ratios)} times the {1000 * statistics.median(one):.0f} ms of one process"
        )


if __name__ == "__main__":
    main()
