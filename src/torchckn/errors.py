"""The errors torchckn raises on purpose, all under :class:`CKNError`.

Each message says what was expected, what came, and what to do about it. Catching ``CKNError`` catches
every mistake that torchckn can explain; anything else that escapes is a bug worth reporting.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CKNError(Exception):
    """Base class of every error that torchckn raises deliberately."""


class ConfigError(CKNError, ValueError):
    """An argument, option or configuration value is not acceptable.

    Remedy: the message names the argument, the values it takes and the nearest known name.
    """


class DataError(CKNError, ValueError):
    """Images, labels or files do not have the shape, range or format that was asked for.

    Remedy: the message names the offending tensor or file and what it should look like.
    """


class NumericalError(CKNError, ArithmeticError):
    """A computation cannot be carried out in floating point: indefinite matrix, filters off the sphere.

    Remedy: usually a larger ``eps``, a smaller step size, or float64; the message says which.
    """


class NotFittedError(CKNError, AttributeError):
    """Something is asked of a model that has not been fitted yet.

    Remedy: call the fitting function that the message names first.
    """


class Interrupted(CKNError):  # noqa: N818 - a stop that was asked for
    """Something long was interrupted with Ctrl-C.

    Remedy: the message says what is kept, and how to go on.
    """


class TranslationError(CKNError):
    """A ConvNet contains something that has no kernel counterpart.

    Remedy: replace the operation that the message names, or register a rule for it.
    """


def unknown_name(what: str, name: object, known: Iterable[str], remedy: str = "") -> ConfigError:
    """The error for a name that is not one of ``known``, with the nearest known one."""
    known = sorted(known)
    near = difflib.get_close_matches(str(name), known, n=1)
    guess = f" Did you mean {near[0]!r}?" if near else ""
    return ConfigError(f"unknown {what} {name!r}: expected one of {', '.join(known)}.{guess}{remedy and ' ' + remedy}")
