"""Kernel networks that are not the counterpart of a ConvNet, with settings that work well (after Mairal, 2016).

``ckn-cifar``: two layers on whitened color images, for unsupervised filters; ``benchmarks/unsupervised.py`` runs it.
``ckn-cifar5``: five layers, to be trained with labels: ``torchckn train ckn-cifar5 --data cifar10``.

To add one, write a function of filters, kernel and regularization, add a line to ``NETWORKS``, and its name to ``choices.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, get_args

import torch
from torch import Tensor

from .choices import Centering, KernelNetworkName, as_real, check_choice
from .errors import ConfigError
from .graph import Conv, GaussianPool, Graph
from .graph.node import Node
from .graph.preprocessing import Preprocessing
from .kernels import Kernel, RBFSphere
from .network import CKN

#: arguments of :func:`build` that are options of the network, as in ``--option eps=0.01``
OPTIONS = ("whiten_eps", "eps")


def names() -> list[str]:
    """The valid names for :func:`build`."""
    return list(get_args(KernelNetworkName))


def build(
    name: str,
    images: Tensor,
    classes: int = 10,
    *,
    filters: int | None = None,
    kernel: Kernel | None = None,
    centering: Centering = "image",
    whiten_eps: float = 0.3,
    eps: float | None = None,
    generator: torch.Generator | None = None,
) -> CKN:
    """A network for training images (N, C, H, W), with their pixel statistics and random filters, to be fitted.

    Args:
        filters: of the first layer; the second one of ``ckn-cifar`` has four times as many.
        kernel: of all layers; by default ``RBFSphere(0.6)``.
        whiten_eps: regularization of the whitening. Small directions of patches are mostly noise.
        eps: regularization of all layers; by default the network's own.
    """
    check_choice("kernel network", name, KernelNetworkName)
    network = NETWORKS[name]  # type: ignore[index]
    eps = network.eps if eps is None else eps
    for option, value in (("whiten_eps", whiten_eps), ("eps", eps)):
        if not 0 < as_real(value) < float("inf"):
            raise ConfigError(f"{option} of {name} expected a number > 0, got {value!r}")
    pixels = Preprocessing.fit(images, whiten=True, whiten_eps=whiten_eps)
    channels, height, width = images.shape[1:]
    given_filters = network.filters if filters is None else filters
    layers = network.layers(given_filters, RBFSphere(0.6) if kernel is None else kernel, eps)
    graph = Graph((channels, height, width), [*pixels.nodes(), *layers])  # 3x3 patches, so the first layer is 1x1
    return CKN(graph, classes, centering, generator=generator)


def _ckn_cifar(filters: int, kernel: Kernel, eps: float) -> Sequence[Node]:
    # Accuracy on 10,000 validation images, 40,000 for training, seed 0. Square loss, eps of the layers 1e-3:
    #   whitening with eps 1e-3, 1e-2, 1e-1, 0.3, 1:      74.4, 75.4, 76.5, 76.5, 76.3
    #   10,000 and 100,000 patches:                       76.5, 76.6;  with zero padding in the second layer: 76.5
    #   eps of the layers 1e-4, 1e-3, 1e-2, 1e-1:         76.3, 76.5, 76.9, 76.4;  another seed: 76.5
    # Multinomial loss: 77.5 with layer eps 1e-3, 78.0 with 1e-2 (77.2 with whitening eps 0.1).
    return [
        Conv("conv1", filters=filters, kernel=kernel, eps=eps),
        GaussianPool("pool1", stride=2),
        Conv("conv2", filters=4 * filters, kernel_size=(3, 3), kernel=kernel, eps=eps),
        GaussianPool("pool2", stride=6),
    ]


def _ckn_cifar5(filters: int, kernel: Kernel, eps: float) -> Sequence[Node]:
    return [
        Conv("conv1", filters=filters, kernel=kernel, eps=eps),
        GaussianPool("pool1", stride=2),
        Conv("conv2", filters=filters, kernel=kernel, eps=eps),
        Conv("conv3", filters=filters, kernel_size=(3, 3), padding=(1, 1), kernel=kernel, eps=eps),
        GaussianPool("pool3", stride=2),
        Conv("conv4", filters=filters, kernel=kernel, eps=eps),
        Conv("conv5", filters=filters, kernel_size=(3, 3), padding=(1, 1), kernel=kernel, eps=eps),
        GaussianPool("pool5", stride=3),
    ]


class Network(NamedTuple):
    """The layers of a network, as a function of filters, kernel and eps, and the defaults of filters and eps."""

    layers: Callable[[int, Kernel, float], Sequence[Node]]
    filters: int
    eps: float


NETWORKS: dict[KernelNetworkName, Network] = {
    "ckn-cifar": Network(_ckn_cifar, 64, 1e-2),
    "ckn-cifar5": Network(_ckn_cifar5, 128, 1e-3),
}
