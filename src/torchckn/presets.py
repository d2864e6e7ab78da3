"""Kernel networks that are not the counterpart of a ConvNet, with settings that work well (after Mairal, 2016).

``ckn-cifar``: two layers on whitened color images, for unsupervised filters; ``benchmarks/unsupervised.py`` runs it.
``ckn-cifar5``: five layers, to be trained with labels: ``torchckn train ckn-cifar5 --data cifar10``.

To add one, write a function of filters and kernel, add a line to ``NETWORKS``, and its name to ``choices.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, get_args

import torch
from torch import Tensor

from .choices import Centering, KernelNetworkName, check_choice
from .graph import Conv, GaussianPool, Graph
from .graph.node import Node
from .graph.preprocessing import Preprocessing
from .kernels import Kernel, RBFSphere
from .network import CKN


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
    generator: torch.Generator | None = None,
) -> CKN:
    """A network for training images (N, C, H, W), with their pixel statistics and random filters, to be fitted.

    Args:
        filters: of the first layer; the second one of ``ckn-cifar`` has four times as many.
        kernel: of all layers; by default ``RBFSphere(0.6)``.
    """
    check_choice("kernel network", name, KernelNetworkName)
    network = NETWORKS[name]  # type: ignore[index]
    # Small directions of patches are mostly noise: see the accuracies below.
    pixels = Preprocessing.fit(images, whiten=True, whiten_eps=0.3)
    channels, height, width = images.shape[1:]
    layers = network.layers(network.filters if filters is None else filters, RBFSphere(0.6) if kernel is None else kernel)
    graph = Graph((channels, height, width), [*pixels.nodes(), *layers])  # 3x3 patches, so the first layer is 1x1
    return CKN(graph, classes, centering, generator=generator)


def _ckn_cifar(filters: int, kernel: Kernel) -> Sequence[Node]:
    # Accuracy on 10,000 validation images, 40,000 for training, seed 0. Square loss, eps of the layers 1e-3:
    #   whitening with eps 1e-3, 1e-2, 1e-1, 0.3, 1:      74.4, 75.4, 76.5, 76.5, 76.3
    #   10,000 and 100,000 patches:                       76.5, 76.6;  with zero padding in the second layer: 76.5
    #   eps of the layers 1e-4, 1e-3, 1e-2, 1e-1:         76.3, 76.5, 76.9, 76.4;  another seed: 76.5
    # Multinomial loss: 77.5 with layer eps 1e-3, 78.0 with 1e-2 (77.2 with whitening eps 0.1).
    return [
        Conv("conv1", filters=filters, kernel=kernel, eps=1e-2),
        GaussianPool("pool1", stride=2),
        Conv("conv2", filters=4 * filters, kernel_size=(3, 3), kernel=kernel, eps=1e-2),
        GaussianPool("pool2", stride=6),
    ]


def _ckn_cifar5(filters: int, kernel: Kernel) -> Sequence[Node]:
    return [
        Conv("conv1", filters=filters, kernel=kernel),
        GaussianPool("pool1", stride=2),
        Conv("conv2", filters=filters, kernel=kernel),
        Conv("conv3", filters=filters, kernel_size=(3, 3), padding=(1, 1), kernel=kernel),
        GaussianPool("pool3", stride=2),
        Conv("conv4", filters=filters, kernel=kernel),
        Conv("conv5", filters=filters, kernel_size=(3, 3), padding=(1, 1), kernel=kernel),
        GaussianPool("pool5", stride=3),
    ]


class Network(NamedTuple):
    """The layers of a network, and how many filters its first one has by default."""

    layers: Callable[[int, Kernel], Sequence[Node]]
    filters: int


NETWORKS: dict[KernelNetworkName, Network] = {
    "ckn-cifar": Network(_ckn_cifar, 64),
    "ckn-cifar5": Network(_ckn_cifar5, 128),
}
