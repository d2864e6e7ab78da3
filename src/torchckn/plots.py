"""Figures of training: accuracy curves and filters. They need matplotlib: ``pip install torchckn[plot]``."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from .errors import ConfigError
from .files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: colour-blind safe (Okabe and Ito)
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")

History = Sequence[Mapping[str, Any]]


def new_figure(width: float, height: float, dpi: int = 120) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError(
            "figures need matplotlib, which is not installed; install it with: pip install 'torchckn[plot]'"
        ) from None
    return Figure(figsize=(width, height), dpi=dpi, layout="constrained")


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> Path:
    path, content = Path(path), io.BytesIO()
    kind = path.suffix[1:] or "png"
    figure.savefig(content, format=kind)
    if kind == "png":  # 256 colors are enough for curves, and a third of the bytes
        from PIL import Image  # which matplotlib needs, too

        drawn, content = content, io.BytesIO()
        Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(content, "png", optimize=True)
    write_atomically(path, content.getvalue())
    return path


def crop_out_start(axes: Axes, curves: Sequence[Sequence[float]]) -> None:
    """Leave the first points outside the axes if they are so low that the rest of the curves would look flat."""
    later = [value for curve in curves for value in curve[1:]]
    if not later:
        return
    span = max(max(later) - min(later), 0.5)
    if min(curve[0] for curve in curves) < min(later) - 2 * span:
        axes.set_ylim(min(later) - span / 4, max(later) + span / 4)


def zoom_to_ends(axes: Axes, curves: Sequence[Sequence[float]]) -> None:
    """Begin the axis of accuracies (%) below the ends of the curves, but not at their start: differences can be seen then."""
    ends = [curve[-1] for curve in curves]
    span = max(max(ends) - min(ends), 15)
    axes.set_ylim(max(0, min(ends) - span), max(value for curve in curves for value in curve) + 1)


def accuracy_curves(histories: Mapping[str, History], path: str | os.PathLike[str]) -> Path:
    """Validation accuracy over steps and over seconds, one line per history."""
    figure = new_figure(8, 3.4)
    for axes, key, label in zip(
        figure.subplots(1, 2, sharey=True), ("step", "seconds"), ("steps", "seconds of training"), strict=True
    ):
        curves = []
        for colour, (name, history) in zip(COLOURS, histories.items(), strict=False):
            records = [record for record in history if "valid_accuracy" in record]
            accuracies = [100 * record["valid_accuracy"] for record in records]
            axes.plot([record[key] for record in records], accuracies, "o-", color=colour, label=name, markersize=3)
            curves.append(accuracies)
        crop_out_start(axes, curves)
        axes.set_xlabel(label)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("validation accuracy (%)")
    figure.axes[0].legend(frameon=False, loc="lower right")
    return save_figure(figure, path)


def filters_before_and_after(before: Tensor, after: Tensor, path: str | os.PathLike[str]) -> Path:
    """The first layer's filters (f, C, kh, kw), before and after training."""
    figure = new_figure(8, 4)
    for axes, title, filters in zip(
        figure.subplots(1, 2), ("before training", "after training"), (before, after), strict=True
    ):
        axes.imshow(filter_mosaic(filters), cmap="gray", interpolation="nearest")
        axes.set_title(title, fontsize=10)
        axes.axis("off")
    return save_figure(figure, path)


def filter_mosaic(filters: Tensor, gap: int = 1) -> np.ndarray:
    """Filters in a square grid, each scaled to values between 0 and 1: (H, W), or (H, W, 3) for three channels."""
    values = filters.detach().float().cpu()
    if values.ndim == 2:
        values = values[:, None, None]
    if values.shape[1] != 3:
        values = values.mean(1, keepdim=True) if values.shape[1] < 27 else _patches(values)
    low, high = values.amin((1, 2, 3), keepdim=True), values.amax((1, 2, 3), keepdim=True)
    values = (values - low) / (high - low).clamp(min=1e-12)
    count, channels, height, width = values.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    canvas = np.ones((rows * (height + gap) - gap, columns * (width + gap) - gap, channels), np.float32)
    for i, tile in enumerate(values.permute(0, 2, 3, 1).numpy()):
        top, left = i // columns * (height + gap), i % columns * (width + gap)
        canvas[top : top + height, left : left + width] = tile
    return canvas if channels == 3 else canvas[..., 0]


def _patches(values: Tensor) -> Tensor:
    """Filters on whitened patches: the 27 channels of a position are a 3x3 patch of three colours."""
    count, channels = values.shape[:2]
    side = math.isqrt(channels // 3)
    if 3 * side * side != channels or values.shape[2:] != (1, 1):
        return values.mean(1, keepdim=True)
    return values.reshape(count, 3, side, side)
