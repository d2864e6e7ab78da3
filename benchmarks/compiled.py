"""The kernel layer in plain torch, by ``torch.compile``, and as compiled C++: ``python -m benchmarks.compiled``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from torchckn.nn import KernelConv2d, native
from torchckn.nn.shared_roots import sharing

from .measure import median_times

FILTERS = (8, 32, 128)


def layer(filters: int) -> KernelConv2d:
    """A layer as in LeNet-5: 5x5 patches of as many channels as filters, and pooling."""
    return KernelConv2d(filters, filters, 5, pool=nn.AvgPool2d(2), generator=torch.Generator().manual_seed(0))


def run(layer: Callable[[Tensor], Tensor], images: Tensor, setting: str) -> None:
    """Forward and backward, the root left out: it is the same for all of them."""
    images.grad = None
    with native.use(setting):  # type: ignore[arg-type]
        layer(images).sum().backward()


def table(widths: Sequence[int] = FILTERS) -> Table:
    result = Table(title="A kernel layer, forward and backward, 128 images of 14x14 pixels (milliseconds)")
    for column in ("filters", "plain torch", "torch.compile", "C++", "torch.compile / C++"):
        result.add_column(column, justify="right")
    for filters in widths:
        images = torch.randn(128, filters, 14, 14).to(memory_format=torch.channels_last).requires_grad_()
        plain = layer(filters)
        with sharing({plain: plain.projection()}):
            calls = {
                "plain torch": partial(run, plain, images, "off"),
                "torch.compile": partial(run, torch.compile(plain, fullgraph=True), images, "off"),
                "C++": partial(run, plain, images, "require"),
            }
            times = median_times(calls, rounds=15)
        ratio = times["torch.compile"] / times["C++"]
        result.add_row(str(filters), *(f"{1e3 * value:.1f}" for value in times.values()), f"{ratio:.2f}")
    return result


if __name__ == "__main__":
    Console(width=120).print(table([int(width) for width in sys.argv[1:]] or FILTERS))
