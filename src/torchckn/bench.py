"""A kernel network against its ConvNet on this machine: ``torchckn bench``."""

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
    """Median seconds of the CKN and of the ConvNet, by what they do; they take turns, so that noise falls on both."""
    net = zoo.build(name, filters)
    shape = net.input_shape
    images, labels = torch.rand(batch_size, *shape), torch.arange(batch_size) % 10
    ckn = translate(net, shape, RBFSphere(0.6), linear_kernel=RBFSphere(0.6), classes=10)
    convnet = ScaledConvNet(zoo.build(name, filters, classes=10), shape)
    options = MethodOptions(lam=2.0**-16)
    ulr, sgd = METHODS["ulr"](ckn, options), METHODS["sgd"](convnet, options)
    found = {
        "forward and backward": _race(lambda: _both(ckn, images), lambda: _both(convnet, images)),
        "training step (ulr, sgd)": _race(
            lambda: ulr.step(images, labels, 2.0**-6), lambda: sgd.step(images, labels, 2.0**-6)
        ),
    }
    ckn.eval(), convnet.eval()
    found["inference"] = _race(lambda: batch_features(ckn, images), lambda: batch_features(convnet, images))
    return found


def _both(net: Classifier, images: torch.Tensor) -> None:
    net.zero_grad()
    batch_gradient(net, images, lambda features: (features.square().mean(), None))


def _race(ours: Callable[[], object], theirs: Callable[[], object]) -> tuple[float, float]:
    times: tuple[list[float], list[float]] = ([], [])
    for round in range(ROUNDS + 1):
        for call, taken in zip((ours, theirs), times, strict=True):
            start = time.perf_counter()
            call()
            if round:  # the first is for warming up
                taken.append(time.perf_counter() - start)
    return statistics.median(times[0]), statistics.median(times[1])
