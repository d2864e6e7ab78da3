"""A data set in memory: images, labels, and the names of the classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import torch
from torch import Tensor

from ..choices import as_integer
from ..errors import ConfigError, DataError


@dataclass(frozen=True, eq=False, repr=False)
class Part:
    """Images (N, C, H, W), pixels as they are in the files, and labels (N,), which every function here takes as data.

    ``images, labels = part`` unpacks it. A slice, such as ``part[:100]``, is a part again, and ``part[0]`` the first image with
    its label, so that a ``DataLoader`` takes it as well.

    Example:
        >>> from torchckn import data
        >>> digits = data.load("mnist-mini").train
        >>> digits[:100]
        Part(100 images of shape (1, 28, 28), torch.uint8)
        >>> digits.subset(digits.labels < 5).labels.unique()
        tensor([0, 1, 2, 3, 4])
    """

    images: Tensor
    labels: Tensor

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.images, self.labels))

    def __len__(self) -> int:
        return len(self.images)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W)"""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    @overload
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]: ...

    @overload
    def __getitem__(self, index: slice) -> Part: ...

    def __getitem__(self, index: int | slice) -> tuple[Tensor, Tensor] | Part:
        some = self.images[index], self.labels[index]
        return Part(*some) if isinstance(index, slice) else some

    def subset(self, which: int | Sequence[int] | Tensor, seed: int | None = None) -> Part:
        """Some of the images with their labels.

        Args:
            which: how many; or the indices of those to take; or a Boolean tensor, True for those to take.
            seed: with a number of images: draw them at random. By default they are the first ones, which in a folder of images
                all have the same class.
        """
        count = len(self)
        if isinstance(which, int) and not isinstance(which, bool):
            if not 0 < which <= count:
                raise ConfigError(f"subset expected between 1 and {count} images, got {which}")
            return self[:which] if seed is None else self.subset(_order(count, seed)[:which])
        if seed is not None:
            raise ConfigError("subset expected a number of images with seed, got indices; leave seed out")
        index = torch.as_tensor(which)
        if index.dtype == torch.bool:
            if index.shape != (count,):
                raise DataError(f"subset expected a Boolean tensor of shape ({count},), got {tuple(index.shape)}")
        elif index.ndim != 1 or index.is_floating_point() or not len(index):
            raise DataError(f"subset expected a number or a list of indices, got {tuple(index.shape)} of {index.dtype}")
        elif int(index.min()) < -count or int(index.max()) >= count:
            raise DataError(f"subset expected indices below {count}, got {int(index.min())} to {int(index.max())}")
        return Part(self.images[index], self.labels[index])

    def some(self, count: int) -> Part:
        """At most so many images, evenly spaced over all of them, because folders are sorted by class."""
        return self.subset(evenly_spaced(count, len(self)))

    def in_channels(self, channels: int) -> Part:
        """Grey images as color images, or the reverse: see :func:`in_channels`."""
        return Part(in_channels(self.images, channels), self.labels)

    def relabeled(self, numbers: Tensor) -> Part:
        """The same images, with ``numbers[label]`` in place of each label."""
        return Part(self.images, numbers[self.labels])

    def __repr__(self) -> str:
        return f"Part({len(self)} images of shape {tuple(self.images.shape[1:])}, {self.images.dtype})"


@dataclass(frozen=True)
class DataSet:
    """A training part, a test and a validation part if there are any, and the names of the classes."""

    name: str
    train: Part
    test: Part | None
    classes: tuple[str, ...]
    valid: Part | None = None

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return self.train.image_shape

    def in_classes(self, classes: tuple[str, ...]) -> DataSet:
        """The same images, with labels that number these classes, found by name; or as they are, if one side has numbers only
        and no name is that of a class of the other.

        Example:
            >>> from torchckn import data
            >>> digits = data.load("mnist-mini")
            >>> digits.in_classes(digits.classes) is digits
            True
        """
        unknown = [name for name in self.classes if name not in classes]
        numbered = _are_numbers(self.classes) or _are_numbers(classes)
        if self.classes == classes:
            return self
        if numbered and len(unknown) == len(self.classes) <= len(classes):
            return self
        if unknown:
            raise DataError(
                f"{self.name} expected images of the classes {listed(classes)}, got {listed(unknown)}; rename its classes as "
                "those the network was trained on, or remove the others"
            )
        numbers = torch.tensor([classes.index(name) for name in self.classes])
        return replace(self, classes=classes, **self._parts(lambda part: part.relabeled(numbers)))

    def in_channels(self, channels: int) -> DataSet:
        """The same images, grey for one channel and in color for three; as they are if they have another number of channels.

        Example:
            >>> from torchckn import data
            >>> data.load("mnist-mini").in_channels(3).image_shape
            (3, 28, 28)
        """
        if {self.image_shape[0], channels} != {1, 3}:
            return self
        return replace(self, **self._parts(lambda part: part.in_channels(channels)))

    def _parts(self, change: Callable[[Part], Part]) -> dict[str, Any]:
        parts = {"train": self.train, "valid": self.valid, "test": self.test}
        return {name: change(part) for name, part in parts.items() if part is not None}


#: brightness of red, green and blue as pillow converts image files, in parts of 65,536
_BRIGHTNESS = (19595, 38470, 7471)


def in_channels(images: Tensor, channels: int) -> Tensor:
    """Images (..., C, H, W) of one channel repeated in three, or the brightness of three channels, as pillow has it."""
    if channels == images.shape[-3]:
        return images
    if channels == 3:
        return images.expand(*images.shape[:-3], 3, *images.shape[-2:])
    is_bytes = images.dtype == torch.uint8
    red, green, blue = (images.int() if is_bytes else images).split(1, -3)
    total = _BRIGHTNESS[0] * red + _BRIGHTNESS[1] * green + _BRIGHTNESS[2] * blue
    return ((total + 2**15) >> 16).to(torch.uint8) if is_bytes else total / 2**16


def _are_numbers(classes: tuple[str, ...]) -> bool:
    """Whether classes have no names, only numbers from 0 on."""
    return classes == tuple(map(str, range(len(classes))))


def listed(names: Sequence[str], most: int = 10) -> str:
    """Names of classes in a message, not too many of them."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} others" if len(names) > most else "")


def split(part: Part, held_out: int, seed: int = 0) -> tuple[Part, Part]:
    """A training and a validation part: ``part`` without ``held_out`` images that are drawn at random, and these.

    Of fewer than 2,000 images, every class has its share in both parts, and if possible at least one in the training part.
    """
    if (count := as_integer(held_out, 1)) is None or count >= len(part):
        raise ConfigError(f"split expected to hold out between 1 and {len(part) - 1} images, got {held_out!r}")
    order = _order(len(part), seed)
    if len(part) < FEW_IMAGES:
        order = by_share(order, part.labels, count)
    return part.subset(order[count:]), part.subset(order[:count])


#: images below which chance is not left to give every class its share
FEW_IMAGES = 2000


def by_share(order: Tensor, labels: Tensor, held_out: int) -> Tensor:
    """The same numbers, of which the first ``held_out`` have all classes in proportion, and if possible not all of a class."""
    by_class = order[labels[order].argsort(stable=True)]
    is_first = torch.ones(len(order), dtype=torch.bool)
    is_first[1:] = labels[by_class].diff() != 0
    others = by_class[~is_first]
    held = others[evenly_spaced(held_out, len(others))] if held_out <= len(others) else order[:held_out]
    is_held = torch.zeros(len(order), dtype=torch.bool)
    is_held[held] = True
    return torch.cat([order[is_held[order]], order[~is_held[order]]])


def evenly_spaced(count: int, length: int) -> Tensor:
    """At most ``count`` of the numbers below ``length``."""
    count = min(count, length)
    return torch.arange(count) * length // count


def _order(count: int, seed: int) -> Tensor:
    """The numbers below ``count`` in random order."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def checked_part(images: Tensor, labels: Tensor, classes: int, what: str) -> Part:
    """A part whose labels are 0, 1, ..., classes - 1."""
    if len(images) != len(labels):
        raise DataError(f"{what} expected a label for each image, got {len(images)} images and {len(labels)} labels")
    if not len(images):
        raise DataError(f"{what} has no images")
    if labels.ndim != 1 or labels.min() < 0 or labels.max() >= classes:
        raise DataError(
            f"{what} expected labels from 0 to {classes - 1}, got {int(labels.min())} to {int(labels.max())}; number the classes "
            "0, 1, 2, ..."
        )
    return Part(images, labels.long())


def has_channels_last(shape: Sequence[int]) -> bool:
    """Whether images of this shape seem to be (N, H, W, C): with few channels, and larger than that."""
    return len(shape) == 4 and shape[3] in (1, 3, 4) and min(shape[1:3]) > 4
