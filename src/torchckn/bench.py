"""Time of a kernel network and of its ConvNet on this machine: ``torchckn bench``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from . import zoo
from .convnet import ScaledConvNet
from .fit.chunks import batch_features, batch_gradient
from .fit.methods import METHODS, MethodOptions
from .kernels import RBFSphere
from .network import Classifier
from .translation import translate

ROUNDS = 5


def measure(name: str, filters: int, batch_size: int) -> dict[str, tuple[float, float]]:
    """Median seconds of the CKN and of the ConvNet for each operation; timed alternately, so that noise affects both."""
    net = zoo.build(name, filters)
    shape = net.input_shape
    images, labels = torch.rand(batch_size, *shape), torch.arange(batch_size) % 10
    ckn = translate(net, shape, RBFSphere(0.6), linear_kernel=RBFSphere(0.6), classes=10)
    convnet = ScaledConvNet(zoo.build(name, filters, classes=10), shape)
    options = MethodOptions(lam=2.0**-16)
    ulr, sgd = METHODS["ulr"](ckn, options), METHODS["sgd"](convnet, options)
    seconds = {
        "forward and backward": _alternate(lambda: _gradient(ckn, images), lambda: _gradient(convnet, images)),
        "training step (ulr, sgd)": _alternate(
            lambda: ulr.step(images, labels, 2.0**-6), lambda: sgd.step(images, labels, 2.0**-6)
        ),
    }
    ckn.eval(), convnet.eval()
    seconds["inference"] = _alternate(lambda: batch_features(ckn, images), lambda: batch_features(convnet, images))
    return seconds


def _gradient(net: Classifier, images: torch.Tensor) -> None:
    net.zero_grad()
    batch_gradient(net, images, lambda features: (features.square().mean(), None))


def _alternate(ckn: Callable[[], object], convnet: Callable[[], object]) -> tuple[float, float]:
    times: tuple[list[float], list[float]] = ([], [])
    for round in range(ROUNDS + 1):
        for call, durations in zip((ckn, convnet), times, strict=True):
            start = time.perf_counter()
            call()
            if round:  # the first one is the warm-up
                durations.append(time.perf_counter() - start)
    return statistics.median(times[0]), statistics.median(times[1])
