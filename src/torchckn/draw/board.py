"""The networks behind the page: from what a request has to probabilities and similar training images.

Read next: :mod:`torchckn.draw`, the server.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..errors import ConfigError, DataError
from ..network import Classifier
from ..report.pictures import thumbnail
from ..trained import load_run_data, load_trained

#: side of the square image that the page sends
SIDE = 112
#: number of training images that a drawing is compared with, and number of those that are shown
REFERENCE_IMAGES, NEIGHBORS = 2000, 8
_TITLES = {"ckn": "CKN", "convnet": "ConvNet"}


@dataclass(frozen=True)
class _Entry:
    """A network, and some training images with their features, normalized to unit norm."""

    name: str
    net: Classifier
    classes: tuple[str, ...]
    train_features: Tensor | None
    pictures: tuple[str, ...]
    labels: tuple[str, ...]


class Board:
    """The networks of the page: they classify a drawing and find the training images that are most similar to it."""

    def __init__(
        self,
        runs: Sequence[str | os.PathLike[str]],
        data_dir: str | os.PathLike[str] | None = None,
        trust: bool = False,
        data: str | None = None,
    ) -> None:
        if not runs:
            raise ConfigError(
                "draw expected at least one run, got none; pass the folder of a run, or several to compare them"
            )
        self.entries = [_entry(Path(run), data_dir, trust, data) for run in runs]

    @torch.inference_mode()
    def classify(self, pixels: np.ndarray) -> list[dict[str, Any]]:
        """For each network: the probabilities of all classes, and the nearest training images."""
        answers = []
        for entry in self.entries:
            image = as_input(pixels, entry.net.input_shape).to(entry.net.head.weight)
            features = entry.net.features(image[None])
            probabilities = torch.softmax(entry.net.head(entry.net.scaling(features)), 1)[0]
            answer: dict[str, Any] = {
                "name": entry.name,
                "classes": list(entry.classes),
                "probabilities": [round(value, 4) for value in probabilities.tolist()],
                "nearest": [],
            }
            if entry.train_features is not None:
                similarity = entry.train_features @ torch.nn.functional.normalize(features, dim=1)[0]
                best = similarity.topk(min(NEIGHBORS, len(similarity)))
                answer["nearest"] = [
                    {"picture": entry.pictures[i], "label": entry.labels[i], "similarity": round(value, 3)}
                    for i, value in zip(best.indices.tolist(), best.values.tolist(), strict=True)
                ]
            answers.append(answer)
        return answers


@torch.inference_mode()
def _entry(run: Path, data_dir: str | os.PathLike[str] | None, trust: bool, data: str | None) -> _Entry:
    trained = load_trained(run, trust=trust)
    net, title = trained.net, f"{run.name} ({_TITLES[trained.net.kind]})"
    if (trained.settings is None and data is None) or net.kind != "ckn":
        return _Entry(title, net, trained.classes, None, (), ())
    whole = load_run_data(run, trained.settings, trained.classes, net.input_shape, data, data_dir)
    images, labels = whole.train.some(REFERENCE_IMAGES)
    features = [net.features(net.pixels(some)) for some in images.split(64)]
    train_features = torch.nn.functional.normalize(torch.cat(features), dim=1)
    pictures = tuple(thumbnail(image) for image in images)
    names = tuple(trained.classes[int(label)] for label in labels)
    return _Entry(title, net, trained.classes, train_features, pictures, names)


def as_input(pixels: np.ndarray, shape: tuple[int, int, int]) -> Tensor:
    """A drawing, white on black, in MNIST's format: bounding box scaled to 20/28 of the side, centered by its center of mass."""
    channels, height, width = shape
    canvas = Image.new("L", (width, height))
    rows, columns = np.flatnonzero(pixels.max(1) > 20), np.flatnonzero(pixels.max(0) > 20)
    if len(rows) and len(columns):
        box = pixels[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        scale = min(20 / 28 * height / box.shape[0], 20 / 28 * width / box.shape[1])
        size = max(1, round(box.shape[1] * scale)), max(1, round(box.shape[0] * scale))
        small = Image.fromarray(box).resize(size, Image.Resampling.LANCZOS)
        mass = np.asarray(small, np.float64)
        total = max(mass.sum(), 1.0)
        x = (mass.sum(0) * (np.arange(size[0]) + 0.5)).sum() / total
        y = (mass.sum(1) * (np.arange(size[1]) + 0.5)).sum() / total
        canvas.paste(small, (round(width / 2 - x), round(height / 2 - y)))
    gray = torch.from_numpy(np.asarray(canvas, np.float32) / 255)
    return gray.expand(channels, height, width)


def parse_drawing(content: bytes) -> np.ndarray:
    """The pixels of a request: ``{"pixels": [SIDE * SIDE integers from 0 to 255]}``."""
    try:
        values = json.loads(content)["pixels"]
        pixels = np.asarray(values)
        if pixels.shape != (SIDE * SIDE,) or pixels.dtype.kind not in "iu" or pixels.min() < 0 or pixels.max() > 255:
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError, UnicodeDecodeError):
        raise DataError(
            f'expected {{"pixels": [...]}} with {SIDE * SIDE} integers from 0 to 255, got something else'
        ) from None
    return pixels.astype(np.uint8).reshape(SIDE, SIDE)
