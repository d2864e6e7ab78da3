"""Products: with constants and with parameters. Those of two branches are in ``gates.py``."""

from __future__ import annotations

import dataclasses
import operator

import torch

from ... import zoo
from ..builder import Step, Value
from ..operation import Operation, parameters_in
from .arguments import operands_of
from .gates import product_of_branches
from .registry import rule


@rule(operator.mul, operator.imul, torch.mul, "mul", "mul_", operator.neg, torch.neg, "neg")
@rule(operator.truediv, operator.itruediv, torch.div, "div", "div_")
def product(step: Step) -> Value:
    divides = step.operation.key in (operator.truediv, operator.itruediv, torch.div, "div", "div_")
    if len(step.inputs) > 1 and not divides:
        return product_of_branches(step)
    operands = operands_of(step)
    others = [a for a in operands if not step.is_computed(a)]
    if divides and (len(step.inputs) > 1 or not step.is_computed(operands[0])):
        raise step.refuse("it divides by a feature map", "Leave such divisions out.")
    if divides and step.option("rounding_mode", 2, None) is not None:
        raise step.refuse("it rounds", "Divide without rounding_mode.")
    factor = -1.0  # negation
    if others:
        number = others[0].value if isinstance(others[0], Operation) else others[0]
        trained = bool(parameters_in(others[0]))
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
