"""The folder of a run: what it has, what is refused, and whose files are left alone."""

from __future__ import annotations

import json
import platform
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import torchckn
from torchckn import ConfigError, DataError, NotFittedError, runs
from torchckn.graph import Dense, Graph
from torchckn.runs.environment import _processor
from torchckn.trained import load_trained

from .training import StopAfter, StopHereError, trained


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


def test_an_interrupted_training_further_is_not_a_finished_run(tmp_path: Path) -> None:
    trained(run_dir=tmp_path / "run", steps=1)
    (tmp_path / "run" / "result.json").unlink()  # as training further does
    with pytest.raises(NotFittedError, match="is not finished; resume it"):
        load_trained(tmp_path / "run")
    with pytest.raises(DataError, match="is not finished, so it has no result"):
        runs.add_to_result(tmp_path / "run", {"test_accuracy": 1.0})
    assert not (tmp_path / "run" / "result.json").exists()


def test_processors_of_one_name_are_distinguished_by_their_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / "cpuinfo"
    one = "processor\t: {}\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n\n"
    about.write_text(one.format(0) + one.format(1))
    assert _processor(about) == {"processor": "AMD EPYC", "processor_model": "family 26, model 2"}
    about.write_text("processor\t: 0\nmodel name\t: Some ARM\n")
    assert _processor(about) == {"processor": "Some ARM", "processor_model": None}
    monkeypatch.setattr(platform, "processor", lambda: "unknown")
    about.write_text("processor\t: 0\n")
    unknown = {"processor": "unknown", "processor_model": None}
    assert _processor(about) == _processor(tmp_path / "missing") == unknown
