"""The tables of training steps and of inference by the time of the processor on one thread, which repeats on a busy machine, too.

python -m benchmarks.cpu
"""

from __future__ import annotations

import argparse
import time

import torch
from rich.console import Console

from torchckn.memory import keep_freed_memory

from .tables import inference_table
from .training import step_table


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cpu", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--runs", type=int, default=5, help="runs of the table of steps")
    arguments = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    console = Console(width=150)
    console.print(inference_table(clock=time.process_time))
    console.print(step_table(arguments.runs, clock=time.process_time))


if __name__ == "__main__":
    main()
