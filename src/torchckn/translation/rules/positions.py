"""Operations on positions: subsampling, padding."""

from __future__ import annotations

import dataclasses
import operator

import torch.nn.functional as F
from torch import nn

from ... import zoo
from ...graph import AveragePool, Pad
from ..builder import Step, Value
from .registry import rule

_ZERO_CHANNELS = "channels of zeros change no inner product"


@rule(zoo.Subsample)
def subsample(step: Step) -> Value:
    stride = (step.module.stride,) * 2
    if stride == (1, 1):
        return step.keep(step.input, _ZERO_CHANNELS)
    return step.emit(AveragePool(step.name, stride=stride), why=("subsampling", _ZERO_CHANNELS))


@rule(operator.getitem)
def indexing(step: Step) -> Value:
    index = step.operation.args[1]
    parts = index if isinstance(index, tuple) else (index,)
    whole = slice(None)
    if Ellipsis in parts:
        place, rank = parts.index(Ellipsis), len(step.input_shape) + 1
        parts = parts[:place] + (whole,) * (rank - len(parts) + 1) + parts[place + 1 :]
    if parts == (whole, whole, 0, 0) and step.input_shape[1:] == (1, 1):
        return step.keep(dataclasses.replace(step.input, flat=True), "the only position there is")
    steps = [p.step or 1 for p in parts if isinstance(p, slice) and p.start is None and p.stop is None]
    if len(parts) != 4 or len(steps) != 4 or parts[:2] != (whole, whole):
        raise step.refuse(
            "indexing picks single channels, images or regions", "Only subsampling, x[:, :, ::s, ::s], has a counterpart."
        )
    return step.emit(AveragePool(step.name, stride=(steps[2], steps[3])), why="subsampling")


@rule(nn.ZeroPad2d, F.pad)
def padding(step: Step) -> Value:
    amounts = step.option("padding", 1, ()) if step.module is not None else step.option("pad", 1, ())
    mode, value = step.option("mode", 2, "constant"), step.option("value", 3, 0)
    amounts = tuple(amounts) + (0,) * (4 - len(amounts))
    if mode == "constant" and value in (None, 0, 0.0) and not any(amounts[:4]) and len(amounts) <= 6:
        return step.keep(step.input, _ZERO_CHANNELS)
    if mode != "constant" or value not in (None, 0, 0.0) or any(amounts[4:]):
        raise step.refuse(f"padding {amounts} in mode {mode!r} is not a border of zeros", "Pad height and width with zeros.")
    return step.emit(Pad(step.name, padding=amounts[:4]), why="zero padding adds nothing to an inner product")
