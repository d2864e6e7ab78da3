"""Kernels from their command-line form, such as ``rbf:0.6``."""

from __future__ import annotations

from typing import Literal

from ..errors import ConfigError, unknown_name
from .base import Kernel
from .closed_forms import ArcCosine, Linear, Matern, Polynomial
from .rbf import RBFSphere

#: names of kernels on the command line and in configuration files, with their classes and the types of their arguments
_TEXT_NAMES: dict[str, tuple[type[Kernel], tuple[type, ...]]] = {
    "linear": (Linear, ()),
    "rbf": (RBFSphere, (float,)),
    "arccosine": (ArcCosine, (int,)),
    "polynomial": (Polynomial, (int, float)),
    "matern": (Matern, (float, float)),
}


def parse(text: str) -> Kernel | Literal["match"]:
    """A kernel from its command-line form: ``rbf:0.6``, ``arccosine:1``, ``linear``, ``matern:1.5:0.6``, or ``match``.

    Example:
        >>> parse("rbf:0.6")
        RBFSphere(sigma=0.6, trainable=False)
    """
    name, *numbers = text.split(":")
    if name == "match" and not numbers:
        return "match"
    if name not in _TEXT_NAMES:
        raise unknown_name("kernel", name, ["match", *_TEXT_NAMES], "Write its numbers after colons, as in rbf:0.6.")
    build, types = _TEXT_NAMES[name]
    try:
        values = [kind(number) for kind, number in zip(types, numbers, strict=True)]
    except ValueError:
        expected = ":".join([name, *("NUMBER" for _ in types)])
        raise ConfigError(f"kernel: expected {expected}, got {text!r}; write for example rbf:0.6 or arccosine:1") from None
    return build(*values)
