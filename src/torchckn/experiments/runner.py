"""Run the cells of experiments, each in a process of its own; skip what is done, resume what was interrupted.

Read next: :mod:`torchckn.experiments.results`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console

from ..errors import ConfigError, Interrupted
from .results import Results, is_finished, read_results
from .shared import shared_files
from .spec import Cell


@dataclass
class Outcome:
    """What :func:`run_cells` did."""

    done: list[Cell] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """why, by name"""


def run_cells(
    cells: Sequence[Cell],
    folder: Path,
    jobs: int = 1,
    data_dir: Path | None = None,
    quiet: bool = False,
    threads: int | None = None,
) -> Outcome:
    """Run what is not done yet, ``jobs`` cells at a time, the cores shared among them unless ``threads`` says how many each has.

    One process with all cores leaves some of them waiting much of the time, for these networks are small: on two cores, two jobs
    of one thread each get through more.
    """
    if jobs < 1:
        raise ConfigError(f"jobs expected an integer >= 1, got {jobs}")
    console = Console(quiet=quiet, markup=False, highlight=False, soft_wrap=True)
    left = [cell for cell in cells if not is_finished(folder, cell)]
    console.print(f"{len(cells)} cells, {len(cells) - len(left)} of them done before; {what_is_left(left, folder, jobs)}")
    threads = threads or max(1, (os.cpu_count() or 1) // jobs)
    outcome, running, began = Outcome(), _Running(folder, threads, data_dir), time.monotonic()
    try:
        while left or running.processes:
            while left and len(running.processes) < jobs:
                running.start(left.pop(running.next_of(left)))
            for cell, seconds, trouble in running.finished():
                if trouble is None:
                    outcome.done.append(cell)
                else:
                    outcome.failed[cell.name] = trouble
                state = f"{seconds:.0f} s" if trouble is None else f"failed: {trouble}"
                console.print(f"{cell.name}: {state}; {what_is_left([*left, *running.cells], folder, jobs)}")
            time.sleep(0.2)
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted after {time.monotonic() - began:.0f} s; rerun the command to continue") from None
    finally:
        running.stop()
    return outcome


@dataclass
class _Process:
    cell: Cell
    popen: subprocess.Popen[bytes]
    since: float
    log: Path
    log_size: int
    """before it began"""


class _Running:
    """The processes that are running, each with one cell."""

    def __init__(self, folder: Path, threads: int, data_dir: Path | None) -> None:
        self.folder, self.threads = folder, threads
        self.processes: list[_Process] = []
        given = {"TORCHCKN_DATA": str(data_dir)} if data_dir else {}
        self._environment = os.environ | given | {"OMP_NUM_THREADS": str(threads)}

    @property
    def cells(self) -> list[Cell]:
        return [process.cell for process in self.processes]

    def next_of(self, left: Sequence[Cell]) -> int:
        """The first one that does not have to wait for another one to compute what they share."""
        busy = {file for cell in self.cells for file in shared_files(self.folder, cell) if not file.exists()}
        return next((i for i, cell in enumerate(left) if busy.isdisjoint(shared_files(self.folder, cell))), 0)

    def start(self, cell: Cell) -> None:
        log = self.folder / "work" / "logs" / cell.scale / f"{cell.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "torchckn.experiments.cell", str(self.folder), str(self.threads), str(os.getpid())]
        with log.open("ab") as output:
            size = output.tell()
            popen = subprocess.Popen(
                [*command, json.dumps(asdict(cell))],
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env=self._environment,
                start_new_session=True,  # Ctrl-C is for the runner, which then asks its processes to save and stop
            )
        self.processes.append(_Process(cell, popen, time.monotonic(), log, size))

    def finished(self) -> list[tuple[Cell, float, str | None]]:
        """Cells that ended since, their seconds, and why if they failed."""
        ended = [process for process in self.processes if process.popen.poll() is not None]
        self.processes = [process for process in self.processes if process not in ended]
        return [(process.cell, time.monotonic() - process.since, _trouble(process)) for process in ended]

    def stop(self) -> None:
        """End all of them; each saves what it has."""
        for process in self.processes:
            process.popen.terminate()  # not as by Ctrl-C, which they ignore if the runner was started in the background
        for process in self.processes:
            try:
                process.popen.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.popen.kill()
                process.popen.wait()
        self.processes = []


def _trouble(process: _Process) -> str | None:
    code = process.popen.returncode
    if code == 0:
        return None
    if code < 0:
        return f"killed by {signal.Signals(-code).name} (out of memory?); its log is {process.log}"
    lines = process.log.read_bytes()[process.log_size :].decode(errors="replace").strip().splitlines()
    return f"{lines[-1] if lines else f'status {code}'}; its log is {process.log}"


def what_is_left(cells: Sequence[Cell], folder: Path, jobs: int) -> str:
    """How many cells, and how long they will take, judging by those that are done."""
    if not cells:
        return "nothing is left"
    results = read_results(folder, cells[0].scale)
    if not results.all:
        return f"{len(cells)} left"
    minutes = sum(_likely_seconds(cell, results) for cell in cells) / jobs / 60
    return (
        f"{len(cells)} left, about {minutes:.0f} min" if minutes < 90 else f"{len(cells)} left, about {minutes / 60:.1f} h"
    )


def _likely_seconds(cell: Cell, results: Results) -> float:
    """Of the same cell with other seeds, or of its experiment, or of all."""
    alike = results.of(cell.experiment, **cell.variables) or results.of(cell.experiment) or list(results.all)
    return sum(result.seconds for result in alike) / len(alike)
