"""A training step in float32 and in bfloat16: ``python -m benchmarks.precision``."""

from __future__ import annotations

from functools import partial

import torch
from rich.console import Console
from rich.table import Table

from torchckn.fit.methods import ULR, MethodOptions

from .measure import median_times
from .networks import SHAPES, kernel_network

#: network, filters per layer, batch size
STEPS = (("LeNet-5", 16, 256), ("All-CNN-C", 8, 128))
PRECISIONS = ("float32", "bfloat16")


def table(rounds: int = 3) -> Table:
    result = Table(title="A step of ultimate layer reversal with the exact classifier (milliseconds)")
    for column in ("network, filters, batch size", *PRECISIONS, "ratio"):
        result.add_column(column, justify="right")
    for name, filters, batch_size in STEPS:
        images, labels = torch.randn(batch_size, *SHAPES[name][0]), torch.arange(batch_size) % 10
        methods = {p: ULR(kernel_network(name, filters), MethodOptions(lam=2**-16, precision=p)) for p in PRECISIONS}  # type: ignore[arg-type]
        times = median_times(
            {p: partial(method.step, images, labels, 2**-6) for p, method in methods.items()}, rounds=rounds
        )
        milliseconds = [f"{1e3 * times[p]:.0f}" for p in PRECISIONS]
        result.add_row(f"{name}, {filters}, {batch_size}", *milliseconds, f"{times['bfloat16'] / times['float32']:.1f}")
    return result


if __name__ == "__main__":
    Console().print(table())
