"""A run that is resumed gives exactly what an uninterrupted one gives, from a damaged folder too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import torchckn
from torchckn import DataError, runs
from torchckn.fit.schedules import Search, Search2019

from .training import OPTIONS, StopAfter, StopHereError, convnet, digits, dropping, network, trained


def test_dropout_is_part_of_what_a_seed_decides_and_of_what_is_resumed(tmp_path: Path) -> None:
    options = {"method": "sgd", "lr": 2**-4, "lam": 2**-8, "final_head": False}
    torch.manual_seed(5)
    expected = trained(dropping(), **options)[0].state_dict()
    torch.manual_seed(6)
    with pytest.raises(StopHereError):
        trained(dropping(), run_dir=tmp_path / "run", checkpoint_every=2, callbacks=[StopAfter(5)], **options)
    net = dropping()
    outside = torch.get_rng_state()
    found = trained(net, run_dir=tmp_path / "run", resume=True, **options)[0].state_dict()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert torch.equal(torch.get_rng_state(), outside)


def test_a_run_without_a_generator_is_resumed_with_its_own_seed(tmp_path: Path) -> None:
    train_data, valid_data = digits()
    arguments = {"steps": 6, "lr": 2**-5, "run_dir": tmp_path / "run", **OPTIONS}
    with pytest.raises(StopHereError):
        torchckn.train(network(), train_data, valid_data, checkpoint_every=2, callbacks=[StopAfter(4)], **arguments)
    result = torchckn.train(network(), train_data, valid_data, resume=True, **arguments)
    assert len(result.history) == 7


@pytest.mark.parametrize(
    "options",
    [
        {"method": "ulr", "momentum": 0.9},
        {"method": "ulr", "lr": Search(first=(2**-6, 2**-4), every=4, tries=2)},
        {"method": "ulr", "lr": Search2019(first=(2**-6, 2**-4), every=4, tries=2)},
        {"method": "sgo", "rollback": True, "steps": 16, "bandwidths": True},
        {"method": "sgo-ball"},
    ],
    ids=["ulr with momentum", "ulr with search", "ulr with a search that keeps steps", "sgo with roll-back", "sgo-ball"],
)
def test_a_resumed_run_gives_exactly_what_the_uninterrupted_one_gives(tmp_path: Path, options: dict[str, Any]) -> None:
    expected, whole = trained(**options)
    folder = {"run_dir": tmp_path / "run", "checkpoint_every": 3}
    for step in (0, 4, 7, 11):
        with pytest.raises(StopHereError):
            trained(callbacks=[StopAfter(step)], resume=True, **folder, **options)
    resumed, result = trained(resume=True, **folder, **options)
    for name, value in expected.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name
    timeless = [[{k: v for k, v in r.items() if k != "seconds"} for r in part] for part in (whole.history, result.history)]
    assert timeless[0] == timeless[1]
    assert timeless[0] == [{k: v for k, v in r.items() if k != "seconds"} for r in runs.read_metrics(tmp_path / "run")]


@pytest.mark.parametrize("build", [network, convnet])
def test_resuming_a_finished_run_gives_what_it_gave(tmp_path: Path, build: Any) -> None:
    method = "ulr" if build is network else "sgd"
    first, before = trained(build(), run_dir=tmp_path / "run", method=method)
    runs.add_to_result(tmp_path / "run", {"test_accuracy": 0.5})
    again, after = trained(build(), run_dir=tmp_path / "run", method=method, resume=True)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in first.state_dict().items())
    assert (after.head, after.lam, after.history) == (before.head, before.lam, before.history)
    assert (runs.read_result(tmp_path / "run") or {})["test_accuracy"] == 0.5


def test_a_damaged_checkpoint_falls_back_to_the_one_before_it(tmp_path: Path) -> None:
    expected, _ = trained()
    with pytest.raises(StopHereError):
        trained(run_dir=tmp_path / "run", callbacks=[StopAfter(5)], checkpoint_every=2)
    last = tmp_path / "run" / "checkpoint" / "last.safetensors"
    content = bytearray(last.read_bytes())
    content[-100] ^= 1
    last.write_bytes(content)
    with pytest.warns(UserWarning, match="was changed after it was written.*continues from the checkpoint before"):
        resumed, _ = trained(run_dir=tmp_path / "run", resume=True)
    assert torch.equal(resumed.head.weight, expected.head.weight)


def test_two_damaged_checkpoints_say_so(tmp_path: Path) -> None:
    with pytest.raises(StopHereError):
        trained(run_dir=tmp_path / "run", callbacks=[StopAfter(5)], checkpoint_every=2)
    for name in runs.CHECKPOINTS:
        (tmp_path / "run" / "checkpoint" / f"{name}.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00{}      ")
    with pytest.raises(DataError, match="truncated or corrupt.*no checkpoint before it; delete .*checkpoint to start"):
        trained(run_dir=tmp_path / "run", resume=True)


def test_a_kill_between_two_checkpoints_leaves_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = trained()
    with pytest.raises(StopHereError):
        trained(run_dir=tmp_path / "run", callbacks=[StopAfter(5)], checkpoint_every=2)
    (tmp_path / "run" / "checkpoint" / "last.safetensors").unlink()
    resumed, _ = trained(run_dir=tmp_path / "run", resume=True)
    assert torch.equal(resumed.head.weight, expected.head.weight)


def test_a_finished_run_without_validation_is_opened_again(tmp_path: Path) -> None:
    train_data, _ = digits(100)
    options = {"lam": 2.0**-10, "steps": 1, "batch_size": 32, "patches": 100, "run_dir": tmp_path / "run"}
    first = torchckn.train(network(), train_data, **options)
    again = torchckn.train(network(), train_data, resume=True, **options)
    assert first.head is not None
    assert first.head.accuracy is None
    assert again.head == first.head
