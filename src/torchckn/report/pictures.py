"""Images as data URIs, which are part of the page itself."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..plots import filter_mosaic

#: pictures of filters per run at most
FRAMES = 60


def png(pixels: np.ndarray) -> str:
    """An array (H, W) or (H, W, 3) between 0 and 1 as a data URI."""
    picture = Image.fromarray((255 * pixels.clip(0, 1) + 0.5).astype(np.uint8))
    content = io.BytesIO()
    picture.save(content, "PNG", optimize=True)
    return data_uri("image/png", content.getvalue())


def data_uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def thumbnail(image: Tensor) -> str:
    """An image (C, H, W) as a data URI; pixels that are neither bytes nor between 0 and 1 are scaled to that range."""
    pixels = image.detach().cpu().double()
    if image.dtype == torch.uint8:
        pixels = pixels / 255
    elif pixels.amin() < 0 or pixels.amax() > 1:
        pixels = (pixels - pixels.amin()) / (pixels.amax() - pixels.amin()).clamp(min=1e-12)
    return png(pixels.permute(1, 2, 0).numpy() if len(pixels) == 3 else pixels.mean(0).numpy())


def filter_frames(filters: Mapping[int, Tensor]) -> dict[str, Any]:
    """Pictures of the first layer's filters: the first step, the last, and others evenly between them."""
    steps = sorted(filters)
    if len(steps) > FRAMES:
        steps = [steps[round(i * (len(steps) - 1) / (FRAMES - 1))] for i in range(FRAMES)]
    return {"steps": steps, "images": [png(filter_mosaic(_one_bank(filters[step]))) for step in steps]}


def _one_bank(filters: Tensor) -> Tensor:
    """Filters (f, C, kh, kw); those of several regions one after the other."""
    return filters.flatten(0, 1) if filters.ndim == 5 else filters
