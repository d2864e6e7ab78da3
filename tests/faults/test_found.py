"""What faults on purpose have found, one by one, with the message that each has led to since."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from torchckn import ConfigError, DataError, TrainConfig, kernels, nn, runs, settings
from torchckn.cli.run_settings import resolved
from torchckn.errors import is_out_of_memory
from torchckn.graph import Conv, DirectSum, Flatten, GaussianPool, Graph, Pad, Standardize

from ..training import StopAfter, StopHereError, trained


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: kernels.RBFSphere(1e200), "RBFSphere expected sigma from 1e-12 to 1e\\+12, got 1e\\+200"),
        (lambda: kernels.Matern(0.5, 1e-200), "Matern expected sigma from 1e-12 to 1e\\+12, got 1e-200"),
        (lambda: kernels.RBFSphere(10**400), "RBFSphere expected a positive, finite sigma, got an integer of 1329 bits"),
        (lambda: kernels.Polynomial(10**400), "Polynomial expected a degree of at most 1000, got an integer of 1329 bits"),
        (lambda: nn.GaussianPool2d(2, 1e200), "GaussianPool2d expected a sigma from 1e-12 to 1e12, got 1e\\+200"),
        (lambda: Pad("p", padding=3), "node 'p' expected four integers as padding, got 3"),
        (lambda: Flatten("f", inputs=(3,)), "node 'f' expected the names of nodes as inputs, got \\(3,\\)"),
        (
            lambda: Graph((1, 8, 8), [Pad("p", padding=(10**6,) * 4)]),
            "node 'p' gives .* numbers per image, expected at most",
        ),
        (
            lambda: Graph((1, 8, 8), [GaussianPool("g", padding=2**24, kernel_size=2**24)]),
            "node 'g' .*windows of at most 16384",
        ),
        (lambda: Graph((1, 8, 8), [Conv("c", filters=1, groups=1.0)]), "node 'c' expected a number of groups .* got 1.0"),
        (lambda: Graph((1, 8, 8), [DirectSum("s", weights=("a",))]), "node 's' expected one weight per input"),
        (lambda: Graph((1, 8, 8), [Standardize("s", mean=("a",), std=(1,))]), "node 's' expected a mean and a positive std"),
        (lambda: TrainConfig(steps=2**64), "steps: expected a number less than or equal to 1000000000"),
        (lambda: TrainConfig(chunk=2**64), "chunk: expected at least one image and at most 1000000000, 'auto' or 'all'"),
        (lambda: resolved("\x00.py:Net"), "cannot be the path of a file: .*; expected file.py:ClassName"),
    ],
)
def test_what_would_overflow_or_fill_the_memory_is_refused_by_name(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build()


def test_a_number_of_very_many_digits_in_a_file_of_settings_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("seed = " + "9" * 5000)
    with pytest.raises(ConfigError, match="a.toml is not valid TOML: Exceeds the limit"):
        settings.read_settings(tmp_path / "a.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = " + "[" * 5000, "config.toml cannot be read: maximum recursion depth"),
        ("settings = 3", "config.toml is not a run's configuration: it does not have training"),
        ("training = 3", "config.toml has an invalid training for a run, got '3'"),
        ("[training]\nsteps = 'many'", "config.toml has an invalid steps for a run, got 'many'"),
        ("day = 1979-05-27", "config.toml expected numbers, texts and lists of them, got the date 1979-05-27"),
    ],
)
def test_an_odd_configuration_of_a_run_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(DataError, match=message):
        runs.read_config(tmp_path)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"seconds": "long"}, "has an invalid seconds for a run, got 'long'"),
        ({"head": 3}, "has an invalid head for a run, got '3'"),
        ({"head": {"accuracy": "good"}}, "has an invalid accuracy for a run, got 'good'"),
        ({}, "result.json is not the result of a training .KeyError..lam...; delete it, and resume the run"),
    ],
)
def test_an_odd_result_of_a_run_is_refused(tmp_path: Path, result: dict[str, Any], message: str) -> None:
    trained(run_dir=tmp_path / "run", steps=1)
    (tmp_path / "run" / "result.json").write_text(json.dumps(result))
    with pytest.raises(DataError, match=message):
        trained(run_dir=tmp_path / "run", steps=1, resume=True)


def interrupted(run: Path, **options: Any) -> None:
    with pytest.raises(StopHereError):
        trained(run_dir=run, callbacks=[StopAfter(5)], checkpoint_every=2, **options)


def test_a_damaged_file_of_metrics_changes_no_result_and_is_written_again(tmp_path: Path) -> None:
    expected, result = trained(keep_best=True)
    interrupted(tmp_path / "run", keep_best=True)
    (tmp_path / "run" / "metrics.jsonl").write_bytes(b"\xff" * 100)
    resumed, _ = trained(run_dir=tmp_path / "run", resume=True, keep_best=True)
    assert all(torch.equal(value, resumed.state_dict()[name]) for name, value in expected.state_dict().items())
    assert [record["step"] for record in runs.read_metrics(tmp_path / "run")] == [r["step"] for r in result.history]


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    interrupted(tmp_path / "run", keep_best=True)
    checkpoint = runs.read_checkpoint(tmp_path / "run")
    assert checkpoint is not None
    tensors, facts = checkpoint

    def resume_from(tensors: dict[str, torch.Tensor], facts: dict[str, Any]) -> None:
        runs.write_checkpoint(tmp_path / "run", tensors, facts)
        trained(run_dir=tmp_path / "run", resume=True, keep_best=True)

    for wrong in ({"scale": "x"}, {"step": 10**6}, {"start": 3}, {"lr": [1]}):
        with pytest.raises(DataError, match="checkpoint is not one of this run .*; delete .*checkpoint to start again"):
            resume_from(tensors, facts | wrong)
    best = "callback.KeepBest.0.head.weight"
    with pytest.raises(DataError, match="the checkpoint has the best weights of another network; delete it"):
        resume_from(tensors | {best: torch.ones(2)}, facts)


def test_the_checkpoint_before_a_damaged_one_survives_a_kill_at_the_next_save(tmp_path: Path) -> None:
    interrupted(tmp_path / "run")
    folder = tmp_path / "run" / "checkpoint"
    (folder / "last.safetensors").write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="continues from the checkpoint before it"):
        assert runs.read_checkpoint(tmp_path / "run") is not None
    assert (folder / "damaged.safetensors").read_bytes() == b"damaged"
    assert not (folder / "last.safetensors").exists()
    assert runs.read_checkpoint(tmp_path / "run") is not None


def test_a_folder_of_a_process_that_was_killed_before_its_first_file_can_be_used_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / ".config.toml.abcdefgh.torchckn-partial").write_text("half")
    (run / ".lock").touch()
    trained(run_dir=run, steps=1)
    assert not list(run.glob(".config*"))
    shutil.rmtree(run)
    run.mkdir()
    (run / ".other.abc.torchckn-partial").write_text("somebody's")
    with pytest.raises(ConfigError, match="is not empty and not a run"):
        trained(run_dir=run, steps=1)


def test_git_is_not_asked_about_another_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = runs.environment()
    for command in (["init", "-q"], ["config", "core.fsmonitor", f"touch {tmp_path / 'executed'};"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / ".git"))  # as in a hook of git
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path))
    assert runs.environment()["git"] == expected["git"]
    assert not (tmp_path / "executed").exists()


def test_what_torch_says_about_memory_is_understood() -> None:
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"))
    assert not is_out_of_memory(RuntimeError("shapes do not match"))
