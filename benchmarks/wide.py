"""``python -m benchmarks.wide``: wide layers and networks of wide layers, with the filters in blocks."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from tests.torchvision_style import WIDE, ResNet50

import torchckn
from torchckn.fit.methods import ULR, MethodOptions
from torchckn.kernels import ArcCosine
from torchckn.nn import KernelConv2d
from torchckn.nn.shared_roots import sharing
from torchckn.translation import ROOT_BLOCK

from .measure import median_times
from .training import forward_and_backward

WIDTHS = (64, 128, 256, 512, 1024)


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def first_forward(name: str) -> float:
    """Seconds of the first forward pass of a network's counterpart, which computes all its roots: one image of 224 x 224."""
    ckn = torchckn.translate(WIDE[name](), (3, 224, 224)).eval()
    with torch.inference_mode():
        return seconds(lambda: ckn(torch.rand(1, 3, 224, 224)))


def resnet_step(batch: int = 32) -> Callable[[], object]:
    """A training step of ResNet-50's counterpart on images of 64 x 64, with the exact classifier."""
    method = ULR(torchckn.translate(ResNet50(), (3, 64, 64)), MethodOptions(lam=2**-10))
    return functools.partial(method.step, torch.rand(batch, 3, 64, 64), torch.arange(batch), lr=2**-6)


def roots_table() -> Table:
    """Forward and backward of a 3x3 layer on 32 images of 4x4 positions, as in ResNet-50 on images of 64x64, and of its root."""
    table = Table(title=f"A 3x3 layer and its inverse root, forward + backward (milliseconds); blocks of {ROOT_BLOCK}")
    for column in ("filters", "layer without its root", "one root", "root in blocks"):
        table.add_column(column, justify="right")
    for width in WIDTHS:
        images = torch.rand(32, width, 4, 4)
        whole, blocks = (
            KernelConv2d(width, width, 3, padding=1, kernel=ArcCosine(1), root_block=b) for b in (None, ROOT_BLOCK)
        )
        root = whole.projection().detach().requires_grad_()

        def layer(whole: KernelConv2d = whole, images: torch.Tensor = images, root: torch.Tensor = root) -> None:
            with sharing({whole: root}):
                forward_and_backward(whole, images)

        candidates: dict[str, Callable[[], object]] = {"layer": layer}
        for name, of in (("whole", whole), ("blocks", blocks)):
            candidates[name] = functools.partial(lambda of: of.projection().sum().backward(), of)
        times = median_times(candidates, rounds=5)
        table.add_row(str(width), *(f"{1e3 * times[name]:.0f}" for name in candidates))
    return table


def networks_table() -> Table:
    table = Table(title="Translated networks with the filters of wide layers in blocks (seconds)")
    for column in ("network", "first forward, one image of 224 x 224", "training step, 32 images of 64 x 64"):
        table.add_column(column, justify="right")
    for name in WIDE:
        step = f"{seconds(resnet_step()):.1f}" if name == "ResNet-50" else ""
        table.add_row(name, f"{first_forward(name):.1f}", step)
    return table


if __name__ == "__main__":
    torch.manual_seed(0)
    console = Console(width=150)
    for make in (roots_table, networks_table):
        console.print(make(), "")
