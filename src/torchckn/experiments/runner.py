"""Run the cells of experiments, each in a process of its own; skip what is done, take up what was interrupted.

Read next: :mod:`torchckn.experiments.results`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console

from ..errors import CKNError, ConfigError
from .cell import result_file
from .results import seconds_of
from .spec import Cell


@dataclass
class Outcome:
    """What a call of :func:`run_cells` did."""

    done: list[Cell] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """the last line that a failed cell printed, by name"""


def run_cells(
    cells: Sequence[Cell],
    folder: Path,
    jobs: int = 1,
    data_dir: Path | None = None,
    quiet: bool = False,
) -> Outcome:
    """Run what is not done yet, ``jobs`` cells at a time, the cores shared among them.

    One process with all cores leaves some of them waiting much of the time, for these networks are small: on two cores, two jobs
    of one thread each get through more.
    """
    if jobs < 1:
        raise ConfigError(f"jobs expects a whole number of at least 1, came {jobs}")
    left = [cell for cell in cells if not result_file(folder, cell).exists()]
    console = Console(quiet=quiet)
    console.print(f"{len(cells)} cells, {len(cells) - len(left)} of them done before")
    threads = max(1, (os.cpu_count() or 1) // jobs)
    outcome, running, began = Outcome(), _Running(folder, threads, data_dir), time.monotonic()
    try:
        while left or running.processes:
            while left and len(running.processes) < jobs:
                running.start(left.pop(0))
            for cell, seconds, message in running.finished():
                if message is None:
                    outcome.done.append(cell)
                else:
                    outcome.failed[cell.name] = message
                remaining = [*left, *running.processes.values()]
                state = f"{seconds:.0f} s" if message is None else f"[red]failed:[/red] {message}"
                console.print(
                    f"{cell.name}: {state}; {_what_is_left(remaining, folder, jobs)}", soft_wrap=True, highlight=False
                )
            time.sleep(0.2)
    except KeyboardInterrupt:
        running.stop()
        raise CKNError(f"interrupted after {time.monotonic() - began:.0f} s; the same command goes on from here") from None
    return outcome


class _Running:
    """The processes that are running, each with one cell."""

    def __init__(self, folder: Path, threads: int, data_dir: Path | None) -> None:
        self.folder, self.threads = folder, threads
        self.processes: dict[subprocess.Popen[bytes], Cell] = {}
        self._since: dict[subprocess.Popen[bytes], float] = {}
        self._environment = os.environ | {
            "OMP_NUM_THREADS": str(threads),
            **({"TORCHCKN_DATA": str(data_dir)} if data_dir else {}),
        }

    def start(self, cell: Cell) -> None:
        log = self._log(cell)
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "torchckn.experiments.cell", str(self.folder), str(self.threads)]
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*command, json.dumps(asdict(cell))],
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env=self._environment,
            )
        self.processes[process], self._since[process] = cell, time.monotonic()

    def finished(self) -> list[tuple[Cell, float, str | None]]:
        """Cells that ended since, their seconds, and why if they failed."""
        ended = [process for process in self.processes if process.poll() is not None]
        found = []
        for process in ended:
            cell, seconds = self.processes.pop(process), time.monotonic() - self._since.pop(process)
            log = self._log(cell)
            last = log.read_text(errors="replace").strip().splitlines()[-1:] if log.exists() else []
            failed = process.returncode != 0
            found.append((cell, seconds, (last or [f"status {process.returncode}"])[0] if failed else None))
        return found

    def stop(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait()

    def _log(self, cell: Cell) -> Path:
        return self.folder / "work" / "logs" / cell.scale / f"{cell.name}.log"


def _what_is_left(cells: Sequence[Cell], folder: Path, jobs: int) -> str:
    if not cells:
        return "that was the last"
    known = seconds_of(folder, cells[0].scale)
    if not known:
        return f"{len(cells)} left"
    average = sum(known.values()) / len(known)
    likely = {}
    for cell in cells:
        alike = [value for name, value in known.items() if name.rpartition("-seed")[0] == cell.name.rpartition("-seed")[0]]
        own = [value for name, value in known.items() if name.startswith(f"{cell.experiment}/")]
        likely[cell.name] = sum(alike or own or [average]) / len(alike or own or [average])
    return f"{len(cells)} left, about {sum(likely.values()) / jobs / 60:.0f} min"
