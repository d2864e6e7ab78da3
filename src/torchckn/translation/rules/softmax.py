"""Softmax: at the end it is part of the loss; over branches, as in selective kernels, it makes gates."""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from torch import nn

from ...kernels import Dual
from ..assembly import replaced_kernel
from ..builder import Step, Value
from ..views import is_over_branches, with_sources
from .arguments import is_last
from .registry import rule


@rule(nn.Softmax, F.softmax, torch.softmax, "softmax", nn.LogSoftmax, F.log_softmax, torch.log_softmax, "log_softmax")
def softmax(step: Step) -> Value:
    if is_last(step):
        return step.drop("part of the multinomial loss, not of the network", faithful=True)
    view, axis = step.raw_inputs[0].view, step.option("dim", 1)
    is_log = "log" in getattr(step.operation.key, "__name__", str(step.operation.key)).lower()
    if view is None or is_log or not isinstance(axis, int) or not is_over_branches(view, axis % view.labels.ndim):
        raise step.refuse(
            "softmax within the network is attention",
            "Only a softmax at the very end, or over branches, (N, branches, C), has a counterpart.",
        )
    if any(source.pending is None for source in view.sources):
        raise step.refuse("its input is not a linear layer's", "Apply the softmax over branches directly to a linear layer.")
    return with_sources(step, view, _gates(step, view.sources))


def _gates(step: Step, layers: tuple[Value, ...]) -> tuple[Value, ...]:
    """Each unit as a sigmoid: of two branches, a softmax is a sigmoid of their difference."""
    builder = step.builder
    matching = Dual("sigmoid", builder.policy.scale)
    kernel = matching if builder.policy.kernel is None else builder.policy.kernel
    gates = []
    for layer in layers:
        assert layer.pending is not None
        made = builder.add(layer.pending.with_kernel(kernel))
        builder.bounded.add(made.node)
        gates.append(dataclasses.replace(layer, pending=None, gaussian=False, factor=1.0, shape=made.shape))
    reasons = ["a sigmoid for each branch replaces the softmax, so that the gates need not add up to 1"]
    reasons += [replaced_kernel(kernel, matching)] if kernel.spec() != matching.spec() else []
    step.note("inexact", reasons, layer=gates[0].node, kernel=str(kernel.spec()), shape=step.output_shape)
    return tuple(gates)
