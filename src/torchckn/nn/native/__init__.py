"""The kernel layer as compiled code: float32 on a CPU, in one pass over memory each way.

In plain torch, the map between a layer's convolution and its projection is a sequence of passes over memory, and on a CPU these
passes cost more than the convolutions of a small network. ``layer.cpp`` makes one of them, ``weighted.cpp`` does so for Gaussian
pooling, and ``direct.cpp`` puts convolutions with few channels into it as well; ``conv.cpp`` has gradients of convolutions. They
are compiled when they are first needed, which takes a few seconds, with the machine's own C++ compiler and for its own processor;
the result is kept in the user's cache folder. Without a compiler, everything runs in plain torch, with the same numbers up to
rounding.

One setting decides, the environment variable ``TORCHCKN_NATIVE``: ``auto`` (the default), ``off``, or ``require``, which makes
it an error if the code cannot be compiled. :func:`status` says what is used. (Not ``torch.compile``: it compiles again for new
shapes, and cannot put pooling and projection into the same pass.)

Read next: :mod:`torchckn.nn.fused`, the layer that calls this.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs
import torch
from torch import Tensor, nn

from ...choices import Native, check_choice
from ...errors import ConfigError

_SOURCES = [Path(__file__).with_name(name) for name in ("layer.cpp", "weighted.cpp", "direct.cpp", "conv.cpp")]
_HEADERS = [Path(__file__).with_name(name) for name in ("common.h", "layer.h", "conv.h")]
_FLAGS = ["-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-shared", "-fPIC"]
#: by default, compilers use half of the registers of AVX-512; compilers that do not know this do without it
_WIDE = ["-mprefer-vector-width=512"] if platform.machine() in ("x86_64", "AMD64") else []

#: kernels that layer.h has, in its order
KERNELS = ("rbf", "arc_cosine_1", "arc_cosine_2", "linear")
#: the one whose values need no norms of patches: n (r / n) = r
LINEAR = KERNELS.index("linear")
#: types of responses that layer.cpp and weighted.cpp can read and write; kernels of the second type come after all of the first
RESPONSES = (torch.float32, torch.bfloat16)
#: filters of a layer whose projection layer.cpp multiplies by itself; beyond, a library for matrices is faster
WIDEST = 32


def setting() -> Native:
    """What ``TORCHCKN_NATIVE`` says."""
    return _checked(os.environ.get("TORCHCKN_NATIVE", "auto"))


@functools.cache
def _checked(value: str) -> Native:
    check_choice("the environment variable TORCHCKN_NATIVE", value, Native)
    return value  # type: ignore[return-value]


@contextmanager
def use(value: Native) -> Iterator[None]:
    """Another setting within this context: ``with native.use("off"): ...``"""
    check_choice("native.use", value, Native)
    before = os.environ.get("TORCHCKN_NATIVE")
    os.environ["TORCHCKN_NATIVE"] = value
    try:
        yield
    finally:
        os.environ.pop("TORCHCKN_NATIVE") if before is None else os.environ.update(TORCHCKN_NATIVE=before)


def status() -> str:
    """One line: whether compiled code is used, or why not."""
    if setting() == "off":
        return "plain torch (TORCHCKN_NATIVE=off)"
    try:
        return f"compiled by {_compiler()}" if _library() else f"plain torch ({_reason[0]})"
    except ConfigError as error:
        return f"plain torch ({error})"


def library() -> ctypes.CDLL | None:
    """The compiled code; None where there is none, or where it is switched off."""
    return None if setting() == "off" else _library()


#: why there is no library
_reason: list[str] = []


@functools.cache
def _library() -> ctypes.CDLL | None:
    try:
        library = _loaded()
        pointer, number = ctypes.c_void_p, ctypes.c_int
        for name, arguments in (
            ("layer_forward", [number, *[pointer] * 6, number]),
            ("layer_backward", [number, *[pointer] * 9, number]),
            ("weighted_forward", [number, *[pointer] * 7, number]),
            ("weighted_backward", [number, *[pointer] * 9, number]),
            ("patch_squares", [*[pointer] * 4, number]),
            ("patch_squares_backward", [*[pointer] * 5, number]),
            ("chain", [pointer, ctypes.c_long, pointer, pointer, number]),
            ("differ", [pointer, pointer, ctypes.c_size_t, number]),
            ("pack", [*[pointer] * 3, ctypes.c_long, number]),
            ("packed_size", [pointer, ctypes.c_long]),
            ("direct_forward", [number, *[pointer] * 10, number]),
            ("direct_backward", [number, *[pointer] * 13, number]),
            ("convolution_of_x", [*[pointer] * 4, ctypes.c_long, number]),
            ("convolution_of_filters", [*[pointer] * 4, ctypes.c_long, number]),
            ("register_width", []),
        ):
            getattr(library, name).argtypes = arguments
        library.packed_size.restype = ctypes.c_long
    except (OSError, ConfigError, AttributeError) as error:  # of a library without these functions
        if setting() == "require":
            raise ConfigError(f"TORCHCKN_NATIVE=require expected code that can be compiled and loaded: {error}") from error
        _reason.append(str(error))
        return None
    return library


@functools.cache
def register_width() -> int:
    """Numbers in a register of the compiled code: 8 (AVX2), 16 (AVX-512); 0 without these, or without compiled code."""
    library = _library()
    return 0 if library is None else int(library.register_width())


def _compiler() -> str:
    compiler = os.environ.get("CXX") or next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)
    if not compiler or not shutil.which(compiler):
        raise ConfigError(f"no C++ compiler ({compiler or 'c++, g++ or clang++'}) is installed")
    return compiler


def _loaded() -> ctypes.CDLL:
    """The library for this source, compiler and processor, compiled if it is not in the cache folder, whole."""
    compiler = _compiler()
    version = _run([compiler, "--version"], 60).stdout
    what = "\n".join(
        [*(file.read_text() for file in (*_SOURCES, *_HEADERS)), " ".join([*_FLAGS, *_WIDE]), version, _processor()]
    )
    name = f"layer-{hashlib.sha256(what.encode()).hexdigest()[:16]}.so"
    folder = _own_folder()
    if folder is not None:
        if not _is_intact(folder / name):
            _compile(compiler, folder / name)
        return ctypes.CDLL(str(folder / name))
    with tempfile.TemporaryDirectory(prefix="torchckn-native-") as temporary:  # what is loaded stays when its file is gone
        _compile(compiler, Path(temporary) / name)
        return ctypes.CDLL(str(Path(temporary) / name))


def _is_intact(file: Path) -> bool:
    """Whether a library is there and ends with the digest of all before: parts of one end the process when they are loaded."""
    if file.is_symlink() or not file.is_file():
        return False
    content = file.read_bytes()
    return hashlib.sha256(content[:-_DIGEST]).digest() == content[-_DIGEST:]


#: bytes of a digest; an ELF or Mach-O file may have more after its end
_DIGEST = hashlib.sha256().digest_size


def _compile(compiler: str, target: Path) -> None:
    if sys.stderr.isatty():
        print(f"torchckn: compiling its layer for this processor with {compiler}, once", file=sys.stderr)
    handle, partial = tempfile.mkstemp(".so", dir=target.parent)
    os.close(handle)
    try:
        done = _run([compiler, *_FLAGS, *_WIDE, *map(str, _SOURCES), "-o", partial], 300)
        if done.returncode and _WIDE:
            done = _run([compiler, *_FLAGS, *map(str, _SOURCES), "-o", partial], 300)
        if done.returncode:
            raise ConfigError(f"{compiler} could not compile its layer: {done.stderr.strip()[-300:]}")
        content = Path(partial).read_bytes()
        with open(partial, "ab") as file:
            file.write(hashlib.sha256(content).digest())
        os.replace(partial, target)  # several processes may compile at once: each one's file is complete
    finally:
        Path(partial).unlink(missing_ok=True)


def _run(command: list[str], seconds: int) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"{command[0]} did not compile its layer within {seconds} s") from error


def _own_folder() -> Path | None:
    """The cache folder, if it belongs to this user and nobody else can write to it: what is loaded from there is executed."""
    folder = Path(platformdirs.user_cache_path("torchckn")) / "native"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = folder.lstat()
    except OSError:
        return None
    ours = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o022
    return folder if ours and os.access(folder, os.W_OK) else None


def _processor() -> str:
    """What ``-march=native`` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine() + platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))}))


def address(tensor: Tensor | None) -> int | None:
    """Where a tensor's numbers begin."""
    return None if tensor is None else tensor.data_ptr()


def call(name: str, *arguments: object) -> None:
    """Call a function of the library, on as many threads as torch uses."""
    status = getattr(_library(), name)(*arguments, torch.get_num_threads())
    if status == 1:
        raise MemoryError(f"no memory for the buffers of {name}")
    assert status == 0, (name, status)


def equal(a: Tensor, b: Tensor) -> bool:
    """``torch.equal``; of numbers in a row, by their bytes, which is several times faster."""
    found = library() if a.device.type == "cpu" and type(a) in (Tensor, nn.Parameter) else None
    if found is None or a.shape != b.shape or not (a.is_contiguous() and b.is_contiguous()):
        return torch.equal(a, b)
    return not found.differ(a.data_ptr(), b.data_ptr(), a.numel() * a.element_size(), torch.get_num_threads())
