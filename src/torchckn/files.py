"""Files that are complete or not there: written beside their place and moved to it; tensors with a digest of all they hold.

A tensor file is a safetensors file whose header has one entry, ``torchckn``: what the file is, plain facts as JSON, and a SHA-256
digest of facts and tensors. A file that was changed since it was written, by whatever, is refused when it is read.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import struct
import tempfile
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from .errors import ConfigError, DataError, PathError
from .memory import most_memory

#: how the name of a file ends that was not moved to its place yet
_PARTIAL = ".torchckn-partial"
_KEY = "torchckn"
#: bytes of a header: a network of 2,000 operations has about one million
_LARGEST_HEADER = 16 * 2**20


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that it is either complete or untouched, whatever happens in between; makes its folder if need be."""
    path = _destination(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(_PARTIAL, f".{path.name}.", path.parent)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}; choose a folder that can be written to") from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o666 & ~_umask())
        os.replace(name, path)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}; is the disk full?") from error
    finally:
        if os.path.exists(name):
            os.unlink(name)


def check_output(path: Path) -> Path:
    """``path``, as a file that a user has named for output; an error if it cannot be one, before any work is done."""
    if path.is_dir():
        raise ConfigError(f"expected the name of a file to write, got the folder {path}")
    check_parent(_destination(path))
    return path


def check_parent(path: Path) -> Path:
    """``path``, as a file or folder that a user has named for output; an error if folders above it would be made elsewhere.

    Folders are made below the working folder only: elsewhere, a folder that does not exist is more likely a slip of the pen.
    """
    folder = path.parent
    if not folder.exists() and not folder.resolve().is_relative_to(Path.cwd()):
        raise PathError(f"the folder {folder} does not exist; create it first, or choose another place")
    if folder.exists() and not folder.is_dir():
        raise PathError(f"cannot write {path}: expected a folder, got the file {folder}; choose another place")
    return path


def _destination(path: Path) -> Path:
    """Where a file is written to: the target of a symbolic link; never in place of a device, a pipe or a socket."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return Path(os.path.realpath(path)) if path.is_symlink() else path
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
        raise DataError(f"cannot write {path}: it is {what}; choose another name")
    return Path(os.path.realpath(path)) if path.is_symlink() else path


#: bytes of a text that others may have written, such as a configuration
LONGEST_TEXT = 2**24


def read_text(path: Path, most: int = LONGEST_TEXT) -> str:
    """A file of UTF-8 text that others may have made; see :func:`read_bytes`."""
    return read_bytes(path, most).decode()


def read_bytes(path: Path, most: int) -> bytes:
    """A file that others may have made; an OSError if it is a pipe or a device, which may have no end, or is too large."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    if status.st_size > most:
        raise OSError(errno.EFBIG, f"it has {status.st_size} bytes, more than {most}", str(path))
    try:
        return path.read_bytes()
    except MemoryError:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), str(path)) from None


def partial_files(folder: Path, name: str) -> list[Path]:
    """What :func:`write_atomically` left in a folder when its process was killed, of files with this name or pattern."""
    return [*folder.glob(f".{name}.????????{_PARTIAL}")]  # as mkstemp numbers them


def remove_partial_files(folder: Path, *names: str) -> None:
    """Remove what :func:`write_atomically` left of files with these names when its process was killed, and nothing else."""
    for name in names:
        for file in partial_files(folder, name):
            file.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_tensors(path: Path, kind: str, facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write tensors and plain facts; the same ones give the same bytes.

    Args:
        kind: what the file is, such as ``"network"``; :func:`read_tensors` accepts no other.
    """
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    text = json.dumps(facts, sort_keys=True, allow_nan=False)
    header = {"kind": kind, "facts": text, "digest": _digest(kind, text, plain)}
    content = safetensors.torch.save(plain, {_KEY: json.dumps(header, sort_keys=True)})
    write_atomically(path, content)


def read_tensors(path: Path, kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The facts and tensors that :func:`write_tensors` wrote, all of them unchanged; a :class:`DataError` if they are not."""
    if path.is_dir():
        raise DataError(f"{path} is a folder; expected a file")
    try:
        content = read_bytes(path, most_memory())
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    try:
        header = _header(content)
        tensors = safetensors.torch.load(content)
        facts = json.loads(header["facts"])
        intact = header["digest"] == _digest(header["kind"], header["facts"], tensors)
    except _UNREADABLE as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"{path} is not a file that torchckn wrote, or is truncated or corrupt ({reason})") from error
    if header["kind"] != kind:
        raise DataError(f"{path} is a torchckn file of kind {header['kind']!r}, expected {kind!r}")
    if not intact:
        raise DataError(f"{path} was changed after it was written: its digest does not match its content")
    if not isinstance(facts, dict):
        raise DataError(f"{path} is corrupt: expected a dictionary in its header")
    return facts, tensors


#: what a file that is not a tensor file may raise while it is read
_UNREADABLE = (
    *(safetensors.SafetensorError, struct.error, KeyError, ValueError, TypeError, AttributeError),
    *(RecursionError, MemoryError, RuntimeError, OverflowError),
)


def _header(content: bytes) -> dict[str, Any]:
    (length,) = struct.unpack("<Q", content[:8])
    if length > min(_LARGEST_HEADER, len(content) - 8):
        raise ValueError("it does not begin with a header of tensors")
    return json.loads(json.loads(content[8 : 8 + length])["__metadata__"][_KEY])


def _digest(kind: str, facts: str, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(f"{kind}\n{facts}\n".encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()
