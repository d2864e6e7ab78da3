"""Time of a kernel network and of its ConvNet on this machine: ``torchckn bench``.

The ConvNet is timed in both of torch's memory layouts, and the faster one counts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from . import presets, zoo
from .convnet import ScaledConvNet
from .errors import ConfigError
from .fit.chunks import batch_features, batch_gradient
from .fit.methods import METHODS, MethodOptions
from .kernels import RBFSphere
from .network import Classifier
from .translation import translate

ROUNDS = 5


def measure(name: str, filters: int, batch_size: int) -> dict[str, tuple[float, float]]:
    """Median seconds of the CKN and of the ConvNet for each operation; timed alternately, so that noise affects both."""
    if name in presets.names():
        raise ConfigError(f"{name} is a kernel network without a ConvNet to compare it with; expected a network of the zoo")
    net = zoo.build(name, filters)
    shape = net.input_shape
    images, labels = torch.rand(batch_size, *shape), torch.arange(batch_size) % 10
    last = images.contiguous(memory_format=torch.channels_last)
    ckn = translate(net, shape, RBFSphere(0.6), linear_kernel=RBFSphere(0.6), classes=10)
    plain, channels_last = (ScaledConvNet(zoo.build(name, filters, classes=10), shape) for _ in range(2))
    networks: list[tuple[Classifier, Tensor]] = [
        (ckn, images),
        (plain, images),
        (channels_last.to(memory_format=torch.channels_last), last),  # type: ignore[call-overload]
    ]
    options = MethodOptions(lam=2.0**-16)
    methods = [METHODS[net.default_method](net, options) for net, _ in networks]
    seconds = {
        "forward and backward": _alternate([partial(_gradient, *pair) for pair in networks]),
        "training step (ulr, sgd)": _alternate(
            [partial(method.step, x, labels, 2.0**-6) for method, (_, x) in zip(methods, networks, strict=True)]
        ),
    }
    for network, _ in networks:
        network.eval()
    seconds["inference"] = _alternate([partial(batch_features, *pair) for pair in networks])
    return seconds


def _gradient(net: Classifier, images: Tensor) -> None:
    net.zero_grad()
    batch_gradient(net, images, lambda features: (features.square().mean(), None))


def _alternate(calls: Sequence[Callable[[], object]]) -> tuple[float, float]:
    """Median seconds of the first call, and of the fastest of the others."""
    times: list[list[float]] = [[] for _ in calls]
    for round in range(ROUNDS + 1):
        for call, durations in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            if round:  # the first one is the warm-up
                durations.append(time.perf_counter() - start)
    first, *others = (statistics.median(durations) for durations in times)
    return first, min(others)
