"""Several processes for tests: forked once, they run one function after the other together."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


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
