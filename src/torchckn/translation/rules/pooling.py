"""Pooling: averages of feature maps."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ...correspondence import Part
from ...graph import AdaptiveAveragePool, AveragePool, Conv, GaussianPool, MaxPool
from ...kernels import Linear
from ...nn.pooling import GaussianPool2d
from ..builder import Step, Value
from ..views import rearranged
from .arguments import axes_of, pair
from .maxima import larger_of_two
from .registry import rule


@rule(nn.AvgPool2d, F.avg_pool2d)
def average_pooling(step: Step) -> Value:
    step.require_channels_first()
    size = pair(step.option("kernel_size", 1))
    stride = pair(step.option("stride", 2) or size)
    parts = []
    if step.option("divisor_override", 6) not in (None, size[0] * size[1]):
        parts.append(Part("divisor_override", "inexact", "a constant factor, which scaling the features undoes", False))
    node = AveragePool(
        step.name,
        kernel_size=size,
        stride=stride,
        padding=pair(step.option("padding", 3, 0)),
        ceil_mode=bool(step.option("ceil_mode", 4, False)),
        count_include_pad=bool(step.option("count_include_pad", 5, True)),
    )
    return step.emit(node, why="averaging of feature maps", parts=parts)


@rule(nn.AdaptiveAvgPool2d, F.adaptive_avg_pool2d)
def adaptive_average_pooling(step: Step) -> Value:
    step.require_channels_first()
    return step.emit(
        AdaptiveAveragePool(step.name, output_size=pair(step.output_shape[1:])), why="averaging of feature maps"
    )


@rule("mean", torch.mean)
def mean(step: Step) -> Value:
    axes = axes_of(step)
    if axes == {"c"}:
        return _over_channels(step)
    if axes not in ({"h", "w"}, {"p"}, {"h"}, {"w"}):
        raise step.refuse(
            "the mean is not over height or width", "Only x.mean((2, 3)), global average pooling, has a counterpart."
        )
    _, height, width = step.input.shape
    size = (height if axes == {"w"} else 1, width if axes == {"h"} else 1)
    value = step.emit(AdaptiveAveragePool(step.name, output_size=size), why="averaging of feature maps")
    if len(step.output_shape) == 2:  # rows or columns are left
        value = dataclasses.replace(value, layout="pc" if value.layout == "hwc" else "cp")
    return dataclasses.replace(value, flat=len(step.output_shape) == 1)


@rule("sum", torch.sum)
def total(step: Step) -> Value:
    if axes_of(step) not in ({"h", "w"}, {"p"}):
        raise step.refuse("the sum is not over height and width", "Use x.sum((2, 3)), or add feature maps with +.")
    value = step.emit(AdaptiveAveragePool(step.name), why="averaging of feature maps, times the number of positions")
    positions = step.input.shape[1] * step.input.shape[2]
    return dataclasses.replace(value, flat=len(step.output_shape) == 1, factor=value.factor * positions)


@rule("amax", torch.amax)
def maximum(step: Step) -> Value:
    axes = axes_of(step)
    if axes == {"c"}:
        return _over_channels(step)
    if axes not in ({"h", "w"}, {"p"}):
        raise step.refuse("the maximum is not over height and width", "Use nn.AdaptiveMaxPool2d(1).")
    value = _keep_max_pooling(step, MaxPool(step.name, kernel_size=pair(step.input.shape[1:])))
    return dataclasses.replace(value, flat=len(step.output_shape) == 1)


@rule("max", torch.max)
def maximum_with_indices(step: Step) -> Any:
    if len(step.inputs) > 1:
        return larger_of_two(step)
    if axes_of(step) != {"c"}:
        raise step.refuse("the maximum is not over channels", "Use nn.AdaptiveMaxPool2d(1) for one over positions.")
    return (_over_channels(step),)


def _over_channels(step: Step) -> Value:
    """A mean or maximum of channels, as spatial gates have them: one linear filter."""
    why = ("projection onto one filter", "a mean or maximum acts on coordinates, which a kernel does not have")
    options = {**step.builder.policy.options, "kernel": Linear()}
    value = step.emit(Conv(step.name, filters=1, **options), "inexact", why, gaussian=False)
    value = dataclasses.replace(value, width=1)
    return value if step.option("keepdim", 2, False) else rearranged(step, value, lambda x: x.squeeze(1))


@rule(GaussianPool2d)
def gaussian_pooling(step: Step) -> Value:
    step.require_channels_first()
    m = step.module
    node = GaussianPool(step.name, stride=m.stride, sigma=m.sigma, kernel_size=m.kernel_size, padding=m.padding)
    return step.emit(node, why="weighted averaging of feature maps")


@rule(nn.MaxPool2d, F.max_pool2d, torch.max_pool2d)
def max_pooling(step: Step) -> Value:
    step.require_channels_first()
    size = pair(step.option("kernel_size", 1))
    node = MaxPool(
        step.name,
        kernel_size=size,
        stride=pair(step.option("stride", 2) or size),
        padding=pair(step.option("padding", 3, 0)),
        dilation=pair(step.option("dilation", 4, 1)),
        ceil_mode=bool(step.option("ceil_mode", 5, False)),
    )
    return _keep_max_pooling(step, node)


@rule(nn.AdaptiveMaxPool2d, F.adaptive_max_pool2d)
def adaptive_max_pooling(step: Step) -> Value:
    step.require_channels_first()
    size, result = pair(step.input_shape[1:]), pair(step.output_shape[1:])
    if size[0] % result[0] or size[1] % result[1]:
        raise step.refuse(
            f"adaptive max pooling of {size[0]}x{size[1]} to {result[0]}x{result[1]} positions has windows of several sizes",
            "Use nn.MaxPool2d with a fixed window.",
        )
    window = (size[0] // result[0], size[1] // result[1])
    return _keep_max_pooling(step, MaxPool(step.name, kernel_size=window, stride=window))


def _keep_max_pooling(step: Step, node: MaxPool) -> Value:
    why = "inexact: a maximum acts on coordinates, which a kernel does not have"
    return step.emit(node, "kept", why, gaussian=False, faithful=False)
