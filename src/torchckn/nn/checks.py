"""Checks of values on the host: at once, or together with the results of a step.

On an accelerator, to look at a value is to wait for everything that leads to it. So within :class:`Deferred` the checks of
tensors on accelerators are collected, and read in one piece with the step's results. On a CPU checks are made where they stand.

Read first: :mod:`torchckn.nn.devices`. Read next: :mod:`torchckn.nn.invsqrt`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token

import torch
from torch import Tensor

from ..errors import CKNError, DataError
from .devices import reads_are_free, wide_dtype


class Deferred:
    """Within this context checks on accelerators wait for :meth:`read`.

    Example:
        >>> with Deferred() as checks:
        ...     loss = torch.tensor(0.5)
        ...     checks.read(loss)
        [0.5]
    """

    def __init__(self) -> None:
        self._checks: list[tuple[Tensor, Callable[[], CKNError]]] = []
        self._tokens: list[Token[Deferred | None]] = []

    def __enter__(self) -> Deferred:
        self._tokens.append(_deferred.set(self))
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        _deferred.reset(self._tokens.pop())
        if isinstance(error, torch.linalg.LinAlgError):  # type: ignore[attr-defined]
            self.read()  # a decomposition of NaN fails before the check that says where the NaN comes from is read

    def add(self, ok: Tensor, error: Callable[[], CKNError]) -> None:
        self._checks.append((ok, error))

    @property
    def are_waiting(self) -> bool:
        """Whether there are checks that nobody has read yet."""
        return bool(self._checks)

    def read(self, *values: Tensor) -> list[float]:
        """The values as numbers, in one read; the error of the first check that failed since the last one, if any did."""
        checks, self._checks = self._checks, []
        scalars = [*(ok for ok, _ in checks), *values]
        if not scalars:
            return []
        numbers = host(torch.stack([scalar.detach().to(wide_dtype(scalar.device)) for scalar in scalars]))
        for number, (_, error) in zip(numbers, checks, strict=False):
            if not number:
                raise error()
        return numbers[len(checks) :]


_deferred: ContextVar[Deferred | None] = ContextVar("deferred", default=None)


def host(numbers: Tensor) -> list[float]:
    """The numbers of a tensor: the one place in a training step where Python waits for a device."""
    return numbers.tolist()


def require(ok: Tensor, error: Callable[[], CKNError]) -> None:
    """Raise ``error()`` unless all of ``ok`` holds: now, or with the results of a step. Nothing in a compiled graph.

    ``error`` is called after the check has failed; it may look at values, and should hold on to small tensors only.
    """
    if torch.compiler.is_compiling() or ok.is_meta:  # there are no values to look at
        return
    deferred = _deferred.get()
    if deferred is not None and not reads_are_free(ok.device):
        deferred.add(ok.detach().all(), error)
    elif not bool(ok.all()):
        raise error()


def reads_now(tensor: Tensor) -> bool:
    """Whether a value of this tensor may be looked at here without harm."""
    return reads_are_free(tensor.device) or _deferred.get() is None


def check_finite(values: Tensor, what: str = "a kernel network") -> None:
    """Raise a :class:`DataError` for NaN or infinity: one pass over ``values``, skipped in a compiled graph."""
    # A sum that overflows is looked at again, number by number.
    if torch.compiler.is_compiling() or (reads_now(values) and torch.isfinite(values.detach().sum())):
        return
    require(torch.isfinite(values.detach()), lambda: _not_finite(what))


def _not_finite(what: str) -> DataError:
    return DataError(
        f"{what} expected finite input, got NaN or infinity (or numbers whose squares overflow); check the "
        "images and their scaling, and, in training, try a smaller learning rate"
    )


_checking: ContextVar[bool] = ContextVar("checking", default=False)


@contextmanager
def check_layers() -> Iterator[None]:
    """Within this context, networks check the output of every layer, and name the first that is not finite.

    By default only a network's input and the objective of a training step are checked: each check reads all numbers, and on a
    GPU it makes the host wait.
    """
    token = _checking.set(True)
    try:
        yield
    finally:
        _checking.reset(token)


def checking_layers() -> bool:
    """Whether :func:`check_layers` is active; nothing is checked in a compiled graph."""
    return not torch.compiler.is_compiling() and _checking.get()
