"""The correspondence between ConvNets and CKNs, one small function per rule.

Paper: table 1 and section 3.2; where the table leaves something open, the rule's reasons say what was decided. A rule is
registered for module classes, functions and names of tensor methods, gets a :class:`~torchckn.translation.builder.Step` and
returns the :class:`~torchckn.translation.builder.Value` that the operation has become.

Example:
    A rule for a module of your own:

    >>> import torchckn
    >>> from torch import nn
    >>> class Blur(nn.AvgPool2d):
    ...     def forward(self, x):
    ...         return super().forward(x)
    >>> @torchckn.translate.rule(Blur)
    ... def blur(step):
    ...     return step.emit(torchckn.graph.GaussianPool(step.name, stride=2), "inexact", "a Gaussian blurs as well")
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .. import zoo
from ..correspondence import Part
from ..errors import ConfigError, TranslationError
from ..graph import AdaptiveAveragePool, AveragePool, Conv, Dense, DirectSum, GaussianPool, Local, MaxPool, Normalize, Pad
from ..kernels import ArcCosine
from ..nn.layers import KernelSum
from ..nn.pooling import GaussianPool2d
from .builder import Step, Value
from .trace import Key, Operation

Rule = Callable[[Step], Value]

RULES: dict[Key, Rule] = {}


def rule(*keys: Key) -> Callable[[Rule], Rule]:
    """Register a rule for module classes, functions, or names of tensor methods. A later rule replaces an earlier one."""
    for key in keys:
        if not callable(key) and not isinstance(key, str):
            raise ConfigError(f"rule expected module classes, functions or names of tensor methods, got {key!r}")

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(keys, function))
        return function

    return register


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[-1]))


def _weight(step: Step, inexact: list[str]) -> torch.Tensor:
    """The weight of a layer; if it is computed from other parameters, ``inexact`` gets that reason."""
    weight = step.option("weight", 1)
    if step.is_computed(weight) or step.is_computed(step.option("bias", 2)):
        raise step.refuse("its weights depend on the image", "Use weights that are parameters.")
    if not isinstance(weight, Operation):
        return weight
    if weight.key is not None:
        inexact.append("weights that are computed from other parameters become free filters")
    return weight.value


def _is_last(step: Step) -> bool:
    return not any(user.is_tensor for user in step.operation.users)


# Layers: projection onto a subspace.


@rule(nn.Conv2d, F.conv2d, torch.conv2d, zoo.MaskedConv2d)
def convolution(step: Step) -> Value:
    inexact: list[str] = []
    filters, _, *size = _weight(step, inexact).shape
    stride, dilation = _pair(step.option("stride", 3, 1)), _pair(step.option("dilation", 5, 1))
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
    geometry = {"stride": stride, "padding": _pair(padding), "dilation": dilation, "groups": groups}
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
    node = Dense(step.name, filters=_weight(step, inexact).shape[0])
    return step.layer(node, "projection onto one subspace for the whole representation", inexact=inexact)


# Nonlinearities: the kernel.


@rule(nn.ReLU, F.relu, F.relu_, torch.relu, torch.relu_, "relu", "relu_")
def relu(step: Step) -> Value:
    return step.activation(ArcCosine(1), True, "ReLU is the arc-cosine kernel of order 1")


@rule(nn.Tanh, F.tanh, torch.tanh, "tanh", zoo.ScaledTanh)
@rule(nn.Hardtanh, F.hardtanh, nn.Softsign, F.softsign, torch.erf)
def squashing(step: Step) -> Value:
    return step.activation(ArcCosine(0), False, "close to a step function, which is the arc-cosine kernel of order 0")


@rule(nn.Sigmoid, F.sigmoid, torch.sigmoid, "sigmoid", nn.Hardsigmoid, F.hardsigmoid)
def sigmoid(step: Step) -> Value:
    if _is_last(step):
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


# Pooling: averages of feature maps.


@rule(nn.AvgPool2d, F.avg_pool2d)
def average_pooling(step: Step) -> Value:
    size = _pair(step.option("kernel_size", 1))
    stride = _pair(step.option("stride", 2) or size)
    parts = []
    if step.option("divisor_override", 6) not in (None, size[0] * size[1]):
        parts.append(Part("divisor_override", "inexact", "a constant factor, which scaling the features undoes", False))
    node = AveragePool(
        step.name,
        kernel_size=size,
        stride=stride,
        padding=_pair(step.option("padding", 3, 0)),
        ceil_mode=bool(step.option("ceil_mode", 4, False)),
        count_include_pad=bool(step.option("count_include_pad", 5, True)),
    )
    return step.emit(node, why="averaging of feature maps", parts=parts)


@rule(nn.AdaptiveAvgPool2d, F.adaptive_avg_pool2d)
def adaptive_average_pooling(step: Step) -> Value:
    return step.emit(
        AdaptiveAveragePool(step.name, output_size=_pair(step.output_shape[1:])), why="averaging of feature maps"
    )


@rule("mean", torch.mean)
def mean(step: Step) -> Value:
    dims = step.option("dim", 1)
    dims = {d % (len(step.input_shape) + 1) for d in ([dims] if isinstance(dims, int) else dims or [])}
    if dims != {2, 3}:
        raise step.refuse(
            "the mean is not over height and width", "Only x.mean((2, 3)), global average pooling, has a counterpart."
        )
    value = step.emit(AdaptiveAveragePool(step.name), why="averaging of feature maps")
    return dataclasses.replace(value, flat=len(step.output_shape) == 1)


@rule(GaussianPool2d)
def gaussian_pooling(step: Step) -> Value:
    m = step.module
    node = GaussianPool(step.name, stride=m.stride, sigma=m.sigma, kernel_size=m.kernel_size, padding=m.padding)
    return step.emit(node, why="weighted averaging of feature maps")


@rule(nn.MaxPool2d, F.max_pool2d, torch.max_pool2d)
def max_pooling(step: Step) -> Value:
    size = _pair(step.option("kernel_size", 1))
    node = MaxPool(
        step.name,
        kernel_size=size,
        stride=_pair(step.option("stride", 2) or size),
        padding=_pair(step.option("padding", 3, 0)),
        dilation=_pair(step.option("dilation", 4, 1)),
        ceil_mode=bool(step.option("ceil_mode", 5, False)),
    )
    return _keep_max_pooling(step, node)


@rule(nn.AdaptiveMaxPool2d, F.adaptive_max_pool2d)
def adaptive_max_pooling(step: Step) -> Value:
    if step.output_shape[1:] != (1, 1):
        raise step.refuse("adaptive max pooling to more than one position", "Use nn.MaxPool2d with a fixed window.")
    return _keep_max_pooling(step, MaxPool(step.name, kernel_size=_pair(step.input_shape[1:])))


def _keep_max_pooling(step: Step, node: MaxPool) -> Value:
    why = "inexact: a maximum acts on coordinates, which a kernel does not have"
    return step.emit(node, "kept", why, gaussian=False, faithful=False)


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


# Sums of branches.


@rule(operator.add, operator.iadd, torch.add, "add", "add_", operator.sub, operator.isub, torch.sub, "sub", "sub_")
def addition(step: Step) -> Value:
    if len(step.inputs) == 1:
        if any(isinstance(a, (int, float)) and a == 0 for a in step.operation.args[:2]):
            return step.keep(step.input, "changes nothing")
        return step.drop("kernel layers have no biases", faithful=False)
    if len({operand.shape for operand in step.operation.args[:2]}) > 1:
        raise step.refuse("it adds feature maps of different sizes", "Bring both branches to one size first.")
    alpha = float(step.option("alpha", 9, 1))
    inexact = []
    if sum(not v.gaussian for v in step.inputs) > 1:
        inexact.append("products of nonlinear branches with each other are left out")
    if len({v.node for v in step.inputs}) < len(step.inputs) or step.builder.shares_weights:
        inexact.append("the branches are not independent")
    return _direct_sum(step, "the kernels of independent branches add up: a direct sum of features", inexact, (1.0, alpha))


@rule(torch.cat, torch.concat, torch.concatenate)
def concatenation(step: Step) -> Value:
    if step.option("dim", 1, 0) not in (1, -len(step.output_shape)):
        raise step.refuse("concatenation is not along the channels", "Only torch.cat(..., dim=1) has a counterpart.")
    if len(step.inputs) < len(step.option("tensors", 0, ())):
        raise step.refuse("it puts constants beside the feature maps", "Leave constant channels out.")
    return _side_by_side(step)


@rule(KernelSum)
def _side_by_side(step: Step) -> Value:
    # A nonlinearity on units side by side is not the nonlinearity on their sum: the result is not gaussian.
    return dataclasses.replace(_direct_sum(step, "a direct sum of features"), gaussian=False)


def _direct_sum(step: Step, why: str, inexact: Sequence[str] = (), factors: Sequence[float] = ()) -> Value:
    branches = [step.builder.flattened(v, f"{step.name}_flat{i}") for i, v in enumerate(step.inputs)]
    own = tuple(factors) or (1.0,) * len(branches)
    weights = tuple(abs(v.factor * f) for v, f in zip(branches, own, strict=True))
    node = DirectSum(step.name, weights=None if set(weights) == {1.0} else weights)
    value = step.emit(node, "inexact" if inexact else "exact", (why, *inexact), inputs=branches)
    return dataclasses.replace(value, flat=len(step.output_shape) == 1, summed=True, factor=1.0)


@rule(operator.mul, operator.imul, torch.mul, "mul", "mul_", operator.neg, torch.neg, "neg")
@rule(operator.truediv, operator.itruediv, torch.div, "div", "div_")
def product(step: Step) -> Value:
    if len(step.inputs) > 1:
        raise step.refuse("a product of two feature maps is not a sum of kernels", "Leave gates and attention out.")
    others = [a for a in step.operation.args[:2] if not step.is_computed(a)]
    divides = step.operation.key in (operator.truediv, operator.itruediv, torch.div, "div", "div_")
    if divides and not step.is_computed(step.operation.args[0]):
        raise step.refuse("it divides by a feature map", "Leave such divisions out.")
    factor = -1.0  # negation
    if others:
        number = others[0].value if isinstance(others[0], Operation) else others[0]
        trained = isinstance(number, nn.Parameter)
        if isinstance(number, torch.Tensor) and (trained or number.numel() > 1):
            what = "trainable factors" if trained else "factors of single channels"
            return step.drop(f"{what} have no counterpart: filters and features are normalized", faithful=False)
        factor = 1 / float(number) if divides else float(number)
    if factor == 0:
        raise step.refuse("it multiplies by zero", "Leave this branch out.")
    value = dataclasses.replace(step.input, factor=step.input.factor * factor)
    return step.keep(value, "a constant factor, which matters where branches meet")


@rule(zoo.ChannelScale)
def channel_scale(step: Step) -> Value:
    return step.drop("trainable factors have no counterpart: filters and features are normalized", faithful=False)


# Normalization.


@rule(nn.LocalResponseNorm, F.local_response_norm)
def local_response_normalization(step: Step) -> Value:
    why = "division by the norm over all channels, not over neighboring ones"
    return step.emit(Normalize(step.name), "inexact", why, gaussian=False)


@rule(nn.BatchNorm2d, nn.BatchNorm1d, F.batch_norm, nn.SyncBatchNorm)
@rule(nn.LayerNorm, F.layer_norm, nn.GroupNorm, F.group_norm, nn.InstanceNorm2d, F.instance_norm)
def normalization(step: Step) -> Value:
    return step.drop("normalization has no counterpart; kernel layers normalize their patches", faithful=False)


# What changes no numbers, or no inner products.


@rule(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout, F.dropout, F.dropout1d, F.dropout2d, F.alpha_dropout)
def dropout(step: Step) -> Value:
    return step.drop("dropout does nothing once a network is trained", faithful=True)


@rule(nn.Identity, "contiguous", "clone", "detach", "float", "double", "to", "type_as", torch.clone)
def identity(step: Step) -> Value:
    return step.keep(step.input, "changes nothing")


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
    raise _mixing(step)


@rule("permute", torch.permute, "transpose", torch.transpose)
def moving_axes(step: Step) -> Value:
    raise _mixing(step)


def _mixing(step: Step) -> TranslationError:
    return step.refuse(
        f"it makes {step.input_shape} into {step.output_shape}, which mixes channels and positions",
        "Only flattening to a vector has a counterpart.",
    )


@rule(nn.Softmax, F.softmax, torch.softmax, "softmax", nn.LogSoftmax, F.log_softmax, torch.log_softmax, "log_softmax")
def softmax(step: Step) -> Value:
    if not _is_last(step):
        raise step.refuse("softmax within the network is attention", "Only a softmax at the very end has a counterpart.")
    return step.drop("part of the multinomial loss, not of the network", faithful=True)


# What has no counterpart, and why.

_REASONS: list[tuple[tuple[type, ...], str, str]] = [
    ((nn.RNNBase, nn.RNNCellBase), "recurrent layers are not convolutional", "Translate the convolutional part by itself."),
    (
        (
            nn.MultiheadAttention,
            nn.Transformer,
            nn.TransformerEncoder,
            nn.TransformerEncoderLayer,
            nn.TransformerDecoderLayer,
        ),
        "attention multiplies feature maps with each other",
        "Translate the convolutional part by itself.",
    ),
    (
        (nn.ConvTranspose2d, nn.Upsample, nn.PixelShuffle),
        "upsampling layers have no patches to compare",
        "Translate the part before it.",
    ),
    ((nn.Conv1d, nn.Conv3d), "kernel layers are for images, (N, C, H, W)", "Use Conv2d, with a height of 1 for signals."),
    ((nn.Embedding, nn.EmbeddingBag), "an embedding takes indices, not images", "Translate the part after it."),
]


def reason_against(operation: Operation) -> tuple[str, str]:
    """Why an operation has no rule, and what to do about it."""
    for classes, why, remedy in _REASONS:
        if isinstance(operation.module, classes):
            return why, remedy
    return (
        "there is no rule for it",
        "If it has a kernel counterpart, register a rule with @torchckn.translate.rule; otherwise replace it in the network.",
    )
