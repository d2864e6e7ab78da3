r"""Gradients that are sums over images, the same bit for bit however units of images are divided among chunks and processes.

.. math:: \frac{\partial L}{\partial W} = \sum_u \Big( \sum_{i \in U_u} \frac{\partial L_i}{\partial W} \Big)

In float32 the last bits of a sum depend on the order of its terms: here, on which images are in a chunk, and on how many
processes share a batch. Within :meth:`GradientSums.active`, layers compute the gradients of filters and roots for one unit
:math:`U_u` of images at a time, in float32, and add up the units in float64, where the sum of a few float32 numbers has no
rounding error unless their sizes differ by more than 2^29. Products of matrices, whose last bits depend on how many rows they
have, are of one unit at a time as well (:func:`in_units`); convolutions treat each image alike, if there are at least two. So
a batch can be divided between any two units.

Read first: :mod:`torchckn.nn.devices`. Read next: :mod:`torchckn.nn.fused`, and :mod:`torchckn.fit.chunks`, which uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..derivatives import first_only
from .devices import own_precision, prefers_convolutions, wide_dtype
from .direct import Geometry, convolution_gradients
from .geometry import convolve

#: Products of matrices are 1x1 convolutions, where :func:`~torchckn.nn.devices.prefers_convolutions`, from this many rows and
#: columns on, and from this many products of numbers per map on: below, the units of a batch take up to twice as long.
WIDE, MANY = 64, 2**18
POINTWISE = Geometry((1, 1), (0, 0), (1, 1))


class GradientSums:
    """Gradients of leaves, added up in double precision.

    Args:
        leaves: filters, roots and other parameters.
        unit: images that layers add up in their own precision; None: layers leave the sums to autograd, one per chunk.
    """

    def __init__(self, leaves: Sequence[Tensor], unit: int | None = None) -> None:
        self.leaves, self.unit = list(leaves), unit
        self.sums: dict[int, Tensor] = {}
        """by the number of the leaf"""
        # A leaf with hooks is left to autograd, which calls them.
        self._numbers = {id(leaf): i for i, leaf in enumerate(self.leaves) if not leaf._backward_hooks}

    @contextmanager
    def active(self) -> Iterator[None]:
        """Graphs that are made within this context add their gradients of filters and roots to these sums, once: layers use the
        memory of such a graph again when they go back through it."""
        token = _active.set(self if self.unit else None)
        try:
            with in_units(self.unit):
                yield
        finally:
            _active.reset(token)

    def backward(self, output: Tensor, cotangent: Tensor) -> None:
        """Add the gradients of all leaves through ``output``."""
        if not output.requires_grad:
            return
        with self.active():  # for what is computed again on the way back (torch.utils.checkpoint)
            gradients = torch.autograd.grad(output, self.leaves, cotangent, allow_unused=True)
        for i, gradient in enumerate(gradients):
            if gradient is not None:  # else there is none, or a layer has added it
                self.add(i, gradient)

    def add(self, number: int, gradient: Tensor) -> None:
        if number in self.sums:
            self.sums[number] += gradient
        else:
            self.sums[number] = gradient.to(wide_dtype(gradient.device), copy=True)


_active: ContextVar[GradientSums | None] = ContextVar("active sums", default=None)
_unit: ContextVar[int | None] = ContextVar("unit", default=None)


@contextmanager
def in_units(unit: int | None) -> Iterator[None]:
    """Within this context products of matrices are those of so many images at a time; None: of all."""
    token = _unit.set(unit)
    try:
        yield
    finally:
        _unit.reset(token)


def current_unit() -> int | None:
    """Images of which products of matrices are computed at a time; None: all, as always in a compiled graph."""
    return None if torch.compiler.is_compiling() else _unit.get()


class Sink(NamedTuple):
    """Where the gradient of a leaf goes, instead of back to autograd."""

    sums: GradientSums
    number: int

    @property
    def unit(self) -> int:
        assert self.sums.unit
        return self.sums.unit

    def add(self, gradient: Tensor) -> None:
        self.sums.add(self.number, gradient)


def sink_of(tensor: Tensor | None) -> Sink | None:
    """Of a leaf of the sums that are active; None for any other tensor."""
    sums = None if torch.compiler.is_compiling() else _active.get()
    number = None if sums is None or not torch.is_grad_enabled() else sums._numbers.get(id(tensor))
    return None if sums is None or number is None else Sink(sums, number)


def conv2d(x: Tensor, weight: Tensor, geometry: Geometry, groups: int = 1) -> Tensor:
    """``F.conv2d`` whose filters may be a leaf of active sums."""
    sink = sink_of(weight)
    if sink is None:
        return convolve(x, weight, *geometry, groups)
    return _Conv.apply(x, weight, geometry, groups, sink)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """``F.linear`` of images (N, ..., s), in units, whose matrix (f, s) may be a leaf of active sums."""
    unit = current_unit()
    if unit is None:
        if _is_convolution(x, weight):
            return F.conv2d(x.permute(0, 3, 1, 2), weight[:, :, None, None]).permute(0, 2, 3, 1)
        return F.linear(x, weight)
    return (
        _Linear.apply(x, weight, unit, sink_of(weight)) if torch.is_grad_enabled() else products_in_units(x, weight.T, unit)
    )


def products_in_units(x: Tensor, matrix: Tensor, unit: int) -> Tensor:
    """Images (N, ..., s) times a matrix (s, f), ``unit`` of them at a time: (N, ..., f)"""
    out = x.new_empty(*x.shape[:-1], matrix.shape[1])
    convolved = _is_convolution(x, matrix)
    for some, to in zip(x.split(unit), out.split(unit), strict=True):
        if convolved:
            to.copy_(F.conv2d(some.permute(0, 3, 1, 2), matrix.T[:, :, None, None]).permute(0, 2, 3, 1))
        else:
            torch.mm(some.reshape(-1, len(matrix)), matrix, out=to.view(-1, matrix.shape[1]))
    return out


def _is_convolution(x: Tensor, matrix: Tensor) -> bool:
    """Whether the product of maps (N, H, W, s) and a matrix is faster as a 1x1 convolution."""
    if torch.compiler.is_compiling() or x.ndim != 4 or x.dtype != torch.float32 or min(matrix.shape) < WIDE:
        return False
    return x.shape[1] * x.shape[2] * matrix.numel() >= MANY and prefers_convolutions(x.device)


class _Conv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, geometry: Geometry, groups: int, sink: Sink) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.about = geometry, groups, sink
        return convolve(x, weight, *geometry, groups)

    @staticmethod
    @first_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        geometry, groups, sink = ctx.about
        sink.add(filter_gradient(grad, x, weight, geometry, sink.unit, groups))
        of_x = (
            convolution_gradients(grad, x, weight, geometry, (True, False), groups)[0] if ctx.needs_input_grad[0] else None
        )
        return of_x, None, None, None, None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, unit: int, sink: Sink | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.about = unit, sink
        return products_in_units(x, weight.T, unit)

    @staticmethod
    @first_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        unit, sink = ctx.about
        of_x = of_weight = None
        with own_precision(grad.device):  # a backward pass may be within autocast
            if ctx.needs_input_grad[1]:
                of_weight = add_or_return(sink, _matrix_gradient(grad, x, weight, unit), weight.dtype)
            if ctx.needs_input_grad[0]:
                of_x = products_in_units(grad, weight, unit)
        return of_x, of_weight, None, None


def _matrix_gradient(grad: Tensor, x: Tensor, weight: Tensor, unit: int) -> Tensor:
    """That of the matrix (f, s) of :func:`linear`, units of images added up in double precision."""
    if _is_convolution(x, weight):
        maps = grad.permute(0, 3, 1, 2), x.permute(0, 3, 1, 2)
        return filter_gradient(*maps, weight[:, :, None, None], POINTWISE, unit)[:, :, 0, 0]
    pairs = zip(grad.split(unit), x.split(unit), strict=True)
    return sum_in_double(some_of.reshape(-1, len(weight)).T @ some.reshape(-1, weight.shape[1]) for some_of, some in pairs)


def sum_in_double(parts: Iterable[Tensor]) -> Tensor:
    """The sum of at least one part, in double precision."""
    parts = iter(parts)
    first = next(parts)
    total = first.to(wide_dtype(first.device))
    for part in parts:  # one after the other, so that no two of them are in memory
        total += part
    return total


def add_or_return(sink: Sink | None, gradient: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """What autograd gets of a gradient: nothing if it goes to a sink."""
    if gradient is None or sink is None:
        return None if gradient is None else gradient.to(dtype)
    sink.add(gradient)
    return None


def filter_gradient(
    of_responses: Tensor, x: Tensor, weight: Tensor, geometry: Geometry, unit: int, groups: int = 1
) -> Tensor:
    """The gradient of a convolution's filters (f, C / groups, kh, kw), units of images added up in double precision."""
    pairs = zip(of_responses.split(unit), x.split(unit), strict=True)
    weight = weight.detach().contiguous(memory_format=torch.channels_last)  # once, and not for each unit
    return sum_in_double(convolution_gradients(*pair, weight, geometry, (False, True), groups)[1] for pair in pairs)
