"""What has no counterpart, and why."""

from __future__ import annotations

import torch.nn.functional as F
from torch import nn

from ..operation import Operation, operations_in

_REASONS: list[tuple[tuple[type, ...], str, str]] = [
    ((nn.RNNBase, nn.RNNCellBase), "recurrent layers are not convolutional", "Translate the convolutional part by itself."),
    (
        (
            nn.MultiheadAttention,
            nn.Transformer,
            nn.TransformerEncoder,
            nn.TransformerEncoderLayer,
            nn.TransformerDecoderLayer,
        ),
        "attention multiplies feature maps with each other",
        "Translate the convolutional part by itself.",
    ),
    (
        (nn.ConvTranspose2d, nn.PixelShuffle),
        "upsampling by trained weights has no layer here",
        "Use nn.Upsample and nn.Conv2d instead, or translate the part before it.",
    ),
    ((nn.Conv3d,), "kernel layers are for images, (N, C, H, W)", "Use Conv2d, with a height of 1 for signals."),
    ((nn.Embedding, nn.EmbeddingBag), "an embedding takes indices, not images", "Translate the part after it."),
]


#: methods that torch has in place as well
_MOVES = ("squeeze", "unsqueeze", "t", "transpose", "swapaxes", "swapdims")


def crops_vector(operation: Operation) -> bool:
    """Whether it is a negative padding of vectors, in which channels and positions may be one axis."""
    given = next((o for o in operations_in((operation.args, operation.kwargs)) if o.is_tensor), operation)
    return operation.key is F.pad and len(operation.shape) == 1 and operation.shape < given.shape


def reason_against(operation: Operation) -> tuple[str, str]:
    """Why an operation has no rule, and what to do about it."""
    if crops_vector(operation):
        return "it crops vectors", "Select channels before they are flattened, with x[:, :n]."
    if operation.is_lost:
        return (
            "it changes a part of a tensor in place that is read later",
            "Change whole channels, or write the result to a tensor of its own, with torch.cat.",
        )
    if isinstance(operation.key, str) and operation.key.endswith("_") and operation.key[:-1] in _MOVES:
        return "it changes the shape of a tensor in place", f"Use Tensor.{operation.key[:-1]} instead."
    for classes, why, remedy in _REASONS:
        if isinstance(operation.module, classes):
            return why, remedy
    return (
        "there is no rule for it",
        "If it has a kernel counterpart, register a rule with @torchckn.translate.rule; otherwise replace it in the network.",
    )
