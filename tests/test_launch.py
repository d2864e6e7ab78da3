"""The command in several processes: the same network, one voice, and what happens when one of them is killed."""

from __future__ import annotations

import os
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from benchmarks import processes
from torch.distributed.run import get_args_parser

from torchckn import ConfigError, cli, launch, runs
from torchckn.errors import LostProcessError
from torchckn.storage import KIND, read_tensors

from . import forks
from .faults.harness import environment

OPTIONS = ["--filters", "16", "--batch-size", "50", "--patches", "500", "--lambdas", "0.01,0.001", "--folds", "0"]
OPTIONS += ["--lr", "0.01"]
OPTIONS += ["--chunk", "5"]  # ten chunks, in shares that are not too unequal for 2, 3 and 4 processes
#: seconds that a training may take, on a machine that is busy with other things
WHILE = 1200
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


Running = subprocess.Popen[str] | forks.Popen


def command(arguments: list[str], python: str = sys.executable) -> forks.Popen:
    """The command with ``--processes``, which start as ``python -m torchckn``.

    Processes that are fresh interpreters are those of torchrun, in slow tests.
    """
    return forks.Popen(["-m", "torchckn", *arguments], env=environment(), python=python)


def torchrun(processes: int, arguments: list[str]) -> subprocess.Popen[str]:
    line = [sys.executable, *TORCHRUN, str(processes), "--max-restarts", "0", "-m", "torchckn", *arguments]
    return subprocess.Popen(line, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(running: Running) -> tuple[int | None, str, str]:
    try:
        out, err = running.communicate(timeout=WHILE)
    except subprocess.TimeoutExpired:
        running.send_signal(signal.SIGTERM)  # and it ends the processes that it has started
        raise
    return running.returncode, out, err


def weights(run: Path) -> dict[str, torch.Tensor]:
    return read_tensors(run / "model" / "model.safetensors", KIND)[1]


def difference(one: Path, other: Path) -> float:
    """The largest one of filters, classifier and all other tensors, relative to the tensor's largest number."""
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    pairs = [(first[name].double(), second[name].double()) for name in first if first[name].numel()]
    return max(float((a - b).abs().max() / a.abs().max().clamp(min=1e-300)) for a, b in pairs)


def train(run: Path, data: str | Path = "mnist-mini", steps: int = 4, *more: str) -> list[str]:
    return ["train", "lenet5", "--data", str(data), "--steps", str(steps), *OPTIONS, "-o", str(run), *more]


@pytest.mark.parametrize("processes", [100_000, 2**64])
def test_more_processes_than_a_machine_can_have_are_not_started(processes: int) -> None:
    with pytest.raises(ConfigError, match=f"expected at most 8 for each of this machine's .* cores, got {processes}"):
        launch.start(processes, ["train"], 0, "")


@pytest.mark.parametrize("variable", ["RANK", "WORLD_SIZE"])
def test_an_environment_that_torchrun_does_not_make_is_refused(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", variable: "many"}.items():
        monkeypatch.setenv(name, value)
    message = f"variable {variable} expected a number, as torchrun sets it, got 'many'; unset it"
    with pytest.raises(ConfigError, match=message), launch.joined(10, ""):
        pass


@pytest.mark.parametrize("seconds", ["nan", "inf", "1e300"])
def test_a_time_to_wait_that_never_ends_is_refused(seconds: str) -> None:
    with pytest.raises(ConfigError, match="--timeout expected from 1 to 1000000 seconds, got"):
        cli.app(["train", "lenet1", "--timeout", seconds], standalone_mode=False)


def workers(launcher: int) -> dict[int, int]:
    """The processes that a launcher has started: their numbers by rank."""
    found = {}
    for place in Path("/proc").iterdir():
        try:
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            variables = (place / "environ").read_bytes().decode(errors="replace").split("\0") if parent == launcher else []
        except (OSError, ValueError, IndexError):
            continue
        found |= {int(entry[5:]): int(place.name) for entry in variables if entry.startswith("RANK=")}
    return found


def wait_for_step(run: Path, step: int, running: Running, seconds: float = WHILE) -> None:
    deadline = time.monotonic() + seconds
    while not (run / "metrics.jsonl").exists() or len((run / "metrics.jsonl").read_bytes().splitlines()) <= step:
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < deadline, "no step was made"
        time.sleep(0.02)


def test_torchrun_accepts_the_commands_of_the_docs() -> None:
    """It takes some options of the command for its own, ``--run`` among them."""
    page = (Path(__file__).parent.parent / "docs" / "scale.md").read_text().replace("\\\n", " ")
    commands = [line for line in page.splitlines() if re.match(r"(srun )?torchrun .*-m torchckn", line)]
    assert len(commands) == 4
    for line in commands:
        words = shlex.split(re.sub(r'"\$(SLURM_NNODES|WORLD_SIZE|RANK|MASTER_PORT)"', "1", line.partition("torchrun ")[2]))
        parsed = get_args_parser().parse_args(words)
        assert parsed.training_script == "torchckn"
        assert parsed.training_script_args[0] == "train"


def test_two_processes_train_lenet5_as_one_does_and_show_one_of_everything(tmp_path: Path, few_digits: Path) -> None:
    line = [sys.executable, "-m", "torchckn", *train(tmp_path / "one", few_digits)]  # as a user starts it, not as a fork
    one = subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=WHILE)
    assert one.returncode == 0, one.stderr
    status, out, err = finished(command(train(tmp_path / "two", few_digits, 2, "--processes", "2"), forks.executable()))
    assert status == 0, err
    assert out.count("lenet5 (ckn), 500 training images") == out.count("validation accuracy") == 1
    assert len(runs.read_metrics(tmp_path / "two")) == 3
    one = forks.run(["-m", "torchckn", "train", "--resume", tmp_path / "two", "--steps", "4"], env=environment())
    assert one.returncode == 0, one.stderr
    assert difference(tmp_path / "one", tmp_path / "two") < 1e-6


@pytest.mark.slow
def test_four_processes_of_torchrun_train_lenet5_as_one_does(tmp_path: Path) -> None:
    assert finished(command(train(tmp_path / "one")))[0] == 0
    status, _, err = finished(torchrun(4, train(tmp_path / "four")))
    assert status == 0, err
    assert difference(tmp_path / "one", tmp_path / "four") < 1e-6


def test_a_killed_process_ends_the_others_and_says_which_one_it_was(tmp_path: Path, few_digits: Path) -> None:
    run = tmp_path / "run"
    running = command(train(run, few_digits, 100_000, "--processes", "2"), forks.executable())
    wait_for_step(run, 2, running)
    os.kill(workers(running.pid)[1], signal.SIGKILL)
    _, err = running.communicate(timeout=120)  # about five seconds, on a machine that has time
    assert running.returncode == 1
    text = err.replace("\n", " ")
    assert "process 1 of 2 was killed (SIGKILL), and the others were stopped" in text
    assert f"torchckn train --resume {run}" in text
    assert text.count("error:") == 1
    assert "Traceback" not in text


@pytest.mark.slow  # the message itself: test_distributed_training.py; that commands tell errors once: the test before
def test_a_mistake_is_told_once(tmp_path: Path, few_digits: Path) -> None:
    status, _, err = finished(command(train(tmp_path / "run", few_digits, 2, "--batch-size", "1", "--processes", "2")))
    assert status in (1, 2)
    assert err.count("batch_size is 1, but there are 2 processes") == 1
    assert "Traceback" not in err


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def set_place(monkeypatch: pytest.MonkeyPatch, rank: int, port: int | None) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    if port is None:
        monkeypatch.delenv("MASTER_PORT", raising=False)
    else:
        monkeypatch.setenv("MASTER_PORT", str(port))


def test_a_port_in_use_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        set_place(monkeypatch, 0, port)
        with (
            pytest.raises(ConfigError, match=f"port {port} of 127.0.0.1 is in use by another program; choose a free one"),
            launch.joined(2, "again"),
        ):
            pass


@pytest.mark.parametrize("rank", [0, 1])
def test_processes_that_do_not_come_are_waited_for_no_longer_than_the_timeout(
    monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    set_place(monkeypatch, rank, free_port())
    with (
        pytest.raises(LostProcessError, match=f"process {rank} of 2 waited 0.2 s for the others at 127.0.0.1:.*--timeout"),
        launch.joined(0.2, "again"),
    ):
        pass


def test_a_process_that_was_not_told_where_the_others_are_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    set_place(monkeypatch, 0, None)
    with (
        pytest.raises(ConfigError, match="process 0 of 2 does not know where the others are .*torchrun"),
        launch.joined(1, "again"),
    ):
        pass


def test_one_process_joins_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with launch.joined(1, "again"):
        assert not torch.distributed.is_initialized()


@pytest.mark.slow
def test_a_process_lost_under_torchrun_is_named_by_the_others(tmp_path: Path, few_digits: Path) -> None:
    run = tmp_path / "run"
    running = torchrun(3, train(run, few_digits, 100_000))
    wait_for_step(run, 2, running)
    os.kill(workers(running.pid)[1], signal.SIGKILL)
    clock = time.monotonic()
    _, err = running.communicate(timeout=120)
    assert running.returncode == 1
    assert time.monotonic() - clock < 60
    assert "SIGKILL" in err  # torchrun's own report
    text = " ".join(err.split())
    assert re.search(r"process 1 \(on \S+\) of 3 was lost: it was killed, or its machine or network failed", text), err
    assert f"torchckn train --resume {run}" in text
    assert text.count("error: ") == 1


def test_a_store_that_does_not_answer_is_a_lost_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """As over a cut link, which TCP does not notice."""

    class Silent:
        def set(self, key: str, value: str) -> None: ...

        def check(self, keys: list[str]) -> bool:
            return threading.Event().wait()

    for name in ("BEAT", "SILENCE", "GRACE"):
        monkeypatch.setattr(launch, name, 0.05)
    monkeypatch.setattr(launch.dist, "get_rank", lambda: 1)
    monkeypatch.setattr(launch.dist, "get_world_size", lambda: 2)
    watch = launch._Watch(Silent(), 1.0, "Continue with `torchckn train --resume RUN`.")
    with pytest.raises(LostProcessError, match="process 1 of 2 lost the connection to the others.*--resume RUN"):
        watch.fail(RuntimeError("gloo: timed out"))


@pytest.mark.slow
def test_ten_runs_with_a_killed_process_restart_and_end_with_the_undisturbed_weights(
    tmp_path: Path, few_digits: Path
) -> None:
    chance = random.Random(0)
    steps, more = 40, ("--processes", "3", "--max-restarts", "2", "--checkpoint-every", "5", "--quiet")
    status, _, err = finished(command(train(tmp_path / "undisturbed", few_digits, steps, *more)))
    assert status == 0, err
    expected = weights(tmp_path / "undisturbed")
    for i in range(10):
        run = tmp_path / f"run-{i}"
        running = command(train(run, few_digits, steps, *more))
        wait_for_step(run, chance.randrange(0, steps - 5), running)
        time.sleep(chance.uniform(0, 0.2))
        os.kill(workers(running.pid)[chance.randrange(3)], signal.SIGKILL)
        _, err = running.communicate(timeout=WHILE)
        assert running.returncode == 0, err
        found = weights(run)
        assert all(torch.equal(found[name], expected[name]) for name in expected), f"run {i}"
    print("FAULTS kills of one of three processes: 10 kills, 10 equal results, 0 failed")


@pytest.mark.slow
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two processes need two cores")
def test_two_processes_of_one_thread_are_as_fast_as_one_of_two_threads() -> None:
    one, two = processes.measure(filters=32, batch=1024)
    ratio = min(two) / min(one)  # the best of three each: the machine may be busy with other things
    print(f"two processes of one thread against one of two threads: {ratio:.2f} times the time per step ({one}, {two})")
    assert ratio <= 1.15


def test_a_restart_does_not_read_what_the_attempt_before_has_written(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = dist.HashStore()
    monkeypatch.setenv("GROUP_WORLD_SIZE", "1")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    launch._of_this_attempt(kept).set("address", "of a process that is gone")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert not launch._of_this_attempt(kept).check(["address"])
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")  # machines that count restarts differently must meet
    assert launch._of_this_attempt(kept) is kept
