"""Small images as files and in shards, as tests of streams write them."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

SIZE = 14


def pictures(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    chance = np.random.default_rng(seed)
    labels = np.arange(count) % 10
    images = chance.integers(0, 256, (count, SIZE, SIZE)).astype(np.uint8)
    images[np.arange(count), labels, :] = 255
    return images, labels


def as_files(folder: Path, count: int = 60) -> None:
    images, labels = pictures(count)
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        place = folder / str(label)
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{i:05d}.png")


def as_tars(folder: Path, count: int = 60, shards: int = 3) -> None:
    images, labels = pictures(count)
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(shards):
        entries = {}
        for i in range(shard, count, shards):
            content = io.BytesIO()
            Image.fromarray(images[i]).save(content, "PNG")
            entries[f"{labels[i]}/{i:05d}.png"] = content.getvalue()
        write_tar(folder / f"train-{shard}.tar", entries)


def write_tar(file: Path, entries: dict[str, bytes], kind: bytes = tarfile.REGTYPE) -> None:
    with tarfile.open(file, "w", encoding="utf-8", errors="surrogateescape") as archive:
        for name, content in entries.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.type = len(content), kind
            archive.addfile(entry, io.BytesIO(content))


def as_arrays(folder: Path, count: int = 60, shards: int = 3) -> None:
    images, labels = pictures(count)
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(shards):
        np.savez(folder / f"train-{shard}.npz", x=images[shard::shards], y=labels[shard::shards])
