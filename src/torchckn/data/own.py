"""Your own images: files in a folder with a sub-folder for each class."""

from __future__ import annotations

import io
import math
import os
import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import ConfigError, DataError, PathError
from .limits import check_class, check_memory, check_regular, shown
from .sets import DataSet, checked_part

#: how the names of image files end; of several frames, the first one is read
IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm")
#: what a sub-folder with validation images may be called
VALIDATION = ("val", "valid", "validation")

#: pixels of a side that images may be resized to
WIDEST = 2**13


def load_folder(folder: Path, resize: int | None = None) -> DataSet:
    """Images of a folder with a sub-folder for each class, ``folder/class/image.png``.

    Or of a folder with such folders for its parts, ``folder/train/class/image.png``, and ``test``, ``val`` or both beside it.
    All images have one size, or are resized to a square of ``resize`` pixels; if any of them is in color, all are.
    """
    if resize is not None and not 1 <= resize <= WIDEST:
        raise ConfigError(f"resize expected a side from 1 to {WIDEST} pixels, got {resize}")
    classes, files = image_files_by_part(folder)
    images = _read_images([file for labels in files.values() for file in labels], resize)
    stacked = dict(zip(files, images.split([len(labels) for labels in files.values()]), strict=True))
    parts = {
        part: checked_part(stacked[part], torch.tensor(list(labels.values())), len(classes), shown(folder))
        for part, labels in files.items()
    }
    return DataSet(shown(folder.name), parts["train"], parts.get("test"), tuple(classes), parts.get("valid"))


def load_unlabeled(folder: str | os.PathLike[str], shape: tuple[int, int, int], *, resize: bool = False) -> Tensor:
    """All images in a folder and its sub-folders, whatever their names, of the shape (C, H, W): (N, C, H, W), uint8

    Args:
        resize: whether images of another size are resized; else they are an error.
    """
    path = Path(folder)
    if not path.is_dir():
        raise PathError(f"{shown(path)} is not a folder; expected a folder of image files without labels")
    files = find_images(path)
    check_memory(len(files) * math.prod(shape), f"the {len(files)} images of {shown(path)}")
    return torch.stack([read_for(file, shape, resize) for file in files])


def image_files_by_part(folder: Path) -> tuple[list[str], dict[str, dict[Path, int]]]:
    """The classes, and the image files of each part with their labels; a warning names files that are not read."""
    places = _part_folders(folder)
    train = places["train"]
    classes = [place.name for place in _subfolders(train)]
    if len(classes) < 2:
        raise DataError(
            f"{shown(train)} expected a sub-folder of images for each class, at least two, got "
            f"{', '.join(shown(name) for name in classes) or 'none'}; move the images of each class into a folder of its own"
        )
    for name in classes:
        check_class(name, shown(train))
    files: dict[str, dict[Path, int]] = {}
    for part, place in places.items():
        extra = {other.name for other in _subfolders(place)} - set(classes)
        if extra:
            raise DataError(
                f"{shown(place)} expected the classes of {shown(train)}, got {', '.join(shown(name) for name in sorted(extra))} "
                "as well; add training images of that class, or remove it"
            )
        files[part] = {
            file: label for label, kind in enumerate(classes) for file in _image_files(place / kind, part == "train")
        }
        if not files[part]:
            raise DataError(
                f"{shown(place)} expected image files ({', '.join(IMAGES)}) in folders of its classes, got none; add images, or "
                "remove the folder"
            )
    _warn_of_others(folder, {file for labels in files.values() for file in labels})
    return classes, files


def _part_folders(folder: Path) -> dict[str, Path]:
    """The folders of the training, validation and test images; if there are no such folders, all images are for training."""
    folders = {place.name.lower(): place for place in _subfolders(folder)}
    parts = [name for name in ("train", *VALIDATION, "test") if name in folders]
    if len(parts) < 2 and list(folders) != ["train"] and not _are_parts(folders):
        return {"train": folder}  # a class may well be called train or test
    if "train" not in parts or len(parts) < len(folders) or len({*parts} & {*VALIDATION}) > 1:
        raise DataError(
            f"{shown(folder)} expected sub-folders train, test and one of {', '.join(VALIDATION)}, or one for each class, got "
            f"{', '.join(shown(place.name) for place in folders.values())}; move or rename the others"
        )
    return {"valid" if name in VALIDATION else name: folders[name] for name in parts}


def _are_parts(folders: dict[str, Path]) -> bool:
    """Whether two folders have the same sub-folders, and one of them is called like a part: training, dev and so on."""
    classes = {name: [place.name for place in _subfolders(folder)] for name, folder in folders.items()}
    parts = [kinds for name, kinds in classes.items() if name.startswith(("train", "test", "val", "dev", "eval"))]
    return any(kinds and list(classes.values()).count(kinds) > 1 for kinds in parts)


def _subfolders(folder: Path) -> list[Path]:
    try:
        return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    except OSError as error:
        raise DataError(f"{shown(folder)} cannot be read: {error.strerror}") from error


def find_images(folder: Path) -> list[Path]:
    """The image files in a folder and its sub-folders, sorted; a warning names other files."""
    images = _image_files(folder)
    _warn_of_others(folder, images)
    return images


def _image_files(folder: Path, needed: bool = True) -> list[Path]:
    files = _visible_files(folder)
    images = [file for file in files if file.suffix.lower() in IMAGES]
    if needed and not images:
        raise DataError(
            f"{shown(folder)} expected image files ({', '.join(IMAGES)}), got {_listed(folder, files) or 'none'}; add images, "
            "convert them to one of these formats, or remove the folder"
        )
    return images


def _visible_files(folder: Path) -> list[Path]:
    """All that is in a folder and its sub-folders and is no folder, sorted, but for hidden files.

    Links to folders are followed, but each folder is read once, and none that contains this one.
    """

    def fail(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # a part may not have all classes
            raise DataError(f"{shown(error.filename or folder)} cannot be read: {error.strerror}") from error

    top, seen, files = Path(os.path.realpath(folder)), set[Path](), list[Path]()
    for name, folders, names in os.walk(folder, onerror=fail, followlinks=True):
        place = Path(os.path.realpath(name))
        if place in seen or place in top.parents:
            folders.clear()
            continue
        seen.add(place)
        folders[:] = sorted(other for other in folders if not other.startswith("."))
        files += [Path(name, other) for other in names if not other.startswith(".")]
    return sorted(files)


def _listed(folder: Path, files: Sequence[Path], most: int = 5) -> str:
    names = ", ".join(shown(file.relative_to(folder)) for file in files[:most])
    return names + (f" and {len(files) - most} more" if len(files) > most else "")


def _warn_of_others(folder: Path, read: Collection[Path]) -> None:
    others = [file for file in _visible_files(folder) if file not in read]
    if others:
        count = "1 file was" if len(others) == 1 else f"{len(others)} files were"
        warnings.warn(
            f"{shown(folder)}: {count} not read: {_listed(folder, others)}; "
            f"expected names ending in {', '.join(IMAGES)}, in the folder of a class. Convert, move or remove the others",
            stacklevel=4,
        )


def _read_images(files: Sequence[Path], resize: int | None = None) -> Tensor:
    """Images (N, C, H, W) of one size; if any is in color, all are."""
    images: list[Tensor] = []
    for file in files:
        pixels = read_image(file) if resize is None else _resized(read_image(file), resize, resize)
        if images and pixels.shape[1:] != images[0].shape[1:]:
            (height, width), (first_height, first_width) = pixels.shape[1:], images[0].shape[1:]
            raise DataError(
                f"images must have one size: {shown(file)} has {height}x{width} pixels, {shown(files[0])} "
                f"{first_height}x{first_width}; crop them, or resize them with --image-size (evaluate: --resize)"
            )
        if not images:
            check_memory(len(files) * pixels.numel(), f"the {len(files)} images of {shown(file)} and other files")
        images.append(pixels)
    channels = max(len(pixels) for pixels in images)
    return torch.stack([pixels.expand(channels, -1, -1) for pixels in images])


#: pillow's names of the formats in IMAGES; it knows others, and some of them start other programs
_FORMATS = ("PNG", "JPEG", "GIF", "BMP", "PPM", "TIFF", "WEBP")
#: pixels of an image; larger ones are more likely made to fill the memory
_MOST_PIXELS = 2**26


def read_image(file: ImageFile, mode: str = "") -> Tensor:
    """An image file as (C, H, W), uint8: grey or RGB as in the file, or as ``mode`` ("L" or "RGB") says."""
    from PIL import Image, ImageOps

    try:
        with Image.open(_opened(file), formats=_FORMATS) as opened:
            image: Image.Image = opened
            if image.width * image.height > _MOST_PIXELS:
                raise ValueError(f"it has {image.width}x{image.height} pixels, more than {_MOST_PIXELS} in all")
            if image.mode.startswith("I"):  # 16 bits, which pillow would cut off at 255
                values = np.asarray(image)
                if values.min() < 0 or values.max() > 65535:
                    raise ValueError("its pixels have 32 bits, where 8 or 16 bits are expected")
                image = Image.fromarray((values.astype(np.float64) / 257).round().astype(np.uint8))
            elif image.mode == "F":
                raise ValueError("its pixels are floating-point numbers, where 8 or 16 bits are expected")
            image = ImageOps.exif_transpose(image)  # upright, as cameras and phones mark it
            kind = mode or ("L" if _has_grey_pixels(image) else "RGB")
            pixels = np.asarray(image.convert(kind))
    except Exception as error:
        raise _unreadable(file, error) from error
    array = pixels[None] if kind == "L" else pixels.transpose(2, 0, 1)
    return torch.from_numpy(np.array(array))  # a copy: what PIL gives may not be written to


def is_grey(file: ImageFile) -> bool:
    """Whether :func:`read_image` gives one channel; by the header of the file, unless it has a palette."""
    from PIL import Image

    try:
        with Image.open(_opened(file), formats=_FORMATS) as image:
            return image.mode.startswith("I") or _has_grey_pixels(image)
    except Exception as error:
        raise _unreadable(file, error) from error


def _unreadable(file: ImageFile, error: Exception) -> DataError:
    """What an exception of pillow becomes, which raises nearly anything when a file is damaged."""
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return DataError(f"{shown(file)} cannot be read as an image ({shown(reason)}); replace or remove it")


class Piece(NamedTuple):
    """An image that is a part of a file."""

    name: str
    """for messages"""
    content: bytes

    def __str__(self) -> str:
        return self.name


ImageFile = str | Path | Piece


def _opened(file: ImageFile) -> str | Path | io.BytesIO:
    if isinstance(file, Piece):
        return io.BytesIO(file.content)
    check_regular(file)
    return file


def _has_grey_pixels(image: Any) -> bool:
    """Whether all colors are grey; GIF files of grey images have a palette as well."""
    if image.mode not in ("P", "PA"):
        return image.mode in ("1", "L", "LA", "La")
    colors = np.asarray(image.convert("RGB"))
    return bool((colors == colors[..., :1]).all())


def read_for(file: ImageFile, shape: tuple[int, int, int], resize: bool = False) -> Tensor:
    """An image file as a network takes it: (C, H, W), uint8, with as many channels; resized if asked for, else an error."""
    channels, height, width = shape
    if channels not in (1, 3):
        raise DataError(f"image files are grey or RGB, but the network expects images of {channels} channels")
    if not isinstance(file, Piece) and not os.path.exists(file):
        raise PathError(f"{shown(file)} does not exist; expected an image file or a folder of images")
    pixels = read_image(file, "L" if channels == 1 else "RGB")
    if tuple(pixels.shape[1:]) == (height, width):
        return pixels
    if not resize:
        raise DataError(
            f"{shown(file)} has {pixels.shape[1]}x{pixels.shape[2]} pixels, the network expects {height}x{width}; "
            "crop it, or pass --resize"
        )
    return _resized(pixels, height, width)


def _resized(pixels: Tensor, height: int, width: int) -> Tensor:
    """An image (C, H, W), grey or RGB, of another size."""
    from PIL import Image

    grey = len(pixels) == 1
    image = Image.fromarray(pixels[0].numpy() if grey else pixels.permute(1, 2, 0).numpy())
    resized = np.array(image.resize((width, height), Image.Resampling.LANCZOS))
    return torch.from_numpy(resized[None] if grey else resized.transpose(2, 0, 1).copy())
