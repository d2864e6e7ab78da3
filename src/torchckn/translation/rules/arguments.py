"""What several rules ask about the arguments of an operation."""

from __future__ import annotations

from typing import Any

import torch

from ..builder import Step
from ..operation import Operation, parameters_in


def pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[-1]))


def weight_of(step: Step, inexact: list[str]) -> torch.Tensor:
    """The weight of a layer; if it is computed from other parameters, ``inexact`` gets that reason."""
    weight = step.option("weight", 1)
    if step.is_computed(weight) or step.is_computed(step.option("bias", 2)):
        raise step.refuse("its weights depend on the image", "Use weights that are parameters.")
    if not isinstance(weight, Operation):
        return weight
    if weight.key is not None:
        inexact.append("weights that are computed from other parameters become free filters")
    return weight.value


def is_last(step: Step) -> bool:
    return not any(user.is_tensor for user in step.operation.users)


def is_fixed(step: Step) -> bool:
    """Whether the weight of a layer is not trained: a buffer, or computed from buffers."""
    if step.module is not None:
        return not any(True for _ in step.module.parameters())
    return not parameters_in(step.option("weight", 1))
