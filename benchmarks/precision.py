"""A training step in float32 and in bfloat16: ``python -m benchmarks.precision``."""

from __future__ import annotations

import time
from functools import partial

import torch
from rich.console import Console
from rich.table import Table

from torchckn import presets
from torchckn.fit.methods import ULR, MethodOptions
from torchckn.network import CKN

from .measure import median_times
from .networks import SHAPES, kernel_network

#: network, filters per layer, batch size
STEPS = (("LeNet-5", 16, 256), ("All-CNN-C", 8, 128), ("ckn-cifar5", 128, 256))
PRECISIONS = ("float32", "bfloat16")


def _network(name: str, filters: int) -> CKN:
    if name in SHAPES:
        return kernel_network(name, filters)
    return presets.build(name, torch.rand(64, *_shape(name)), filters=filters)


def _shape(name: str) -> tuple[int, int, int]:
    return SHAPES[name][0] if name in SHAPES else (3, 32, 32)


def table(rounds: int = 3) -> Table:
    result = Table(title="A step of ultimate layer reversal with the exact classifier (CPU time in milliseconds)")
    for column in ("network, filters, batch size", *PRECISIONS, "ratio"):
        result.add_column(column, justify="right")
    for name, filters, batch_size in STEPS:
        images, labels = torch.rand(batch_size, *_shape(name)), torch.arange(batch_size) % 10
        methods = {p: ULR(_network(name, filters), MethodOptions(lam=2**-16, precision=p)) for p in PRECISIONS}  # type: ignore[arg-type]
        steps = {p: partial(method.step, images, labels, 2**-6) for p, method in methods.items()}
        times = median_times(steps, rounds=rounds, clock=time.process_time)
        milliseconds = [f"{1e3 * times[p]:.0f}" for p in PRECISIONS]
        result.add_row(f"{name}, {filters}, {batch_size}", *milliseconds, f"{times['bfloat16'] / times['float32']:.1f}")
    return result


if __name__ == "__main__":
    Console().print(table())
