"""What changes no numbers, or no inner products."""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from torch import nn

from ...errors import TranslationError
from ..builder import Step, Value
from .registry import rule


@rule(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout, F.dropout, F.dropout1d, F.dropout2d, F.alpha_dropout)
def dropout(step: Step) -> Value:
    return step.drop("dropout does nothing once a network is trained", faithful=True)


@rule(nn.Identity, "contiguous", "clone", "detach", "float", "double", "to", "type_as", torch.clone)
def identity(step: Step) -> Value:
    return step.keep(step.input, "changes nothing")


@rule(nn.Flatten, torch.flatten, "flatten", "view", "reshape", torch.reshape, "squeeze", torch.squeeze)
@rule(nn.Unflatten, "unsqueeze", torch.unsqueeze)
def reshaping(step: Step) -> Value:
    before, after = step.input_shape, step.output_shape
    if after == before:
        return step.keep(step.input, "changes nothing")
    size = torch.Size(before).numel()
    vector = after == (size,) or (after == () and size == 1)
    if vector and len(step.operation.value) == 2:
        value = dataclasses.replace(step.input, flat=True)
        return step.keep(value, "a layer on the whole representation flattens it")
    if after == (size, 1, 1) and before in ((size,), (size, 1)):
        return step.keep(dataclasses.replace(step.input, flat=False), "a vector is an image of one position")
    raise _mixing(step)


@rule("permute", torch.permute, "transpose", torch.transpose)
def moving_axes(step: Step) -> Value:
    raise _mixing(step)


def _mixing(step: Step) -> TranslationError:
    return step.refuse(
        f"it makes {step.input_shape} into {step.output_shape}, which mixes channels and positions",
        "Only flattening to a vector has a counterpart.",
    )
