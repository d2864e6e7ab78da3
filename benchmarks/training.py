"""One training step: ultimate layer reversal compared with a plain transcription of the paper and with SGD on the ConvNet."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from rich.table import Table
from torch import nn

from torchckn.choices import HeadUpdate
from torchckn.fit.chunks import batch_features, batch_gradient
from torchckn.fit.defaults import GRAPH_MEMORY
from torchckn.fit.methods import ULR, MethodOptions

from .measure import median_times, peak_memory
from .networks import SHAPES, convnet, kernel_network, reference_network
from .reference import ulr_step

CASES = [
    ("LeNet-5", 8, 256),
    ("LeNet-5", 32, 256),
    ("LeNet-5", 128, 128),
    ("LeNet-1", 16, 256),
    ("All-CNN-C", 8, 128),
    ("All-CNN-C", 32, 64),
]
LAM, TAU, LR = 2.0**-16, 2.0**-5, 2.0**-6


def batch_for(name: str, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(batch, *SHAPES[name][0]), torch.arange(batch) % 10


def ulr(
    name: str,
    filters: int,
    batch: int,
    head_update: HeadUpdate = "reuse",
    hessian: str = "auto",
    graph_memory: float = GRAPH_MEMORY,
) -> Callable[[], object]:
    options = MethodOptions(lam=LAM, tau=TAU, head_update=head_update, hessian=hessian, graph_memory=graph_memory)  # type: ignore[arg-type]
    method = ULR(kernel_network(name, filters), options)
    return functools.partial(method.step, *batch_for(name, batch), LR)


def reference(name: str, filters: int, batch: int) -> Callable[[], object]:
    return functools.partial(ulr_step, reference_network(name, filters), *batch_for(name, batch), LAM, TAU, LR)


def sgd(name: str, filters: int, batch: int, layout: torch.memory_format = torch.contiguous_format) -> Callable[[], object]:
    """A step of the ConvNet, in torch's default memory layout or with the channels last."""
    images, labels = batch_for(name, batch)
    network, images = convnet(name, filters, layout), images.contiguous(memory_format=layout)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(network(images), labels).backward()
        optimizer.step()

    return step


def forward_and_backward(network: nn.Module, images: torch.Tensor) -> None:
    network.zero_grad()
    network(images).square().mean().backward()


RUNS = 5


def step_table(
    runs: int = RUNS, cases: Sequence[tuple[str, int, int]] = CASES, clock: Callable[[], float] = time.perf_counter
) -> Table:
    """Ratios of several runs, each of which has networks of its own: the median, and the lowest and the highest."""
    title = f"One training step (milliseconds of the last run; ratios: median of {runs} runs, lowest to highest)"
    table = Table(title=title)
    ratios = ("exact / ConvNet", "reused / ConvNet", "reference / exact")
    head = ("network", "filters", "batch size", "ULR, exact classifier", "reused", "ConvNet", "channels last", "reference")
    for column in (*head, *ratios):
        table.add_column(column, justify="right")
    for case in cases:
        found: dict[str, list[float]] = {name: [] for name in ratios}
        for _ in range(runs):
            times = median_times(
                {
                    "exact": ulr(*case, "exact"),
                    "reused": ulr(*case, "reuse"),
                    "ConvNet": sgd(*case),
                    "channels last": sgd(*case, torch.channels_last),
                    "reference": reference(*case),
                },
                rounds=5,
                clock=clock,
            )
            faster = min(times["ConvNet"], times["channels last"])
            values = (times["exact"] / faster, times["reused"] / faster, times["reference"] / times["exact"])
            for name, value in zip(ratios, values, strict=True):
                found[name].append(value)
        cells = [*(str(part) for part in case), *(f"{1e3 * value:.0f}" for value in times.values())]
        table.add_row(*cells, *(spread(found[name]) for name in ratios))
    return table


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def parts_table() -> Table:
    """Parts of the time of a step."""
    table = Table(title="Parts of the time of a ULR step with the exact head")
    for column in (
        "network",
        "filters",
        "batch size",
        "forward + backward",
        "forward pass of the exact head",
        "solve and others",
    ):
        table.add_column(column, justify="right")
    for name, filters, batch in CASES:
        images, _ = batch_for(name, batch)
        network = kernel_network(name, filters)
        calls: dict[str, Callable[[], object]] = {
            "step": ulr(name, filters, batch, "exact"),
            "gradient": functools.partial(batch_gradient, network, images, lambda x: (x.square().mean(), None)),
            "forward": functools.partial(batch_features, network, images),
        }
        times = median_times(calls, rounds=7)
        shares = [times["gradient"], times["forward"], times["step"] - times["gradient"] - times["forward"]]
        table.add_row(name, str(filters), str(batch), *(f"{100 * share / times['step']:.0f} %" for share in shares))
    return table


def large_table() -> Table:
    """Large batches and many features: time per image, and peak memory."""
    table = Table(title="ULR steps with large batches and with many features")
    for column in ("case", "milliseconds", "milliseconds per image", "ratio", "peak memory (MB)"):
        table.add_column(column, justify="right")
    steps = {str(batch): ulr("LeNet-5", 32, batch, "exact") for batch in (256, 8192)}
    small, large = median_times(steps, rounds=5).values()
    for batch, seconds in ((256, small), (8192, large)):
        peak = peak_memory(functools.partial(ulr, "LeNet-5", 32, batch, "exact"))
        per_image, ratio = 1e3 * seconds / batch, (seconds / batch) / (small / 256)
        case = f"LeNet-5, 32 filters, batch size {batch}"
        table.add_row(case, f"{1e3 * seconds:.0f}", f"{per_image:.2f}", f"{ratio:.2f}", f"{peak:.0f}")
    images, _ = batch_for("LeNet-1", 512)
    calls: dict[str, Callable[[], object]] = {
        "step": ulr("LeNet-1", 128, 512, "exact", "cg"),
        "gradient": functools.partial(forward_and_backward, kernel_network("LeNet-1", 128), images),
    }
    times = median_times(calls, rounds=3)
    peak = peak_memory(functools.partial(ulr, "LeNet-1", 128, 512, "exact", "cg"))
    cells = f"{1e3 * times['step']:.0f}", "", f"{times['step'] / times['gradient']:.2f}", f"{peak:.0f}"
    table.add_row("LeNet-1, 128 filters, batch size 512: CG, exact head", *cells)
    table.add_row("  its forward + backward, without chunks", f"{1e3 * times['gradient']:.0f}", "", "1.00", "")
    return table
