"""Your own images: a folder with a sub-folder for each class, or an ``.npz`` file."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError
from .sets import DataSet, Part, checked_part

#: how the names of image files end; of several frames, the first one is read
IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm")
#: what a sub-folder with validation images may be called
VALIDATION = ("val", "valid", "validation")


def load_folder(folder: Path) -> DataSet:
    """Images of a folder with a sub-folder for each class, ``folder/class/image.png``.

    Or of a folder with such folders for its parts, ``folder/train/class/image.png``, and ``test``, ``val`` or both beside it.
    """
    places = _part_folders(folder)
    train = places["train"]
    classes = [place.name for place in _subfolders(train)]
    if len(classes) < 2:
        raise DataError(
            f"{train} expected a sub-folder of images for each class, at least two, got {len(classes)}: "
            f"{', '.join(classes) or 'none'}"
        )
    files: dict[Path, int] = {}
    parts: dict[str, Part] = {}
    for name, place in places.items():
        extra = {other.name for other in _subfolders(place)} - set(classes)
        if extra:
            raise DataError(
                f"{place} expected the classes of {train}, got {', '.join(sorted(extra))} as well; add training images of that "
                "class, or remove it"
            )
        labels = {file: label for label, kind in enumerate(classes) for file in _image_files(place / kind, name == "train")}
        images = _read_images(list(labels), parts["train"].images[0] if parts else None)
        parts[name] = checked_part(images, torch.tensor(list(labels.values())), len(classes), str(place))
        files |= labels
    _warn_of_others(folder, files)
    return DataSet(folder.name, parts["train"], parts.get("test"), tuple(classes), parts.get("valid"))


def _part_folders(folder: Path) -> dict[str, Path]:
    """The folders of the training, validation and test images; if there are no such folders, all images are for training."""
    folders = {place.name.lower(): place for place in _subfolders(folder)}
    known = [name for name in ("train", *VALIDATION, "test") if name in folders]
    if len(known) < 2 and list(folders) != ["train"]:
        return {"train": folder}  # a class may well be called train or test
    if "train" not in known or len(known) < len(folders) or len({*known} & {*VALIDATION}) > 1:
        raise DataError(
            f"{folder} expected sub-folders train, test and one of {', '.join(VALIDATION)}, or one for each class, got "
            f"{', '.join(place.name for place in folders.values())}; move or rename the others"
        )
    return {"valid" if name in VALIDATION else name: folders[name] for name in known}


def _subfolders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


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
            f"{folder} expected image files ({', '.join(IMAGES)}), got {_listed(folder, files) or 'none'}; add images, or "
            "convert them to one of these formats"
        )
    return images


def _visible_files(folder: Path) -> list[Path]:
    """All files in a folder and its sub-folders, sorted, but for hidden ones."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def _listed(folder: Path, files: Sequence[Path], most: int = 5) -> str:
    names = ", ".join(str(file.relative_to(folder)) for file in files[:most])
    return names + (f" and {len(files) - most} more" if len(files) > most else "")


def _warn_of_others(folder: Path, read: Collection[Path]) -> None:
    others = [file for file in _visible_files(folder) if file not in read]
    if others:
        warnings.warn(
            f"{folder}: {len(others)} {'file was' if len(others) == 1 else 'files were'} not read: {_listed(folder, others)}; "
            f"expected files with names in {', '.join(IMAGES)}, in the folder of a class. Convert, move or remove the others",
            stacklevel=4,
        )


def _read_images(files: Sequence[Path], like: Tensor | None) -> Tensor:
    """Images (N, C, H, W) of one size; if any is in color, all are. In the format of the image ``like``, if there is one."""
    mode = "" if like is None else "L" if len(like) == 1 else "RGB"
    images = [read_image(file, mode) for file in files]
    size = tuple((images[0] if like is None else like).shape[1:]) if images else ()
    for file, pixels in zip(files, images, strict=True):
        if tuple(pixels.shape[1:]) != size:
            raise DataError(
                f"images must have one size: {file} has {pixels.shape[1]}x{pixels.shape[2]} pixels, "
                f"{files[0] if like is None else 'the training images'} {size[0]}x{size[1]}; crop or resize them to one size "
                "first"
            )
    channels = max((len(pixels) for pixels in images), default=1)
    return torch.stack([pixels.expand(channels, -1, -1) for pixels in images]) if images else torch.empty(0)


def read_image(file: Path, mode: str = "") -> Tensor:
    """An image file as (C, H, W), uint8: grey or RGB as in the file, or as ``mode`` ("L" or "RGB") says."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as opened:
            image: Image.Image = opened
            if image.mode.startswith("I"):  # 16 bits, which pillow would cut off at 255
                image = Image.fromarray((np.asarray(image).astype(np.float64) / 257).round().clip(0, 255).astype(np.uint8))
            elif image.mode == "F":
                raise ValueError("its pixels are floating-point numbers, where 8 or 16 bits are expected")
            kind = mode or ("L" if image.mode in ("1", "L", "LA") or _has_grey_palette(image) else "RGB")
            pixels = np.asarray(image.convert(kind))
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError) as error:
        raise DataError(f"{file} cannot be read as an image ({error}); replace or remove it") from error
    array = pixels[None] if kind == "L" else pixels.transpose(2, 0, 1)
    return torch.from_numpy(np.array(array))  # a copy: what PIL gives may not be written to


def _has_grey_palette(image: Any) -> bool:
    """Whether all colors are grey, as in GIF files of grey images, which have a palette as well."""
    if image.mode not in ("P", "PA"):
        return False
    colors = np.asarray(image.convert("RGB"))
    return bool((colors == colors[..., :1]).all())


def read_for(file: Path, shape: tuple[int, int, int], resize: bool = False) -> Tensor:
    """An image file as a network takes it: (C, H, W), uint8, with as many channels; resized if asked for, else an error."""
    from PIL import Image

    channels, height, width = shape
    if channels not in (1, 3):
        raise DataError(f"image files are grey or RGB, but the network expects images of {channels} channels")
    if not file.exists():
        raise DataError(f"{file} does not exist; expected an image file or a folder of images")
    pixels = read_image(file, "L" if channels == 1 else "RGB")
    if tuple(pixels.shape[1:]) == (height, width):
        return pixels
    if not resize:
        raise DataError(
            f"{file} has {pixels.shape[1]}x{pixels.shape[2]} pixels, the network expects {height}x{width}; "
            "crop it, or pass --resize"
        )
    image = Image.fromarray(pixels[0].numpy() if channels == 1 else pixels.permute(1, 2, 0).numpy())
    resized = np.array(image.resize((width, height), Image.Resampling.LANCZOS))
    return torch.from_numpy(resized[None] if channels == 1 else resized.transpose(2, 0, 1).copy())


def load_npz(file: Path) -> DataSet:
    """Arrays ``x`` (N, H, W) or (N, C, H, W) and ``y`` (N,), whole numbers.

    A validation part, ``x_valid`` and ``y_valid``, and a test part, ``x_test`` and ``y_test``, are read if they are there.
    """
    try:
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as content:
            arrays = {name: content[name] for name in content.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{file} cannot be read as an .npz file of plain arrays ({error})") from error
    pairs: dict[str, tuple[Tensor, Tensor]] = {}
    for name, ending in (("train", ""), ("valid", "_valid"), ("test", "_test")):
        x, y = f"x{ending}", f"y{ending}"
        if name == "train" or x in arrays or y in arrays:
            if x not in arrays or y not in arrays:
                raise DataError(f"{file} expected arrays {x} and {y}, got {', '.join(sorted(arrays)) or 'none'}")
            pairs[name] = _arrays(arrays[x], arrays[y], f"{file}" if name == "train" else f"{file} ({name})")
    count = 1 + int(max(labels.max() for _, labels in pairs.values()))
    parts = {name: checked_part(*pair, count, str(file)) for name, pair in pairs.items()}
    classes = tuple(str(i) for i in range(count))
    return DataSet(file.stem, parts["train"], parts.get("test"), classes, parts.get("valid"))


def _arrays(x: Any, y: Any, what: str) -> tuple[Tensor, Tensor]:
    if x.ndim == 3:
        x = x[:, None]
    if x.ndim != 4 or x.dtype.kind not in "uif":
        raise DataError(f"{what} expected x of shape (N, H, W) or (N, C, H, W) and numbers, got {x.shape} of {x.dtype}")
    if y.ndim != 1 or y.dtype.kind not in "ui":
        raise DataError(f"{what} expected y to be whole numbers, one for each image, got {y.shape} of {y.dtype}")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        raise DataError(f"{what} has pixels that are NaN or infinite; remove these images, or replace the pixels")
    if not len(x) or not len(y):
        raise DataError(f"{what} has no images")
    pixels = x if x.dtype == np.uint8 else x.astype(np.float32)
    return torch.from_numpy(np.ascontiguousarray(pixels)), torch.from_numpy(y.astype(np.int64))
