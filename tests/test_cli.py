"""The command: networks are trained, resumed, evaluated and used, and code of others is not executed."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import torchckn
from torchckn import data, runs
from torchckn.settings import Settings
from torchckn.trained import load_trained

from . import forks
from .command_line import NETWORK, Result

pytestmark = pytest.mark.usefixtures("_few_penalties")


def test_a_run_is_trained_evaluated_and_listed(command: Callable[..., Result], place: Path) -> None:
    status, out, _ = command("evaluate", place / "ckn", "--json")
    found = json.loads(out)
    assert status == 0
    assert found["images"] == 40
    assert 0.2 < found["accuracy"] <= 1
    assert (runs.read_result(place / "ckn") or {})["test_accuracy"] == found["accuracy"]
    _, out, _ = command("runs", "compare", place / "ckn", place / "conv", place / "unfinished", "--json")
    rows = json.loads(out)
    assert [row["network"] for row in rows[:2]] == ["lenet5 (ckn)", "lenet5 (convnet)"]
    assert [row["state"] for row in rows] == ["finished", "finished", "4 of 4 steps"]
    assert rows[0]["test"] == found["accuracy"]
    _, out, _ = command("runs", "list", place)
    assert "lenet5 (ckn)" in out
    _, out, _ = command("runs", "show", place / "ckn", "--json")
    assert json.loads(out)["config"]["settings"]["filters"] == 4


def test_the_resolved_settings_are_in_the_run_and_it_is_resumed_from_them(
    command: Callable[..., Result], place: Path, tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        f'network = "lenet5"\nfilters = 4\ndata = "{place}/digits.npz"\nsteps = 9\nbatch_size = 64\npatches = 300\n'
    )
    status, _, err = command(
        "train", "--config", config, "--steps", 3, "--lr", "cosine:0.01", "--run", tmp_path / "run", "-q"
    )
    assert (status, err) == (0, "")
    config = runs.read_config(tmp_path / "run")
    training = config["training"]
    assert (training["steps"], training["lr"], config["settings"]["filters"]) == (3, "cosine:0.01", 4)
    for part in ("model", "checkpoint"):
        shutil.rmtree(tmp_path / "run" / part)
    (tmp_path / "run" / "result.json").unlink()
    status, out, _ = command("train", "--resume", tmp_path / "run", "--json")
    assert status == 0
    assert json.loads(out)["steps"] == 3


def test_a_network_may_be_a_class_or_built_already(command: Callable[..., Result], place: Path) -> None:
    shown = [command("translate", f"{place}/net.py:{name}", "--input-shape", "1,28,28") for name in ("Small", "built")]
    assert [status for status, _, _ in shown] == [0, 0]
    assert shown[0][1].replace("Small", "built") == shown[1][1].replace("Small", "built")


@pytest.mark.parametrize("kind", ["ckn --patches 300", "convnet"])
def test_the_mean_taken_off_features_can_be_chosen_and_is_in_the_trained_network(
    kind: str, command: Callable[..., Result], place: Path, tmp_path: Path
) -> None:
    choice = f"--filters 4 --kind {kind} --centering feature --steps 1 --lr 0.01"
    status, _, err = command(
        "train", "lenet1", *choice.split(), "--data", place / "digits.npz", "--run", tmp_path / "run", "-q"
    )
    assert (status, err) == (0, "")
    scaling = load_trained(tmp_path / "run").net.scaling
    assert scaling.centering == "feature"
    assert scaling.mean.shape == (4 * 4 * 4,)
    assert scaling.mean.abs().sum() > 0


def test_a_network_of_ones_own_is_trained_on_a_folder_of_ones_own(
    command: Callable[..., Result], place: Path, tmp_path: Path, digits: data.DataSet
) -> None:
    images, labels = digits.train
    for digit, name in ((0, "zero"), (1, "one")):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for i, image in enumerate(images[labels == digit][:30]):
            Image.fromarray(image[0].numpy()).save(tmp_path / "pictures" / name / f"{i}.png")
    network = f"{place}/net.py:Small"
    status, _, err = command(
        "train",
        network,
        "--data",
        tmp_path / "pictures",
        "--patches",
        300,
        "--steps",
        3,
        "--batch-size",
        20,
        "--run",
        tmp_path / "run",
        "-q",
    )
    assert (status, err) == (0, "")
    status, out, _ = command("predict", tmp_path / "run", tmp_path / "pictures" / "one" / "1.png", "--json")
    assert status == 0
    (row,) = json.loads(out)
    assert row["label"] == "one"
    assert sum(row["probabilities"].values()) == pytest.approx(1)


@pytest.mark.parametrize("run", ["ckn", "conv"])
def test_predict_says_what_it_sees(command: Callable[..., Result], place: Path, run: str) -> None:
    status, out, _ = command(
        "predict", place / run, place / "five.png", place / "large.png", "--resize", "--top", 2, "--json"
    )
    assert status == 0
    first, second = json.loads(out)
    assert len(first["probabilities"]) == 2
    assert first["label"] == max(first["probabilities"], key=first["probabilities"].get)
    assert second["file"].endswith("large.png")


def test_predict_takes_all_images_of_a_folder(
    command: Callable[..., Result], place: Path, tmp_path: Path, digits: data.DataSet
) -> None:
    part = digits.train
    names = ["a.png", "b.bmp", "deep/c.webp", "deep/er/d.tif"]
    for name, image in zip(names, part[:4].images, strict=True):
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0].numpy()).save(tmp_path / "images" / name)
    status, out, _ = command("predict", place / "ckn", tmp_path / "images", place / "five.png", "--json")
    assert status == 0
    rows = json.loads(out)
    assert [row["file"] for row in rows] == [str(tmp_path / "images" / name) for name in names] + [str(place / "five.png")]
    (alone,) = json.loads(command("predict", place / "ckn", tmp_path / "images" / "b.bmp", "--json")[1])
    assert rows[1]["label"] == alone["label"]
    assert rows[1]["probabilities"] == pytest.approx(alone["probabilities"], abs=1e-4)
    (tmp_path / "images" / "labels.csv").write_text("a,5")
    with pytest.warns(UserWarning, match="1 file was not read: labels.csv"):
        again = json.loads(command("predict", place / "ckn", tmp_path / "images", "--json")[1])
    assert [row["file"] for row in again] == [row["file"] for row in rows[:4]]
    for row, expected in zip(again, rows[:4], strict=True):  # four images at once round differently than five
        assert row["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-4)


def test_data_sets_are_listed_fetched_and_verified(command: Callable[..., Result], tmp_path: Path) -> None:
    _, out, _ = command("data", "list", "--json", "--data-dir", tmp_path)
    assert {"name": "mnist-mini", "downloaded": True} in json.loads(out)
    assert {"name": "mnist", "downloaded": False} in json.loads(out)
    status, out, _ = command("data", "fetch", "mnist-mini")
    assert (status, "6000 training and 1500 test images" in out) == (0, True)
    assert command("data", "verify", "mnist-mini")[0] == 0
    assert command("data", "where", "--data-dir", tmp_path)[1].strip() == str(tmp_path)


def test_bench_measures_both_sides(command: Callable[..., Result]) -> None:
    status, out, _ = command("bench", "lenet1", "--filters", 4, "--batch-size", 16, "--json")
    assert status == 0
    assert all(ours > 0 and theirs > 0 for ours, theirs in json.loads(out).values())


def test_settings_and_training_have_the_same_names_and_defaults() -> None:
    import inspect

    parameters: Any = inspect.signature(torchckn.train).parameters
    for name, field in Settings.model_fields.items():
        if name in parameters and name != "method":
            assert field.default == parameters[name].default, name


def test_code_of_a_run_folder_is_executed_only_if_it_is_trusted(
    command: Callable[..., Result], place: Path, tmp_path: Path
) -> None:
    source, canary = tmp_path / "net.py", tmp_path / "executed"
    source.write_text(f"import pathlib\npathlib.Path({str(canary)!r}).touch()\n" + NETWORK)
    own = ["--kind", "convnet", "--data", place / "digits.npz", "--steps", 1, "--lr", 0.01, "--batch-size", 32]
    assert command("train", f"{source}:Small", *own, "--run", tmp_path / "run", "-q")[0] == 0
    source.unlink()  # the run has a copy of its own
    for arguments in (["evaluate", tmp_path / "run"], ["train", "--resume", tmp_path / "run", "--steps", 2]):
        canary.unlink(missing_ok=True)
        status, _, err = command(*arguments)
        assert (status, "pass --trust if you trust it" in " ".join(err.split())) == (2, True)
        assert not canary.exists()
        assert command(*arguments, "--trust")[0] == 0
        assert canary.exists()


def test_a_network_that_is_named_again_is_trusted_if_it_is_the_same(
    command: Callable[..., Result], place: Path, tmp_path: Path
) -> None:
    source = tmp_path / "net.py"
    source.write_text(NETWORK)
    own = ["--data", place / "digits.npz", "--steps", 1, "--lr", 0.01, "--batch-size", 32, "--patches", 200, "--lam", 0.01]
    assert command("train", f"{source}:Small", *own, "--run", tmp_path / "run", "-q")[0] == 0
    again = ["train", f"{source}:Small", "--resume", tmp_path / "run", "--steps", 2, "-q"]
    assert command(*again)[0] == 0
    source.write_text(NETWORK + "\n# changed\n")
    status, _, err = command(*again[:-2], 3)
    assert status == 2
    assert "another configuration: network_sha256, network_source, steps (expected network_sha256 = " in " ".join(
        err.split()
    )
    assert "# changed" not in err


def test_code_of_a_run_folder_that_was_changed_is_not_executed(
    command: Callable[..., Result], place: Path, tmp_path: Path
) -> None:
    source, run = tmp_path / "net.py", tmp_path / "run"
    source.write_text(NETWORK)
    own = ["--kind", "convnet", "--data", place / "digits.npz", "--steps", 0, "--lr", 0.01, "--batch-size", 32]
    assert command("train", f"{source}:Small", *own, "--run", run, "-q")[0] == 0
    config = (run / "config.toml").read_text()
    assert f'network_sha256 = "{hashlib.sha256(NETWORK.encode()).hexdigest()}"' in config
    (run / "config.toml").write_text(config.replace("class Small", "class  Small"))
    status, out, err = command("evaluate", run, "--trust")
    assert (status, out) == (1, "")
    assert "(network_source) was changed after the run was made: its digest is not network_sha256" in " ".join(err.split())


def test_a_finished_run_is_trained_further(command: Callable[..., Result], place: Path, tmp_path: Path) -> None:
    small = [
        "--filters",
        4,
        "--data",
        place / "digits.npz",
        "--batch-size",
        64,
        "--patches",
        200,
        "--lr",
        0.01,
        "--lam",
        0.01,
    ]
    assert command("train", "lenet1", *small, "--steps", 0, "--run", tmp_path / "run", "-q")[0] == 0
    status, out, _ = command("train", "--resume", tmp_path / "run", "--steps", 3, "--json")
    assert (status, json.loads(out)["steps"]) == (0, 3)
    status, out, _ = command("train", "--resume", tmp_path / "run", "--json")
    assert (status, json.loads(out)["steps"]) == (0, 3)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_asked_to_stop_saves_and_says_how_to_resume(place: Path, tmp_path: Path, number: int) -> None:
    small = f"train lenet1 --filters 4 --data {place}/digits.npz --batch-size 64 --patches 200 --lam 0.01 --steps 100000"
    process = forks.Popen(["-m", "torchckn", *small.split(), "--run", tmp_path / "run"])
    metrics = tmp_path / "run" / "metrics.jsonl"
    while not metrics.exists() or len(metrics.read_text().splitlines()) < 3:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert re.search(r"interrupted after step \d+ of 100000; resume it with: torchckn train --resume", " ".join(err.split()))
    checkpoint = runs.read_checkpoint(tmp_path / "run")
    assert checkpoint is not None
    assert checkpoint[1]["step"] == runs.read_metrics(tmp_path / "run")[-1]["step"]


def test_a_network_may_import_a_file_next_to_it(command: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "widths_of_mine.py").write_text("WIDTH = 3\n")
    code = "from torch import nn\nimport widths_of_mine\n\n\ndef Net():\n    layer = nn.Conv2d(1, widths_of_mine.WIDTH, 5)\n"
    (tmp_path / "net.py").write_text(code + "    return nn.Sequential(layer, nn.ReLU(), nn.Flatten(), nn.Linear(300, 2))\n")
    before = [*sys.path]
    status, out, err = command("translate", tmp_path / "net.py:Net", "--input-shape", "1,14,14")
    assert status == 0, err
    assert "(3, 10, 10)" in out or "3x10x10" in out
    assert sys.path == before
    assert "widths_of_mine" not in sys.modules, "another folder may have another one"
