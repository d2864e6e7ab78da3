"""Normalization."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ...choices import NormOver
from ...correspondence import Part
from ...graph import Normalize
from ..builder import Step, Value
from ..compositions import ChannelNorm
from .arguments import axes_of
from .registry import rule


@rule(nn.LocalResponseNorm, F.local_response_norm)
def local_response_normalization(step: Step) -> Value:
    why = "division by the norm over all channels, not over neighboring ones"
    return step.emit(Normalize(step.name), "inexact", why, gaussian=False)


@rule(nn.BatchNorm2d, nn.BatchNorm1d, F.batch_norm, nn.SyncBatchNorm, nn.InstanceNorm2d, F.instance_norm)
def normalization(step: Step) -> Value:
    return _left_out(step)


def _left_out(step: Step) -> Value:
    value = step.drop("normalization has no counterpart; kernel layers normalize their patches", faithful=False)
    return dataclasses.replace(value, factor=1.0)  # which it undoes


@rule(nn.LayerNorm, F.layer_norm)
def layer_normalization(step: Step) -> Value:
    axes = len(step.option("normalized_shape", 1))
    if axes == 1 and (step.input.layout in ("hwc", "pc") or len(step.input_shape) == 1):
        return _divided(step, "position", centered=True, parts=_affine(step))
    if axes == len(step.input_shape) == 3:
        return _divided(step, "image", centered=True, parts=_affine(step))
    raise step.refuse("it normalizes over some axes of an image", "Normalize over the channels, or over the whole image.")


@rule(nn.RMSNorm, F.rms_norm)
def root_mean_square_normalization(step: Step) -> Value:
    if step.input.layout not in ("hwc", "pc") and len(step.input_shape) != 1:
        raise step.refuse("it normalizes over positions", "Move the channels to the last axis first.")
    return _divided(step, "position", centered=False, parts=_affine(step))


@rule(ChannelNorm)
def written_normalization(step: Step) -> Value:
    norm: Any = step.operation.key
    if norm.axes == (_channel_axis(step),):
        return _divided(step, "position", centered=norm.centered)
    if len(norm.axes) == 1:
        raise step.refuse("it normalizes over positions", "Normalize over the channels.")
    return _divided(step, "image", centered=norm.centered)


@rule(F.normalize)
def division_by_the_norm(step: Step) -> Value:
    axis = step.option("dim", 2, 1)
    if step.option("p", 1, 2.0) != 2 or not isinstance(axis, int) or axis % step.operation.value.ndim != _channel_axis(step):
        raise step.refuse("it does not divide by the Euclidean norm of the channels", "Use F.normalize(x, dim=1).")
    return _divided(step, "position", centered=False)


def _channel_axis(step: Step) -> int:
    return step.operation.value.ndim - 1 if step.input.layout in ("hwc", "pc") else 1


#: channels of a group, at least, whose norm is about that of all channels
_MANY = 16


@rule(nn.GroupNorm, F.group_norm)
def group_normalization(step: Step) -> Value:
    step.require_channels_first()
    channels = step.input_shape[0] // step.option("num_groups", 1)
    if channels == 1:  # which is instance normalization
        return _left_out(step)
    few = [f"groups of {channels} channels have norms of their own"] if channels < _MANY else []
    return _divided(step, "image", centered=True, parts=_affine(step), inexact=few)


def _affine(step: Step) -> list[Part]:
    """The trainable factors and shifts of a normalization, which are lost."""
    return [
        Part(name, "dropped", f"trainable {what} have no counterpart: filters and features are normalized", False)
        for name, position, what in (("weight", 2, "factors"), ("bias", 3, "shifts"))
        if step.option(name, position) is not None
    ]


def _divided(
    step: Step, over: NormOver, *, centered: bool, parts: Sequence[Part] = (), inexact: Sequence[str] = ()
) -> Value:
    """Division by the norm. In a wide network, the mean of linear units is 0, and all groups of channels have one norm."""
    value = step.settled()
    if value.flat:  # all numbers of an image are in a row
        over = "image"
    if centered and not value.gaussian:
        inexact = [*inexact, "the mean of units that are not linear is subtracted first"]
    node = Normalize(step.name, over=over)
    why = ("division by the norm", *inexact)
    result = step.emit(node, "inexact" if inexact else "exact", why, inputs=[value], parts=parts, gaussian=value.gaussian)
    return dataclasses.replace(result, factor=1.0, flat=value.flat)


_MOMENTS = (torch.var, "var", torch.std, "std")


@rule(torch.norm, "norm", torch.linalg.norm, torch.linalg.vector_norm, *_MOMENTS)
def statistic(step: Step) -> Value:
    if not axes_of(step, 1 if step.operation.key in _MOMENTS else 2) <= {"h", "w", "p"}:
        raise step.refuse(
            "it is not followed by a division by the Euclidean norm or the standard deviation of the channels",
            "Use F.normalize(x, dim=1), or LayerNorm over the channels.",
        )
    value = step.drop("division by a channel's own norm has no counterpart", faithful=False)
    return dataclasses.replace(value, statistic=True)
