"""One way to go through data, whatever form they come in: tensors, a pair, a ``Dataset`` or a ``DataLoader``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, default_collate

from ..errors import ConfigError, DataError
from .sets import Part


def batches(
    data: Any, batch_size: int = 256, *, labels: bool = False, generator: torch.Generator | None = None
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Batches (images, labels) of ``data``; in random order with a generator, else in the order they are in.

    Args:
        data: images (N, C, H, W); a pair (images, labels) of tensors or arrays; a ``Dataset`` of such pairs or of images;
            or a ``DataLoader``, whose own batches and order are taken as they are.
        labels: whether there must be labels.
    """
    for _, images, targets in placed_batches(data, batch_size, labels=labels, generator=generator):
        yield images, targets


def sampler_of(loader: DataLoader[Any]) -> Any:
    """What chooses the images of a loader, also where that is part of a batch sampler of one's own."""
    return getattr(loader.batch_sampler, "sampler", loader.sampler)


def check_whole(data: Any) -> None:
    """An error for a ``DataLoader`` that gives each process a part of the data, which each then takes for all of them."""
    sampler = sampler_of(data) if isinstance(data, DataLoader) else None
    if isinstance(sampler, DistributedSampler) and sampler.num_replicas > 1:
        raise ConfigError(
            "expected data that are the same in all processes, got a DataLoader with a DistributedSampler, which gives each of "
            "them a part; pass its Dataset, which is divided among the processes"
        )


def placed_batches(
    data: Any,
    batch_size: int = 256,
    *,
    labels: bool = False,
    generator: torch.Generator | None = None,
    wanted: Callable[[int], bool] = lambda place: True,
) -> Iterator[tuple[int, Tensor, Tensor | None]]:
    """Batches with the place of their first image in all of ``data``, those that are wanted by their place.

    Others are not read, unless they come from a ``DataLoader``, which reads them anyway.
    """
    if isinstance(data, (DataLoader, IterableDataset)):
        check_whole(data)
        place = 0
        for batch in data if isinstance(data, DataLoader) else DataLoader(data, batch_size):
            images, targets = checked_batch(batch, labels)
            if wanted(place):
                yield place, images, targets
            place += len(images)
        return
    pair = None if isinstance(data, Dataset) else checked_batch(data, labels)
    if pair is None and not isinstance(data, Sized):
        raise DataError(f"expected a dataset with a length, got {type(data).__name__} without __len__")
    order = _order(len(data if pair is None else pair[0]), batch_size, generator)
    places = [place for place in range(0, len(order), batch_size) if wanted(place)]
    index = (order[place : place + batch_size] for place in places)
    if pair is None:
        for place, batch in zip(places, read_items(data, index), strict=True):
            yield place, *checked_batch(batch, labels)
        return
    for place, some in zip(places, index, strict=True):
        yield place, pair[0][some], None if pair[1] is None else pair[1][some]


def read_items(data: Any, index: Iterable[Tensor]) -> Iterator[Any]:
    """Batches of a data set's items, by their numbers; read by worker processes ahead of time, if it has ``workers``.

    Numbers become Python objects one batch at a time. A list of all of them would be in the memory of every worker, too: a page
    that processes share is copied as soon as one of them counts a reference to an object in it.
    """
    workers = getattr(data, "workers", 0)
    if not workers:
        yield from (default_collate([data[int(i)] for i in some]) for some in index)
        return
    yield from DataLoader(data, batch_sampler=(some.tolist() for some in index), num_workers=workers)


def size_of(data: Any) -> int | None:
    """How many images there are, where that can be told."""
    if isinstance(data, DataLoader):
        # What a loader draws may be fewer images than its data set has.
        sampler = None if isinstance(data.dataset, IterableDataset) else getattr(data.batch_sampler, "sampler", None)
        data = sampler if isinstance(sampler, Sized) else data.dataset
    if isinstance(data, (tuple, list)) and data:
        data = data[0]
    return len(data) if isinstance(data, Sized) else None


def _order(n: int, batch_size: int, generator: torch.Generator | None) -> Tensor:
    if batch_size < 1:
        raise DataError(f"batch_size expected an integer >= 1, got {batch_size!r}")
    return torch.arange(n) if generator is None else torch.randperm(n, generator=generator)


def checked_batch(batch: Any, need_labels: bool) -> tuple[Tensor, Tensor | None]:
    if isinstance(batch, (Tensor, np.ndarray)):
        images, labels = batch, None
    elif isinstance(batch, (tuple, list)) and len(batch) == 1:  # of a TensorDataset(images)
        images, labels = batch[0], None
    elif isinstance(batch, Part) or (isinstance(batch, (tuple, list)) and len(batch) == 2):
        images, labels = batch
    else:
        raise DataError(
            f"data expected images (N, C, H, W), a pair (images, labels), a Dataset or a DataLoader, got {type(batch).__name__}"
        )
    try:
        images = torch.as_tensor(images)
        labels = None if labels is None else torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"data expected arrays of numbers as images and labels ({error}); number the classes from 0"
        ) from error
    if images.ndim != 4:
        raise DataError(f"data expected images (N, C, H, W), got shape {tuple(images.shape)}; grey images need a channel")
    if need_labels and labels is None:
        raise DataError("labels are needed here: pass a pair (images, labels), or a Dataset or DataLoader of such pairs")
    if labels is not None and len(labels) != len(images):
        raise DataError(f"data expected a label for each image, got {len(images)} images and {len(labels)} labels")
    return images, labels
