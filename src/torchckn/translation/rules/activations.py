"""Nonlinearities: the kernel."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from ... import zoo
from ...kernels import ArcCosine
from ..builder import Step, Value
from .arguments import is_last
from .registry import rule


@rule(nn.ReLU, F.relu, F.relu_, torch.relu, torch.relu_, "relu", "relu_")
def relu(step: Step) -> Value:
    return step.activation(ArcCosine(1), True, "ReLU is the arc-cosine kernel of order 1")


@rule(nn.Tanh, F.tanh, torch.tanh, "tanh", zoo.ScaledTanh)
@rule(nn.Hardtanh, F.hardtanh, nn.Softsign, F.softsign, torch.erf)
def squashing(step: Step) -> Value:
    return step.activation(ArcCosine(0), False, "close to a step function, which is the arc-cosine kernel of order 0")


@rule(nn.Sigmoid, F.sigmoid, torch.sigmoid, "sigmoid", nn.Hardsigmoid, F.hardsigmoid)
def sigmoid(step: Step) -> Value:
    if is_last(step):
        return step.drop("part of the loss, not of the network", faithful=True)
    return squashing(step)


@rule(nn.GELU, F.gelu, nn.SiLU, F.silu, nn.Mish, F.mish, nn.Hardswish, F.hardswish, nn.Softplus, F.softplus)
@rule(nn.LeakyReLU, F.leaky_relu, nn.PReLU, F.prelu, nn.RReLU, nn.ReLU6, F.relu6, nn.ELU, F.elu, nn.SELU, F.selu, nn.CELU)
def like_relu(step: Step) -> Value:
    return step.activation(ArcCosine(1), False, "close to ReLU, which is the arc-cosine kernel of order 1")


@rule("clamp", torch.clamp, "clamp_", "clip", torch.clip, "clamp_min", torch.clamp_min)
def clamp(step: Step) -> Value:
    low, high = step.option("min", 1), step.option("max", 2)
    if low == 0 and high is None:
        return relu(step)
    raise step.refuse(
        f"clamping to [{low}, {high}] is not a nonlinearity with a known kernel", "Only clamp(min=0), ReLU, is."
    )


@rule(nn.Softmax, F.softmax, torch.softmax, "softmax", nn.LogSoftmax, F.log_softmax, torch.log_softmax, "log_softmax")
def softmax(step: Step) -> Value:
    if not is_last(step):
        raise step.refuse("softmax within the network is attention", "Only a softmax at the very end has a counterpart.")
    return step.drop("part of the multinomial loss, not of the network", faithful=True)
