"""A process with limits of memory and time that tries one fault after another, and says what each led to."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from .. import forks

ROOT = Path(__file__).parent.parent.parent
MEMORY = 3 * 2**30
#: seconds of processor time that a single fault may take; a machine that is busy or paused takes longer, and is no failure
PATIENCE = 20.0
#: seconds after which a process that does nothing, for example because it waits for a pipe, has failed
HANGING = 7200.0


def environment() -> dict[str, str]:
    """For a process that imports these sources and these tests, with one thread."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "COLUMNS": "200"}


def in_a_process(module: str, *arguments: object) -> list[tuple[str, str]]:
    """Run ``tests.faults.<module>``, and give what :func:`try_all` printed there: faults and outcomes."""
    command = ["-m", f"tests.faults.{module}", *arguments]
    done = forks.run(command, env=environment(), cwd=ROOT, timeout=HANGING, memory=MEMORY)
    outcomes = [(fault, outcome) for fault, outcome in map(json.loads, done.stdout.splitlines())]
    assert done.returncode == 0, f"ended with {done.returncode} after {outcomes[-1:]}: {done.stderr[-3000:]}"
    return outcomes


def try_all(faults: Iterable[tuple[str, Callable[[], str]]]) -> None:
    """Try each fault, and print its name and outcome as a line of JSON. What does not end is stopped, if Python can."""
    signal.signal(signal.SIGPROF, _stop)
    for name, attempt in faults:
        start = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, 3 * PATIENCE)
        try:
            outcome = attempt()
        except BaseException as error:
            outcome = f"FAILED {type(error).__name__}: {str(error)[:300]}"
        signal.setitimer(signal.ITIMER_PROF, 0)
        seconds = time.process_time() - start
        if seconds > PATIENCE:
            outcome = f"FAILED took {seconds:.0f} s of processor time: {outcome}"
        print(json.dumps([name, outcome]), flush=True)


def _stop(*_: object) -> None:
    raise TimeoutError("it did not end")


def require_none_failed(what: str, outcomes: list[tuple[str, str]], expected: int) -> None:
    """Print how many faults there were and what they led to; an error if one led to what it must not."""
    counts = Counter(outcome for _, outcome in outcomes if not outcome.startswith("FAILED"))
    failed = [f"{name} -> {outcome}" for name, outcome in outcomes if outcome.startswith("FAILED")]
    parts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    print(f"FAULTS {what}: {len(outcomes)} tried, {parts}, {len(failed)} failed")
    assert not failed, "\n".join(failed[:40])
    assert len(outcomes) == expected
