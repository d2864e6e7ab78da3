"""One's own images: a folder with a sub-folder for each class, or an ``.npz`` file."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError
from .sets import DataSet, Part, checked_part

IMAGES = (".png", ".jpg", ".jpeg")


def load_folder(folder: Path) -> DataSet:
    """Images of a folder: ``folder/class/*.png``, or ``folder/train/class/*.png`` and ``folder/test/class/*.png``."""
    if {"train", "test"} <= {p.name for p in folder.iterdir() if p.is_dir()}:
        classes = _classes(folder / "train")
        extra = set(_classes(folder / "test")) - set(classes)
        if extra:
            raise DataError(
                f"{folder / 'test'} has classes that {folder / 'train'} does not have: {', '.join(sorted(extra))}"
            )
        train, mode = _read_classes(folder / "train", classes, None)
        test, _ = _read_classes(folder / "test", classes, (mode, tuple(train.images.shape[2:])))
        return DataSet(folder.name, train, test, tuple(classes))
    classes = _classes(folder)
    train, _ = _read_classes(folder, classes, None)
    return DataSet(folder.name, train, None, tuple(classes))


def _classes(folder: Path) -> list[str]:
    found = sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    if len(found) < 2:
        raise DataError(
            f"{folder} expected a sub-folder of images for each class, at least two, got {len(found)}: "
            f"{', '.join(found) or 'none'}"
        )
    return found


def _read_classes(folder: Path, classes: list[str], like: tuple[str, tuple[int, ...]] | None) -> tuple[Part, str]:
    images: list[Tensor] = []
    labels: list[int] = []
    first: Path | None = None
    mode, size = like if like else ("", ())
    for label, name in enumerate(classes):
        files = (
            sorted(p for p in (folder / name).glob("*") if p.suffix.lower() in IMAGES) if (folder / name).is_dir() else []
        )
        if not files and like is None:
            raise DataError(f"class {name!r} is empty: {folder / name} has no PNG or JPEG files")
        for file in files:
            pixels, kind = read_image(file, mode)
            if not size:
                mode, size, first = kind, tuple(pixels.shape[1:]), file
            if tuple(pixels.shape[1:]) != size:
                raise DataError(
                    f"images must have one size: {file} has {pixels.shape[1]}x{pixels.shape[2]} pixels, "
                    f"{first or 'the others'} {size[0]}x{size[1]}; crop or resize them to one size first"
                )
            images.append(pixels)
            labels.append(label)
    if not images:
        raise DataError(f"{folder} has no PNG or JPEG files")
    return checked_part(torch.stack(images), torch.tensor(labels), len(classes), str(folder)), mode


def read_image(file: Path, mode: str = "") -> tuple[Tensor, str]:
    """An image file as (C, H, W), uint8, grey or RGB: as it is itself, or as ``mode`` ("L" or "RGB") says."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as image:
            kind = mode or ("L" if image.mode in ("1", "L", "LA", "I", "I;16") else "RGB")
            pixels = np.asarray(image.convert(kind))
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError) as error:
        raise DataError(f"{file} cannot be read as an image ({error}); replace or remove it") from error
    array = pixels[None] if kind == "L" else pixels.transpose(2, 0, 1)
    return torch.from_numpy(np.array(array)), kind  # a copy: what PIL gives may not be written to


def read_for(file: Path, shape: tuple[int, int, int], resize: bool = False) -> Tensor:
    """An image file as a network takes it: (C, H, W), uint8, with as many channels; resized if asked for, else an error."""
    from PIL import Image

    channels, height, width = shape
    if channels not in (1, 3):
        raise DataError(f"image files are grey or RGB, but the network takes images of {channels} channels")
    if not file.is_file():
        raise DataError(f"{file} does not exist; expected an image file")
    pixels, _ = read_image(file, "L" if channels == 1 else "RGB")
    if tuple(pixels.shape[1:]) == (height, width):
        return pixels
    if not resize:
        raise DataError(
            f"{file} has {pixels.shape[1]}x{pixels.shape[2]} pixels, the network takes {height}x{width}; "
            "crop it, or pass --resize"
        )
    image = Image.fromarray(pixels[0].numpy() if channels == 1 else pixels.permute(1, 2, 0).numpy())
    resized = np.array(image.resize((width, height), Image.Resampling.LANCZOS))
    return torch.from_numpy(resized[None] if channels == 1 else resized.transpose(2, 0, 1).copy())


def load_npz(file: Path) -> DataSet:
    """Arrays ``x`` (N, H, W) or (N, C, H, W) and ``y`` (N,), whole numbers; ``x_test`` and ``y_test`` if there are any."""
    try:
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as content:
            arrays = {name: content[name] for name in content.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{file} cannot be read as an .npz file of plain arrays ({error})") from error
    missing = {"x", "y"} - set(arrays)
    if missing:
        raise DataError(f"{file} expected arrays x and y, got {', '.join(sorted(arrays)) or 'none'}")
    train = _arrays(arrays["x"], arrays["y"], f"{file}")
    test = _arrays(arrays["x_test"], arrays["y_test"], f"{file} (test)") if {"x_test", "y_test"} <= set(arrays) else None
    count = 1 + int(max([train[1].max(), *([test[1].max()] if test else [])]))
    classes = tuple(str(i) for i in range(count))
    parts = [checked_part(*pair, count, str(file)) if pair else None for pair in (train, test)]
    assert parts[0] is not None
    return DataSet(file.stem, parts[0], parts[1], classes)


def _arrays(x: Any, y: Any, what: str) -> tuple[Tensor, Tensor]:
    if x.ndim == 3:
        x = x[:, None]
    if x.ndim != 4 or x.dtype.kind not in "uif":
        raise DataError(f"{what} expected x of shape (N, H, W) or (N, C, H, W) and numbers, got {x.shape} of {x.dtype}")
    if y.ndim != 1 or y.dtype.kind not in "ui":
        raise DataError(f"{what} expected y to be whole numbers, one for each image, got {y.shape} of {y.dtype}")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        raise DataError(f"{what} has pixels that are NaN or infinite")
    if not len(x) or not len(y):
        raise DataError(f"{what} has no images")
    pixels = x if x.dtype == np.uint8 else x.astype(np.float32)
    return torch.from_numpy(np.ascontiguousarray(pixels)), torch.from_numpy(y.astype(np.int64))
