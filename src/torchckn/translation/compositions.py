"""Functions that are written out by several operations: ``x * torch.sigmoid(x)``, ``x / x.norm(dim=1, keepdim=True)``.

All paths from the image to the last of these operations lead through one tensor: it *dominates* the others. What is between the
two, if it acts on every position by itself, is one operation: an activation, whose kernel is known, or a normalization over
channels. Read next: ``walk.py``.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .operation import Operation, mapped, operations_in, parameters_in

_ARITHMETIC = {
    *(operator.add, operator.iadd, torch.add, "add", "add_", operator.sub, operator.isub, torch.sub, "sub", "sub_"),
    *(operator.mul, operator.imul, torch.mul, "mul", "mul_", operator.neg, torch.neg, "neg", "neg_"),
    *(operator.truediv, operator.itruediv, torch.div, "div", "div_"),
}
_PRODUCTS = {operator.mul, operator.imul, torch.mul, "mul", "mul_"}
_NEGATIONS = {operator.neg, torch.neg, "neg", "neg_"}
_QUOTIENTS = {operator.truediv, operator.itruediv, torch.div, "div", "div_"}
_POWERS = {operator.pow, operator.ipow, torch.pow, "pow", "pow_"}
#: functions of numbers, by their names in torch, in torch.nn.functional and as methods
_NAMES = (
    *(
        "exp",
        "expm1",
        "log",
        "log1p",
        "sqrt",
        "rsqrt",
        "reciprocal",
        "square",
        "abs",
        "erf",
        "sin",
        "cos",
        "tanh",
        "sigmoid",
    ),
    *("relu", "relu6", "hardtanh", "hardsigmoid", "hardswish", "softplus", "softsign", "logsigmoid", "gelu", "silu", "mish"),
    *("elu", "selu", "celu", "leaky_relu", "clamp", "clamp_min", "clamp_max", "clip"),
)
_MODULES = (nn.Sigmoid, nn.Tanh, nn.ReLU, nn.ReLU6, nn.Hardtanh, nn.Hardsigmoid, nn.Softplus, nn.GELU, nn.SiLU, nn.LeakyReLU)
FUNCTIONS = {
    getattr(home, name + ending)
    for home in (torch, F)
    for name in _NAMES
    for ending in ("", "_")
    if hasattr(home, name + ending)
} | {name + ending for name in _NAMES for ending in ("", "_")}
#: the larger or smaller of two; of one tensor, it is another operation
_LARGER = {torch.max, "max", torch.min, "min", torch.maximum, "maximum", torch.minimum, "minimum"}
_LOCAL = _ARITHMETIC | _POWERS | FUNCTIONS | _LARGER
#: what may give one number for all channels, or two numbers
_REDUCTIONS = {torch.mean, "mean", torch.sum, "sum", torch.var, "var", torch.std, "std", torch.norm, "norm"}
_REDUCTIONS |= {torch.linalg.norm, torch.linalg.vector_norm, *(PAIRS := (torch.var_mean, torch.std_mean))}
#: how that is put at all channels again
_RESTORING = {operator.getitem, torch.unsqueeze, "unsqueeze", "view", "reshape", torch.reshape, "expand", "expand_as"}


class Composition:
    """A function of one tensor, put together from operations; it has no tensors but single numbers."""

    def __init__(self, source: Operation, operations: Sequence[Operation]) -> None:
        places = {source: 0} | {operation: i for i, operation in enumerate(operations, 1)}

        def light(argument: Operation) -> Any:
            # a tensor, as the first argument of an operation must be
            return _Result(places[argument]) if argument in places else argument.value.detach().double().reshape(())

        self._steps = [(_function(o), mapped(o.args, light), mapped(o.kwargs, light), bool(o.changed)) for o in operations]
        self.__name__ = "-".join(getattr(o.key, "__name__", str(o.key)) for o in operations)
        self.__module__ = ""

    def __call__(self, u: Tensor) -> Tensor:
        results = [u]
        for function, args, kwargs, changes in self._steps:

            def given(place: _Result, changes: bool = changes) -> Tensor:
                return results[place.number].clone() if changes else results[place.number]

            results.append(function(*_filled(args, given), **_filled(kwargs, given)))
        return results[-1]


class ChannelNorm(Composition):
    """Division of the numbers along some axes by their norm, after subtraction of their mean if it is ``centered``."""

    axes: tuple[int, ...]
    centered: bool


@dataclasses.dataclass(frozen=True)
class _Result:
    number: int


def _filled(item: Any, given: Callable[[_Result], Tensor]) -> Any:
    return mapped(item, given, _Result)


def _function(operation: Operation) -> Callable[..., Any]:
    key: Any = operation.key
    if operation.module is not None:
        return operation.module.forward
    return (lambda x, *args, **kwargs: getattr(x, key)(*args, **kwargs)) if isinstance(key, str) else key


def composed(operations: Sequence[Operation], output: Any) -> tuple[list[Operation], Any]:
    """The same operations, with one in place of those that are a function written out."""
    graph = _Dominators(operations, output)
    replaced: dict[Operation, Operation] = {}
    inner: set[Operation] = set()
    for last in reversed(graph.operations):
        if last not in inner and (written_out := _written_out(graph, last)) is not None:
            source, function, between = written_out
            replaced[last] = dataclasses.replace(last, key=function, module=None, args=(source,), kwargs={}, changed=())
            inner.update(between)
    if not replaced:
        return list(operations), output
    now: dict[Operation, Operation] = {}
    for operation in operations:
        then = replaced.get(operation, operation)
        args, kwargs = (mapped(a, lambda o: now[o]) for a in (then.args, then.kwargs))
        now[operation] = dataclasses.replace(then, args=args, kwargs=kwargs)
    return list(now.values()), mapped(output, lambda o: now[o])


def _written_out(graph: _Dominators, last: Operation) -> tuple[Operation, Composition, set[Operation]] | None:
    """The source and the function of operations that end with ``last``, and these operations; None if there is no function."""
    best, source = None, graph.parent.get(last) if last not in graph.outputs else None
    while source is not None and source.is_tensor:
        between = graph.between(source, last)
        if between is None:
            break
        best = _recognized(source, last, between, graph) or best
        source = graph.parent.get(source)
    return best


def _recognized(
    source: Operation, last: Operation, between: list[Operation], graph: _Dominators
) -> tuple[Operation, Composition, set[Operation]] | None:
    if not any(o.key in _REDUCTIONS for o in between):
        while len(between) > 1 and _is_factor(graph, source, between):  # a constant factor is part of the scale
            source, between = between[0], between[1:]
        if len(between) == 1 or _is_affine(last) or any(o.key in _RESTORING for o in between):
            return None
        function = Composition(source, between)
        return (source, function, set(between)) if _is_activation(function) else None
    if last.key in _RESTORING or _is_affine(last) or last.shape != source.shape:
        return None
    norm = ChannelNorm(source, between)
    x = torch.randn(source.value.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    values, every = norm(x), range(1, x.ndim)
    for norm.axes, norm.centered in itertools.product((*((axis,) for axis in every), tuple(every)), (False, True)):
        centered = x - x.mean(norm.axes, keepdim=True) if norm.centered else x
        expected = centered / torch.linalg.vector_norm(centered, dim=norm.axes, keepdim=True)
        size = torch.linalg.vector_norm(values, dim=norm.axes).mean()
        if torch.allclose(values / size, expected, rtol=_EPSILON, atol=_EPSILON):
            return source, norm, set(between)
    return None


#: by how much the small number in a denominator may change what is divided by its norm
_EPSILON = 2e-3


def _is_activation(function: Composition) -> bool:
    """Whether it is finite, without poles, and not linear."""
    coarse, fine = (torch.linspace(-8, 8, points, dtype=torch.float64) for points in (4097, 65537))
    try:
        values, more = function(coarse.clone()), function(fine.clone())
    except (RuntimeError, TypeError):  # one of the operations does not take a number as a tensor
        return False
    size = values.abs().max()
    if not bool(more.isfinite().all()) or more.abs().max() > 2 * size:  # near a pole, values grow with the number of points
        return False
    return bool(values.diff(n=2).abs().max() > 1e-9 * size)


class _Dominators:
    """The operations that the output depends on and that depend on the image, each with the nearest one that dominates it."""

    def __init__(self, operations: Sequence[Operation], output: Any) -> None:
        self.outputs = set(operations_in(output))
        self.parent: dict[Operation, Operation] = {}
        self._depth = {operations[0]: 0}
        self._order = {operation: i for i, operation in enumerate(operations)}
        self._readers: dict[Operation, set[Operation]] = {}
        needed = needed_by(output)
        self.operations = [operation for operation in operations if operation in needed]
        for operation in self.operations:
            before = self.read(operation)
            for earlier in before:
                self._readers.setdefault(earlier, set()).add(operation)
            if before:
                self.parent[operation] = self._common(before)
                self._depth[operation] = self._depth[self.parent[operation]] + 1

    def read(self, operation: Operation) -> list[Operation]:
        """What it reads of what depends on the image."""
        return [o for o in dict.fromkeys(operations_in((operation.args, operation.kwargs))) if o in self._depth]

    def _common(self, operations: list[Operation]) -> Operation:
        first, *others = operations
        for other in others:
            while first is not other:
                if self._depth[first] >= self._depth[other]:
                    first = self.parent[first]
                else:
                    other = self.parent[other]
        return first

    def between(self, source: Operation, last: Operation) -> list[Operation] | None:
        """The operations from ``source`` to ``last``, which act on positions one by one, and which nothing else reads."""
        between, waiting = {last}, [last]
        while waiting:
            operation = waiting.pop()
            if not self._is_local(operation):
                return None
            new = [o for o in self.read(operation) if o is not source and o not in between]
            between.update(new)
            waiting += new
        inside = between - {last}
        if inside & self.outputs or any(not self._readers[o] <= between for o in inside):
            return None
        return sorted(between, key=self._order.__getitem__)

    def _is_local(self, operation: Operation) -> bool:
        read = self.read(operation)
        if operation.is_lost or not read or not all(o.is_tensor or o.key in PAIRS for o in (operation, *read)):
            return False
        constants = [o for o in operations_in((operation.args, operation.kwargs)) if o not in self._depth]
        if any(not o.is_tensor or o.value.numel() > 1 or parameters_in(o) for o in constants):
            return False
        if operation.key in _REDUCTIONS:
            return len(read) == 1
        if operation.key in _LARGER:
            return len(read) + len(constants) == 2
        return operation.key in _LOCAL | _RESTORING or isinstance(operation.module, _MODULES)


def _is_factor(graph: _Dominators, source: Operation, between: list[Operation]) -> bool:
    """Whether the first operation after ``source`` multiplies it by a constant, and is the only one that reads it."""
    first, *others = between
    divides = first.key in _QUOTIENTS and operations_in(first.args[:1]) == [source]
    is_factor = (first.key in _PRODUCTS | _NEGATIONS or divides) and _is_affine(first)
    return is_factor and not any(source in graph.read(other) for other in others)


def _is_affine(operation: Operation) -> bool:
    """Whether it only multiplies by a constant or adds one."""
    return operation.key in _ARITHMETIC and len(operations_in(operation.args)) == 1


def needed_by(output: Any) -> set[Operation]:
    """All operations that the output depends on; the rest is dead code."""
    needed: set[Operation] = set()
    waiting = operations_in(output)
    while waiting:
        operation = waiting.pop()
        if operation not in needed:
            needed.add(operation)
            waiting += operations_in((operation.args, operation.kwargs))
    return needed
