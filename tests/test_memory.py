"""Memory that is kept after it was freed."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys

import pytest

from torchckn import memory

_STEPS = """
import resource, torch
from torchckn.memory import keep_freed_memory

def faults_of_a_step():
    for _ in range(6):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        pieces = [torch.ones(2**22) for _ in range(4)]
        pieces = None
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(faults_of_a_step())
assert keep_freed_memory()
print(faults_of_a_step())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be asked to keep memory")
def test_steps_get_their_memory_from_the_steps_before() -> None:
    # Without these, glibc learns from what is freed, and may or may not keep it.
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
    done = subprocess.run([sys.executable, "-c", _STEPS], capture_output=True, text=True, check=True, env=env)
    before, after = map(int, done.stdout.split())
    pages = 4 * 2**24 // resource.getpagesize()
    assert after < pages / 20 < before


def test_other_allocators_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: object())
    assert memory.keep_freed_memory() is False
