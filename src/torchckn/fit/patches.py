"""Patches that filters are chosen from: non-constant ones, at random positions of random images.

Paper: section 5.1 (10,000 randomly sampled non-constant patches per layer, all from different images). A layer's patches are
those that its forward pass sees: with its padding and stride, after all that comes before it.
Read first: :mod:`torchckn.fit.activations`. Read next: :mod:`torchckn.fit.filters`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data import size_of
from ..distributed import gathered, largest, rank, world
from ..errors import DataError
from ..network import CKN
from ..nn.base import KernelLayer
from ..nn.layers import KernelConv2d, KernelLinear, KernelLocal2d
from ..nn.product import KernelProduct
from .activations import Activations
from .features import CHUNK

#: how often the images are gone through, at most: constant patches do not count, so that once may not be enough
_PASSES = 3


@torch.no_grad()
def sample_patches(
    ckn: CKN, name: str, data: Any, count: int, batch_size: int = CHUNK, generator: torch.Generator | None = None
) -> list[Tensor]:
    """Non-constant patches that the layer ``name`` sees, at random positions of random images: (count, s) for each part.

    One part, or as many as the layer has groups or regions. One patch per image as long as there are enough images; if the
    data run out, more from each, but each position at most once. A part has fewer than ``count`` if not as many of its patches
    are found that are not constant, and none if all are constant; if no part has any, that is an error.
    """
    activations = Activations(ckn, data, batch_size, generator, memory=0)
    return sample_of_layer(activations, name, ckn.kernel_layers()[name], count, generator)


def sample_of_layer(
    activations: Activations, name: str, layer: KernelLayer, count: int, generator: torch.Generator | None
) -> list[Tensor]:
    images_there = size_of(activations.data)
    per_image = 1 if images_there is None else -(-count // max(1, images_there))
    sample = _Sample(layer, count)
    for _ in range(_PASSES):
        seed = int(torch.randint(2**62, (1,), generator=generator))
        if not sample.add(activations.inputs_of(name), per_image, seed):
            break
        per_image *= 2
    if not sample.seen:
        raise DataError("there are no images to sample patches from")
    if not any(sample.have):
        raise DataError(
            f"all patches that layer {name!r} sees are constant, so there is nothing to choose filters from; "
            "are the images all of one colour, or is a bandwidth far too small?"
        )
    return sample.patches()


class _Sample:
    """Up to ``count`` patches for each part of a layer, and the places that this process has taken them from.

    Places are remembered by batch, so that a further pass takes others: the images are in the same order in every pass. (In a
    ``DataLoader`` that shuffles they are not, and a patch may come twice by chance.)
    """

    def __init__(self, layer: KernelLayer, count: int) -> None:
        self.layer, self.count = layer, count
        self.seen = False  # an image
        self.have = [0] * _parts(layer)  # patches of each part
        self._patches: list[list[Tensor]] = [[] for _ in self.have]
        self._taken: dict[tuple[int, int], Tensor] = {}  # places by batch and part

    @property
    def wanting(self) -> set[int]:
        """The parts that have fewer than ``count``."""
        return {part for part, have in enumerate(self.have) if have < self.count}

    def patches(self) -> list[Tensor]:
        return [torch.cat(patches)[: self.count] for patches in self._patches]

    def add(self, inputs: Iterator[tuple[Tensor, ...]], per_image: int, seed: int) -> bool:
        """Add patches of one batch after the other, with several processes of one each; whether another pass could add more.

        Every batch has its own random numbers, so that patches and their order do not depend on who computes them.
        """
        batch, step = rank(), world()
        unfinished: set[int] = set()  # parts with patches that were not looked at, or not taken
        while wanting := self.wanting:
            x = next(inputs, None)
            if not largest(int(x is not None)):
                return bool(largest(int(not wanting.isdisjoint(unfinished))))
            self.seen = True
            own = [self.layer.weight.new_empty(0, sum(filter_sizes(self.layer))) for _ in self.have]
            if x is not None:
                numbers = torch.Generator().manual_seed(seed + batch)
                for part, drawn in _draw(self.layer, x, per_image, numbers, wanting):
                    own[part], taken = self._pick(drawn, per_image, (batch, part))
                    if not drawn.everywhere or taken < int(drawn.varied.sum()):
                        unfinished.add(part)
            for part, picked in enumerate(_of_all_processes(own)):
                self.have[part] += len(picked)
                self._patches[part].append(picked)
            batch += step
        return False

    def _pick(self, drawn: Drawn, per_image: int, batch_and_part: tuple[int, int]) -> tuple[Tensor, int]:
        """Patches at places that were not taken before, and how many have been taken with these."""
        taken = self._taken.get(batch_and_part, drawn.places.new_empty(0))
        wanted = drawn.wanted(per_image, taken)
        self._taken[batch_and_part] = taken = torch.cat([taken, drawn.places[wanted]])
        return drawn.patches[wanted], len(taken)


def _of_all_processes(own: list[Tensor]) -> list[Tensor]:
    """The patches (n, s) of each part, of all processes: those of process 0 first."""
    if world() == 1:
        return own
    lengths = gathered(torch.tensor([[len(patches) for patches in own]], device=own[0].device))  # (processes, parts)
    pieces = gathered(torch.cat(own)).split(lengths.flatten().tolist())
    return [torch.cat(pieces[part :: len(own)]) for part in range(len(own))]


def filter_sizes(layer: KernelLayer) -> list[int]:
    """How many numbers one filter has in each of the layer's parameters."""
    return [parameter.shape[-layer.filter_dims :].numel() for parameter in layer.sphere_parameters()]


def _parts(layer: KernelLayer) -> int:
    """How many groups or regions it has, each with filters of its own."""
    if isinstance(layer, KernelLocal2d):
        return len(layer.weight)
    return layer.groups if isinstance(layer, KernelConv2d) else 1


class Drawn(NamedTuple):
    """Patches at random places of each image of a batch, of one part of the layer."""

    patches: Tensor
    """(n, tries, s)"""
    places: Tensor
    """their numbers among all places of the batch: (n, tries)"""
    varied: Tensor
    """whether filters can be chosen from them: (n, tries)"""
    everywhere: bool
    """whether they are all patches that the part has"""

    def wanted(self, per_image: int, taken: Tensor) -> Tensor:
        """The first ``per_image`` varied patches of each image, without those at places that are ``taken``: (n, tries)"""
        usable = self.varied & ~torch.isin(self.places, taken)
        return usable & (usable.cumsum(1) <= per_image)


def _draw(
    layer: KernelLayer, inputs: tuple[Tensor, ...], per_image: int, generator: torch.Generator, parts: set[int]
) -> Iterator[tuple[int, Drawn]]:
    """What the filters of some of the layer's parts are chosen from: patches, or pairs for a product."""
    if isinstance(layer, KernelProduct):
        return iter([(0, draw_pairs(inputs[0], inputs[1], per_image, generator))])
    return draw_patches(layer, inputs[0], per_image, generator, parts)


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


def draw_patches(
    layer: KernelLayer, x: Tensor, per_image: int, generator: torch.Generator | None, parts: set[int]
) -> Iterator[tuple[int, Drawn]]:
    """Patches at random positions of each image, for those groups or regions whose numbers are in ``parts``.

    A patch is constant if its entries are all equal: it has no structure. Patches of one entry, and those of a
    fully connected layer, are constant only if they are zero. Of several groups, each has its own part of a patch, which may be
    constant where others are not. The random numbers of a part do not depend on ``parts``.
    """
    view = windows(layer, x)
    n, height, width = view.shape[:3]
    groups = layer.groups if isinstance(layer, KernelConv2d) else 1
    region_of = layer.region_of.cpu() if isinstance(layer, KernelLocal2d) else torch.zeros(height * width, dtype=torch.long)
    image = torch.arange(n, device=x.device)[:, None]
    for region in range(int(region_of.max()) + 1):
        own = torch.nonzero(region_of == region).flatten()
        tries = min(len(own), max(_TRIES, 2 * per_image))
        drawn = own[_random_places(n, len(own), tries, per_image, generator)].to(x.device)  # (n, tries)
        of_region = range(region * groups, (region + 1) * groups)
        if parts.isdisjoint(of_region):
            continue
        whole = view[image, drawn // width, drawn % width].flatten(3).flatten(2)  # (n, tries, groups s)
        for part, patches in zip(of_region, whole.unflatten(2, (groups, -1)).unbind(2), strict=True):
            if part in parts:
                varied = _is_varied(patches, isinstance(layer, KernelLinear))
                yield part, Drawn(patches, image * height * width + drawn, varied, tries == len(own))


def _is_varied(patches: Tensor, whole_images: bool) -> Tensor:
    size = patches.abs().amax(-1)
    single = patches.shape[-1] == 1 or whole_images
    spread = size if single else patches.amax(-1) - patches.amin(-1)
    return spread > torch.finfo(patches.dtype).eps * size


def _random_places(n: int, places: int, tries: int, per_image: int, generator: torch.Generator | None) -> Tensor:
    """Random places to try in each of n images, each place once if it matters: (n, tries)"""
    if per_image == 1 and places > 4 * tries:  # the first one that will do is taken, so a place may come twice
        return torch.randint(places, (n, tries), generator=generator)
    return torch.rand(n, places, generator=generator).topk(tries, 1).indices


def draw_pairs(first: Tensor, second: Tensor, per_image: int, generator: torch.Generator | None) -> Drawn:
    """Pairs of unit vectors at random positions of both inputs of a product, side by side: (n, tries, C1 + C2)

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
    pairs = torch.cat([row / norm for row, norm in zip(rows, norms, strict=True)], 2)
    image = torch.arange(len(first), device=first.device)[:, None]
    return Drawn(pairs, image * height * width + places, nonzero, tries == height * width)
