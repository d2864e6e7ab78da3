"""Run folders: exact resume after interruptions and kills, and what is refused."""

from __future__ import annotations

import json
import math
import random
import shutil
import signal
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

import torchckn
from torchckn import ConfigError, DataError, NotFittedError, NumericalError, runs
from torchckn.fit import loop, methods
from torchckn.fit.callbacks import Callback, Record, Training
from torchckn.fit.schedules import Search, Search2019
from torchckn.graph import Dense, Graph
from torchckn.runs import data_digest
from torchckn.trained import load_trained

from . import forks
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


def test_other_images_are_another_configuration(tmp_path: Path) -> None:
    (images, labels), valid_data = digits()
    arguments: dict[str, Any] = {"steps": 2, "lr": 2**-5, **OPTIONS}
    for name, first, second in (
        ("pair", (images, labels), (images.clone().index_fill_(0, torch.tensor([7]), 0.0), labels)),
        ("dataset", TensorDataset(images, labels), TensorDataset(images[:200], labels[:200])),
    ):
        generator = torch.Generator().manual_seed(0)
        torchckn.train(network(), first, valid_data, run_dir=tmp_path / name, generator=generator, **arguments)
        generator = torch.Generator().manual_seed(0)
        with pytest.raises(ConfigError, match="another configuration: data .expected data ="):
            torchckn.train(
                network(), second, valid_data, run_dir=tmp_path / name, resume=True, generator=generator, **arguments
            )


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


def test_a_run_folder_has_all_that_there_is_to_know(tmp_path: Path) -> None:
    ckn, result = trained(run_dir=tmp_path / "run")
    config = runs.read_config(tmp_path / "run")
    assert config["training"]["method"] == "ulr"
    assert config["training"]["steps"] == 12
    assert torchckn.TrainConfig(**config["training"]).lr == 2**-4
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["versions"]["torch"] == torch.__version__
    assert [r["step"] for r in runs.read_metrics(tmp_path / "run")] == list(range(13))
    found = runs.read_result(tmp_path / "run")
    assert found is not None
    assert found["lam"] == result.lam
    filters = runs.read_filters(tmp_path / "run")
    assert min(filters) == 0
    assert max(filters) == 12
    assert torch.equal(filters[12], ckn.layers["conv"].weight)
    loaded = torchckn.load(tmp_path / "run" / "model" / "model.safetensors")
    assert torch.equal(loaded.head.weight, ckn.head.weight)


@pytest.mark.parametrize("build", [network, convnet])
def test_resuming_a_finished_run_gives_what_it_gave(tmp_path: Path, build: Any) -> None:
    method = "ulr" if build is network else "sgd"
    first, before = trained(build(), run_dir=tmp_path / "run", method=method)
    runs.add_to_result(tmp_path / "run", {"test_accuracy": 0.5})
    again, after = trained(build(), run_dir=tmp_path / "run", method=method, resume=True)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in first.state_dict().items())
    assert (after.head, after.lam, after.history) == (before.head, before.lam, before.history)
    assert (runs.read_result(tmp_path / "run") or {})["test_accuracy"] == 0.5


def test_a_folder_of_another_run_is_refused_and_untouched(tmp_path: Path) -> None:
    trained(run_dir=tmp_path / "run")

    def content() -> dict[str, bytes]:
        files = (path for path in (tmp_path / "run").rglob("*") if path.is_file() and path.name != ".lock")
        return {str(path): path.read_bytes() for path in files}

    before = content()
    with pytest.raises(ConfigError, match="has a run already; resume it .resume=True"):
        trained(run_dir=tmp_path / "run")
    with pytest.raises(ConfigError, match="another configuration: batch_size .expected batch_size = 64, got 32"):
        trained(run_dir=tmp_path / "run", resume=True, batch_size=32)
    other = torchckn.CKN(Graph((1, 14, 14), [Dense("dense", filters=9)]))
    with pytest.raises(ConfigError, match="another configuration: network"):
        trained(other, run_dir=tmp_path / "run", resume=True)
    assert content() == before
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="not empty and not a run"):
        trained(run_dir=tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").iterdir() if path.name != ".lock"] == ["thesis.tex"]


def test_two_processes_do_not_train_in_one_folder(tmp_path: Path) -> None:
    other = runs.Run(tmp_path / "run", {"training": {}})
    with pytest.raises(ConfigError, match="another process is training"):
        trained(run_dir=tmp_path / "run", resume=True)
    other.close()


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


def test_a_folder_that_is_removed_under_way_is_an_error(tmp_path: Path) -> None:
    class Remove(torchckn.Callback):
        def on_step_end(self, training: Any, record: dict[str, Any]) -> None:
            if record["step"] == 3:
                shutil.rmtree(tmp_path / "run")

    with pytest.raises(DataError, match="was removed or emptied while a run was writing to it"):
        trained(run_dir=tmp_path / "run", callbacks=[Remove()])
    assert not (tmp_path / "run").exists()


def test_a_damaged_line_of_metrics_costs_that_line_only(tmp_path: Path) -> None:
    trained(run_dir=tmp_path / "run")
    file = tmp_path / "run" / "metrics.jsonl"
    lines = file.read_bytes().split(b"\n")
    lines[4] = b"\xff\xfe{" + lines[4]
    lines[6] = b'{"step": "seven"}'
    file.write_bytes(b"\n".join(lines))
    assert [record["step"] for record in runs.read_metrics(tmp_path / "run")] == [0, 1, 2, 3, 5, 7, 8, 9, 10, 11, 12]


def test_a_missing_environment_is_written_when_a_run_is_resumed(tmp_path: Path) -> None:
    with pytest.raises(StopHereError):
        trained(run_dir=tmp_path / "run", callbacks=[StopAfter(2)])
    (tmp_path / "run" / "environment.json").unlink()
    trained(run_dir=tmp_path / "run", resume=True)
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["versions"]


def test_other_files_of_a_folder_are_never_touched(tmp_path: Path) -> None:
    files = ["h/.config.toml.swp", "h/p/.config.toml.swp", "h/p/.last.safetensors.x1.torchckn-partial", "h/notes"]
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match="not empty and not a run"):
        trained(run_dir=tmp_path / "h")
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()) == sorted(files)
    trained(run_dir=tmp_path / "run", steps=2)
    for name in ("run/.config.toml.swp", "run/other/.x.torchckn-partial", "run/.config.toml.abcdefgh.torchckn-partial"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    trained(run_dir=tmp_path / "run", steps=2, resume=True)
    assert (tmp_path / "run" / ".config.toml.swp").exists()
    assert (tmp_path / "run" / "other" / ".x.torchckn-partial").exists()
    assert not (tmp_path / "run" / ".config.toml.abcdefgh.torchckn-partial").exists()


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
    expected, _ = trained(steps=steps, momentum=0.9)
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
    for name, value in expected.state_dict().items():
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


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_with_a_configuration_of_something_else_is_left_as_it_is(tmp_path: Path, resume: bool) -> None:
    (tmp_path / "config.toml").write_text("[server]\nport = 80\n")
    (tmp_path / ".config.toml.abcdefgh.torchckn-partial").write_text("mine")
    before = sorted(path.name for path in tmp_path.iterdir())
    message = "is not a run folder: its config.toml has no training" if resume else "has a run already"
    with pytest.raises(DataError if resume else ConfigError, match=message):
        trained(run_dir=tmp_path, steps=1, resume=resume)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_resumed_run_removes_temporaries_of_its_own_files_only(tmp_path: Path) -> None:
    trained(run_dir=tmp_path / "run", steps=1)
    ours = [".result.json.a1b2c3d4.torchckn-partial", "checkpoint/.last.safetensors.a1b2c3d4.torchckn-partial"]
    mine = [
        ".notes.md.a1b2c3d4.torchckn-partial",
        ".result.json.old.torchckn-partial",
        "model/.result.json.a1b2c3d4.torchckn-partial",
    ]
    for name in (*ours, *mine):
        (tmp_path / "run" / name).write_text("half")
    trained(run_dir=tmp_path / "run", steps=2, resume=True)
    assert [name for name in (*ours, *mine) if (tmp_path / "run" / name).exists()] == mine


def test_a_refused_training_leaves_nothing_behind(tmp_path: Path) -> None:
    for wrong in ({"class_weights": (1, 5)}, {"folds": 10**6}):
        with pytest.raises(ConfigError):
            trained(run_dir=tmp_path / "run", steps=1, **wrong)
        assert not (tmp_path / "run").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError):
        trained(run_dir=tmp_path / "empty", steps=1, folds=10**6)
    assert list((tmp_path / "empty").iterdir()) == []


def test_a_finished_run_without_validation_is_opened_again(tmp_path: Path) -> None:
    train_data, _ = digits(100)
    options = {"lam": 2.0**-10, "steps": 1, "batch_size": 32, "patches": 100, "run_dir": tmp_path / "run"}
    first = torchckn.train(network(), train_data, **options)
    again = torchckn.train(network(), train_data, resume=True, **options)
    assert first.head is not None
    assert first.head.accuracy is None
    assert again.head == first.head


def test_an_interrupted_training_further_is_not_a_finished_run(tmp_path: Path) -> None:
    trained(run_dir=tmp_path / "run", steps=1)
    (tmp_path / "run" / "result.json").unlink()  # as training further does
    with pytest.raises(NotFittedError, match="is not finished; resume it"):
        load_trained(tmp_path / "run")
    with pytest.raises(DataError, match="is not finished, so it has no result"):
        runs.add_to_result(tmp_path / "run", {"test_accuracy": 1.0})
    assert not (tmp_path / "run" / "result.json").exists()


class _Noisy(Dataset[Any]):
    """Images changed at random when they are read, with labels as Python numbers."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels.tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        noise = torch.rand(()) + np.random.rand() + random.random()
        return self.images[i] + 0.01 * float(noise), self.labels[i]


def test_the_digest_of_a_dataset_has_its_labels_but_no_random_numbers() -> None:
    (images, labels), _ = digits()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = data_digest(_Noisy(images, labels))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert data_digest(_Noisy(images, labels)) == first
    assert data_digest(_Noisy(images, 9 - labels)) != first


class _OfArrays(TensorDataset):
    def __getitem__(self, i: int) -> Any:
        image, label = super().__getitem__(i)
        return image.numpy(), label


def test_the_digest_of_a_dataset_of_arrays_has_their_pixels() -> None:
    (images, labels), _ = digits()
    assert data_digest(_OfArrays(images, labels)) == data_digest(_OfArrays(images.clone(), labels))
    assert data_digest(_OfArrays(images, labels)) != data_digest(_OfArrays(1 - images, labels))
