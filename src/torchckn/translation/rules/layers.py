"""Layers: projection onto a subspace."""

from __future__ import annotations

import dataclasses
from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

from ... import zoo
from ...choices import Border
from ...correspondence import OtherNumber
from ...graph import Conv, Dense, Graph, Local, Pad, Window
from ...nn.geometry import Pair
from ..builder import Step, Value
from .arguments import is_fixed, pair, weight_of
from .registry import rule


@rule(nn.Conv2d, F.conv2d, torch.conv2d, zoo.MaskedConv2d)
def convolution(step: Step) -> Value:
    step.require_channels_first()
    inexact: list[str] = []
    weight = weight_of(step, inexact)
    filters, _, *size = weight.shape
    stride, dilation = pair(step.option("stride", 3, 1)), pair(step.option("dilation", 5, 1))
    source, padding = _padded(step, dilation, (size[0], size[1]))
    groups = step.option("groups", 6, 1)
    if is_fixed(step) and (window := _window(weight, groups, step.input.width)) is not None and dilation == (1, 1):
        node = Window(step.name, window=window, stride=stride, padding=padding)
        why = "a fixed window, the same for every channel: linear on positions"
        return step.emit(node, why=why, inputs=[source], parts=step.bias_part())
    if groups > 1 and step.input.summed:
        groups = 1
        inexact.append("one subspace for all channels: a direct sum does not have the ConvNet's groups")
    elif groups > 1:
        inexact.append("one subspace per group of channels, but a kernel has no channels")
    if isinstance(step.module, zoo.MaskedConv2d):
        inexact.append("the complete connection scheme replaces the incomplete one, as in the paper")
    if step.input.node == Graph.input and step.input.width != step.input.shape[0]:
        inexact.append(step.builder.notice(OtherNumber("channels", step.input.shape[0], step.input.width)))
    geometry = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    conv = Conv(step.name, filters=filters, kernel_size=(size[0], size[1]), **geometry)
    return step.layer(conv, "projection onto one subspace for all positions", source=source, inexact=inexact)


def _padded(step: Step, dilation: Pair, size: Pair) -> tuple[Value, Pair]:
    """The input, with a border of its own where the layer's padding is not symmetric or not zero, and the layer's padding."""
    padding, mode = step.option("padding", 4, 0), getattr(step.module, "padding_mode", "zeros")
    total = [0, 0]
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(dilation, size, strict=True)]
    elif not isinstance(padding, str):
        total = [2 * n for n in pair(padding)]
    if mode == "zeros" and not any(n % 2 for n in total):
        return step.input, (total[0] // 2, total[1] // 2)
    if mode == "zeros":  # what is left over goes to the right and to the bottom
        border, rest = (0, total[1] % 2, 0, total[0] % 2), (total[0] // 2, total[1] // 2)
    else:
        border, rest = (total[1] // 2, total[1] - total[1] // 2, total[0] // 2, total[0] - total[0] // 2), (0, 0)
    source = step.settled()
    pad = Pad(step.builder.unique(f"{step.name}_pad"), padding=border, mode=cast(Border, mode), inputs=(source.node,))
    made = step.builder.add(pad)
    step.builder.origins[made.node] = (source,)
    return dataclasses.replace(source, node=made.node, shape=made.shape, branches=()), rest


def _window(weight: torch.Tensor, groups: int, channels: int) -> tuple[tuple[float, ...], ...] | None:
    """The window that every channel is convolved with, if it is one and the same."""
    if groups != channels or len(weight) != channels or not torch.equal(weight, weight[:1].expand_as(weight)):
        return None
    return tuple(tuple(row) for row in weight[0, 0].tolist())


@rule(nn.Conv1d)
def channel_attention(step: Step) -> Value:
    m = step.module
    if step.input.layout != "pc" or step.input_shape != (1, step.input.width) or (m.in_channels, m.out_channels) != (1, 1):
        raise step.refuse("kernel layers are for images, (N, C, H, W)", "Use Conv2d, with a height of 1 for signals.")
    inexact = ["a window over channels becomes one subspace for all of them: a kernel has no channels"]
    return step.layer(Conv(step.name, filters=step.input.width), "projection onto one subspace", inexact=inexact)


@rule(zoo.LocallyConnected2d)
def local(step: Step) -> Value:
    m = step.module
    geometry = {"kernel_size": m.kernel_size, "stride": m.stride, "padding": m.padding}
    return step.layer(Local(step.name, filters=m.out_channels, **geometry), "projection onto one subspace per position")


@rule(nn.Linear, F.linear)
def linear(step: Step) -> Value:
    inexact: list[str] = []
    if step.input.layout in ("hwc", "pc"):
        conv = Conv(step.name, filters=weight_of(step, inexact).shape[0])
        return step.layer(conv, "a linear layer on the channels is a 1x1 convolution", inexact=inexact)
    if len(step.input_shape) != 1:
        raise step.refuse(
            f"a linear layer on inputs of shape {step.input_shape} acts on their last axis, which is not the channels",
            "Flatten first, move the channels to the last axis, or use a 1x1 convolution.",
        )
    node = Dense(step.name, filters=weight_of(step, inexact).shape[0])
    return step.layer(node, "projection onto one subspace for the whole representation", inexact=inexact)
