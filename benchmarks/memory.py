"""Peak memory of a training step, compared with that of the ConvNet at the same batch size.

python -m benchmarks.memory
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from rich.console import Console
from rich.table import Table

from .measure import peak_memory
from .training import CASES, sgd, ulr

#: the batch sizes of the row that shows how memory grows
BATCHES = (256, 1024, 4096, 16_384)
GROWING = [("LeNet-5", 32, batch) for batch in BATCHES]


def exact(name: str, filters: int, batch: int) -> Callable[[], object]:
    return warm(functools.partial(ulr, name, filters, head_update="exact"), batch)


def least(name: str, filters: int, batch: int) -> Callable[[], object]:
    return warm(functools.partial(ulr, name, filters, head_update="exact", graph_memory=0), batch)


def default_layout(name: str, filters: int, batch: int) -> Callable[[], object]:
    return warm(functools.partial(sgd, name, filters), batch)


def channels_last(name: str, filters: int, batch: int) -> Callable[[], object]:
    return warm(functools.partial(sgd, name, filters, layout=torch.channels_last), batch)


def warm(build: Callable[..., Callable[[], object]], batch: int) -> Callable[[], object]:
    """A step on a batch, after one on two images, so that what is allocated once is not counted."""
    build(batch=2)()
    return build(batch=batch)


def memory_of_steps(cases: Sequence[tuple[str, int, int]] = (*CASES, *GROWING)) -> Table:
    table = Table(title="Peak memory of a training step, without that of the process before it (MB)")
    networks = ("ULR, exact classifier", "graph_memory=0", "ConvNet", "channels last", "ULR / ConvNet")
    for column in ("network", "filters", "batch size", *networks):
        table.add_column(column, justify="right")
    for case in dict.fromkeys(cases):
        peaks = [peak_memory(functools.partial(step, *case)) for step in (exact, least, default_layout, channels_last)]
        ratio = f"{peaks[0] / min(peaks[2:]):.2f}"
        table.add_row(*(str(part) for part in case), *(f"{peak:.0f}" for peak in peaks), ratio)
    return table


if __name__ == "__main__":
    Console(width=150).print(memory_of_steps())
