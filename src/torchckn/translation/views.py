"""Operations that only move and select numbers: reshaping, moving axes, slices, splits, shuffles, blocks of pixels.

Such an operation is run on labels instead of numbers, so it need not be understood. When something is computed from the
result, the labels say what has become of channels and positions. Read next: ``recognition.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .builder import Step
from .trace import Operation
from .values import Layout, Value, View

#: why an operation is kept whose labels have not been looked at
MOVES = "moves numbers and changes none"

#: the axes of a layout, from channels, rows, columns
_ORDERS: dict[Layout, Callable[[Tensor], Tensor]] = {
    "chw": lambda x: x,
    "hwc": lambda x: x.movedim(-3, -1),
    "cp": lambda x: x.flatten(-2),
    "pc": lambda x: x.flatten(-2).mT,
}


def moved(step: Step) -> Value | tuple[Any, ...]:
    """What an operation that only moves and selects numbers gives: one view, or several."""
    first = next(v for v in step.raw_inputs if isinstance(v, Value))
    view = _view_of(step, first)
    labels = _apply(step, [view.labels])
    if isinstance(labels, (tuple, list)):
        return tuple(_viewed(step, view, own) for own in labels)
    return first if torch.equal(labels, view.labels) else _viewed(step, view, labels)


def joined(step: Step) -> Value:
    """Several values in one array, as ``torch.stack`` and ``torch.cat`` make it: a view of all of their sources."""
    views = [_view_of(step, value) for value in step.raw_inputs]
    if len({view.size for view in views}) > 1:  # of a crop, the whole image
        views = [_view_of(step, value) for value in step.inputs]
    counts = [view.numbers for view in views]
    labels, start = [], 0
    for view, count in zip(views, counts, strict=True):
        labels.append(torch.stack([view.labels[0] + start, view.labels[1] - count + start + sum(counts)]))
        start += count
    sources = tuple(source for view in views for source in view.sources)
    return _viewed(step, View(sources, views[0].size, labels[0], step), _apply(step, labels))


def with_sources(step: Step, view: View, sources: tuple[Value, ...]) -> Value:
    """The same numbers of other values, after an operation on each number by itself."""
    return _viewed(step, View(sources, view.size, view.labels, step), view.labels)


def is_over_branches(view: View, axis: int) -> bool:
    """Whether the numbers along an axis are channels of one position, and those along another axis are other channels."""
    own = view.labels[0].to(torch.int64)
    positions, channels = own % (view.size[0] * view.size[1]), own // (view.size[0] * view.size[1])
    first = positions.movedim(axis - 1, 0)
    return bool((first == first[:1]).all()) and len(channels.unique()) > own.shape[axis - 1] > 1


def rearranged(step: Step, value: Value, move: Callable[[Tensor], Tensor]) -> Value:
    """A value whose numbers are moved as ``move`` moves its labels (N, C, H, W)."""
    view = _view_of(step, value)
    return _viewed(step, view, move(view.labels))


def named(step: Step, value: Any) -> Any:
    """One of several views, as the result of the operation that picks it."""
    if isinstance(value, tuple) or value.view is None:
        return value
    return _viewed(step, value.view, value.view.labels)


def _viewed(step: Step, view: View, labels: Tensor) -> Value:
    return Value(step.name, (), view=View(view.sources, view.size, labels.contiguous(), step))


def _view_of(step: Step, value: Value) -> View:
    """A value as a view of itself, or of the values that it has side by side."""
    if value.view is not None:
        return value.view
    if value.layout == "unordered":
        raise step.refuse("it undoes flattening in another order than channels, rows, columns", "Flatten channels first.")
    height, width = value.shape[1:] if len(value.shape) == 3 else (1, 1)
    labels = torch.arange(2 * value.width * height * width, dtype=torch.float64).view(2, value.width, height, width)
    labels = labels.flatten(1) if value.flat or len(value.shape) == 1 else _ORDERS[value.layout](labels)
    return View((value,), (height, width), labels, step)


def _apply(step: Step, labels: list[Tensor]) -> Any:
    """The operation on labels in place of its first inputs."""
    operation, waiting = step.operation, list(labels)

    def replaced(argument: Any) -> Any:
        if isinstance(argument, Operation):
            return waiting.pop(0) if step.is_computed(argument) and waiting else argument.value
        if isinstance(argument, slice):
            return slice(*(replaced(end) for end in (argument.start, argument.stop, argument.step)))
        return type(argument)(replaced(item) for item in argument) if isinstance(argument, (tuple, list)) else argument

    args, kwargs = replaced(operation.args), {name: replaced(a) for name, a in operation.kwargs.items()}
    if operation.module is not None:
        return operation.module(*args, **kwargs)
    if isinstance(operation.key, str):
        return getattr(args[0], operation.key)(*args[1:], **kwargs)
    assert callable(operation.key)
    return operation.key(*args, **kwargs)
