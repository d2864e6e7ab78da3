"""Runs that are killed, at every write and at random moments, stopped by signals, and resumed."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from torchckn import runs
from torchckn.storage import KIND, read_tensors

from .. import forks
from .harness import HANGING, environment

STEPS = 4
#: kills at random moments, beside one or two at every write; in parts, so that a part can be repeated by itself
RANDOM_KILLS, PARTS = 128, 4
OPTIONS = ["--filters", "3", "--batch-size", "32", "--patches", "50", "--lambdas", "0.01,0.001", "--lr", "0.01", "--quiet"]
OPTIONS += ["--folds", "0", "--checkpoint-every", "2"]


def start(folder: Path, digits: Path, steps: int = STEPS) -> list[str]:
    return ["train", "lenet1", "--data", str(digits), "--steps", str(steps), *OPTIONS, "--run", str(folder)]


def go_on(folder: Path, digits: Path, steps: int = STEPS) -> list[str]:
    """How a run is continued: resumed if it has got as far as a configuration, else started."""
    return (
        ["train", "--resume", str(folder), "--quiet"] if (folder / "config.toml").exists() else start(folder, digits, steps)
    )


def process(arguments: list[str], kill_at: int | None = None, fresh: bool = False) -> forks.Popen | subprocess.Popen[str]:
    """A command in a fork, which starts at once, or in a fresh process of Python."""
    module = ["torchckn"] if kill_at is None else ["tests.faults.killing", str(kill_at)]
    command = ["-m", *module, *arguments]
    if not fresh:
        return forks.Popen(command, env=environment())
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, *command], env=environment(), stdout=pipe, stderr=pipe, text=True)


def finished(arguments: list[str], kill_at: int | None = None, fresh: bool = False) -> tuple[int, str, str]:
    running = process(arguments, kill_at, fresh)
    out, err = running.communicate(timeout=HANGING)
    return running.wait(), out, err


def content(folder: Path) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    """The weights and the metrics, but for the time they took."""
    metrics = [{k: v for k, v in record.items() if k != "seconds"} for record in runs.read_metrics(folder)]
    return read_tensors(folder / "model" / "model.safetensors", KIND)[1], metrics


def require_same(folder: Path, expected: tuple[dict[str, torch.Tensor], list[dict[str, Any]]]) -> None:
    weights, metrics = content(folder)
    assert metrics == expected[1]
    assert weights.keys() == expected[0].keys()
    assert all(torch.equal(value, expected[0][name]) for name, value in weights.items())
    assert (folder / "result.json").exists()
    assert not list(folder.rglob("*.torchckn-partial")), "half-written files were left"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, few_digits: Path) -> tuple[Any, int, int]:
    """What a run gives that nobody disturbs, how often it writes, and how often it does when it is resumed half-way."""
    folder = tmp_path_factory.mktemp("undisturbed")
    status, out, err = finished(start(folder / "run", few_digits), kill_at=0)
    assert status == 0, err
    writes = int(out.split()[-1])
    assert writes > 30
    assert finished(start(folder / "half", few_digits), kill_at=writes // 2)[0] == -signal.SIGKILL
    status, out, err = finished(go_on(folder / "half", few_digits), kill_at=0)
    assert status == 0, err
    return content(folder / "run"), writes, int(out.split()[-1])


class Kills:
    """Runs that are killed in processes of their own, ``fresh`` ones or forks; after each kill, a copy of the run is
    finished and compared."""

    def __init__(self, folder: Path, digits: Path, fresh: bool = False) -> None:
        self.folder, self.digits, self.fresh = folder, digits, fresh
        self.kills = self.equal = 0

    def killed(self, run: Path, expected: Any, steps: int = STEPS) -> None:
        """A process that wrote to ``run`` was killed. What is there is enough for the result that is expected."""
        self.kills += 1
        copy = self.folder / f"finished-{self.kills}"
        if run.exists():
            shutil.copytree(run, copy)
        status, _, err = finished(go_on(copy, self.digits, steps))
        assert status == 0, (self.kills, run.name, err)
        require_same(copy, expected)
        shutil.rmtree(copy)
        self.equal += 1
        print(f"kill {self.kills}: {run.name}", file=sys.stderr)

    def at_writes(self, undisturbed: tuple[Any, int, int], points: list[tuple[int, int]]) -> None:
        """Kill a new run at one write, and the run that continues it at another."""
        expected = undisturbed[0]
        for first, second in points:
            run = self.folder / f"run-{first}-{second}"
            status, _, err = finished(start(run, self.digits), kill_at=first, fresh=self.fresh)
            assert status == -signal.SIGKILL, (first, err)
            self.killed(run, expected)
            status, _, err = finished(go_on(run, self.digits), kill_at=second, fresh=self.fresh)
            assert status in (0, -signal.SIGKILL), (first, second, err)
            if status:
                self.killed(run, expected)
            else:
                require_same(run, expected)
            shutil.rmtree(run)

    def at_random(self, until: int, steps: int, seed: int) -> None:
        """Kill a run again and again at random moments, until there were so many kills in all."""
        chance, run = random.Random(seed), self.folder / "random"
        clock = time.monotonic()
        assert finished(start(self.folder / "undisturbed", self.digits, steps), fresh=self.fresh)[0] == 0
        seconds, expected = time.monotonic() - clock, content(self.folder / "undisturbed")
        while self.kills < until:
            running = process(go_on(run, self.digits, steps), fresh=self.fresh)
            try:
                _, err = running.communicate(timeout=seconds * chance.uniform(0.3, 1.0))
                assert running.returncode == 0, err
                require_same(run, expected)
                shutil.rmtree(run)  # it was done before it was killed: from the beginning
            except subprocess.TimeoutExpired:
                running.kill()
                running.communicate()
                self.killed(run, expected, steps)

    def __str__(self) -> str:
        return f"{self.kills} kills, {self.equal} equal results, {self.kills - self.equal} failed"


def test_a_run_killed_at_some_of_its_writes_is_resumed_to_the_same_result(
    tmp_path: Path, few_digits: Path, undisturbed: tuple[Any, int, int]
) -> None:
    _, writes, later = undisturbed
    kills = Kills(tmp_path, few_digits)
    kills.at_writes(undisturbed, [(n, 1 + n % later) for n in random.Random(0).sample(range(1, writes + 1), 3)])
    print(f"FAULTS kills at writes, a sample: {kills}")


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_a_run_killed_at_every_write_is_resumed_to_the_same_result(
    tmp_path: Path, few_digits: Path, undisturbed: tuple[Any, int, int], part: int
) -> None:
    _, writes, later = undisturbed
    kills = Kills(tmp_path, few_digits, fresh=True)
    kills.at_writes(undisturbed, [(n, 1 + (7 * n) % later) for n in range(1 + part, writes + 1, PARTS)])
    print(f"FAULTS kills at every write, part {part + 1} of {PARTS}: {writes} writes in all, {kills}")
    assert kills.kills == kills.equal >= writes // PARTS


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_a_run_killed_at_random_moments_is_resumed_to_the_same_result(tmp_path: Path, few_digits: Path, part: int) -> None:
    kills = Kills(tmp_path, few_digits, fresh=True)
    kills.at_random(RANDOM_KILLS // PARTS, steps=40, seed=part)
    print(f"FAULTS kills at random moments, part {part + 1} of {PARTS}: {kills}")
    assert (kills.kills, kills.equal) == (RANDOM_KILLS // PARTS, RANDOM_KILLS // PARTS)


def wait_for_lines(file: Path, lines: int, running: forks.Popen | subprocess.Popen[str]) -> None:
    while not file.exists() or len(file.read_bytes().splitlines()) < lines:
        assert running.poll() is None, running.communicate()
        time.sleep(0.005)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_saves_stops_and_says_how_to_go_on(tmp_path: Path, few_digits: Path, name: str) -> None:
    run = tmp_path / "run"
    running = process(start(run, few_digits, steps=100_000))
    wait_for_lines(run / "metrics.jsonl", 4, running)
    running.send_signal(getattr(signal, name))
    _, message = running.communicate(timeout=HANGING)
    assert running.returncode == 130
    assert "training was interrupted after step" in message
    assert f"torchckn train --resume {run}" in message.replace("\n", "")
    checkpoint = runs.read_checkpoint(run)
    assert checkpoint is not None
    assert checkpoint[1]["step"] == runs.read_metrics(run)[-1]["step"] >= 3


def test_ctrl_c_during_the_final_fit_says_where_it_stands(tmp_path: Path, few_digits: Path) -> None:
    run, script = tmp_path / "run", tmp_path / "slow_fit.py"
    script.write_text(
        "import sys, time\n"
        "from torchckn.fit import loop\n"
        "fit, calls = loop.fit_head_as, []\n"
        "def fit_head_as(*args, **kwargs):\n"
        "    calls.append(1)\n"
        "    if len(calls) == 2:\n"
        "        print('now', flush=True)\n"
        "        time.sleep(60)\n"
        "    return fit(*args, **kwargs)\n"
        "loop.fit_head_as = fit_head_as\n"
        "sys.argv[0] = 'torchckn'\n"
        "from torchckn.cli import main\n"
        "main()\n"
    )
    running = forks.Popen([script, *start(run, few_digits)], env=environment())
    assert running.stdout.readline() == "now\n"
    running.send_signal(signal.SIGINT)
    _, message = running.communicate(timeout=HANGING)
    assert running.returncode == 130
    text = message.replace("\n", " ")
    assert f"training was interrupted after step {STEPS} of {STEPS}, while fitting the final classifier" in text
    assert f"torchckn train --resume {run}" in text
    status, _, err = finished(go_on(run, few_digits))
    assert status == 0, err
