r"""Several processes that train one network: what a process is, and sums over all of them.

.. math:: \sum_{i=1}^n g(x_i) = \sum_{r=0}^{R-1} \; \sum_{i \in S_r} g(x_i)

Every process has the whole network and a share :math:`S_r` of the images. What couples images, in ultimate layer reversal, in the
scaling of features and in the classifier, are sums over images: each process adds up its share, :func:`total` adds up the
processes, and all of them solve the same small system. The engine is ``torch.distributed``: as soon as its process group is
initialized (``torchrun``, or ``torchckn train --processes``), the functions of :mod:`torchckn.fit` are collective, which means
that every process calls them with the same data. With one process, all that is here returns its argument.

Read first: :mod:`torchckn.network`, whose ``Total`` this is. Read next: :mod:`torchckn.fit`.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from .errors import CKNError, ConfigError, DataError
from .network import Classifier, of_this_process

T = TypeVar("T")
_alone: ContextVar[bool] = ContextVar("alone", default=False)


def world() -> int:
    """How many processes there are."""
    if _alone.get():
        return 1
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Which of them this is, from 0."""
    return dist.get_rank() if world() > 1 else 0


@contextmanager
def alone() -> Iterator[None]:
    """Within this context this process is the only one: sums are over what it has."""
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


def is_first() -> bool:
    """Whether this process is the one that writes files and shows progress."""
    return rank() == 0


def share(count: int, unit: int = 1, most: float = 5 / 4) -> slice:
    """This process's share of ``count`` things in a row, in whole units of so many, unless that makes it too unequal.

    In single things if the largest share were more than ``most`` times as large as an equal one, or if one had a single thing.
    """
    here, processes = rank(), world()
    bounds = [min(count, r * -(-count // unit) // processes * unit) for r in range(processes + 1)]
    sizes = [end - start for start, end in itertools.pairwise(bounds)]
    if unit > 1 and (min(sizes) <= 1 or processes * max(sizes) > most * count):
        return share(count)
    return slice(bounds[here], bounds[here + 1])


# Sums


class _Total(torch.autograd.Function):
    """The sum over processes. A part counts in every process's sum, so its gradient is the sum of all gradients."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        return _all_reduce(part)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _all_reduce(gradients[0])


def _all_reduce(part: Tensor, operation: str = "sum") -> Tensor:
    from torch.distributed import _functional_collectives as collectives

    everybody = dist.group.WORLD
    assert everybody is not None
    return collectives.wait_tensor(collectives.all_reduce(part.contiguous(), operation, everybody))


def total(part: Tensor) -> Tensor:
    """The sum of the processes' parts, the same in all of them bit for bit; differentiable."""
    if world() == 1:
        return part
    return _Total.apply(part) if torch.is_grad_enabled() and part.requires_grad else _all_reduce(part.detach())


def totals(*parts: Tensor) -> list[Tensor]:
    """The sums of several parts of one dtype, by one collective operation; without gradients."""
    if world() == 1:
        return list(parts)
    flat = _all_reduce(torch.cat([part.detach().flatten() for part in parts]))
    pieces = flat.split([part.numel() for part in parts])
    return [piece.view(part.shape) for piece, part in zip(pieces, parts, strict=True)]


def total_of_numbers(*numbers: float, device: torch.device | str = "cpu") -> list[float]:
    """The sums of plain numbers, in double precision."""
    if world() == 1:
        return list(numbers)
    return _all_reduce(torch.tensor(numbers, dtype=torch.float64, device=_collective_device(device))).tolist()


def largest(number: int) -> int:
    """The largest of the processes' numbers."""
    if world() == 1:
        return number
    return int(_all_reduce(torch.tensor(number, device=_collective_device()), "max"))


class _Common(torch.autograd.Function):
    """What all processes have. Each uses it for its own images, so its gradient is the sum of all gradients."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _all_reduce(gradients[0])


def common(tensor: Tensor) -> Tensor:
    """A tensor that all processes have, whose gradient is the sum of the processes' gradients."""
    return tensor if world() == 1 else _Common.apply(tensor)


def gathered(rows: Tensor) -> Tensor:
    """The rows of all processes, those of process 0 first; each may have any number of them. Without gradients."""
    if world() == 1:
        return rows
    counts = [int(count) for count in _all_gather(torch.tensor(len(rows), device=rows.device))]
    padded = rows.new_zeros(max(counts), *rows.shape[1:])
    padded[: len(rows)] = rows.detach()
    return torch.cat([part[:count] for part, count in zip(_all_gather(padded), counts, strict=True)])


def _all_gather(part: Tensor) -> list[Tensor]:
    parts = [torch.empty_like(part) for _ in range(world())]
    dist.all_gather(parts, part)
    return parts


@contextmanager
def summing(net: Classifier) -> Iterator[None]:
    """Within this context the network's scaling of features adds up the images of all processes."""
    if world() == 1 or net.scaling.total is not of_this_process:
        yield
        return
    net.scaling.total = total
    try:
        yield
    finally:
        del net.scaling.total


def _collective_device(device: torch.device | str = "cpu") -> torch.device:
    """Where small tensors may be added: on the GPU if the process group has no other backend."""
    if dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device(device)


# One for all


def from_first(function: Callable[[], T]) -> T:
    """What ``function`` gives in the first process, in all of them. An error of torchckn is raised in all of them as well."""
    if world() == 1:
        return function()
    message: list[Any] = [None, None]
    if is_first():
        try:
            message[0] = function()
        except CKNError as error:
            message[1] = error
    dist.broadcast_object_list(message, 0)
    if message[1] is not None:
        raise message[1]
    return message[0]


def check_agreement(facts: Mapping[str, str]) -> None:
    """An error, in all processes, unless all of them have the same facts: digests of code, data and configuration."""
    if world() == 1:
        return
    everybody: list[Any] = [None] * world()
    dist.all_gather_object(everybody, (socket.gethostname(), dict(facts)))
    (first_host, expected), *others = everybody
    for other, (host, given) in enumerate(others, 1):
        for name, value in expected.items():
            if given.get(name) != value:
                kind = DataError if "data" in name else ConfigError
                raise kind(
                    f"process {other} on {host} differs from process 0 on {first_host} in its {name}: expected {value}, got "
                    f"{given.get(name)}; give all machines the same code, data and options"
                )


def code_digest() -> str:
    """A digest of torchckn's own source, and torch's version."""
    digest = hashlib.sha256(torch.__version__.encode())
    for file in sorted(Path(__file__).parent.rglob("*")):
        if file.suffix in (".py", ".cpp", ".h"):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def local_device(name: str) -> str:
    """``auto`` and ``cuda`` as this process's own GPU, if there are several processes on a machine."""
    if "LOCAL_RANK" in os.environ and name in ("auto", "cuda") and torch.cuda.is_available():
        return f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}"
    return name


def digest_of(value: Any) -> str:
    """A short digest of plain values."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]
