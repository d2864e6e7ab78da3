"""Changed copies of training images: mirrored, cropped, shifted.

What is done to an image is drawn from a generator, for a whole batch at once: it depends on the seed alone, and not on which of
several processes has the image. The usual recipe for CIFAR-10 is ``flip`` and ``crop``; for digits, ``shift``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..choices import Augmentation, check_choice
from ..errors import DataError

#: the border that an image is cropped from has its side divided by this, and a shift is at most its side divided by that
CROP, SHIFT = 8, 14


def augment(
    images: Tensor,
    kinds: Sequence[Augmentation],
    generator: torch.Generator,
    part: slice = slice(None),
    count: int | None = None,
) -> Tensor:
    """Images (n, C, H, W), each changed at random.

    Args:
        kinds: ``"flip"``: mirrored, left for right, every other one; ``"crop"``: of a black border, an eighth of the side wide,
            and the image within it, a part as large as the image; ``"shift"``: by up to a fourteenth of the side, the border
            repeated.
        part, count: the images are this part of a batch of ``count``, whose numbers are drawn for all of it.

    Example:
        >>> images = torch.arange(16.0).view(1, 1, 4, 4)
        >>> flips = {tuple(augment(images, ["flip"], torch.Generator().manual_seed(i))[0, 0, 0].tolist()) for i in range(9)}
        >>> sorted(flips)
        [(0.0, 1.0, 2.0, 3.0), (3.0, 2.0, 1.0, 0.0)]
    """
    for kind in kinds:
        check_choice("augmentation", kind, Augmentation)
    if images.ndim != 4:
        raise DataError(f"augment expected images (n, C, H, W), got shape {tuple(images.shape)}")
    count = len(images) if count is None else count
    for kind in kinds:
        if kind == "flip":
            mirrored = torch.rand(count, generator=generator)[part] < 0.5
            images = torch.where(mirrored.to(images.device)[:, None, None, None], images.flip(3), images)
        else:
            # A signal (C, 1, L) is moved along its length only.
            reaches = [min(side - 1, max(1, side // (CROP if kind == "crop" else SHIFT))) for side in images.shape[2:]]
            moves = [torch.randint(2 * reach + 1, (count, 1), generator=generator)[part] for reach in reaches]
            images = _windows(images, reaches, moves, "constant" if kind == "crop" else "replicate")
    return images


def _windows(images: Tensor, reaches: Sequence[int], moves: Sequence[Tensor], border: str) -> Tensor:
    """Of each image with a border, the window that begins at its own row and column, as large as the image."""
    (down, right), (height, width) = reaches, images.shape[2:]
    around = (right, right, down, down)
    padded = F.pad(images, around) if border == "constant" else _repeated(images, around)
    rows, columns = (
        (move.to(images.device) + torch.arange(side, device=images.device))
        for move, side in zip(moves, (height, width), strict=True)
    )
    places = torch.arange(len(images), device=images.device)[:, None, None]
    return padded[places, :, rows[:, :, None], columns[:, None]].permute(0, 3, 1, 2).contiguous()


def _repeated(images: Tensor, around: tuple[int, int, int, int]) -> Tensor:
    if images.is_floating_point():
        return F.pad(images, around, mode="replicate")
    return F.pad(images.float(), around, mode="replicate").to(images.dtype)
