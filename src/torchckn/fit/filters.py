r"""Filters without labels: spherical k-means on patches, layer after layer.

Paper: section 3.1 ("Approximating the kernels"), section 5.1 (10,000 randomly sampled non-constant patches a layer, all from
different images) and the initialisation of Algorithm 2. A layer's patches are those that its forward pass sees: with its padding
and stride, after all that comes before it. Read next: :mod:`torchckn.fit.head`.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data import batches, size_of
from ..errors import ConfigError, DataError, unknown_name
from ..nn.layers import KernelConv2d, KernelLayer, KernelLinear, KernelLocal2d
from ..nn.network import CKN
from .kmeans import spherical_kmeans

How = Literal["kmeans", "sample", "random"]


def fit_filters(
    ckn: CKN,
    data: Any,
    patches: int = 10_000,
    *,
    init: How | None = None,
    restarts: int = 3,
    batch_size: int = 256,
    generator: torch.Generator | None = None,
) -> CKN:
    """Choose the filters of every layer without labels, in place; identity layers stay as they are.

    Args:
        data: images, or anything with images in it: a pair (images, labels), a ``Dataset``, a ``DataLoader``. Streamed:
            features of a layer are never held for all images.
        patches: how many patches to choose from, each from another image as long as there are as many images.
        init: ``"kmeans"``, ``"sample"`` (patches at random) or ``"random"`` (directions at random); by default each layer's
            own ``init``.
        restarts: of k-means; the best is taken.
        generator: decides which images, which patches, and the starts of k-means. The same seed gives the same filters.
    """
    if init is not None and init not in get_args(How):
        raise unknown_name("init", init, get_args(How))
    if not isinstance(patches, int) or patches < 1:
        raise ConfigError(f"patches expects a whole number of at least 1, came {patches!r}")
    training = ckn.training
    ckn.eval()
    try:
        for name, layer in ckn.kernel_layers().items():
            how = layer.init if init is None or layer.init == "identity" else init
            if how == "random":
                _set_filters(layer, torch.randn(layer.weight.shape, generator=generator, dtype=torch.float64))
            elif how != "identity":
                _fit_layer(ckn, name, layer, data, patches, how, restarts, batch_size, generator)
    finally:
        ckn.train(training)
    return ckn


def _fit_layer(
    ckn: CKN,
    name: str,
    layer: KernelLayer,
    data: Any,
    patches: int,
    how: str,
    restarts: int,
    batch_size: int,
    generator: torch.Generator | None,
) -> None:
    sample = sample_patches(ckn, name, data, max(patches, layer.filters), batch_size, generator)  # (parts, n, s)
    chosen = []
    for part in sample:
        filters = layer.filters // (layer.groups if isinstance(layer, KernelConv2d) else 1)
        if how == "sample" or filters >= len(part):
            index = torch.randperm(len(part), generator=generator)[:filters]
            if len(part) < filters:
                index = index.repeat(filters // len(part) + 1)[:filters]
            chosen.append(part[index.to(part.device)])
        else:
            chosen.append(spherical_kmeans(part, filters, restarts=restarts, generator=generator).centroids)
    _set_filters(layer, torch.stack(chosen).reshape(layer.weight.shape))


@torch.no_grad()
def _set_filters(layer: KernelLayer, filters: Tensor) -> None:
    layer.weight.copy_(filters)
    layer.normalize_()


@torch.no_grad()
def sample_patches(
    ckn: CKN, name: str, data: Any, count: int, batch_size: int = 256, generator: torch.Generator | None = None
) -> Tensor:
    """Non-constant patches that the layer ``name`` sees, at random positions of random images: (parts, count, s).

    One part, or as many as the layer has groups or regions. One patch an image as long as there are images enough; if the
    data run out, more from each. Fewer than ``count`` if the images do not have as many that are not constant.
    """
    layer = ckn.kernel_layers()[name]
    device, dtype = layer.weight.device, layer.weight.dtype
    images_there = size_of(data)
    per_image = 1 if images_there is None else -(-count // max(1, images_there))
    found: list[Tensor] = []
    have = 0
    for _ in range(3):  # constant patches do not count, so the images may have to be gone through again
        for images, _labels in batches(data, batch_size, generator=_shuffle(data, generator)):
            (x,) = ckn.inputs_of(name, images.to(device=device, dtype=dtype))
            windows = layer_windows(layer, x)  # (N, parts, L, s)
            picked = pick_varied(windows, per_image, generator)  # (parts, n, s)
            found.append(picked)
            have += picked.shape[1]
            if have >= count:
                return torch.cat(found, 1)[:, :count]
        if not found:
            raise DataError("there are no images to sample patches from")
        per_image *= 2
    sample = torch.cat(found, 1)
    if not sample.shape[1]:
        raise DataError(
            f"all patches that layer {name!r} sees are constant, so there is nothing to choose filters from; "
            "are the images all of one colour, or is a bandwidth far too small?"
        )
    return sample


def _shuffle(data: Any, generator: torch.Generator | None) -> torch.Generator:
    """A generator for the order of the images, so that sampling is random even if the caller passed none."""
    if generator is not None:
        return generator
    return torch.Generator().manual_seed(int(torch.randint(2**62, (1,))))


def layer_windows(layer: KernelLayer, x: Tensor) -> Tensor:
    """All patches that the layer's forward pass sees, as a view: (N, parts, L, s), parts being groups or regions.

    For a layer with regions, L counts the positions of the largest region; smaller ones repeat theirs.
    """
    if isinstance(layer, KernelLinear):
        return x.flatten(1)[:, None, None]
    assert isinstance(layer, (KernelConv2d, KernelLocal2d))
    patches = F.unfold(x, layer.kernel_size, layer.dilation, layer.padding, layer.stride)  # (N, s, L)
    if isinstance(layer, KernelConv2d):
        return patches.unflatten(1, (layer.groups, -1)).transpose(2, 3)  # (N, groups, L, s)
    regions = layer.regions[0] * layer.regions[1]
    members = [torch.nonzero(layer.region_of == r).flatten() for r in range(regions)]
    most = max(len(m) for m in members)
    index = torch.stack([m.repeat(most // len(m) + 1)[:most] for m in members])  # (R, L)
    return patches[:, :, index].permute(0, 2, 3, 1)


def pick_varied(windows: Tensor, per_image: int, generator: torch.Generator | None) -> Tensor:
    """Random non-constant patches of each image, from (N, parts, L, s): (parts, n, s).

    A patch is constant if its entries are all equal: it has no structure to be told by. Patches of one entry are constant
    only if they are zero. Every part gets as many as the part that has the fewest.
    """
    n, parts, positions, size = windows.shape
    spread = windows.amax(3) - windows.amin(3) if size > 1 else windows.abs().amax(3)  # (N, parts, L)
    varied = spread > torch.finfo(windows.dtype).eps * windows.abs().amax(3)
    keys = torch.rand(n, parts, positions, generator=generator).to(windows.device)
    keys = keys.masked_fill(~varied, -1.0)
    best = keys.topk(min(per_image, positions), 2)  # (N, parts, per_image): random varied positions
    picked = windows.gather(2, best.indices[..., None].expand(-1, -1, -1, size))  # (N, parts, per_image, s)
    good = best.values >= 0
    rows = [picked[:, p][good[:, p]] for p in range(parts)]
    fewest = min(len(r) for r in rows)
    return torch.stack([r[:fewest] for r in rows])
