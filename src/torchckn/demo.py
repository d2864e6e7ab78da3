"""A ConvNet and its kernel counterpart, trained side by side on digits that come with the package: ``torchckn demo``.

Prints the translation and both accuracies, and writes pictures. A minute or two on a laptop.
"""

from __future__ import annotations

from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from . import data, evaluate, plots, train, translate, zoo
from .convnet import ScaledConvNet
from .fit.callbacks import Callback, Training
from .formats import percent
from .kernels import RBFSphere
from .storage import save

FILTERS, STEPS, BATCH = 16, 300, 256


class _FirstFilters(Callback):
    """The first layer's filters as they are before the first step."""

    def on_train_start(self, training: Training) -> None:
        filters = training.net.filters_to_watch()
        assert filters is not None
        self.filters = filters.detach().clone()


def run(folder: Path, seed: int = 0, steps: int = STEPS) -> dict[str, float]:
    """Train both, write pictures to ``folder``; the accuracies on the test images."""
    console = Console()
    digits = data.load("mnist-mini")
    assert digits.test is not None
    training, validation = data.split(digits.train, 1000, seed)
    pixels = data.Preprocessing.fit(training.images)
    generator = torch.Generator().manual_seed(seed)
    lenet = zoo.build("lenet5", filters=FILTERS, padding=2, bias=False)
    ckn = translate(
        lenet, (1, 28, 28), RBFSphere(0.6), linear_kernel=RBFSphere(0.6), preprocessing=pixels, generator=generator
    )
    console.print(
        f"[bold]LeNet-5 with {FILTERS} filters per layer, and its kernel counterpart:[/bold]", ckn.report, "", sep="\n"
    )

    console.print("Training the kernel network: unsupervised filters, a classifier, then ultimate layer reversal ...")
    first = next(iter(ckn.kernel_layers().values()))
    start = _FirstFilters()
    ours = train(
        ckn,
        training,
        validation,
        steps=steps,
        batch_size=BATCH,
        generator=generator,
        callbacks=[start],
    )
    console.print("Training the ConvNet: SGD with momentum, from random weights ...")
    convnet = ScaledConvNet(lenet, (1, 28, 28), pixels, generator=generator).initialize_(0.2, generator)
    theirs = train(convnet, training, validation, method="sgd", steps=steps, batch_size=BATCH, generator=generator)

    table = Table(title=f"mnist-mini: {len(training.images)} training images, {len(digits.test.images)} test images")
    for column in ("network", "validation at the start", "after training", "test", "seconds"):
        table.add_column(column, justify="left" if column == "network" else "right")
    accuracies = {}
    for name, net, result in (("LeNet-5 CKN", ckn, ours), ("LeNet-5 ConvNet", convnet, theirs)):
        assert result.head is not None
        accuracies[name] = evaluate(net, digits.test).accuracy
        before = result.history[0]["valid_accuracy"]
        shown = (before, result.head.accuracy, accuracies[name])
        table.add_row(name, *(percent(value) for value in shown if value is not None), f"{result.seconds:.0f}")
    console.print(table)
    curves = {"LeNet-5 CKN": ours.history, "LeNet-5 ConvNet": theirs.history}
    written = [
        plots.accuracy_curves(curves, folder / "accuracy.png"),
        plots.filters_before_and_after(start.filters, first.weight, folder / "filters.png"),
        save(ckn, folder / "lenet5-ckn.safetensors"),
    ]
    for path in written:
        console.print(f"wrote {path}", soft_wrap=True)
    return accuracies
