"""Sums of branches, and branches side by side."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from typing import Any

import torch

from ...graph import DirectSum
from ...nn.layers import KernelSum
from ..builder import Step, Value
from ..views import MOVES, joined
from .arguments import operands_of
from .dependence import share_units
from .registry import rule


@rule(operator.add, operator.iadd, torch.add, "add", "add_", operator.sub, operator.isub, torch.sub, "sub", "sub_")
def addition(step: Step) -> Value:
    if len(step.inputs) == 1:
        if any(isinstance(a, (int, float)) and a == 0 for a in operands_of(step)):
            return step.keep(step.input, "changes nothing")
        return step.drop("kernel layers have no biases", faithful=False)
    return _sum(step, float(step.option("alpha", 9, 1)))


@rule(torch.addcmul, "addcmul", "addcmul_")
def sum_with_product(step: Step) -> Value:
    """``a + value b c``: a sum, if one of b and c is a feature map and the other one a parameter."""
    added = step.is_computed(step.option("input", 0))
    factors = sum(step.is_computed(step.option(f"tensor{i}", i)) for i in (1, 2))
    if factors == 2:
        raise step.refuse("it adds a product of feature maps", "Write it as a sum and a product: a + b * c.")
    if added and factors:
        return _sum(step, float(step.option("value", 9, 1)), ["a trainable factor of a branch has no counterpart"])
    lost = "trainable factors have no counterpart, and kernel layers" if factors else "kernel layers"
    return step.drop(f"{lost} have no biases", faithful=False)


def _sum(step: Step, alpha: float, inexact: Sequence[str] = ()) -> Value:
    """The first input plus ``alpha`` times the second."""
    require_same_axes(step)
    first, second = step.inputs
    inexact = list(inexact)
    if first.node == second.node:
        sign = -1 if step.operation.key in (operator.sub, operator.isub, torch.sub, "sub", "sub_") else 1
        factor = first.factor + sign * alpha * second.factor
        if factor == 0 and step.same_operands():
            raise step.refuse("it subtracts a feature map from itself", "Leave this branch out.")
        if factor == 0:  # multiples whose trainable factors were dropped
            return step.drop("a difference of multiples of one feature map becomes that feature map", faithful=False)
        return step.keep(dataclasses.replace(first, factor=factor), "a multiple of one feature map")
    if sum(not v.gaussian for v in step.inputs) > 1:
        inexact.append("products of nonlinear branches with each other are left out")
    inexact += dependence(step)
    return _direct_sum(step, "the kernels of independent branches add up: a direct sum of features", inexact, (1.0, alpha))


def require_same_axes(step: Step) -> None:
    """Refuse feature maps that do not have the same sizes, or not in the same order."""
    operands = (*step.operation.args, *step.operation.kwargs.values())
    if len({operand.shape for operand in operands if step.is_computed(operand)}) > 1:
        raise step.refuse("its feature maps have different sizes", "Make both branches the same size first.")
    if len({value.layout for value in step.inputs}) > 1:
        raise step.refuse("its feature maps have their axes in different orders", "Move the axes of one of them first.")


def dependence(step: Step) -> list[str]:
    """The reason, if there is one, why branches are not independent."""
    return ["the branches are not independent"] if share_units(step.builder, *step.inputs) else []


@rule(torch.cat, torch.concat, torch.concatenate)
def concatenation(step: Step) -> Value | tuple[Any, ...]:
    if len(step.raw_inputs) < len(step.option("tensors", 0, ())):
        raise step.refuse("it concatenates constants with feature maps", "Leave constant channels out.")
    if len(step.output_shape) > 3:
        return stack(step)
    axis = step.option("dim", 1, 0) % (len(step.output_shape) + 1)
    layout = step.input.layout
    channels = len(step.output_shape) if layout in ("hwc", "pc") else 1
    if axis == channels and len({v.layout for v in step.inputs}) == 1:
        return _side_by_side(step)
    if len(step.output_shape) == 2 and all(value.shape[1:] in ((), (1, 1)) for value in step.inputs):  # vectors
        return stack(step)
    raise step.refuse("concatenation is not along the channels", "Only torch.cat(..., dim=1) has a counterpart.")


@rule(torch.stack)
def stack(step: Step) -> Value:
    step.note("kept", MOVES)
    return joined(step)


@rule(KernelSum)
def _side_by_side(step: Step) -> Value:
    # A nonlinearity on units side by side is not the nonlinearity on their sum: the result is not gaussian.
    value = _direct_sum(step, "a direct sum of features")
    branches = tuple(map(step.builder.settle, step.inputs))
    return dataclasses.replace(value, gaussian=False, branches=branches)


def _direct_sum(step: Step, why: str, inexact: Sequence[str] = (), factors: Sequence[float] = ()) -> Value:
    branches = [step.builder.flattened(v, f"{step.name}_flat{i}") for i, v in enumerate(step.inputs)]
    own = tuple(factors) or (1.0,) * len(branches)
    weights = tuple(abs(v.factor * f) for v, f in zip(branches, own, strict=True))
    node = DirectSum(step.name, weights=None if set(weights) == {1.0} else weights)
    value = step.emit(node, "inexact" if inexact else "exact", (why, *inexact), inputs=branches)
    return dataclasses.replace(value, flat=len(step.output_shape) == 1, summed=True, factor=1.0)
