"""What has become of the numbers of a view: channels of layers, positions of images, or blocks of pixels.

A view is looked at when something is computed from it. A permutation of channels changes no kernel, some channels of a layer
are a layer of fewer filters, and a grid of positions is a crop and a subsampling. Read first: ``views.py``. Read next:
``rules/shapes.py``.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from ..correspondence import Row
from ..graph import AsImage, AveragePool, Pad, SpaceToDepth
from .assembly import ranks
from .trace import Operation
from .values import Layout, Value, View
from .views import MOVES


def looked_at(view: View) -> Value:
    """The view as a value: its channels, positions and layout are recognized, or it is refused."""
    numbers = view.numbers
    own = view.labels[:1].to(torch.int64)
    if len(view.labels) != 2 or not torch.equal(view.labels[1:].to(torch.int64) - own, torch.full_like(own, numbers)):
        raise _mixing(view, "images")
    return _vector(view, own[0]) if own.ndim == 2 else _image(view, own[0])


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


def _mixing(view: View, what: str) -> Exception:
    shapes = view.step.input_shape, tuple(view.labels.shape[1:])
    return view.step.refuse(
        f"it makes {shapes[0]} into {shapes[1]}, which mixes {what}",
        "Only flattening, moving axes, and selecting channels or a grid of positions have counterparts.",
    )
