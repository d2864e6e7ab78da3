r"""Unsupervised filters: spherical k-means on patches, layer after layer.

Paper: section 3.1 ("Approximating the kernels"), section 5.1 (10,000 randomly sampled non-constant patches per layer, all from
different images) and the initialisation of Algorithm 2. A layer's patches are those that its forward pass sees: with its padding
and stride, after all that comes before it. Read next: :mod:`torchckn.fit.solvers`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count as counting
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..choices import FilterMethod, as_integer, check_choice
from ..data import size_of
from ..distributed import from_first, gathered, largest, rank, world
from ..errors import ConfigError, DataError
from ..network import CKN, modes_kept
from ..nn.base import KernelLayer
from ..nn.layers import KernelConv2d, KernelLinear, KernelLocal2d
from ..nn.product import KernelProduct
from ..progress import progress as show_progress
from .activations import KEPT, Activations
from .features import CHUNK
from .kmeans import spherical_kmeans


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
                shape = (*layer.weight.shape[: -layer.filter_dims], sum(_sizes(layer)))
                _set_filters(layer, torch.randn(shape, generator=generator, dtype=torch.float64))
            elif how != "identity":
                sample = _sample(activations, name, layer, max(number, layer.filters), generator)
                _set_filters(layer, _new_filters(layer, sample, how, restarts, generator))
    ckn.filters_fitted.fill_(True)
    ckn.penalty = None  # a head that was fitted to other features is not fitted to these
    return ckn


def _new_filters(layer: KernelLayer, sample: Tensor, how: str, restarts: int, generator: torch.Generator | None) -> Tensor:
    """Filters (parts, f, s) from patches (parts, n, s)."""
    filters = layer.filters // (layer.groups if isinstance(layer, KernelConv2d) else 1)
    filters_by_region = []
    for part in sample:
        if how == "sample" or filters >= len(part):
            index = torch.randperm(len(part), generator=generator)[:filters]
            if len(part) < filters:
                index = index.repeat(filters // len(part) + 1)[:filters]
            filters_by_region.append(part[index.to(part.device)])
        else:
            filters_by_region.append(spherical_kmeans(part, filters, restarts=restarts, generator=generator).centroids)
    return torch.stack(filters_by_region)


@torch.no_grad()
def _set_filters(layer: KernelLayer, filters: Tensor) -> None:
    for parameter, part in zip(layer.sphere_parameters(), filters.split(_sizes(layer), -1), strict=True):
        parameter.copy_(part.reshape(parameter.shape))
    layer.normalize_()


def _sizes(layer: KernelLayer) -> list[int]:
    """How many numbers one filter has in each of the layer's parameters."""
    return [parameter.shape[-layer.filter_dims :].numel() for parameter in layer.sphere_parameters()]


@torch.no_grad()
def sample_patches(
    ckn: CKN, name: str, data: Any, count: int, batch_size: int = CHUNK, generator: torch.Generator | None = None
) -> Tensor:
    """Non-constant patches that the layer ``name`` sees, at random positions of random images: (parts, count, s).

    One part, or as many as the layer has groups or regions. One patch per image as long as there are enough images; if the
    data run out, more from each. Fewer than ``count`` if the images do not have as many that are not constant.
    """
    activations = Activations(ckn, data, batch_size, generator, memory=0)
    return _sample(activations, name, ckn.kernel_layers()[name], count, generator)


def _sample(
    activations: Activations, name: str, layer: KernelLayer, count: int, generator: torch.Generator | None
) -> Tensor:
    images_there = size_of(activations.data)
    per_image = 1 if images_there is None else -(-count // max(1, images_there))
    samples: list[Tensor] = []
    have = 0
    for _ in range(3):  # constant patches do not count, so the images may have to be gone through again
        seed = int(torch.randint(2**62, (1,), generator=generator))
        for picked in _picked_by_all(activations, name, layer, per_image, seed):  # (parts, n, s)
            samples.append(picked)
            have += picked.shape[1]
            if have >= count:
                return torch.cat(samples, 1)[:, :count]
        if not samples:
            raise DataError("there are no images to sample patches from")
        per_image *= 2
    sample = torch.cat(samples, 1)
    if not sample.shape[1]:
        raise DataError(
            f"all patches that layer {name!r} sees are constant, so there is nothing to choose filters from; "
            "are the images all of one colour, or is a bandwidth far too small?"
        )
    return sample


def _picked_by_all(activations: Activations, name: str, layer: KernelLayer, per_image: int, seed: int) -> Iterator[Tensor]:
    """Patches (parts, n, s) of a batch of images after the other; with several processes, of a batch of each.

    Every batch has its own random numbers, so that patches and their order do not depend on who computes them.
    """
    inputs, here, processes = activations.inputs_of(name), rank(), world()
    for round_ in counting():
        x = next(inputs, None)
        if not largest(int(x is not None)):
            return
        numbers = torch.Generator().manual_seed(seed + round_ * processes + here)
        own = None if x is None else _pick(layer, x, per_image, numbers).transpose(0, 1)  # (n, parts, s)
        if processes > 1:
            shape = from_first(lambda own=own: own.shape[1:])  # type: ignore[misc]
            own = gathered(layer.weight.new_empty(0, *shape) if own is None else own)
        assert own is not None
        yield own.transpose(0, 1)


def _pick(layer: KernelLayer, inputs: tuple[Tensor, ...], per_image: int, generator: torch.Generator) -> Tensor:
    """What the layer's filters are chosen from: patches, or pairs for a product. (parts, n, s)"""
    if isinstance(layer, KernelProduct):
        return pick_pairs(inputs[0], inputs[1], per_image, generator)
    return pick_patches(layer, inputs[0], per_image, generator)


def windows(layer: KernelLayer, x: Tensor) -> Tensor:
    """All patches that the layer's forward pass sees, as a view that copies nothing: (N, H', W', C, kh, kw)."""
    if isinstance(layer, KernelLinear):
        return x.flatten(1)[:, None, None, :, None, None]
    assert isinstance(layer, (KernelConv2d, KernelLocal2d))
    (top, side), (rows, columns), (down, right) = layer.padding, layer.stride, layer.dilation
    padded = F.pad(x, (side, side, top, top))
    spans = [d * (k - 1) + 1 for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
    view = padded.unfold(2, spans[0], rows).unfold(3, spans[1], columns)  # (N, C, H', W', span, span)
    return view[..., ::down, ::right].permute(0, 2, 3, 1, 4, 5)


#: how many random positions of an image are tried before it counts as constant
_TRIES = 8


def pick_patches(layer: KernelLayer, x: Tensor, per_image: int, generator: torch.Generator | None) -> Tensor:
    """Non-constant patches at random positions of each image: (parts, n, s), parts being groups or regions.

    A patch is constant if its entries are all equal: it has no structure. Patches of one entry, and those of a
    fully connected layer, are constant only if they are zero.
    """
    view = windows(layer, x)
    n, height, width = view.shape[:3]
    regional = isinstance(layer, KernelLocal2d)
    groups = layer.groups if isinstance(layer, KernelConv2d) else 1
    region_of = layer.region_of.cpu() if isinstance(layer, KernelLocal2d) else torch.zeros(height * width, dtype=torch.long)
    rows = []
    for region in range(int(region_of.max()) + 1):
        places = torch.nonzero(region_of == region).flatten()
        tries = min(len(places), max(_TRIES, 2 * per_image))
        drawn = places[_random_places(n, len(places), tries, per_image, generator)].to(x.device)  # (n, tries)
        image = torch.arange(n, device=x.device)[:, None]
        patches = view[image, drawn // width, drawn % width].flatten(3).flatten(2)  # (n, tries, s)
        size = patches.abs().amax(2)
        single = patches.shape[2] == 1 or isinstance(layer, KernelLinear)
        spread = size if single else patches.amax(2) - patches.amin(2)
        varied = spread > torch.finfo(x.dtype).eps * size
        wanted = varied & (varied.cumsum(1) <= per_image)
        rows.append(patches[wanted])
    fewest = min(len(r) for r in rows)
    sample = torch.stack([r[:fewest] for r in rows])  # (regions, n, s)
    return sample if regional or groups == 1 else sample[0].unflatten(1, (groups, -1)).transpose(0, 1)


def _random_places(n: int, places: int, tries: int, per_image: int, generator: torch.Generator | None) -> Tensor:
    """Random places to try in each of n images, each place once if it matters: (n, tries)"""
    if per_image == 1 and places > 4 * tries:  # the first one that will do is taken, so a place may come twice
        return torch.randint(places, (n, tries), generator=generator)
    return torch.rand(n, places, generator=generator).topk(tries, 1).indices


def pick_pairs(first: Tensor, second: Tensor, per_image: int, generator: torch.Generator | None) -> Tensor:
    """Pairs of unit vectors at random positions of both inputs of a product, side by side: (1, n, C1 + C2)

    Clustering them side by side groups pairs whose both halves are similar.
    """
    images = [x[:, :, None, None] if x.ndim == 2 else x for x in (first, second)]
    height, width = (max(x.shape[axis] for x in images) for axis in (2, 3))
    tries = min(height * width, max(_TRIES, 2 * per_image))
    places = torch.rand(len(first), height * width, generator=generator).topk(tries, 1).indices.to(first.device)
    halves = [x.expand(-1, -1, height, width).flatten(2).mT for x in images]  # (n, positions, C)
    rows = [half.gather(1, places[:, :, None].expand(-1, -1, half.shape[2])) for half in halves]  # (n, tries, C)
    norms = [torch.linalg.vector_norm(row, dim=2, keepdim=True) for row in rows]
    nonzero = ((norms[0] > 0) & (norms[1] > 0))[:, :, 0]
    wanted = nonzero & (nonzero.cumsum(1) <= per_image)
    return torch.cat([(row / norm)[wanted] for row, norm in zip(rows, norms, strict=True)], 1)[None]
