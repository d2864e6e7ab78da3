"""Layers: projection onto a subspace."""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from torch import nn

from ... import zoo
from ...graph import Conv, Dense, Local, Pad
from ..builder import Step, Value
from .arguments import pair, weight_of
from .registry import rule


@rule(nn.Conv2d, F.conv2d, torch.conv2d, zoo.MaskedConv2d)
def convolution(step: Step) -> Value:
    inexact: list[str] = []
    filters, _, *size = weight_of(step, inexact).shape
    stride, dilation = pair(step.option("stride", 3, 1)), pair(step.option("dilation", 5, 1))
    source, padding = step.input, step.option("padding", 4, 0)
    if getattr(step.module, "padding_mode", "zeros") != "zeros":
        inexact.append(f"zero padding replaces padding_mode={step.module.padding_mode!r}")
    if isinstance(padding, str):
        total = [0, 0] if padding == "valid" else [d * (k - 1) for d, k in zip(dilation, size, strict=True)]
        padding = tuple(n // 2 for n in total)
        if any(n % 2 for n in total):  # what is left over goes to the right and to the bottom
            left_over = (0, total[1] % 2, 0, total[0] % 2)
            pad = Pad(step.builder.unique(f"{step.name}_pad"), padding=left_over, inputs=(step.settled().node,))
            source = dataclasses.replace(step.builder.add(pad), factor=source.factor, summed=source.summed)
    groups = step.option("groups", 6, 1)
    if groups > 1 and step.input.summed:
        groups = 1
        inexact.append("one subspace for all channels: a direct sum does not have the ConvNet's groups")
    elif groups > 1:
        inexact.append("one subspace per group of channels, but a kernel has no channels")
    if isinstance(step.module, zoo.MaskedConv2d):
        inexact.append("the complete connection scheme replaces the incomplete one, as in the paper")
    geometry = {"stride": stride, "padding": pair(padding), "dilation": dilation, "groups": groups}
    node = Conv(step.name, filters=filters, kernel_size=(size[0], size[1]), **geometry)
    return step.layer(node, "projection onto one subspace for all positions", source=source, inexact=inexact)


@rule(zoo.LocallyConnected2d)
def local(step: Step) -> Value:
    m = step.module
    geometry = {"kernel_size": m.kernel_size, "stride": m.stride, "padding": m.padding}
    return step.layer(Local(step.name, filters=m.out_channels, **geometry), "projection onto one subspace per position")


@rule(nn.Linear, F.linear)
def linear(step: Step) -> Value:
    if len(step.input_shape) != 1:
        raise step.refuse(
            f"a linear layer on inputs of shape {step.input_shape} acts on their last axis only",
            "Flatten first, or use a 1x1 convolution.",
        )
    inexact: list[str] = []
    node = Dense(step.name, filters=weight_of(step, inexact).shape[0])
    return step.layer(node, "projection onto one subspace for the whole representation", inexact=inexact)
