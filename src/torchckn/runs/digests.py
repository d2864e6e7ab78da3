"""Digests of data: whether a run is resumed on the images that it was begun on. Read next: :mod:`torchckn.runs.trainer`."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ..data import LazyPart
from ..data.batches import batches, size_of


def data_digest(data: Any) -> str:
    """A digest of images and labels; of a data set, its length and some of its items; of a stream, what it is called.

    Of images that are read when they are needed, also of all labels, and of the names and sizes of the files.
    """
    digest = hashlib.sha256(f"{type(data).__name__} {size_of(data)}".encode())
    if isinstance(data, LazyPart):
        digest.update(data.digest().encode())
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        count = size_of(data) or 0
        with _same_randomness():
            some = [data[i] for i in range(0, count, max(1, count // 16))]
        digest.update(repr([_in_brief(part) for item in some for part in item]).encode())
    elif not isinstance(data, (DataLoader, IterableDataset)):
        for part in next(iter(batches(data, 2**62))):
            if part is not None:
                digest.update(part.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


@contextmanager
def _same_randomness() -> Iterator[None]:
    """Within this context, random transforms of images draw the same numbers each time, in every process."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def _in_brief(part: Any) -> Any:
    """Of an image or a label, what a digest has of it."""
    if isinstance(part, (bool, int, float, np.generic)):
        return float(part)
    if isinstance(part, np.ndarray):
        part = torch.from_numpy(part) if part.dtype.kind in "iufb" else None
    return (part.shape, part.double().sum()) if isinstance(part, Tensor) else None
