r"""Unsupervised filters: spherical k-means on patches, layer after layer.

Paper: section 3.1 ("Approximating the kernels") and the initialisation of Algorithm 2. Read first: :mod:`torchckn.fit.patches`.
Read next: :mod:`torchckn.fit.solvers`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..choices import FilterMethod, as_integer, check_choice
from ..errors import ConfigError
from ..network import CKN, modes_kept
from ..nn.base import KernelLayer
from ..progress import progress as show_progress
from .activations import KEPT, Activations
from .features import CHUNK
from .kmeans import spherical_kmeans
from .patches import filter_sizes, sample_of_layer


def fit_filters(
    ckn: CKN,
    data: Any,
    patches: int = 10_000,
    *,
    init: FilterMethod | None = None,
    restarts: int = 3,
    batch_size: int = CHUNK,
    memory: int = KEPT,
    generator: torch.Generator | None = None,
    progress: bool | None = None,
) -> CKN:
    """Choose the filters of every layer, unsupervised and in place; identity layers stay as they are.

    Every group and every region of a layer has patches of its own. Where all of them are constant, as in a corner of the images
    that is always black, the group or region keeps the filters it has: random directions, in a new network.

    Args:
        data: images, or anything with images in it: a pair (images, labels), a ``Dataset``, a ``DataLoader``. Streamed:
            no more images are taken than it needs to find the patches.
        patches: how many patches to choose from, each from another image as long as there are as many images.
        init: ``"kmeans"``, ``"sample"`` (patches at random) or ``"random"`` (directions at random); by default each layer's
            own ``init``.
        restarts: of k-means; the best is taken.
        batch_size: images that go through the network at a time.
        memory: bytes of activations that are kept from layer to layer. Images beyond that go through the network again for each
            layer: more memory saves time, and changes no filter.
        generator: decides which images, which patches, and the starts of k-means. The same seed gives the same filters.
        progress: whether to show a progress bar; by default on a terminal.
    """
    if init is not None:
        check_choice("init", init, FilterMethod)
    if (number := as_integer(patches, 1)) is None:
        raise ConfigError(f"patches expected an integer >= 1, got {patches!r}")
    layers = ckn.kernel_layers()
    with torch.no_grad(), modes_kept(ckn), show_progress("unsupervised filters", len(layers), progress) as report:
        ckn.eval()
        activations = Activations(ckn, data, batch_size, generator, memory)
        for done, (name, layer) in enumerate(layers.items()):
            report(done, name)
            how = layer.init if init is None or layer.init == "identity" else init
            if how == "random":
                shape = (*layer.weight.shape[: -layer.filter_dims], sum(filter_sizes(layer)))
                _set_filters(layer, torch.randn(shape, generator=generator, dtype=torch.float64))
            elif how != "identity":
                sample = sample_of_layer(activations, name, layer, max(number, layer.filters), generator)
                _set_filters(layer, _new_filters(layer, sample, how, restarts, generator))
    ckn.filters_fitted.fill_(True)
    ckn.penalty = None  # a head that was fitted to other features is not fitted to these
    return ckn


def _new_filters(
    layer: KernelLayer, sample: list[Tensor], how: str, restarts: int, generator: torch.Generator | None
) -> Tensor:
    """Filters (parts, f, s) from patches (n, s) of each part; a part without patches keeps those that it has."""
    matrices = [parameter.flatten(-layer.filter_dims) for parameter in layer.sphere_parameters()]
    present = torch.cat(matrices, -1).reshape(len(sample), -1, sum(filter_sizes(layer)))  # (parts, f, s)
    filters = present.shape[1]
    filters_by_part = []
    for part, kept in zip(sample, present, strict=True):
        if not len(part):
            filters_by_part.append(kept)
        elif how == "sample" or filters >= len(part):
            index = torch.randperm(len(part), generator=generator)[:filters]
            if len(part) < filters:
                index = index.repeat(filters // len(part) + 1)[:filters]
            filters_by_part.append(part[index.to(part.device)])
        else:
            filters_by_part.append(spherical_kmeans(part, filters, restarts=restarts, generator=generator).centroids)
    return torch.stack(filters_by_part)


@torch.no_grad()
def _set_filters(layer: KernelLayer, filters: Tensor) -> None:
    for parameter, part in zip(layer.sphere_parameters(), filters.split(filter_sizes(layer), -1), strict=True):
        parameter.copy_(part.reshape(parameter.shape))
    layer.normalize_()
