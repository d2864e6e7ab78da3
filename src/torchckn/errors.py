"""The errors torchckn raises on purpose, all under :class:`CKNError`.

Each message says what was expected, what was given, and what to do about it. ``except CKNError`` catches all of them;
any other exception is a bug worth reporting.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CKNError(Exception):
    """Base class of every error that torchckn raises deliberately."""


class ConfigError(CKNError, ValueError):
    """An argument, option or configuration value is not valid.

    Remedy: the message names the argument, its valid values and the closest match.
    """


class DataError(CKNError, ValueError):
    """Images, labels or files do not have the shape, range or format that is expected.

    Remedy: the message names the offending tensor or file and its expected form.
    """


class PathError(ConfigError, DataError):
    """A path that was given does not exist, or is of another kind than expected.

    Remedy: the message names the path, and what is expected there.
    """


class NumericalError(CKNError, ArithmeticError):
    """A computation fails in floating point: a matrix is not positive definite, filters have left the sphere.

    Remedy: usually a larger ``eps``, a smaller learning rate, or float64; the message says which.
    """


class DerivativeError(CKNError, RuntimeError):
    """A derivative is asked for that kernel layers do not have: a second one, one in forward mode, or one of ``torch.func``.

    Remedy: use ``backward()`` or ``torch.autograd.grad``, leave ``create_graph=True`` out, and use finite differences of
    gradients in place of second derivatives.
    """


class NotFittedError(CKNError, AttributeError):
    """A model is used before it has been fitted.

    Remedy: first call the fitting function that the message names.
    """


class Interrupted(CKNError):  # noqa: N818 - a stop that was asked for
    """A long computation was interrupted with Ctrl-C.

    Remedy: the message says what has been saved, and how to resume.
    """


class LostProcessError(CKNError, RuntimeError):
    """Another process of a distributed training no longer responds.

    Remedy: the message says which one, and how to resume the run.
    """


class TranslationError(CKNError):
    """A ConvNet contains an operation that has no kernel counterpart.

    Remedy: replace the operation that the message names, or register a rule for it.
    """


class ChanceWarning(UserWarning):
    """A classifier is no better than always predicting the largest class.

    Remedy: check that labels and images belong together; fit the filters; train longer, or with a smaller learning rate.
    """


def is_out_of_memory(error: BaseException) -> bool:
    """Whether torch or Python could not get memory; torch says so in words where it has no class of its own for it."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    texts = (
        "can't allocate memory",
        "not enough memory",
        "Cannot allocate memory",
        "std::bad_alloc",
        "could not create a memory",
    )
    return isinstance(error, RuntimeError) and any(text in str(error) for text in texts)


def unknown_name(what: str, name: object, valid_names: Iterable[str], remedy: str = "") -> ConfigError:
    """The error for a name that is not one of ``valid_names``, with the closest match."""
    valid = sorted(valid_names)
    matches = difflib.get_close_matches(str(name), valid, n=1)
    guess = f" Did you mean {matches[0]!r}?" if matches else ""
    return ConfigError(f"unknown {what} {name!r}: expected one of {', '.join(valid)}.{guess}{remedy and ' ' + remedy}")
