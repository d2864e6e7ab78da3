"""Operations on positions: subsampling, padding, interpolation."""

from __future__ import annotations

import math
from typing import get_args

import torch.nn.functional as F
from torch import nn

from ... import zoo
from ...choices import Interpolation
from ...correspondence import Part
from ...graph import AdaptiveAveragePool, AveragePool, Pad, Upsample
from ..builder import Step, Value
from .registry import rule

_ZERO_CHANNELS = "channels of zeros change no inner product"


@rule(zoo.Subsample)
def subsample(step: Step) -> Value:
    stride = (step.module.stride,) * 2
    if stride == (1, 1):
        return step.keep(step.input, _ZERO_CHANNELS)
    return step.emit(AveragePool(step.name, stride=stride), why=("subsampling", _ZERO_CHANNELS))


@rule(nn.ZeroPad2d, nn.ConstantPad2d, F.pad, nn.ReflectionPad2d, nn.ReplicationPad2d, nn.CircularPad2d)
def padding(step: Step) -> Value:
    amounts = step.option("padding", 1, ()) if step.module is not None else step.option("pad", 1, ())
    mode, value = step.option("mode", 2, "constant"), step.option("value", 3, 0)
    mode = _BORDERS.get(type(step.module), mode)
    zeros = mode == "constant" and value in (None, 0, 0.0)
    if mode == "constant" and value == -math.inf:  # what a maximum never picks: for it, pixels of the border do the same
        mode = "replicate"
    amounts = tuple(amounts) + (0,) * (4 - len(amounts))
    if step.input.layout == "hwc":  # from the last axis on: channels, columns, rows
        amounts = (*amounts, 0, 0)[:6]
        amounts = (*amounts[2:], *amounts[:2])
    if zeros and not any(amounts[:4]) and len(amounts) <= 6:
        return step.keep(step.input, _ZERO_CHANNELS)
    if (mode == "constant" and not zeros) or any(amounts[4:]):
        raise step.refuse(
            f"padding {amounts} in mode {mode!r} is not a border of zeros or of pixels of the image",
            "Pad height and width with zeros.",
        )
    node = Pad(step.name, padding=amounts[:4], mode="zeros" if mode == "constant" else mode)
    why = (
        "zero padding adds nothing to an inner product" if mode == "constant" else "a border of pixels: linear on positions"
    )
    return step.emit(node, why=why)


_BORDERS: dict[type[nn.Module], str] = {
    nn.ReflectionPad2d: "reflect",
    nn.ReplicationPad2d: "replicate",
    nn.CircularPad2d: "circular",
}


@rule(nn.Upsample, nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d, F.interpolate, F.upsample)
def upsampling(step: Step) -> Value:
    step.require_channels_first()
    mode, corners = step.option("mode", 3, "nearest"), step.option("align_corners", 4)
    size = (step.output_shape[1], step.output_shape[2])
    if mode == "area":
        return step.emit(AdaptiveAveragePool(step.name, output_size=size), why="averaging of feature maps")
    if mode not in get_args(Interpolation):
        raise step.refuse(f"interpolation in mode {mode!r} is not linear", "Use nearest, bilinear or bicubic interpolation.")
    parts = []
    if step.option("scale_factor", 2) is not None and step.option("recompute_scale_factor", 5) is None:
        exact = all(n * f == m for n, m, f in zip(step.input_shape[1:], size, _factors(step), strict=True))
        parts = [] if exact else [Part("scale_factor", "inexact", "positions are those of the rounded size", False)]
    if step.option("antialias", 6, False):
        parts.append(Part("antialias", "inexact", "interpolation without antialiasing", False))
    node = Upsample(step.name, output_size=size, mode=mode, align_corners=corners)
    return step.emit(node, why="interpolation is linear on positions", parts=parts)


def _factors(step: Step) -> tuple[float, float]:
    factor = step.option("scale_factor", 2)
    return (factor, factor) if isinstance(factor, (int, float)) else (factor[0], factor[1])
