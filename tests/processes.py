"""Several processes for tests: forked once, they run one function after the other together."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from .training import mnist_mini

#: how many processes a group has
COUNTS = (2, 3, 4)
#: for whole trainings: 2 divides most numbers, 3 does not
FEW = (2, 3)
#: how far the numbers of several processes may be from those of one
TOLERANCES = {torch.float32: 1e-6, torch.float64: 1e-12}


class Processes:
    """A process group of ``count`` processes that wait for functions to run; ``group(function, ...)`` gives all results."""

    def __init__(self, count: int, folder: Path) -> None:
        context = multiprocessing.get_context("fork")
        self.count = count
        self._ends: list[Connection] = []
        for rank in range(count):
            here, there = context.Pipe()
            context.Process(target=_serve, args=(rank, count, folder / "store", there), daemon=True).start()
            self._ends.append(here)

    def __call__(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> list[Any]:
        for end in self._ends:
            end.send((function, arguments, options))
        answers = []
        for end in self._ends:
            assert end.poll(120), "no answer in two minutes"
            answers.append(end.recv())
        for answer in answers:
            if isinstance(answer, _Failure):
                raise AssertionError(f"a process failed:\n{answer.text}")
        return answers

    def close(self) -> None:
        for end in self._ends:
            end.send(None)


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Processes]]:
    mnist_mini()  # loaded once, before the processes are forked
    import torch._dynamo  # noqa: F401 (so is what the first sum imports, which takes seconds)

    groups = {count: Processes(count, tmp_path_factory.mktemp(f"group{count}")) for count in COUNTS}
    yield groups
    for group in groups.values():
        group.close()


def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The largest difference, relative to the largest entry of its tensor."""
    assert one.keys() == other.keys()
    pairs = [(one[name].double(), other[name].double()) for name in one if one[name].numel()]
    return max(float((a - b).abs().max() / a.abs().max().clamp(min=1e-300)) for a, b in pairs)


def require_equal(one: dict[str, Tensor], others: list[dict[str, Tensor]], dtype: torch.dtype = torch.float64) -> None:
    difference = distance(one, others[0])
    assert difference <= TOLERANCES[dtype], f"{difference:.1e} from one process"
    for other in others[1:]:
        assert all(torch.equal(other[name], others[0][name]) for name in other), "processes have different numbers"


class _Failure:
    def __init__(self, text: str) -> None:
        self.text = text


def _serve(rank: int, count: int, store: Path, end: Connection) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count)
    while (order := end.recv()) is not None:
        function, arguments, options = order
        try:
            end.send(function(*arguments, **options))
        except BaseException:
            end.send(_Failure(traceback.format_exc()))
    dist.destroy_process_group()
