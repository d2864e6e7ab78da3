"""A process whose torch has a CUDA device that holds no numbers, to run whole training steps on fake tensors in a CPU build.

Autograd's engine asks devices for streams and threads, which a CPU build has for no other device. ``device.cpp`` gives it a
device that does nothing. It has to be there before torch is, so it needs a process of its own, and nothing is imported here.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import multiprocessing
import os
import shutil
import subprocess
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

_SOURCE = Path(__file__).with_name("device.cpp")


def compiler() -> str | None:
    return next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)


def compiled(folder: Path) -> Path:
    """The device as a library, compiled once for this version of torch."""
    what = _SOURCE.read_text() + importlib.metadata.version("torch")
    target = folder / f"device-{hashlib.sha256(what.encode()).hexdigest()[:16]}.so"
    if not target.exists():
        torch = importlib.util.find_spec("torch")
        command = compiler()
        assert torch is not None
        assert torch.origin is not None
        assert command is not None
        home = Path(torch.origin).parent
        partial = target.with_suffix(f".{os.getpid()}")
        libraries = [f"-L{home / 'lib'}", f"-Wl,-rpath,{home / 'lib'}", "-lc10", "-ltorch_cpu"]
        flags = ["-std=c++20", "-shared", "-fPIC", f"-I{home / 'include'}"]
        subprocess.run([command, *flags, str(_SOURCE), *libraries, "-o", str(partial)], check=True, timeout=300)
        os.replace(partial, target)  # several processes may compile at once
    return target


def process_with(library: Path) -> ProcessPoolExecutor:
    """A process that has the device, and runs functions one after the other."""
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_load, initargs=(str(library),))


def _load(library: str) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
