"""Instructions of a training step on one thread, counted by callgrind: unlike times, they repeat whatever else the machine does.

python -m benchmarks.instructions    (needs valgrind and a C compiler; ten minutes with 8 filters, hours with 32 and more)
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from .training import CASES, sgd, ulr

Case = tuple[str, int, int]
#: calls that callgrind sees
MARKS = """
#include <valgrind/callgrind.h>
void begin(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void end(const char *name) { CALLGRIND_DUMP_STATS_AT(name); }
"""


def steps_of(case: Case) -> dict[str, Callable[[], object]]:
    return {
        "exact": ulr(*case, "exact"),
        "reused": ulr(*case, "reuse"),
        "ConvNet": sgd(*case),
        "channels last": sgd(*case, torch.channels_last),
    }


def cases_of(filters: int) -> list[Case]:
    return [case for case in CASES if case[1] <= filters]


def measure(filters: int, marks: str) -> None:
    """What runs within callgrind: the second step of each kind, the first one being slower."""
    library = ctypes.CDLL(marks)
    torch.set_num_threads(1)
    for number, case in enumerate(cases_of(filters)):
        torch.manual_seed(0)
        for name, step in steps_of(case).items():
            step()
            library.begin()
            step()
            library.end(f"{number} {name}".encode())
        print(f"{case} done", file=sys.stderr)


def counts(folder: Path) -> dict[str, int]:
    """Instructions of each kind of step, as :func:`measure` calls them."""
    found = {}
    for file in folder.glob("counts.*"):
        lines = file.read_text().splitlines()
        (trigger,) = (line for line in lines if line.startswith("desc: Trigger:"))
        (total,) = (line for line in lines if line.startswith("totals:"))
        found[trigger.rpartition("Client Request: ")[2]] = int(total.split()[1])
    return found


def instruction_table(filters: int) -> Table:
    table = Table(title="Instructions of a training step, in millions")
    names = ("exact", "reused", "ConvNet", "channels last")
    for column in ("network", "filters", "batch size", *names, "exact / ConvNet", "reused / ConvNet"):
        table.add_column(column, justify="right")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "marks.c").write_text(MARKS)
        marks = str(folder / "marks.so")
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", str(folder / "marks.c"), "-o", marks], check=True)
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder / 'counts'}"]
        subprocess.run(
            [*command, sys.executable, "-m", "benchmarks.instructions", str(filters), marks],
            check=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        found = counts(folder)
    for number, case in enumerate(cases_of(filters)):
        numbers = {name: found[f"{number} {name}"] for name in names}
        faster = min(numbers["ConvNet"], numbers["channels last"])
        ratios = (f"{numbers[name] / faster:.2f}" for name in ("exact", "reused"))
        table.add_row(*map(str, case), *(f"{value / 1e6:,.0f}" for value in numbers.values()), *ratios)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.instructions", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("filters", type=int, nargs="?", default=8, help="at most so many filters per layer")
    parser.add_argument("marks", nargs="?", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    missing = [name for name in ("valgrind", "cc") if not shutil.which(name)]
    if arguments.marks:
        measure(arguments.filters, arguments.marks)
    elif missing:
        parser.error(f"expected valgrind and a C compiler (cc); {missing[0]} is not installed")
    else:
        Console(width=150).print(instruction_table(arguments.filters))


if __name__ == "__main__":
    main()
