"""Kernels from their command-line form, such as ``rbf:0.6``."""

from __future__ import annotations

from typing import Literal

from ..errors import ConfigError, unknown_name
from .base import Kernel
from .closed_forms import ArcCosine, Linear, Matern, Polynomial
from .dual import Dual
from .rbf import RBFSphere

#: names of kernels on the command line and in configuration files: class, types of the arguments, how many are needed
_TEXT_NAMES: dict[str, tuple[type[Kernel], tuple[type, ...], int]] = {
    "linear": (Linear, (), 0),
    "rbf": (RBFSphere, (float,), 1),
    "arccosine": (ArcCosine, (int,), 1),
    "polynomial": (Polynomial, (int, float), 2),
    "matern": (Matern, (float, float), 2),
    "dual": (Dual, (str, float), 1),
}


def parse(text: str) -> Kernel | Literal["match"]:
    """A kernel from its command-line form: ``rbf:0.6``, ``arccosine:1``, ``linear``, ``dual:tanh``, or ``match``.

    Example:
        >>> parse("rbf:0.6")
        RBFSphere(sigma=0.6, trainable=False)
        >>> parse("dual:gelu:0.5")
        Dual(gelu, scale=0.5, degree=1)
    """
    name, *texts = text.split(":")
    if name == "match" and not texts:
        return "match"
    if name not in _TEXT_NAMES:
        raise unknown_name("kernel", name, ["match", *_TEXT_NAMES], "Write its numbers after colons, as in rbf:0.6.")
    build, types, needed = _TEXT_NAMES[name]
    try:
        if len(texts) < needed:
            raise ValueError("too few")
        values = [kind(value) for kind, value in zip(types[: max(needed, len(texts))], texts, strict=True)]
    except ValueError:
        words = ["NAME" if kind is str else "NUMBER" for kind in types]
        expected = ":".join([name, *words[:needed]]) + "".join(f"[:{word}]" for word in words[needed:])
        raise ConfigError(f"kernel: expected {expected}, got {text!r}; write for example rbf:0.6 or arccosine:1") from None
    return build(*values)
