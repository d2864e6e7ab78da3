"""Operations that only move and select numbers: reshaping, moving axes, slices, splits, shuffles, blocks of pixels.

Such an operation is run on labels instead of numbers, so it need not be understood. When something is computed from the
result, the labels say what has become of channels and positions: a permutation of channels changes no kernel, some channels of
a layer are a layer of fewer filters, and a grid of positions is a crop and a subsampling. Read next: ``rules/shapes.py``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..correspondence import Row
from ..graph import AsImage, AveragePool, Pad, SpaceToDepth
from .assembly import ranks
from .builder import Step
from .trace import Operation
from .values import Layout, Value, View

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
    counts = [_numbers(view) for view in views]
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


def looked_at(view: View) -> Value:
    """The view as a value: its channels, positions and layout are recognized, or it is refused."""
    numbers = _numbers(view)
    own = view.labels[:1].to(torch.int64)
    if len(view.labels) != 2 or not torch.equal(view.labels[1:].to(torch.int64) - own, torch.full_like(own, numbers)):
        raise _mixing(view, "images")
    return _vector(view, own[0]) if own.ndim == 2 else _image(view, own[0])


def _numbers(view: View) -> int:
    """How many numbers its sources have for one image."""
    return sum(source.width for source in view.sources) * view.size[0] * view.size[1]


def _image(view: View, labels: Tensor) -> Value:
    height, width = view.size
    layouts: dict[int, tuple[Layout, ...]] = {3: ("chw", "hwc"), 2: ("cp", "pc")}
    for layout in layouts.get(labels.ndim, ()):
        flat = labels if layout in ("chw", "cp") else (labels.movedim(-1, 0))
        if layout in ("cp", "pc"):
            if flat.shape[1] != height * width:
                continue
            flat = flat.unflatten(1, (height, width))
        if (grid := _grid(view, flat)) is not None:
            channels, rows, columns = grid
            value = _positions(view, _channels(view, channels.tolist()), rows, columns)
            value = dataclasses.replace(value, layout=layout, flat=False)
            return _as_image(view, value)
    if labels.ndim == 3 and _grid(view, labels.mT) is not None:
        raise view.step.refuse(
            f"it swaps the rows and columns of an image, {view.step.input_shape} into {tuple(labels.shape)}",
            "Keep the order of height and width, with layers of swapped kernel sizes.",
        )
    if labels.ndim == 3:
        return _blocks(view, labels)
    raise view.step.refuse(
        f"its result has other axes than channels, rows and columns, {tuple(labels.shape)}, when it is computed with",
        "Select one branch along the other axis first, or sum over that axis.",
    )


def _grid(view: View, labels: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """The channels, rows and columns that labels (C, H, W) are of, if these are all their combinations in that order."""
    height, width = view.size
    channels, rows, columns = labels // (height * width), labels // width % height, labels % width
    same = channels == channels[:, :1, :1], rows == rows[:1, :, :1], columns == columns[:1, :1, :]
    return (channels[:, 0, 0], rows[0, :, 0], columns[0, 0, :]) if all(bool(s.all()) for s in same) else None


def _vector(view: View, labels: Tensor) -> Value:
    height, width = view.size
    channels, places = labels // (height * width), labels % (height * width)
    kept = channels.unique()
    if len(kept) * height * width == len(labels) == len(labels.unique()):
        value = _channels(view, kept.tolist())
        in_order = bool((labels.diff() > 0).all())
        _note(view, value, "fully connected kernel layers flatten their input")
        return dataclasses.replace(value, flat=True, layout="chw" if in_order else "unordered")
    if bool((places == places[0]).all()):
        value = _positions(view, _channels(view, channels.tolist()), places[:1] // width, places[:1] % width)
        return dataclasses.replace(value, flat=True, layout="chw")
    raise _mixing(view, "channels and positions")


def _as_image(view: View, value: Value) -> Value:
    """A vector, if the ConvNet makes it an image of one pixel, is one in the CKN as well."""
    if len(value.shape) == 3:
        return value
    builder = view.step.builder
    value = builder.settle(value)
    made = builder.add(AsImage(builder.unique(view.step.name), inputs=(value.node,)))
    builder.origins[made.node] = (value,)
    return dataclasses.replace(value, node=made.node, shape=made.shape)


def _channels(view: View, channels: list[int]) -> Value:
    """The chosen channels of the sources, side by side."""
    if len(set(channels)) < len(channels):
        raise view.step.refuse("it repeats channels", "Use every channel once.")
    builder = view.step.builder
    parts, reasons = builder.parts(view.sources, channels)
    whole = len(channels) == sum(source.width for source in view.sources)
    value = builder.side_by_side(builder.unique(view.step.name), parts)
    ordered = channels == sorted(channels)
    if not whole:
        why = "some of a layer's filters are a layer of their own; channels of a concatenation are its branches"
        _note(view, value, why, inexact=reasons, new=True)
    elif not ordered:
        _note(view, value, "a permutation of channels changes no kernel")
    if not ordered and not value.summed and len(value.shape) == 3 and _groups_follow(view.step.operation):
        value = builder.shuffled(builder.unique(view.step.name), value, ranks(channels))
        _note(view, value, "the channels of a later layer's groups are the ConvNet's", inexact=reasons, new=True)
    return value


def _groups_follow(operation: Operation) -> bool:
    """Whether the order of channels matters to a layer that comes later."""
    waiting, seen = [operation], {operation}
    while waiting:
        new = [user for user in waiting.pop().users if user not in seen]
        if any(user.has_groups for user in new):
            return True
        seen.update(new)
        waiting += new
    return False


def _positions(view: View, value: Value, rows: Tensor, columns: Tensor) -> Value:
    """The chosen rows and columns: a crop, then a subsampling."""
    (height, width), steps = view.size, []
    for indices in (rows, columns):
        gaps = indices.diff().unique().tolist()
        if len(gaps) > 1 or any(gap < 1 for gap in gaps):
            raise _mixing(view, "positions")
        steps.append(int(gaps[0]) if gaps else 1)
    margins = [int(columns[0]), width - 1 - int(columns[-1]), int(rows[0]), height - 1 - int(rows[-1])]
    for last, step in ((1, steps[1]), (3, steps[0])):  # what is less than a step behind the last position is never reached
        margins[last] = margins[last] if margins[last] >= step else 0
    if not any(margins) and steps == [1, 1]:
        return value
    builder, source = view.step.builder, view.step.builder.settle(value)
    for node in (
        Pad("", padding=tuple(-n for n in margins)),  # type: ignore[arg-type]
        AveragePool("", stride=(steps[0], steps[1])),
    ):
        if any(margins) if isinstance(node, Pad) else steps != [1, 1]:
            named = dataclasses.replace(node, name=builder.unique(view.step.name), inputs=(source.node,))
            made = builder.add(named)
            builder.origins[made.node] = (source,)
            source = dataclasses.replace(source, node=made.node, shape=made.shape, branches=())
    _note(view, source, "subsampling" if steps != [1, 1] else "cropping", new=True)
    return source


def _blocks(view: View, labels: Tensor) -> Value:
    """Blocks of pixels as channels: a change of patches."""
    height, width = view.size
    block = height // labels.shape[1]
    if block * labels.shape[1] != height or block * labels.shape[2] != width:
        raise _mixing(view, "channels and positions")
    channels, rows, columns = labels // (height * width), labels // width % height, labels % width
    row, column = torch.arange(labels.shape[1])[:, None] * block, torch.arange(labels.shape[2]) * block
    first = labels[:, :1, :1]  # the upper left pixel of each channel: (C', 1, 1)
    channel, i, j = first // (height * width), first // width % height, first % width
    kept = channel.unique()
    complete = len(first.unique()) == len(first) == len(kept) * block**2 and max(int(i.max()), int(j.max())) < block
    if not complete or not bool(((channels == channel) & (rows == row + i) & (columns == column + j)).all()):
        raise _mixing(view, "channels and positions")
    builder = view.step.builder
    source = builder.settle(_channels(view, kept.tolist()))
    node = SpaceToDepth(builder.unique(view.step.name), block=block, inputs=(source.node,))
    made = dataclasses.replace(source, node=node.name, shape=builder.add(node).shape, branches=(), layout="chw", flat=False)
    builder.origins[made.node] = (source,)
    _note(view, made, "blocks of pixels as channels are a change of patches", new=True)
    return made


def _note(view: View, value: Value, why: str, *, inexact: list[str] | None = None, new: bool = False) -> None:
    """What the row of the operation says, now that it is known."""
    rows = view.step.builder.rows
    for i, row in enumerate(rows):
        if row.name == view.step.name:
            rows[i] = _noted(row, value, why, inexact or [], new)


def _noted(row: Row, value: Value, why: str, inexact: list[str], new: bool) -> Row:
    correspondence = "inexact" if inexact else "exact" if new else row.correspondence
    reasons = tuple(dict.fromkeys((*(r for r in row.reasons if r != MOVES), why, *inexact)))
    layer = value.node if new and not value.pending else row.layer
    return dataclasses.replace(
        row, correspondence=correspondence, reasons=reasons, faithful=row.faithful and not inexact, layer=layer
    )


#: why an operation is kept whose labels have not been looked at
MOVES = "moves numbers and changes none"


def _mixing(view: View, what: str) -> Exception:
    shapes = view.step.input_shape, tuple(view.labels.shape[1:])
    return view.step.refuse(
        f"it makes {shapes[0]} into {shapes[1]}, which mixes {what}",
        "Only flattening, moving axes, and selecting channels or a grid of positions have counterparts.",
    )
