"""Nonlinearities: the kernel."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ... import zoo
from ...correspondence import Part
from ...errors import ConfigError
from ...kernels import ArcCosine, Dual
from ...kernels.hermite import Function
from ..builder import Step, Value
from ..compositions import Composition
from ..trace import Operation
from .arguments import is_last, weight_of
from .registry import rule

_RELU = "ReLU is the arc-cosine kernel of order 1"


@rule(nn.ReLU, F.relu, F.relu_, torch.relu, torch.relu_, "relu", "relu_")
def relu(step: Step) -> Value:
    return step.activation(ArcCosine(1), True, _RELU)


@rule(nn.Tanh, F.tanh, torch.tanh, "tanh", "tanh_", nn.Hardtanh, F.hardtanh, nn.Softsign, F.softsign, torch.erf, "erf")
@rule(nn.GELU, F.gelu, nn.SiLU, F.silu, nn.Mish, F.mish, nn.Hardswish, F.hardswish, nn.Softplus, F.softplus)
@rule(nn.LeakyReLU, F.leaky_relu, nn.RReLU, nn.ReLU6, F.relu6, nn.ELU, F.elu, nn.SELU, F.selu, nn.CELU, F.celu)
@rule(nn.LogSigmoid, F.logsigmoid, nn.Tanhshrink, F.tanhshrink, nn.Softshrink, F.softshrink, nn.Hardshrink, F.hardshrink)
@rule(torch.sin, "sin", torch.cos, "cos", torch.square, "square", torch.abs, "abs", operator.abs, nn.Threshold, F.threshold)
@rule("clamp", torch.clamp, "clamp_", "clip", torch.clip, "clamp_min", torch.clamp_min, "clamp_max", torch.clamp_max)
def elementwise(step: Step) -> Value:
    return own_kernel(step, _function(step), _label(step))


@rule(Composition)
def composition(step: Step) -> Value:
    function: Any = step.operation.key
    return own_kernel(step, function, function.__name__)


@rule(zoo.ScaledTanh)
def scaled_tanh(step: Step) -> Value:
    # The paper's choice for its LeNets; kernel=Dual("tanh", 2 / 3) is its own kernel.
    return step.activation(ArcCosine(0), False, "close to a step function, which is the arc-cosine kernel of order 0")


@rule(nn.Sigmoid, F.sigmoid, torch.sigmoid, "sigmoid", "sigmoid_", nn.Hardsigmoid, F.hardsigmoid)
def sigmoid(step: Step) -> Value:
    if is_last(step):
        return step.drop("part of the loss, not of the network", faithful=True)
    return own_kernel(step, _function(step), _label(step))


@rule(nn.PReLU, F.prelu)
def parametric_relu(step: Step) -> Value:
    slope = weight_of(step, []).detach().mean().item()
    trained = Part("slopes", "inexact", f"one slope, {slope:g}, that is not trained", faithful=False)
    return own_kernel(step, functools.partial(F.leaky_relu, negative_slope=slope), f"PReLU({slope:g})", parts=(trained,))


@rule(operator.pow, operator.ipow, torch.pow, "pow", "pow_")
def power(step: Step) -> Value:
    exponent = step.operation.args[1] if len(step.operation.args) > 1 else step.operation.kwargs.get("exponent")
    if (
        not isinstance(exponent, (int, float))
        or exponent < 1
        or exponent != int(exponent)
        or not step.is_computed(_first(step))
    ):
        raise step.refuse(
            f"a power of {exponent!r} is not an activation", "Only positive integer powers have a counterpart."
        )
    if exponent == 1:
        return step.keep(step.input, "changes nothing")
    return own_kernel(step, functools.partial(torch.pow, exponent=int(exponent)), f"power {int(exponent)}")


def own_kernel(step: Step, function: Function, label: str, parts: Sequence[Part] = ()) -> Value:
    """The kernel that the activation has with infinitely many units."""
    # A constant factor before the activation is part of its scale.
    scale = step.builder.policy.scale * abs(step.input.factor)
    try:
        kernel = Dual(function, scale, name=label)
    except ConfigError as error:
        raise step.refuse(f"it has no kernel: {error}", "Replace it by another activation.") from None
    name = kernel.activation
    why = f"the kernel of {name} itself"
    if kernel.is_homogeneous:
        if name == "relu":
            return step.activation(ArcCosine(1), True, _RELU)
    else:
        why += f", for pre-activations of scale {kernel.scale:g}"
        other = f"{name} has another shape at another scale; the kernel is that of patches of one norm"
        parts = (*parts, Part("scale", "inexact", other, faithful=False))
    value = step.activation(kernel, True, f"{why}, with an error of at most {kernel.error:.0e}", parts)
    if bool((function(torch.tensor([-1e6, 1e6])).abs() < 1e3).all()):
        step.builder.bounded.add(value.node)
    return value


def _first(step: Step) -> Any:
    return step.operation.args[0] if step.operation.args else step.operation.kwargs.get("input")


@dataclass(frozen=True)
class _Activation:
    """An operation as a function of its first argument, equal to others that do the same.

    A deep network has one activation many times; the expansion of equal functions is computed once.
    """

    kind: Any
    settings: tuple[tuple[str, Any], ...]
    apply: Function = field(compare=False)

    def __call__(self, u: Tensor) -> Tensor:
        return self.apply(u)


def _function(step: Step) -> Function:
    """The operation as a function of its first argument."""
    operation = step.operation
    module = operation.module
    if module is not None:
        if type(module).__module__ != "torch.nn.modules.activation":  # others may have a state that does not show
            return module.forward
        settings = {name: value for name, value in vars(module).items() if not name.startswith("_") and name != "inplace"}
        return _Activation(type(module), tuple(sorted(settings.items())), module.forward)
    arguments, options = operation.args[1:], {k: v for k, v in operation.kwargs.items() if k not in ("input", "inplace")}
    if any(isinstance(a, Operation) for a in (*arguments, *options.values())):
        raise step.refuse("its arguments are computed from the image", "Use constants.")
    key: Any = operation.key

    def apply(u: Tensor) -> Tensor:
        return getattr(u, key)(*arguments, **options) if isinstance(key, str) else key(u, *arguments, **options)

    if not all(isinstance(a, (int, float, str, NoneType)) for a in (*arguments, *options.values())):
        return apply
    numbered = ((str(i), argument) for i, argument in enumerate(arguments))
    return _Activation(key, (*numbered, *sorted(options.items())), apply)


def _label(step: Step) -> str:
    module = step.module
    return f"{type(module).__name__}({module.extra_repr()})" if module is not None else step.operation.kind
