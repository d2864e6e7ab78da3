"""What the next layers need of the images that patches are sampled from: kept from layer to layer, in bounded memory.

Filters are chosen layer by layer (Algorithm 2, first line), and the patches of a layer depend on the filters before it. If each
layer ran the network from the pixels, the cost would grow with the square of the depth; from the activations of the layer before,
it is linear. Read next: :mod:`torchckn.fit.patches`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor

from ..data.batches import placed_batches
from ..distributed import rank, world
from ..network import CKN

#: bytes of activations that are kept; images beyond go through the network from the pixels, for each layer
KEPT = 2**31


@dataclass
class _Batch:
    """The outputs of the first ``done`` nodes that later nodes need."""

    values: dict[str, Tensor]
    done: int = 0

    @property
    def bytes(self) -> int:
        return sum(value.untyped_storage().nbytes() for value in self.values.values())


class Activations:
    """The inputs of a network's layers, batch by batch, for layers in the order of computation.

    Every pass is over the same images in the same random order (a ``DataLoader`` has an order of its own). The activations of
    the first batches are kept, as many as fit into ``memory`` bytes. Of several processes, each has every so many batches.
    """

    def __init__(self, ckn: CKN, data: Any, batch_size: int, generator: torch.Generator | None, memory: int = KEPT) -> None:
        self.ckn, self.data, self.batch_size, self.memory = ckn, data, batch_size, memory
        self._seed = int(torch.randint(2**62, (1,), generator=generator))
        self._kept: list[_Batch] = []

    def inputs_of(self, name: str) -> Iterator[tuple[Tensor, ...]]:
        """What the layer called ``name`` gets, of batch after batch; the filters of the layers before it are not to change."""
        stop = self.ckn.position_of(name)
        sources = self.ckn.graph.nodes[stop].inputs
        images: Iterator[Tensor] | None = None
        for place in count():
            if place < len(self._kept):
                batch = self._kept[place]
            else:
                images = self._images(place) if images is None else images
                new = next(images, None)
                if new is None:
                    return
                batch = _Batch({self.ckn.graph.input: self.ckn.checked(self.ckn.pixels(new))})
            self.ckn.run_nodes(batch.values, batch.done, stop)
            batch.done = stop
            if place == len(self._kept):
                self._kept.append(batch)
            while sum(kept.bytes for kept in self._kept) > self.memory:
                self._kept.pop()
            yield tuple(batch.values[source] for source in sources)

    def _images(self, first: int) -> Iterator[Tensor]:
        """This process's batches of images, from the ``first`` one on."""
        order, number = torch.Generator().manual_seed(self._seed), count()
        here, processes = rank(), world()

        def wanted(place: int) -> bool:
            round_, whose = divmod(next(number), processes)
            return whose == here and round_ >= first

        placed = placed_batches(self.data, self.batch_size, generator=order, wanted=wanted)
        return (images for _, images, _ in placed)
