"""The larger or smaller of two feature maps: maxout units.

``max(a, b) = (a + b) / 2 + |a - b| / 2``. If a and b are independent linear units, the two parts are uncorrelated, because a
change of all signs changes the sign of the first one only. So the kernel is the sum of theirs, and both are known: that of the
sum of branches, and the absolute value's on it, because a - b has the kernel of a + b. ``min(a, b)`` has the same one.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from ...graph import Conv, Dense, DirectSum
from ...kernels import Dual
from ..assembly import replaced_kernel
from ..builder import Step, Value
from ..operation import Operation, parameters_in
from .activations import own_kernel
from .registry import rule
from .sums import dependence, require_same_axes

_WHY = "(a + b) / 2 and |a - b| / 2 side by side: they are uncorrelated, and the kernels of both are known"


@rule(torch.maximum, "maximum", torch.minimum, "minimum")
def larger_of_two(step: Step) -> Value:
    if len(step.inputs) == 1:
        return _bounded_by_a_constant(step)
    require_same_axes(step)
    inexact = dependence(step)
    if not all(value.gaussian for value in step.inputs):
        inexact.append("exact for linear units only, and these are not linear")
    builder, name = step.builder, step.name
    branches = [builder.flattened(value, f"{name}_flat{i}") for i, value in enumerate(step.inputs)]
    both = builder.side_by_side(builder.unique(f"{name}_both"), branches)
    matching = Dual("abs")
    kernel = matching if builder.policy.kernel is None else builder.policy.kernel
    width = step.output_shape[0]
    kind = Conv if len(both.shape) == 3 else Dense
    layer = kind(builder.unique(f"{name}_abs"), filters=builder.policy.filters_for(width), **builder.policy.options)
    made = builder.add(dataclasses.replace(layer, inputs=(both.node,)).with_kernel(kernel))
    builder.origins[made.node] = (both,)
    faithful = not inexact
    if kernel.spec() != matching.spec():
        inexact.append(replaced_kernel(kernel, matching))  # which is meant
    node = DirectSum(name, weights=(0.5, 0.5))
    told: dict[str, Any] = {"why": (_WHY, *inexact), "gaussian": False, "faithful": faithful}
    value = step.emit(node, "inexact" if inexact else "exact", inputs=[both, made], **told)
    return dataclasses.replace(value, flat=len(step.output_shape) == 1, summed=True, factor=1.0)


def _bounded_by_a_constant(step: Step) -> Value:
    """``torch.maximum(x, number)`` is an activation."""
    key: Any = step.operation.key
    (number,) = (a.value for a in step.operation.args if isinstance(a, Operation) and not step.is_computed(a))
    if number.numel() > 1 or parameters_in(list(step.operation.args)[1:]):
        raise step.refuse(
            "it compares feature maps with trainable or several constants", "Use one constant, or torch.clamp."
        )
    function = getattr(torch, key) if isinstance(key, str) else key
    bound = number.detach().double().reshape(())
    return own_kernel(step, lambda u: function(u, bound.to(u)), f"{function.__name__}({bound.item():g})")
