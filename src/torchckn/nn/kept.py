"""The root of a layer in eval mode, kept for as long as nothing that it depends on has changed.

Read next: :mod:`torchckn.nn.base`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from ..kernels import Kernel
from .native import equal
from .walk import modules_of

#: attributes that every module has
_OF_MODULES = frozenset(vars(nn.Module()))
#: attributes of a kernel that cannot be changed in place
_PLAIN = (int, float, complex, str, bytes, type(None))


class CachedRoot(NamedTuple):
    """A root, and the settings and tensors that it depends on."""

    settings: object
    tensors: list[Tensor]
    wide: Tensor
    """in float64, for an accurate gradient"""
    root: Tensor

    def is_of(self, settings: object, tensors: Sequence[Tensor]) -> bool:
        """Whether it was computed from these. Values are compared, not version counters, which miss changes through `.data`."""
        return (
            self.settings == settings
            and len(self.tensors) == len(tensors)
            and all(
                a.dtype == b.dtype and a.device == b.device and equal(a, b)
                for a, b in zip(self.tensors, tensors, strict=True)
            )
        )


class _Same:
    """An object of which only the identity is known: a function, say."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    __hash__ = None  # type: ignore[assignment]


def contents_of(kernel: Kernel) -> tuple[object, list[Tensor]]:
    """All that the values of a kernel may depend on: settings, and tensors.

    These are the attributes of the kernel and of kernels within it: numbers, texts, arrays and containers of these by their
    values, so that a change in place is seen as well; anything else by its identity.
    """
    tensors: list[Tensor] = []
    # A kernel has no others within it, as a rule, and listing them takes time.
    modules = modules_of(kernel) if kernel._modules else [kernel]
    settings = [(module, _contents(_own(module), tensors)) for module in modules]
    for module in modules:
        if module._parameters or module._buffers:
            tensors += [t for t in (*module._parameters.values(), *module._buffers.values()) if t is not None]
    return settings, tensors


def _own(module: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if name not in _OF_MODULES}


def _contents(value: object, tensors: list[Tensor]) -> object:
    """``value`` as it is now, for a comparison later; tensors are added to the list, and stand for themselves there."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Tensor):
        tensors.append(value)
        return Tensor
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, Mapping):
        return type(value), _each(value.keys(), tensors), _each(value.values(), tensors)
    if isinstance(value, (list, tuple)):
        if isinstance(value, tuple) and all(type(part) is float for part in value):
            return value  # the coefficients of a kernel, say
        return type(value), _each(value, tensors)
    if isinstance(value, (set, frozenset)):
        return type(value), frozenset(value)
    return _Same(value)


def _each(values: Iterable[object], tensors: list[Tensor]) -> list[object]:
    return [_contents(value, tensors) for value in values]
