"""Commands of Python for tests, without the seconds that importing torch takes.

A server, one for each process of pytest, has imported torch and torchckn and done nothing else. A command is a fork of it: a
process of its own with its own arguments, environment, folder, pipes and exit status, which can be killed like any other.
:func:`executable` does the same for processes that the library starts.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import resource
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

ROOT = Path(__file__).parent.parent


class Popen:
    """``python ARGUMENTS...`` as a fork, with the part of ``subprocess.Popen`` that tests need; texts are decoded.

    Args:
        arguments: ``-m module ...``, ``-c code ...`` or ``file.py ...``.
        memory: bytes that the process may have, at most.
        python: ``sys.executable`` of the process, such as :func:`executable`.
    """

    def __init__(
        self,
        arguments: Sequence[object],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        memory: int | None = None,
        python: str = sys.executable,
    ) -> None:
        self.args = [str(argument) for argument in arguments]
        order = {"arguments": self.args, "env": dict(env or os.environ), "cwd": str(cwd or Path.cwd())}
        order |= {"memory": memory, "python": python}
        pipes = [os.pipe() for _ in range(3)]
        socket.send_fds(_server()[0], [json.dumps(order).encode()], [writing for _, writing in pipes])
        for _, writing in pipes:
            os.close(writing)
        self.stdout, self.stderr, self._status = (os.fdopen(reading) for reading, _ in pipes)
        self._texts: dict[str, str] = {}
        self._readers: list[threading.Thread] = []
        self.pid = int(self._status.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self.returncode if self.returncode is not None else self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        status = self._wait(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return status

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            with self._status:
                self.returncode = int(self._status.readline())
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        if not self._readers:
            self._readers = [
                threading.Thread(target=self._read, args=pair, daemon=True)
                for pair in (("stdout", self.stdout), ("stderr", self.stderr))
            ]
            for reader in self._readers:
                reader.start()
        self.wait(timeout)
        for reader in self._readers:
            reader.join()
        return self._texts["stdout"], self._texts["stderr"]

    def _read(self, name: str, stream: TextIO) -> None:
        with stream:
            self._texts[name] = stream.read()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run(
    arguments: Sequence[object], *, check: bool = False, timeout: float | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Like ``subprocess.run([sys.executable, ...], capture_output=True, text=True)``."""
    process = Popen(arguments, **options)
    out, err = process.communicate(timeout)
    assert process.returncode is not None
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def executable() -> str:
    """A file to start in place of ``sys.executable``: its process stands for a fork, and they are killed and end together."""
    _server()
    return str(_folder() / "python")


_STAND_IN = """#!{python} -IS
import json, os, signal, socket, sys

connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
connection.connect({address!r})
order = {{"arguments": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd(), "parent": os.getppid()}}
socket.send_fds(connection, [json.dumps(order).encode()], [1, 2])
command = int(connection.recv(100))
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: os.kill(command, number))
status = int(connection.recv(100))
if status < 0:
    if -status != signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
os._exit(status)
"""


@functools.cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="torchckn-forks-"))


@functools.cache
def _server() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    address, python = _folder() / "socket", _folder() / "python"
    python.write_text(_STAND_IN.format(python=sys.executable, address=str(address)))
    python.chmod(0o700)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(address))
    listener.listen()
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"PYTHONPATH": path} | dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    ends = [there.fileno(), listener.fileno()]
    command = [sys.executable, "-m", "tests.forks", *map(str, ends)]
    server = subprocess.Popen(command, pass_fds=ends, env=env, cwd=ROOT, stdin=subprocess.DEVNULL)
    there.close()
    listener.close()
    return here, server


def close() -> None:
    """End the server, if there is one."""
    if _server.cache_info().currsize:
        orders, server = _server()
        orders.close()
        server.wait()
        shutil.rmtree(_folder())


def _serve(orders: socket.socket, listener: socket.socket) -> None:
    """Fork a command for each order, and a process that waits for it and writes its number and its exit status."""
    import torch._dynamo  # noqa: F401 (which optimizers import)

    import torchckn.cli
    import torchckn.runs.trainer
    import torchckn.trained

    torchckn.translate(torchckn.zoo.build("lenet1", filters=2))  # imports what tracing needs

    while True:
        ready, _, _ = select.select([orders, listener], [], [])
        source = listener.accept()[0] if listener in ready else orders
        message, pipes, _, _ = socket.recv_fds(source, 2**20, 3)
        if not message and source is orders:
            return
        if message and os.fork() == 0:
            orders.close()
            listener.close()
            status = pipes.pop() if source is orders else source.detach()
            _mind(json.loads(message), pipes, status, stands_for=source is not orders)
        for pipe in pipes:
            os.close(pipe)
        if source is not orders:
            source.close()
        with contextlib.suppress(ChildProcessError):  # there is none left
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass


def _mind(order: dict[str, Any], pipes: list[int], status: int, stands_for: bool) -> NoReturn:
    out, err = pipes
    command = os.fork()
    if command == 0:
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.closerange(3, max(*pipes, status) + 1)
        _execute(**order)
    os.close(out)
    os.close(err)
    os.write(status, f"{command}\n".encode())
    if (
        stands_for and status in select.select([os.pidfd_open(command), status], [], [])[0]
    ):  # the one it stands for was killed
        os.kill(command, signal.SIGKILL)
    ended = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
    with contextlib.suppress(BrokenPipeError):
        os.write(status, f"{ended}\n".encode())
    os._exit(0)


def _execute(
    arguments: list[str],
    env: dict[str, str],
    cwd: str,
    memory: int | None = None,
    python: str = sys.executable,
    parent: int | None = None,
) -> NoReturn:
    status: Any = 0
    try:
        sys.executable = python
        if parent is not None:
            os.getppid = lambda: parent  # that of the process that it stands for
        signal.signal(signal.SIGINT, signal.default_int_handler)  # which may be ignored where the tests run, as in nohup
        for number in (signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(env)
        os.chdir(cwd)
        if memory is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
        what, *rest = arguments
        if what == "-m":
            sys.argv = rest
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        elif what == "-c":
            sys.argv = ["-c", *rest[1:]]
            exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv = arguments
            runpy.run_path(what, run_name="__main__")
    except SystemExit as end:
        status = end.code if end.code is not None else 0
    except BaseException:
        traceback.print_exc()
        status = 1
    if not isinstance(status, int):
        print(status, file=sys.stderr)
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    _serve(*(socket.socket(fileno=int(number)) for number in sys.argv[1:]))
