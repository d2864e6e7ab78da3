"""No memory in the middle of a step, no space on the disk: nothing is lost, and the run is resumed to the same weights."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchckn import runs

from .. import forks
from .harness import HANGING, environment
from .test_kills import STEPS, content, finished, go_on, require_same, start

#: the step after which there is no more memory, or no more space
AT = 2

PROGRAM = """
import resource, sys
import torch
from torchckn import fit
from torchckn.fit import methods

step, made = methods.ULR.step, 0

def limited(self, images, labels, lr):
    global made
    made += 1
    if made == {at} + 1:
        used = int(next(l for l in open("/proc/self/status") if l.startswith("VmData")).split()[1]) * 1024
        resource.setrlimit(resource.RLIMIT_DATA, (used + 2**16, resource.RLIM_INFINITY))
        hold = []
        while True:  # what is free already is used up as well; the error comes out of this very step
            hold.append(torch.ones(2**18))
    return step(self, images, labels, lr)

methods.ULR.step = limited
sys.argv[0] = "torchckn"
from torchckn.cli import main
main()
"""


def run_program(folder: Path, text: str, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    file = folder / "program.py"
    file.write_text(text)
    return forks.run([file, *arguments], env=environment(), timeout=HANGING)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, few_digits: Path) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    assert finished(start(folder, few_digits))[0] == 0
    return folder


def test_memory_that_is_exhausted_in_a_step_loses_nothing(tmp_path: Path, few_digits: Path, expected: Path) -> None:
    run = tmp_path / "run"
    done = run_program(tmp_path, PROGRAM.format(at=AT), start(run, few_digits))
    assert done.returncode == 1, done.stderr
    assert f"step {AT + 1} failed: there is not enough memory. Try graph_memory=0 or a smaller chunk" in done.stderr
    assert "Traceback" not in done.stderr
    checkpoint = runs.read_checkpoint(run)
    assert checkpoint is not None
    assert checkpoint[1]["step"] == AT
    status, _, err = finished(go_on(run, few_digits))
    assert status == 0, err
    require_same(run, content(expected))


NO_MEMORY_FOR_SCIPY = """
import resource
import torch
from torchckn.fit import solvers

used = int(next(l for l in open("/proc/self/status") if l.startswith("VmData")).split()[1]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (used + 2**23, resource.RLIM_INFINITY))
for _ in range(2):
    try:
        solvers._reserve_memory_of_scipy()
    except MemoryError as error:
        print(error)
resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
solvers._reserve_memory_of_scipy()
used = int(next(l for l in open("/proc/self/status") if l.startswith("VmData")).split()[1]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (used + 2**23, resource.RLIM_INFINITY))
import numpy, scipy.optimize
scipy.optimize.minimize(lambda x: ((x - 1) @ (x - 1), 2 * (x - 1)), numpy.zeros(3), jac=True, method="L-BFGS-B")
print("minimized")
"""


def test_without_memory_for_scipy_there_is_an_error_and_no_endless_wait(tmp_path: Path) -> None:
    done = run_program(tmp_path, NO_MEMORY_FOR_SCIPY, [])
    assert done.stdout.splitlines() == ["cannot get 67108864 bytes"] * 2 + ["minimized"], done.stderr


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of which little is left."""
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(place)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"a file system cannot be mounted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def fill(place: Path, leave: int) -> Path:
    """Fill a file system to its last byte, but for ``leave`` bytes."""
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError:
            pass
        file.truncate(max(0, file.tell() - leave))
    return ballast


@pytest.mark.parametrize(
    "leave", [0, 60 * 2**10, *(pytest.param(size * 2**10, marks=pytest.mark.slow) for size in (4, 8, 12, 24, 48))]
)
def test_a_disk_that_is_full_to_the_last_byte_loses_nothing(
    full_disk: Path, few_digits: Path, expected: Path, leave: int
) -> None:
    run = full_disk / "run"
    ballast = fill(full_disk, leave)
    status, _, err = finished(start(run, few_digits))
    assert status in (1, 2), err
    assert "Traceback" not in err
    assert "This is a bug" not in err
    assert "No space left on device" in err
    ballast.unlink()
    status, _, err = finished(go_on(run, few_digits))
    assert status == 0, err
    require_same(run, content(expected))


def test_a_limit_of_the_size_of_files_loses_nothing(tmp_path: Path, few_digits: Path, expected: Path) -> None:
    run = tmp_path / "run"
    largest = (expected / "checkpoint" / "last.safetensors").stat().st_size
    program = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({largest - 1000}, resource.RLIM_INFINITY))\n"
        "sys.argv[0] = 'torchckn'\n"
        "from torchckn.cli import main\n"
        "main()\n"
    )
    done = run_program(tmp_path, program, start(run, few_digits))
    assert done.returncode == 1, done.stderr
    assert "cannot write" in done.stderr
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    status, _, err = finished(go_on(run, few_digits))
    assert status == 0, err
    require_same(run, content(expected))


assert STEPS > AT
