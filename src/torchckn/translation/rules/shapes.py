"""What changes no numbers, or no inner products."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ..builder import Step, Value
from ..views import MOVES, moved, named
from .registry import rule


@rule(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout, F.dropout, F.dropout1d, F.dropout2d, F.alpha_dropout)
def dropout(step: Step) -> Value:
    return step.drop("dropout does nothing once a network is trained", faithful=True)


@rule(nn.Identity, "contiguous", "clone", "detach", "float", "double", "to", "type_as", torch.clone)
def identity(step: Step) -> Value:
    return step.keep(step.raw_inputs[0], "changes nothing")


@rule("copy_")
def copying(step: Step) -> Value:
    target, source = step.operation.args[:2]
    if not step.is_computed(source) or source.shape != target.shape:
        raise step.refuse("it copies what is no feature map of the same size", "Copy feature maps only.")
    return step.keep(step.raw_inputs[-1], "changes nothing")


#: what gives some or all of its input's numbers in another order
_MOVING = (
    *(nn.Flatten, nn.Unflatten, nn.PixelUnshuffle, nn.ChannelShuffle, F.pixel_unshuffle, F.channel_shuffle),
    *(torch.channel_shuffle, torch.pixel_unshuffle, torch.unflatten, torch.index_select, torch.select, torch.narrow),
    *(torch.flatten, torch.reshape, torch.squeeze, torch.unsqueeze, torch.permute, torch.transpose, torch.movedim),
    *(torch.moveaxis, torch.swapaxes, torch.swapdims, torch.chunk, torch.split, torch.unbind, torch.tensor_split),
    *("flatten", "view", "reshape", "squeeze", "unsqueeze", "unflatten", "permute", "transpose", "movedim", "moveaxis"),
    *(getattr, "t", torch.t, "adjoint", torch.adjoint),  # x.mT
    *("swapaxes", "swapdims", "chunk", "split", "tensor_split", "unbind", "narrow", "select", "index_select", "view_as"),
)
#: of these, those that give parts; a layer that only they read is needed by parts only
SELECTING = {operator.getitem, torch.chunk, "chunk", torch.split, "split", torch.tensor_split, "tensor_split"}
SELECTING |= {torch.unbind, "unbind", torch.narrow, "narrow", torch.select, "select", torch.index_select, "index_select"}
#: what may give several results
SEVERAL = SELECTING | {torch.max, "max"}


@rule(*_MOVING)
def moving(step: Step) -> Value | tuple[Any, ...]:
    result = moved(step)
    if isinstance(result, Value):
        step.note("kept", MOVES if result.view is not None else "changes nothing")
    return result


@rule(operator.getitem)
def indexing(step: Step) -> Value | tuple[Any, ...]:
    source, index = step.operation.args
    first = step.raw_inputs[0]
    if not step.is_computed(source):
        raise step.refuse("its index depends on the image", "Use a constant index.")
    if isinstance(first, tuple):
        step.note("kept", MOVES)
        return named(step, first[index])
    return moving(step)
