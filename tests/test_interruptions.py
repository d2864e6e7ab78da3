"""Trainings that are killed, interrupted, or fail: what they say and what they leave to go on from."""

from __future__ import annotations

import math
import random
import signal
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from torchckn import NumericalError, runs
from torchckn.fit import loop, methods
from torchckn.fit.callbacks import Callback, Record, Training

from . import forks
from .training import network, trained


@pytest.fixture(autouse=True)
def _without_nohup() -> Iterator[None]:
    """Training ignores a SIGHUP that was ignored before, as by nohup: these tests may be started so, too."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_memory_that_runs_out_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, _ = trained(steps=3, final_head=False)
    original, calls = methods.ULR._descend, []

    def hungry(self: Any, images: Tensor, labels: Tensor) -> tuple[float, float]:
        calls.append(1)
        if len(calls) == 4:
            raise RuntimeError(
                "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to ..."
            )
        return original(self, images, labels)

    monkeypatch.setattr(methods.ULR, "_descend", hungry)
    ckn = network()
    with pytest.raises(
        NumericalError, match="step 4 failed: there is not enough memory. Try graph_memory=0 or a smaller chunk"
    ):
        trained(ckn, run_dir=tmp_path / "run", final_head=False)
    assert torch.equal(ckn.layers["conv"].weight, good.layers["conv"].weight)
    _, result = trained(run_dir=tmp_path / "run", final_head=False, resume=True, chunk=16)
    assert result.steps == 12
    assert runs.read_config(tmp_path / "run")["training"]["chunk"] == 16


def test_a_step_that_is_not_finite_stops_and_keeps_the_last_good_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, _ = trained(steps=5, final_head=False)
    original, calls = methods.ULR._descend, []

    def poisoned(self: Any, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(1)
        value, accuracy = original(self, images, labels)
        return value * (math.nan if len(calls) == 6 else 1), accuracy

    monkeypatch.setattr(methods.ULR, "_descend", poisoned)
    ckn = network()
    with pytest.raises(NumericalError, match="step 6 failed.*nan.*smaller learning rate"):
        trained(ckn, run_dir=tmp_path / "run", final_head=False)
    for name, value in good.state_dict().items():
        assert torch.equal(ckn.state_dict()[name], value), name
    checkpoint = runs.read_checkpoint(tmp_path / "run")
    assert checkpoint is not None
    assert checkpoint[1]["step"] == 5
    assert torch.equal(checkpoint[0]["net.layers.conv.weight"], good.layers["conv"].weight)


SCRIPT = textwrap.dedent(
    """
    import sys, torch
    sys.path.insert(0, {root!r})
    from tests.training import trained
    ckn, _ = trained(steps={steps}, run_dir=sys.argv[1], resume=True, checkpoint_every=2, momentum=0.9)
    torch.save(ckn.state_dict(), sys.argv[2])
    """
)


def script(tmp_path: Path, steps: int) -> list[str]:
    file = tmp_path / "script.py"
    file.write_text(SCRIPT.format(root=str(Path(__file__).parent.parent), steps=steps))
    return [str(file)]


def killed_at_random_moments(tmp_path: Path, times: int, steps: int) -> None:
    # Never interrupted, but with as many threads: some libraries' products differ in their last bits, which many steps amplify.
    forks.run([*script(tmp_path, steps), str(tmp_path / "whole"), str(tmp_path / "expected")], check=True)
    expected = torch.load(tmp_path / "expected")
    command = [*script(tmp_path, steps), str(tmp_path / "run"), str(tmp_path / "weights")]
    metrics, chance = tmp_path / "run" / "metrics.jsonl", random.Random(0)
    for _ in range(times):
        process = forks.Popen(command)
        before = metrics.stat().st_size if metrics.exists() else 0
        enough = before + 100 * chance.randrange(steps // (times + 1))  # a step writes more than 100 bytes
        while not metrics.exists() or not before < metrics.stat().st_size > enough:
            assert process.poll() is None, "it was done before it was killed"
            time.sleep(0.003)
        process.kill()
        process.communicate()
    forks.run(command, check=True)
    found = torch.load(tmp_path / "weights")
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
    assert not list((tmp_path / "run").rglob(".last*")), "temporary files were left behind"


def test_a_killed_run_is_resumed_to_the_same_weights(tmp_path: Path) -> None:
    killed_at_random_moments(tmp_path, times=2, steps=60)


@pytest.mark.slow
def test_a_run_killed_twenty_times_is_resumed_to_the_same_weights(tmp_path: Path) -> None:
    killed_at_random_moments(tmp_path, times=20, steps=2000)


def test_ctrl_c_finishes_the_step_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    command = [*script(tmp_path, 5000), str(tmp_path / "run"), str(tmp_path / "weights")]
    process = forks.Popen(command)
    metrics = tmp_path / "run" / "metrics.jsonl"
    while not metrics.exists() or len(metrics.read_text().splitlines()) < 4:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, message = process.communicate(timeout=60)
    assert "training was interrupted after step" in message
    assert "resume=True" in message
    steps = [record["step"] for record in runs.read_metrics(tmp_path / "run")]
    checkpoint = runs.read_checkpoint(tmp_path / "run")
    assert checkpoint is not None
    assert checkpoint[1]["step"] == steps[-1] >= 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("when", ["before the first step, while fitting filters and classifier", "after step 12 of 12"])
def test_a_signal_before_the_first_step_or_in_the_last_one_says_where_training_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, when: str
) -> None:
    class Sends(Callback):
        def on_step_end(self, training: Training, record: Record) -> None:
            if training.step == 12 and when.startswith("after"):
                signal.raise_signal(number)

    expected, _ = trained()
    with monkeypatch.context() as patch:
        if when.startswith("before"):
            patch.setattr(loop, "fit_filters", lambda *_, **__: signal.raise_signal(number))
        with pytest.raises(
            KeyboardInterrupt, match=f"training was interrupted {when}.*; resume it with resume=True, run_dir="
        ):
            trained(run_dir=tmp_path / "run", callbacks=[Sends()])
    assert signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler)
    resumed, _ = trained(run_dir=tmp_path / "run", resume=True)
    assert all(torch.equal(value, resumed.state_dict()[name]) for name, value in expected.state_dict().items())
