"""What several rules ask about the arguments of an operation."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from ..builder import Step
from ..operation import Operation, parameters_in


def pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[-1]))


def operands_of(step: Step) -> list[Any]:
    """The arguments of arithmetic, by position or by name, in their order."""
    args, kwargs = step.operation.args, step.operation.kwargs
    return [*args[:2], *(kwargs[name] for name in ("input", "other") if name in kwargs)]


def weight_of(step: Step, inexact: list[str]) -> torch.Tensor:
    """The weight of a layer; if it is computed from other parameters, ``inexact`` gets that reason."""
    weight = step.option("weight", 1)
    if step.is_computed(weight) or step.is_computed(step.option("bias", 2)):
        raise step.refuse("its weights depend on the image", "Use weights that are parameters.")
    reason = "weights that are computed from other parameters become free filters"
    if isinstance(weight, Operation):
        inexact += [reason] if weight.key is not None else []
        return weight.value
    if step.module is not None and "weight" not in step.module._parameters and not is_fixed(step):
        inexact.append(f"{reason} ({_parametrization(step.module)})")
    return weight


def _parametrization(module: nn.Module) -> str:
    """What computes a module's weight: ``SpectralNorm``, or the names of the parameters, ``weight_g, weight_v``."""
    if parametrize.is_parametrized(module, "weight"):
        functions = module.parametrizations["weight"]  # type: ignore[index]
        return ", ".join(type(function).__name__.lstrip("_") for function in functions)
    return ", ".join(name for name in module._parameters if name != "bias")


def is_last(step: Step) -> bool:
    return not any(user.is_tensor for user in step.operation.users)


def is_fixed(step: Step) -> bool:
    """Whether the weight of a layer is not trained: a buffer, or computed from buffers."""
    if step.module is not None:
        return not any(True for _ in step.module.parameters())
    return not parameters_in(step.option("weight", 1))


def axes_of(step: Step, position: int = 1) -> set[str]:
    """The axes that an operation reduces: channels c, rows h, columns w, positions p; ``position`` of the argument ``dim``."""
    dims = step.option("dim", position)
    every = range(1 + len(step.input_shape))
    dims = {d % len(every) for d in ([dims] if isinstance(dims, int) else dims or every)}
    names = "n" + (step.input.layout if len(step.input_shape) == len(step.input.layout) else "?" * len(step.input_shape))
    return {names[d] for d in dims}
