"""What travels between processes in a training step, measured and by formula, and a model of a step's time on many GPUs.

    python -m benchmarks.scale                                      # the formula, and the model as a table
    python -m benchmarks.scale --draw docs/images/scale.svg         # the model as a figure
    torchrun --nproc-per-node 2 -m benchmarks.scale --measure       # bytes that were sent, against the formula
    torchrun --nproc-per-node 3 -m benchmarks.scale --difference    # weights, against those of one process

Read docs/scale.md for the assumptions of the model.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import torchckn
from torchckn import data, zoo
from torchckn.distributed import alone, share
from torchckn.fit.chunks import share_of_batch
from torchckn.fit.methods import METHODS, ULR, MethodOptions
from torchckn.kernels import RBFSphere

#: conjugate gradients of a solve, about
ITERATIONS = 30
#: sums over processes in a step with the exact classifier: the number of images; for each of two solves the scaling, and the
#: gradient with the Hessian; the gradient of the scaling; the gradients of filters with objective and accuracy
SUMS = 7

Hessian = Literal["full", "diag", "cg"]


def bytes_per_step(net: torchckn.CKN, hessian: Hessian = "full", exact: bool = True) -> int:
    """What a process adds up with the others in a step of ultimate layer reversal: sums in double precision.

    Two solves if the classifier is exact, one if it is reused. A ring all-reduce of n bytes sends 2 (R - 1) / R n from each of R
    processes.
    """
    size = net.head.out_features * (net.head.in_features + 1)
    # the Hessian, its diagonal, or the diagonal and its products; and the gradient
    solve = {"full": size**2, "diag": size, "cg": (1 + ITERATIONS) * size}[hessian] + size
    scaling = 2  # mean norm and number of images
    parameters = sum(p.numel() for group in net.parameter_groups() for p in group["params"])
    roots = sum(layer.filters**2 for layer in net.kernel_layers().values() if layer.weight.requires_grad)
    beside = 1 + 2 + 2  # number of images; the gradient of the mean norm; objective and accuracy
    return 8 * ((1 + exact) * (solve + scaling) + parameters + roots + beside)


@contextmanager
def counted_bytes() -> Iterator[list[int]]:
    """The bytes of every all-reduce within this context."""
    sent: list[int] = []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function.namespace == "_c10d_functional" and "all_reduce" in function.name():
                sent.append(args[0].numel() * args[0].element_size())
            return function(*args, **(kwargs or {}))

    with Count():
        yield sent


def kernel_network(name: str, filters: int, *, match: bool = False) -> torchckn.CKN:
    """With the kernels of the command by default, or with those that match the activations."""
    shape, options = ((3, 32, 32), {"in_channels": 27}) if name == "allcnn" else ((1, 28, 28), {"padding": 2})
    pixels = data.Preprocessing((0.5,) * shape[0], (0.25,) * shape[0], 3 if name == "allcnn" else None)
    net = zoo.build(name, filters=filters, **options)
    if match:
        return torchckn.translate(net, shape, preprocessing=pixels)
    rbf = RBFSphere(0.6)
    return torchckn.translate(net, shape, rbf, linear_kernel=rbf, preprocessing=pixels)


@dataclass(frozen=True)
class Machine:
    """GPUs and their network: what the model assumes. Rates are those that are reached, a fraction of the vendors'."""

    flops: float = 30e12
    """in single precision"""
    flops_double: float = 5e12
    """in double precision: the products of a solve, a Cholesky factorization or an eigendecomposition"""
    gpus_per_node: int = 8
    inside: float = 150e9
    """bytes per second between the GPUs of a node"""
    between: float = 20e9
    """bytes per second between nodes"""
    latency: float = 10e-6
    """seconds of a message"""


@dataclass(frozen=True)
class Step:
    """The time of a step: seconds."""

    compute: float
    exchange: float
    solve: float

    @property
    def seconds(self) -> float:
        return self.compute + self.exchange + self.solve


def model(net: torchckn.CKN, batch: int, gpus: int, hessian: Hessian, machine: Machine) -> Step:
    """A step of ultimate layer reversal on so many GPUs: each has its share of the batch, sums are all-reduced, all solve."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        net.features(torch.rand(1, *net.input_shape))
    size = net.head.out_features * (net.head.in_features + 1)
    solve_products = {"full": 2 * size**2, "diag": 2 * size, "cg": 4 * ITERATIONS * size}[hessian]
    # forward, backward (twice a forward pass), and the forward pass for the exact classifier
    per_image = 4 * counter.get_total_flops() / machine.flops + 2 * solve_products / machine.flops_double
    compute = per_image * math.ceil(batch / gpus)
    sent = bytes_per_step(net, hessian)
    rate = machine.inside if gpus <= machine.gpus_per_node else machine.between
    sums = SUMS + (2 * ITERATIONS if hessian == "cg" else 0)
    exchange = 0.0 if gpus == 1 else 2 * (gpus - 1) / gpus * sent / rate + sums * 2 * math.log2(gpus) * machine.latency
    roots = sum(10 * layer.filters**3 for layer in net.kernel_layers().values() if layer.init != "identity")
    solve = (2 * (size**3 / 3 if hessian == "full" else 0) + 2 * roots) / machine.flops_double
    return Step(compute, exchange, solve)


GPUS = [2**i for i in range(11)]
BATCH = 4096
FILTERS = 128


def table(net: torchckn.CKN, hessian: Hessian) -> None:
    print(f"All-CNN-C, {FILTERS} filters per layer, batch size {BATCH}, hessian={hessian}: milliseconds per step")
    print(f"{'GPUs':>6s} {'compute':>9s} {'exchange':>9s} {'solve':>9s} {'all':>9s} {'speedup':>8s}")
    one = model(net, BATCH, 1, hessian, Machine()).seconds
    for gpus in GPUS:
        step = model(net, BATCH, gpus, hessian, Machine())
        parts = " ".join(f"{1e3 * part:9.2f}" for part in (step.compute, step.exchange, step.solve, step.seconds))
        print(f"{gpus:6d} {parts} {one / step.seconds:8.1f}")


def draw(net: torchckn.CKN, file: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams |= {"svg.hashsalt": "torchckn", "font.size": 9}
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True, layout="constrained")
    for axis, hessian in zip(axes, ("full", "cg"), strict=True):
        steps = [model(net, BATCH, gpus, hessian, Machine()) for gpus in GPUS]  # type: ignore[arg-type]
        for name in ("compute", "exchange", "solve"):
            values = [1e3 * getattr(step, name) for step in steps]
            axis.plot(GPUS, [value or math.nan for value in values], label=name, linewidth=1)
        axis.plot(GPUS, [1e3 * step.seconds for step in steps], label="all", color="black", linewidth=2)
        axis.set(xscale="log", yscale="log", xlabel="GPUs", title=f'hessian="{hessian}"')
        axis.set_xticks(GPUS, [str(gpus) for gpus in GPUS], rotation=60)
        axis.tick_params(axis="x", which="minor", bottom=False)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("milliseconds per step")
    axes[1].legend()
    # without the names of other hosts, which the documentation has none of
    figure.savefig(file, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    print(f"{file}: All-CNN-C, {FILTERS} filters per layer, batch size {BATCH}")


def measure() -> None:
    dist.init_process_group("gloo")
    net = kernel_network("lenet5", 16)
    images, labels = data.load("mnist-mini").train
    method = ULR(net, MethodOptions(lam=2**-8, hessian="full"))
    mine = share(256)
    with counted_bytes() as sent:
        method.step(images[:256][mine], labels[:256][mine], 2**-6)
    expected = bytes_per_step(net)
    if dist.get_rank() == 0:
        print(
            f"LeNet-5, 16 filters, {dist.get_world_size()} processes: {sum(sent)} bytes in {len(sent)} sums, formula {expected}"
        )
    dist.destroy_process_group()


def weights(start: torchckn.CKN, method: str, batch_size: int) -> dict[str, Tensor]:
    """Filters and classifier after four steps, each process on its share of every batch."""
    net = copy.deepcopy(start)
    images, labels = data.load("mnist-mini").train
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    steps = METHODS[method](net, MethodOptions(momentum=0.5))
    for batch in order.split(batch_size)[:4]:
        mine = batch[share_of_batch(net, batch_size)]
        steps.step(images[mine], labels[mine], 2**-6)
    return net.state_dict()


def difference() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    train_data = data.load("mnist-mini").train
    for filters, match in ((8, False), (16, False), (32, False), (16, True)):
        start = kernel_network("lenet5", filters, match=match)
        torchckn.fit_filters(start, train_data.images, patches=2000, generator=torch.Generator().manual_seed(0))
        torchckn.fit_head(start, train_data, lam=2**-16)
        for method, batch_size in itertools.product(("ulr", "sgo"), (256, 100)):
            with alone():
                one = weights(start, method, batch_size)
            several = weights(start, method, batch_size)
            found = {"filters": 0.0, "classifier": 0.0}
            for name, tensor in one.items():
                if name.endswith(("weight", "bias")):
                    part = "classifier" if name.startswith("head.") else "filters"
                    distance = float((several[name] - tensor).abs().max() / tensor.abs().max())
                    found[part] = max(found[part], distance)
            if dist.get_rank() == 0:
                print(
                    f"LeNet-5, {filters} filters, {'matched' if match else 'RBF'} kernels, {method}, batch size "
                    f"{batch_size}, {dist.get_world_size()} processes: "
                    + ", ".join(f"{part} {distance:.0e}" for part, distance in found.items())
                )
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draw", type=Path, metavar="FILE")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--difference", action="store_true")
    arguments = parser.parse_args()
    if arguments.difference:
        difference()
        return
    if arguments.measure:
        measure()
        return
    net = kernel_network("allcnn", FILTERS)
    if arguments.draw:
        draw(net, arguments.draw)
        return
    hessians: tuple[Hessian, ...] = ("full", "cg")
    for hessian in hessians:
        table(net, hessian)


if __name__ == "__main__":
    main()
