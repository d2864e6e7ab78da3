"""Where the time of a training step goes: the processor's time on one thread. The rest is Python, small operations and autograd.

python -m benchmarks.profiles
"""

from __future__ import annotations

import cProfile
import pstats
import re
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

from torchckn.memory import keep_freed_memory

from .training import CASES, ulr

#: parts of a step, and what the functions are called that take the time
PARTS = {
    "convolutions": ("conv2d",),
    "gradients of convolutions": ("convolution_backward",),
    "compiled layers": ("call", "differ"),
    "linear algebra": ("linalg_", "cholesky", "matmul", "mm", "addmm", "einsum", "bmm", "linear"),
}
STEPS = 5


def shares(step: Callable[[], object]) -> dict[str, float]:
    """The share of each part in the time of a step; the rest is what they leave of a step without a profile."""
    step()
    profile = cProfile.Profile(timer=time.process_time)
    start = time.process_time()
    for _ in range(STEPS):
        step()
    total = time.process_time() - start
    with profile:
        for _ in range(STEPS):
            step()
    times = dict.fromkeys(PARTS, 0.0)
    for (file, _, function), (_, _, own, *_) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        part = _part(file, function)
        if part is not None:
            times[part] += own
    return {part: seconds / total for part, seconds in times.items()} | {"the rest": 1 - sum(times.values()) / total}


def _part(file: str, function: str) -> str | None:
    is_compiled = file == "~" or file.endswith("native/__init__.py")  # a function of C, or the call of our own
    method = re.match(r"<?\{?(?:built-in )?method '?([\w.]+)", function)
    name = (method.group(1) if method else function).rpartition(".")[2]
    return next((part for part, names in PARTS.items() if is_compiled and name.startswith(names)), None)


def profile_table() -> Table:
    table = Table(title="Parts of the time of a ULR step with the exact classifier, on one thread")
    for column in ("network", "filters", "batch size", *PARTS, "the rest"):
        table.add_column(column, justify="right")
    for case in CASES:
        parts = shares(ulr(*case, "exact"))
        table.add_row(*(str(value) for value in case), *(f"{100 * share:.0f} %" for share in parts.values()))
    return table


if __name__ == "__main__":
    keep_freed_memory()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    Console(width=150).print(profile_table())
