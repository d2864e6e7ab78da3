"""Training batches in random order, epoch after epoch, with a state that can be saved and restored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, default_collate

from ..choices import Augmentation
from ..data import LazyPart
from ..data.augmentation import augment
from ..data.batches import batches, checked_batch, read_items
from ..distributed import share, world
from ..errors import ConfigError, DataError
from .features import CHUNK, check_labels


class TrainingBatches:
    """Batches (images, labels) without end. The last images of an epoch that do not fill a batch are left out of it.

    With several processes, the generator decides each batch, whatever their number, and each of them takes its share.

    Args:
        data: a pair (images, labels), a ``Dataset`` of such pairs, or a ``DataLoader``, whose own batches are taken as they are.
        generator: shuffles each epoch.
        augmentation: what is done at random to the images of each step (:func:`torchckn.data.augment`).
        share_of: a batch of so many images: the part of it that this process gets. By default in whole chunks; see
            :func:`torchckn.fit.chunks.share_of_batch`.
    """

    def __init__(
        self,
        data: Any,
        batch_size: int,
        classes: int,
        generator: torch.Generator,
        augmentation: Sequence[Augmentation] | None = None,
        share_of: Callable[[int], slice] = lambda batch_size: share(batch_size, CHUNK),
    ) -> None:
        if not isinstance(batch_size, int) or batch_size < 1:
            raise ConfigError(f"batch_size expected an integer >= 1, got {batch_size!r}")
        self.data, self.batch_size, self.generator, self.augmentation = data, batch_size, generator, augmentation
        self._share = share_of
        self.streams = isinstance(data, (DataLoader, IterableDataset))
        self.epoch, self.position = 0, 0
        self.order = torch.empty(0, dtype=torch.long)
        self._stream: Iterator[tuple[Tensor, Tensor | None]] = iter(())
        #: the rest of this epoch, which a data set's workers read ahead of time
        self._ahead: Iterator[Any] | None = None
        self.steps_per_epoch = 1
        if batch_size < world():
            raise ConfigError(
                f"batch_size is {batch_size}, but there are {world()} processes; each needs at least one image"
            )
        if self.streams:
            return
        if not isinstance(data, Dataset):
            self.data = _checked_pair(data, classes)
        count = len(self.data[0]) if isinstance(self.data, tuple) else len(self.data)
        if count < batch_size:
            raise ConfigError(f"batch_size is {batch_size}, but there are {count} training images; choose {count} or fewer")
        self.count = count
        self.steps_per_epoch = count // batch_size

    @property
    def at_end_of_epoch(self) -> bool:
        """Whether the next batch begins a new epoch. (Of a stream, this is known only afterwards.)"""
        return not self.streams and self.position + self.batch_size > len(self.order)

    def next(self) -> tuple[Tensor, Tensor]:
        """The next batch, augmented."""
        return self._shared_stream() if self.streams else self._augmented(*self._next(), self.batch_size)

    def _augmented(self, images: Tensor, labels: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """This process's share of a batch of so many images."""
        if not self.augmentation:
            return images, labels
        return augment(images, self.augmentation, self.generator, self._share(count), count), labels

    def _next(self) -> tuple[Tensor, Tensor]:
        if self.position + self.batch_size > len(self.order):
            self.epoch += len(self.order) > 0
            self.order, self.position = torch.randperm(self.count, generator=self.generator), 0
            self._ahead = None
        if self._ahead is None and int(getattr(self.data, "workers", 0)):
            rest, size, mine = self.order[self.position :], self.batch_size, self._share(self.batch_size)
            starts = range(0, len(rest) - size + 1, size)
            self._ahead = read_items(self.data, (rest[start : start + size][mine] for start in starts))
        index = self.order[self.position : self.position + self.batch_size]
        self.position += self.batch_size
        if self._ahead is None:
            return self._take(index)
        batch = next(self._ahead)
        if self.at_end_of_epoch:
            self._ahead = None  # its workers have nothing more to read
        return _with_labels(checked_batch(batch, True))

    def extra(self) -> tuple[Tensor, Tensor]:
        """A batch for trials: at random, leaving the order of training as it is (but not that of a stream)."""
        if self.streams:
            return self._shared_stream()
        index = torch.randperm(self.count, generator=self.generator)[: self.batch_size]
        return self._augmented(*self._take(index), self.batch_size)

    def sample(self, count: int) -> Any:
        """Some images at random, each once, leaving the order of training as it is; None if there are no more than that.

        Of a stream, the next batches, until they have as many images or it begins again. As data that are the same in every
        process, not its share: who takes them shares them out.
        """
        if self.streams:
            parts, epoch = [self._from_stream()], self.epoch
            while sum(len(images) for images, _ in parts) < count:
                batch = self._from_stream()
                if self.epoch != epoch:
                    break
                parts.append(batch)
            return tuple(torch.cat(both)[:count] for both in zip(*parts, strict=True))
        if count >= self.count:
            return None
        index = torch.randperm(self.count, generator=self.generator)[:count]
        if isinstance(self.data, tuple):
            return self.data[0][index], self.data[1][index]
        return self.data.subset(index) if isinstance(self.data, LazyPart) else Subset(self.data, index.tolist())

    def state(self) -> dict[str, Tensor]:
        return {"order": self.order, "place": torch.tensor([self.epoch, self.position])}

    def restore(self, state: dict[str, Tensor]) -> None:
        if self.streams:
            raise ConfigError(
                "a run on a DataLoader or IterableDataset cannot be resumed, for its position is not known; "
                "pass the Dataset itself, or a pair (images, labels)"
            )
        if len(state["order"]) not in (0, self.count):
            raise DataError(f"this run was on {len(state['order'])} training images, now there are {self.count}")
        self.order, self._ahead = state["order"], None
        self.epoch, self.position = (int(number) for number in state["place"])

    def _take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        index = index[self._share(len(index))]
        if isinstance(self.data, tuple):
            return self.data[0][index], self.data[1][index]
        return _with_labels(checked_batch(default_collate([self.data[int(i)] for i in index]), True))

    def _shared_stream(self) -> tuple[Tensor, Tensor]:
        """This process's share of the stream's next batch, augmented."""
        images, labels = self._from_stream()
        part = self._share(len(images))
        return self._augmented(images[part], labels[part], len(images))

    def _from_stream(self) -> tuple[Tensor, Tensor]:
        """The stream's next batch, all of it. One with fewer images than there are processes is left out by all of them."""
        for is_new in (False, True):
            if is_new:
                if self.position:
                    self.epoch, self.steps_per_epoch = self.epoch + 1, self.position
                self._stream, self.position = iter(batches(self.data, self.batch_size, labels=True)), 0
            for batch in self._stream:
                images, labels = _with_labels(batch)
                if len(images) >= world():
                    self.position += 1
                    return images, labels
        few = f" in batches of at least {world()}, one for each process" if world() > 1 else ""
        raise DataError(f"there are no training images{few}")


def _with_labels(batch: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor]:
    images, labels = batch
    assert labels is not None
    return images, labels


def _checked_pair(data: Any, classes: int) -> tuple[Tensor, Tensor]:
    images, labels = _with_labels(checked_batch(data, True))
    labels = check_labels(labels, classes)
    if images.is_floating_point() and not bool(torch.isfinite(images).all()):
        wrong = torch.nonzero(~torch.isfinite(images).flatten(1).all(1)).flatten()
        raise DataError(f"expected finite pixels, got NaN or infinity in {len(wrong)} images, first {int(wrong[0])}")
    counts = torch.bincount(labels, minlength=classes)
    missing = torch.nonzero(counts == 0).flatten().tolist()
    if missing:
        raise DataError(
            f"the training part has no image of class {', '.join(map(str, missing))} of {classes} classes; add some, or "
            "number the classes that are there 0, 1, 2, ... and build the network for as many"
        )
    return images, labels
