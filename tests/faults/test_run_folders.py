"""Run folders from elsewhere: links that lead out of them, pipes, files without an end, names that are no names."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from torchckn import ConfigError, DataError, cli, runs
from torchckn.report.folder import read_runs
from torchckn.settings import read_settings
from torchckn.trained import load_trained

from ..training import trained
from .test_kills import finished, start

FILES = ["environment.json", "metrics.jsonl", "result.json", "model/model.safetensors"]
FILES += [f"checkpoint/{name}.safetensors" for name in ("last", "previous", "filters-000001")]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("kept") / "run"
    trained(run_dir=run, steps=2, checkpoint_every=1)
    return run


@pytest.fixture
def run(kept: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(kept, tmp_path / "run"))


def resume(run: Path) -> None:
    trained(run_dir=run, steps=3, checkpoint_every=1, resume=True)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("there", [True, False])
def test_what_a_link_in_a_run_folder_leads_to_is_not_written(run: Path, tmp_path: Path, name: str, there: bool) -> None:
    precious = tmp_path / "precious"
    if there:
        precious.write_text("{}")
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(precious)
    with pytest.raises(DataError, match="is a link that leads out of the run folder"):
        resume(run)
    with pytest.raises(DataError, match="is a link that leads out of the run folder"):
        runs.add_to_result(run, {"test_accuracy": 1.0})
    assert (precious.read_text() == "{}") if there else not precious.exists()


@pytest.mark.parametrize("name", ["checkpoint", "model"])
def test_a_folder_of_a_run_that_is_a_link_is_not_written_to(run: Path, tmp_path: Path, name: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    (run / name).rename(elsewhere)
    before = {file.name: file.read_bytes() for file in elsewhere.iterdir()}
    (run / name).symlink_to(elsewhere)
    with pytest.raises(DataError, match=f"{name} is a link that leads out of the run folder"):
        resume(run)
    assert {file.name: file.read_bytes() for file in elsewhere.iterdir()} == before


def test_a_link_to_a_run_and_links_within_it_are_followed(run: Path, tmp_path: Path) -> None:
    (run / "checkpoint").rename(run / "place")
    (run / "checkpoint").symlink_to("place")
    (tmp_path / "link").symlink_to(run)
    resume(tmp_path / "link")
    assert runs.read_metrics(run)[-1]["step"] == 3


READING: list[Callable[[Path], object]] = [runs.read_config, runs.summary, load_trained, read_runs, resume]


@pytest.mark.parametrize("name", ["config.toml", *FILES])
def test_a_pipe_in_a_run_folder_is_not_waited_for(run: Path, name: str) -> None:
    (run / name).unlink()
    os.mkfifo(run / name)
    outcomes = []
    for read in READING:
        try:
            read(run)
        except DataError as error:
            outcomes.append(str(error))
    assert any("not a regular file" in text for text in outcomes)


@pytest.mark.parametrize("name", ["config.toml", "result.json", "metrics.jsonl", "checkpoint/last.safetensors"])
def test_a_file_that_is_larger_than_the_memory_is_refused_without_being_read(run: Path, name: str) -> None:
    os.truncate(run / name, 2**42)
    with pytest.raises(DataError, match="it has 4398046511104 bytes, more than"):
        {"config.toml": runs.read_config, "result.json": runs.read_result, "metrics.jsonl": runs.read_metrics}.get(
            name, lambda run: runs.checkpoints.read_tensors(run / name, "checkpoint")
        )(run)


def test_a_checkpoint_that_is_larger_than_the_memory_falls_back_to_the_one_before(run: Path) -> None:
    os.truncate(run / "checkpoint" / "last.safetensors", 2**42)
    with pytest.warns(UserWarning, match="more than .* The run continues from the checkpoint before it"):
        checkpoint = runs.read_checkpoint(run)
    assert checkpoint is not None
    assert checkpoint[1]["step"] == 1


def test_a_file_of_settings_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="it is not a regular file"):
        read_settings(tmp_path / "pipe")


def test_a_result_is_not_added_to_while_another_process_trains_the_run(kept: Path, run: Path) -> None:
    before = (run / "result.json").read_bytes()
    config = runs.read_config(run)
    writing = runs.Run(run, config, resume=True)
    with pytest.raises(ConfigError, match="another process is training"):
        runs.add_to_result(run, {"test_accuracy": 1.0})
    writing.close()
    assert (run / "result.json").read_bytes() == before
    runs.add_to_result(run, {"test_accuracy": 1.0})
    assert (runs.read_result(run) or {})["test_accuracy"] == 1.0


ESCAPE = "\x1b]0;owned\x07\x1b[2J"


@pytest.fixture(scope="module")
def command_run(tmp_path_factory: pytest.TempPathFactory, few_digits: Path) -> Path:
    run = tmp_path_factory.mktemp("command") / f"run{ESCAPE}"
    assert finished(start(run, few_digits, steps=1))[0] == 0
    return run


def said(arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "argv", ["torchckn", *arguments])
    monkeypatch.setenv("COLUMNS", "300")
    with contextlib.suppress(SystemExit):
        cli.main()
    return "".join(capsys.readouterr())


def changed(run: Path, folder: Path, old: str, new: str) -> Path:
    copy = Path(shutil.copytree(run, folder / "copy"))
    text = (copy / "config.toml").read_text()
    assert old in text
    (copy / "config.toml").write_text(text.replace(old, new, 1))
    return copy


def test_names_do_not_control_the_terminal(
    command_run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    picture = tmp_path / f"[bold]{ESCAPE}.png"
    Image.new("L", (28, 28)).save(picture)
    code = changed(command_run, tmp_path, 'network = "lenet1"', 'network = "\\u001b[2J.py:Net"')
    for arguments in (
        *(["evaluate", str(command_run)], ["predict", str(command_run), str(picture)], ["runs", "show", str(command_run)]),
        *(["runs", "list", str(command_run.parent)], ["train", "--resume", str(command_run)]),
        *(["train", "--resume", str(code)], ["evaluate", ESCAPE], ["runs", "list", ESCAPE], ["report", ESCAPE]),
        ["train", "lenet1", "--config", ESCAPE],
    ):
        text = said(arguments, capsys, monkeypatch)
        assert text, arguments
        assert "\x1b" not in text, arguments
        assert "This is a bug" not in text, arguments
        assert ("[bold]" in text) == (arguments[0] == "predict"), arguments


def test_names_of_classes_are_as_many_as_the_model_has(
    command_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = changed(command_run, tmp_path, 'classes = [\n    "0",', "classes = [")
    text = said(["evaluate", str(run)], capsys, monkeypatch)
    assert "config.toml expected the names of 10 classes, as many as its model has, got 9" in text
