"""Tables of gradient accuracy, speed and memory."""

from __future__ import annotations

import argparse
import functools
import importlib.util
import time
from collections.abc import Callable, Sequence

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from torchckn.nn import native

from .accuracy import COUNTS, KINDS, METHODS, median_error
from .clusters import clusters_table
from .measure import median_times, peak_memory
from .networks import SHAPES, convnet, kernel_network, reference_network
from .training import CASES, forward_and_backward, large_table, parts_table, step_table

BUILD: dict[str, Callable[[str, int], nn.Module]] = {
    "torchckn": kernel_network,
    "reference": reference_network,
    "ConvNet": convnet,
}


@torch.inference_mode()
def infer(network: nn.Module, images: torch.Tensor) -> None:
    network(images)


def images_for(name: str, batch: int) -> torch.Tensor:
    return torch.randn(batch, *SHAPES[name][0])


def prepare_step(kind: str, name: str, filters: int, batch: int) -> Callable[[], None]:
    network, images = BUILD[kind](name, filters), images_for(name, batch)
    forward_and_backward(network, images[:2])  # a first call, so that one-time allocations are not counted
    return functools.partial(forward_and_backward, network, images)


def accuracy_table() -> Table:
    table = Table(title="Relative error of the float32 gradient through A(W)")
    for column in ("kind of filters", "filters", *METHODS, "svd / eigh"):
        table.add_column(column, justify="right")
    for kind in KINDS:
        for count in COUNTS:
            errors = {method: median_error(kind, count, method) for method in METHODS}
            ratio = errors["svd"] / errors["eigh"]
            table.add_row(kind, str(count), *(f"{errors[m]:.1e}" for m in METHODS), f"{ratio:.0f}")
    return table


def speed_table() -> Table:
    table = Table(title="Forward + backward (milliseconds; ratios are from the same run)")
    for column in ("network", "filters", "batch size", *BUILD, "reference / torchckn", "torchckn / ConvNet"):
        table.add_column(column, justify="right")
    for name, filters, batch in CASES:
        images = images_for(name, batch)
        networks = {kind: build(name, filters) for kind, build in BUILD.items()}
        times = median_times({kind: functools.partial(forward_and_backward, net, images) for kind, net in networks.items()})
        cells = (f"{1e3 * times[kind]:.0f}" for kind in BUILD)
        ratios = f"{times['reference'] / times['torchckn']:.1f}", f"{times['torchckn'] / times['ConvNet']:.2f}"
        table.add_row(name, str(filters), str(batch), *cells, *ratios)
    return table


def inference_table(clock: Callable[[], float] = time.perf_counter) -> Table:
    """Scores of images, without gradients, compared with the faster of the ConvNet's two memory layouts."""
    table = Table(title="Inference (milliseconds)")
    for column in ("network", "filters", "images", "torchckn", "ConvNet", "channels last", "torchckn / faster ConvNet"):
        table.add_column(column, justify="right")
    for name, filters, batch in [(name, filters, batch) for name, filters, _ in CASES for batch in (256, 1)]:
        images = images_for(name, batch)
        last = images.contiguous(memory_format=torch.channels_last)
        calls = {
            "torchckn": functools.partial(infer, kernel_network(name, filters).eval(), images),
            "ConvNet": functools.partial(infer, convnet(name, filters).eval(), images),
            "channels last": functools.partial(infer, convnet(name, filters, torch.channels_last).eval(), last),
        }
        times = median_times(calls, rounds=15, clock=clock)
        ratio = times["torchckn"] / min(times["ConvNet"], times["channels last"])
        table.add_row(name, str(filters), str(batch), *(f"{1e3 * value:.2f}" for value in times.values()), f"{ratio:.2f}")
    return table


def memory_table() -> Table:
    table = Table(title="Peak memory of forward + backward, without that of the process before it (MB)")
    for column in ("network", "filters", "batch size", *BUILD, "torchckn / reference"):
        table.add_column(column, justify="right")
    for name, filters, batch in CASES:
        peaks = {kind: peak_memory(functools.partial(prepare_step, kind, name, filters, batch)) for kind in BUILD}
        share = peaks["torchckn"] / peaks["reference"]
        table.add_row(name, str(filters), str(batch), *(f"{peaks[k]:.0f}" for k in BUILD), f"{100 * share:.0f} %")
    return table


def unusable(device: str) -> str | None:
    """Why nothing can be measured on this device; None if it can."""
    number = device.removeprefix("cuda").removeprefix(":")
    if device == "cpu" or (device.startswith("cuda") and (number or "0").isdecimal() and int(number or 0) < gpus()):
        return None
    return (
        f"--device expected cpu, or a CUDA GPU that torch {torch.__version__} can use (it finds {gpus()}), got {device!r}; "
        "measure on the CPU, or install a torch for this machine's GPU"
    )


def gpus() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Print all tables.")
    parser.add_argument("--device", default="cpu", help="where to measure: cpu (the default), cuda, cuda:1")
    device = parser.parse_args(arguments).device
    problem = unusable(device)
    if problem:
        parser.error(problem)
    console = Console(width=150)
    with torch.device("cpu"):
        torch.manual_seed(0)
        accuracy = accuracy_table()
    torch.set_default_device(device)
    name = native.status() if device == "cpu" else torch.cuda.get_device_name(device)
    console.print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; layers: {name}\n")
    console.print(accuracy, "")
    for table in (speed_table, inference_table, memory_table, step_table, parts_table, large_table):
        console.print(table(), "")
    torch.set_default_device("cpu")
    if importlib.util.find_spec("faiss") is None:
        console.print("the comparison of k-means with faiss is skipped; install faiss with: pip install 'torchckn[bench]'")
    else:
        console.print(clusters_table("mnist-mini"))
