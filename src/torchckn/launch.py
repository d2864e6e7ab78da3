"""The processes of a command: how they are started, how they find each other, and what they say when one of them fails.

``torchckn train --processes 4`` starts four on this machine, as ``torchrun --nproc-per-node 4 -m torchckn train`` does; on
several machines ``torchrun`` starts them. Each joins the others here, and tells them every second that it is alive. When
training fails, one process says why, and the others end without a word. Read first: :mod:`torchckn.distributed`.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from .distributed import is_first
from .errors import CKNError, ConfigError, Interrupted, LostProcessError

#: seconds between two signs of life, and how long a process may be silent before it counts as lost
BEAT, SILENCE = 1.0, 4.0
#: seconds that a process gets to end by itself after another one has failed
GRACE = 10.0


class OthersSpeakError(SystemExit):
    """This process ends without a word: another one says why."""


def is_one_of_several() -> bool:
    """Whether this process was started as one of several, by torchrun or the like."""
    return "RANK" in os.environ and _number("WORLD_SIZE", 1) > 1


def will_restart() -> bool:
    """Whether torchrun starts all processes again after a failure."""
    count, most = (int(os.environ.get(f"TORCHELASTIC_{name}", "0")) for name in ("RESTART_COUNT", "MAX_RESTARTS"))
    return count < most


def is_restarted() -> bool:
    """Whether torchrun has started this process again, after a failure."""
    return _number("TORCHELASTIC_RESTART_COUNT", 0) > 0


def _number(variable: str, default: int) -> int:
    """An environment variable that torchrun sets."""
    text = os.environ.get(variable, str(default))
    if not text.isdecimal():
        raise ConfigError(
            f"the environment variable {variable} expected a number, as torchrun sets it, got {text[:30]!r}; unset it"
        )
    return int(text)


@contextmanager
def joined(timeout: float, how_to_resume: str) -> Iterator[None]:
    """Within this context all processes that were started together are one process group; a single process is none.

    Args:
        timeout: seconds to wait for the others: at the start, and in every sum.
        how_to_resume: what to do after a failure, for messages.
    """
    if not is_one_of_several():
        yield
        return
    store = _join(timeout)
    watch = _Watch(store, timeout, how_to_resume)
    try:
        yield
    except (KeyboardInterrupt, Interrupted):
        if is_first():
            raise
        raise OthersSpeakError(130) from None
    except Exception as error:
        with _without_sigterm():  # torchrun sends it to the others as soon as it notices that one has failed
            watch.fail(error)
    watch.close()
    dist.destroy_process_group()


def _join(timeout: float) -> Any:
    here, count = _number("RANK", 0), _number("WORLD_SIZE", 1)
    place = f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    limit = timedelta(seconds=timeout)
    try:
        store = _of_this_attempt(next(iter(rendezvous("env://", timeout=limit)))[0])
        store.set_timeout(limit)
        dist.init_process_group(backend, store=store, rank=here, world_size=count, timeout=limit)
    except (RuntimeError, ValueError, OSError) as error:
        text = str(error)
        if "EADDRINUSE" in text or "address already in use" in text.lower():
            raise ConfigError(
                f"port {place.rpartition(':')[2]} of {place.rpartition(':')[0]} is in use by another program; choose a free "
                "one: torchrun --master-port, or MASTER_PORT"
            ) from error
        if isinstance(error, ValueError):
            raise ConfigError(
                f"process {here} of {count} does not know where the others are ({text.splitlines()[0]}); start it with torchrun"
            ) from error
        tried = "could not connect to" if "refused" in text.lower() else f"waited {timeout:g} s for"
        raise LostProcessError(
            f"process {here} of {count} {tried} the others at {place}, and some were not there; start all of "
            f"them, check the address and the firewall, or wait longer with --timeout ({text.splitlines()[0][:200]})"
        ) from error
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    return PrefixStore("torchckn", store)


def _of_this_attempt(store: Any) -> Any:
    """The store, with keys of its own for each restart, because torchrun keeps it, with the addresses of processes that are gone.

    Several machines may count restarts differently. They get a new store with ``TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1``.
    """
    on_one_machine = os.environ.get("GROUP_WORLD_SIZE", "1") == "1"
    return PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store) if on_one_machine else store


@contextmanager
def _without_sigterm() -> Iterator[None]:
    """Within this context SIGTERM does not end the process, which has something to say first."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN) if threading.current_thread() is threading.main_thread() else None
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


class _Watch:
    """Signs of life of all processes, in the store that they met at; and who tells the user of a failure."""

    def __init__(self, store: Any, timeout: float, how_to_resume: str) -> None:
        self.store = store.clone() if hasattr(store, "clone") else store  # a connection of its own
        self.timeout, self.how_to_resume = timeout, how_to_resume
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self._done = threading.Event()
        self.store.set(f"alive/{self.rank}", f"{socket.gethostname()} 0")
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        beats = 0
        while not self._done.wait(BEAT):
            beats += 1
            try:
                self.store.set(f"alive/{self.rank}", f"{socket.gethostname()} {beats}")
                if self.store.check(["failed"]) and not self._done.wait(GRACE):
                    os._exit(1)  # it waits in a sum for a process that is gone
            except RuntimeError:  # the store is gone; the next sum fails
                return

    def close(self) -> None:
        self._done.set()
        self._thread.join()

    def fail(self, error: Exception) -> NoReturn:
        """Raise the error if it is this process that tells of it, else end."""
        outcome: list[BaseException] = []

        def decide() -> None:
            try:
                self._decide(error)
            except BaseException as decided:
                outcome.append(decided)

        # Over a cut link the store gives no answer, and no error either.
        deciding = threading.Thread(target=decide, daemon=True)
        deciding.start()
        deciding.join(BEAT + SILENCE + GRACE)
        lost = outcome[0] if outcome else None
        if lost is not None and (lost is error or isinstance(lost, CKNError) or not isinstance(lost, RuntimeError)):
            raise lost
        # the store is gone, and with it the machine of the first process
        raise LostProcessError(
            f"process {self.rank} of {self.world} lost the connection to the others; their machine was switched off, or "
            f"the network failed. {self.how_to_resume}"
        ) from lost

    def _decide(self, error: Exception) -> NoReturn:
        if _is_of_communication(error):
            time.sleep(BEAT)  # an error of another process comes first
            timed_out = "timed out" in str(error).lower() or "timeout" in str(error).lower()
            others_know = "TORCHCKN_STARTER" in os.environ or will_restart()  # the one that started all knows the signal
            if self.store.check(["failed"]) or (others_know and not timed_out):
                raise OthersSpeakError(1)  # that process says what it was
            lost = self._silent()
            alive = [other for other in range(self.world) if other not in lost]
            if self.rank != min(alive, default=self.rank):
                raise OthersSpeakError(1)
            self.store.set("failed", str(self.rank))
            raise LostProcessError(f"{self._what_happened(lost, error)}. {self.how_to_resume}") from error
        if self.rank:
            time.sleep(BEAT)  # the same error in the first process comes first
        if self.store.add("failures", 1) > 1:
            raise OthersSpeakError(1)
        self.store.set("failed", str(self.rank))
        self._done.set()
        if self.rank and isinstance(error, CKNError):
            error.args = (f"{error} (in process {self.rank} of {self.world}, on {socket.gethostname()})",)
        raise error

    def _silent(self) -> dict[int, str]:
        """The processes that give no sign of life any more, with their machines."""
        keys = [f"alive/{other}" for other in range(self.world)]
        before = [self.store.get(key).decode() for key in keys]
        time.sleep(SILENCE)
        after = [self.store.get(key).decode() for key in keys]
        return {
            other: last.split()[0]
            for other, (first, last) in enumerate(zip(before, after, strict=True))
            if first == last and other != self.rank
        }

    def _what_happened(self, lost: dict[int, str], error: Exception) -> str:
        if not lost:
            return (
                f"the processes waited more than {self.timeout:g} s for each other, though all of them are alive; the network "
                "between them may be cut, or the slowest needs more time: --timeout"
            )
        which = ", ".join(f"{other} (on {host})" for other, host in lost.items())
        return f"process {which} of {self.world} was lost: it was killed, or its machine or network failed"


def _is_of_communication(error: Exception) -> bool:
    """Whether an exception says that another process did not answer."""
    of_torch = isinstance(error, dist.DistError) if hasattr(dist, "DistError") else False
    return of_torch or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in ("gloo", "Gloo", "NCCL", "peer"))
    )


#: processes for each core; more are a slip of the pen, and would fill the memory
_MOST_PER_CORE = 8


def start(processes: int, arguments: Sequence[str], max_restarts: int, how_to_resume: str) -> None:
    """Run ``python -m torchckn ARGUMENTS`` in so many processes on this machine, until all of them are done.

    An error unless all of them succeed; what a process says about its own failure is not repeated.
    """
    if processes > _MOST_PER_CORE * _cores():
        raise ConfigError(
            f"--processes expected at most {_MOST_PER_CORE} for each of this machine's {_cores()} cores, got {processes}"
        )
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, _cores() // processes)))
    os.environ["TORCHCKN_STARTER"] = "1"
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=max_restarts,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "torchckn", *arguments)
    except ChildFailedError as error:
        killed = {rank: failure for rank, failure in error.failures.items() if failure.exitcode < 0}
        killed = {rank: f for rank, f in killed.items() if f.exitcode != -signal.SIGTERM} or killed
        if killed:
            rank, failure = next(iter(killed.items()))
            raise LostProcessError(
                f"process {rank} of {processes} was killed ({failure.signal_name()}), and the others were stopped. "
                f"{how_to_resume}"
            ) from None
        raise OthersSpeakError(max(failure.exitcode for failure in error.failures.values())) from None
    except SignalException:
        raise OthersSpeakError(130) from None


def _cores() -> int:
    count: Any = getattr(os, "sched_getaffinity", None)
    return len(count(0)) if count else os.cpu_count() or 1
