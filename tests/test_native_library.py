"""The library of the compiled layer: how it is made, kept, loaded and called, and what happens without a compiler."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch

from torchckn.errors import ConfigError
from torchckn.nn import native

from . import forks

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C++ compiler: the plain layer is used and tested")


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return forks.run(["-c", code], env=os.environ | environment)


CODE = """
import torch
from torchckn.nn import KernelConv2d, native
print(KernelConv2d(1, 8, 3)(torch.ones(1, 1, 5, 5)).shape, native.status())
"""


def test_without_a_compiler_the_layer_runs_in_plain_torch(tmp_path: Path) -> None:
    done = run(CODE, CXX="no-such-compiler", XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "plain torch (no C++ compiler (no-such-compiler) is installed)" in done.stdout


def test_a_compiler_that_fails_is_reported_and_not_fatal(tmp_path: Path) -> None:
    compiler = tmp_path / "broken"
    compiler.write_text("#!/bin/sh\necho 'internal error' >&2\nexit 1\n")
    compiler.chmod(0o755)
    done = run(CODE, CXX=str(compiler), XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "could not compile its layer: internal error" in done.stdout
    required = run(CODE, CXX=str(compiler), XDG_CACHE_HOME=str(tmp_path), TORCHCKN_NATIVE="require")
    assert "TORCHCKN_NATIVE=require expected code that can be compiled and loaded" in required.stderr


def test_a_compiler_that_does_not_know_wide_vectors_compiles_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = []

    def compiler(command: list[str], seconds: int) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        Path(command[-1]).write_bytes(b"library")
        return subprocess.CompletedProcess(command, "--wide" in command, "", "unrecognized option '--wide'")

    monkeypatch.setattr(native, "_run", compiler)
    monkeypatch.setattr(native, "_WIDE", ["--wide"])
    native._compile("old-compiler", tmp_path / "layer.so")
    assert ["--wide" in command for command in commands] == [True, False]
    assert native._is_intact(tmp_path / "layer.so")


@pytest.mark.slow  # it compiles twice; test_the_folder_of_compiled_code_is_made_for_its_owner_alone copies instead
def test_compiled_code_is_kept_in_a_folder_that_only_its_owner_can_write(tmp_path: Path) -> None:
    done = run(CODE, XDG_CACHE_HOME=str(tmp_path))
    assert "compiled by" in done.stdout, done.stderr
    folder = tmp_path / "torchckn" / "native"
    (library,) = folder.iterdir()
    assert not folder.stat().st_mode & 0o077
    built = library.stat().st_mtime_ns
    assert "compiled by" in run(CODE, XDG_CACHE_HOME=str(tmp_path)).stdout
    assert library.stat().st_mtime_ns == built  # not compiled again
    folder.chmod(0o777)  # anyone could put another library there: it is not used
    library.write_text("not a library")
    assert "compiled by" in run(CODE, XDG_CACHE_HOME=str(tmp_path)).stdout


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of its own, with the library of this machine, and its temporary files beside it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / "cache" / "torchckn" / "native"
    folder.mkdir(mode=0o700, parents=True)
    usual = Path(native._library()._name)  # type: ignore[union-attr]
    shutil.copy(usual, folder)
    assert Path(native._loaded()._name) == folder / usual.name
    return folder / usual.name


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, cache: Path) -> list[Path]:
    """What is compiled, which is a copy here, because a compiler takes seconds."""
    made: list[Path] = []
    content = cache.read_bytes()

    def compile_(compiler: str, target: Path) -> None:
        made.append(target)
        partial = target.with_suffix(".partial")
        partial.write_bytes(content)
        partial.replace(target)

    monkeypatch.setattr(native, "_compile", compile_)
    return made


@pytest.mark.parametrize("damage", ["cut", "bit", "empty", "link", "folder of links"])
def test_a_library_that_is_damaged_or_of_somebody_else_is_compiled_again(
    cache: Path, compiled: list[Path], damage: str, tmp_path: Path
) -> None:
    content = bytearray(cache.read_bytes())
    if damage == "cut":
        cache.write_bytes(content[: len(content) // 2])  # loading it would end the process with a bus error
    elif damage == "bit":
        content[len(content) // 2] ^= 1
        cache.write_bytes(content)
    elif damage == "empty":
        cache.write_bytes(b"")
    elif damage == "link":
        cache.rename(tmp_path / "elsewhere.so")
        cache.symlink_to(tmp_path / "elsewhere.so")
    else:
        cache.parent.rename(tmp_path / "elsewhere")
        cache.parent.symlink_to(tmp_path / "elsewhere")
    native._loaded()
    assert len(compiled) == 1
    if damage != "folder of links":
        assert compiled == [cache]
        native._loaded()
        assert len(compiled) == 1


def test_the_folder_of_compiled_code_is_made_for_its_owner_alone(cache: Path, compiled: list[Path]) -> None:
    shutil.rmtree(cache.parent)
    native._loaded()
    assert compiled == [cache]
    assert not cache.parent.stat().st_mode & 0o077
    native._loaded()
    assert len(compiled) == 1


def test_where_nothing_can_be_kept_nothing_is_left(cache: Path, compiled: list[Path], tmp_path: Path) -> None:
    cache.parent.chmod(0o777)
    before = sorted(tmp_path.iterdir())
    native._loaded()
    assert compiled[0].parent.name.startswith("torchckn-native-")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("sleep 5", "did not compile its layer within 0 s"),
        ("printf '\\377' >&2; exit 1", "could not compile its layer: \ufffd"),
        ("true", "file too short"),
    ],
)
def test_odd_compilers_are_reasons_not_errors(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, reason: str
) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    if "sleep" in script:
        run = native._run
        monkeypatch.setattr(native, "_run", lambda command, seconds: run(command, 0))
    native._reason.clear()
    assert native._library.__wrapped__() is None
    assert reason in native._reason[0]
    with native.use("require"), pytest.raises(ConfigError, match="expected code that can be compiled and loaded"):
        native._library.__wrapped__()


def test_an_unknown_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHCKN_NATIVE", "on")
    with pytest.raises(ConfigError, match="unknown the environment variable TORCHCKN_NATIVE 'on'"):
        native.library()
    with pytest.raises(ConfigError, match="unknown native.use 'yes'"), native.use("yes"):  # type: ignore[arg-type]
        pass


def test_a_wrong_call_of_the_library_is_noticed() -> None:
    with pytest.raises(AssertionError):
        native.call("layer_forward", 99, None, (ctypes.c_long * 8)(0, 1, 1, 1, 1, 1, 1, 0), None, None, None, None)


@pytest.mark.parametrize("threads", [1, 4])
def test_memory_that_no_thread_gets_is_an_error(threads: int) -> None:
    x = torch.ones(8, 1, 1, 1)
    padding = 2**60  # the row of a padded image has more bytes than there are addresses
    numbers = (ctypes.c_long * 14)(8, 1, 1, 1, 1, 1, 3, 3, 1, 1, 0, padding, 1, 1)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for name, buffers in (
            ("patch_squares", [x, x.clone(), x.clone()]),
            ("patch_squares_backward", [x.clone() for _ in range(4)]),
        ):
            with pytest.raises(MemoryError, match=f"no memory for the buffers of {name}"):
                native.call(name, numbers, *(buffer.data_ptr() for buffer in buffers))
    finally:
        torch.set_num_threads(before)


def test_one_change_among_many_numbers_is_noticed() -> None:
    a = torch.zeros(100_001)
    for place in (0, 50_000, 100_000):
        b = a.clone()
        assert native.equal(a, b)
        b[place] = 1
        assert not native.equal(a, b)
