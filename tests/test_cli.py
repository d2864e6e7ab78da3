"""The command: what it prints, the status it ends with, and what it says when it is asked for something wrong."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import torchckn
from torchckn import building, cli, data, runs
from torchckn.settings import Settings, settings_from

from . import forks

Result = tuple[int, str, str]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run the command in this process: its status, what it printed, what it complained about."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["torchckn", *map(str, arguments)])
        code: Any = 0
        try:
            cli.main()
        except SystemExit as ended:
            code = ended.code or 0
        out, err = capsys.readouterr()
        return code, out, err

    return run


NETWORK = """
from torch import nn

class Small(nn.Sequential):
    def __init__(self, width=6, classes=10):
        super().__init__(
            nn.Conv2d(1, width, 5), nn.ReLU(), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(width * 36, classes)
        )

class Color(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 4, 5), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))

not_a_network = 3
"""


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory, digits: data.DataSet) -> Path:
    """A folder with small data, a network of one's own, a finished run, an unfinished one, and broken things."""
    folder = tmp_path_factory.mktemp("cli")
    images, labels = digits.train
    index = torch.cat([torch.nonzero(labels == digit).flatten()[:30] for digit in range(10)])
    test = torch.cat([torch.nonzero(labels == digit).flatten()[30:34] for digit in range(10)])
    np.savez(folder / "digits.npz", x=images[index], y=labels[index], x_test=images[test], y_test=labels[test])
    np.savez(folder / "untested.npz", x=images[index], y=labels[index])
    np.savez(folder / "nothing.npz", a=np.zeros(3))
    (folder / "corrupt.npz").write_bytes(b"PK\x03\x04 and no more")
    (folder / "net.py").write_text(NETWORK)
    (folder / "broken.py").write_text("class Broken(\n")
    (folder / "latin.toml").write_bytes('network = "r\xe9seau"'.encode("latin-1"))
    (folder / "broken.toml").write_text("steps = [")
    (folder / "unknown.toml").write_text("batch_sice = 3")
    (folder / "wrong.toml").write_text('steps = "many"')
    (folder / "negative.toml").write_text("seed = -1")
    (folder / "empty").mkdir()
    for name, size in (("a", (28, 28)), ("b", (20, 20))):
        (folder / "mixed" / name).mkdir(parents=True)
        Image.new("L", size).save(folder / "mixed" / name / "1.png")
        (folder / "bad" / name).mkdir(parents=True)
        Image.new("L", (28, 28)).save(folder / "bad" / name / "1.png")
    (folder / "bad" / "b" / "2.png").write_bytes(b"\x89PNG and no more")
    Image.fromarray(images[0, 0].numpy()).save(folder / "five.png")
    Image.new("L", (40, 30)).save(folder / "large.png")
    (folder / "not.png").write_text("hello")
    (folder / "not.ckn").write_bytes(b"hello")
    (folder / "thesis").mkdir()
    (folder / "thesis" / "chapter.tex").write_text("...")
    torchckn.save(torchckn.translate(torchckn.zoo.build("lenet1", filters=4)), folder / "model.ckn")
    base = ["train", "lenet5", "--filters", "4", "--data", str(folder / "digits.npz"), "--batch-size", "64"]
    for name, kind in (("ckn", "ckn"), ("conv", "convnet")):
        arguments = [*base, "--kind", kind, "--steps", "4", "--lr", "0.01", "--run", str(folder / name), "--quiet"]
        cli.app(arguments, standalone_mode=False)
    shutil.copytree(folder / "ckn", folder / "unfinished")
    shutil.rmtree(folder / "unfinished" / "model")
    (folder / "unfinished" / "result.json").unlink()
    runs.Run(folder / "other", {"method": "ulr"}).close()
    return folder


QUICK = (["--help"], ["zoo"], ["train", "--help"], ["translate", "--help"], ["runs", "list", "--help"], ["data", "--help"])


@pytest.mark.parametrize("arguments", QUICK, ids=" ".join)
def test_help_and_the_zoo_need_no_torch(arguments: list[str]) -> None:
    script = (
        "import sys, torchckn.cli; torchckn.cli.app(sys.argv[1:], standalone_mode=False);"
        "assert not {'torch', 'numpy', 'scipy', 'matplotlib'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "lenet5" in done.stdout or "Usage" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("arguments", QUICK, ids=" ".join)
def test_help_and_the_zoo_take_half_a_second(arguments: list[str]) -> None:
    times = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "torchckn", *arguments], capture_output=True, check=True)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.5


def test_every_command_has_an_example_in_its_help(command: Callable[..., Result]) -> None:
    names = [c.name or c.callback.__name__ for c in cli.app.registered_commands if c.callback]
    for group, app in (("data", cli.data_app), ("runs", cli.runs_app)):
        names += [f"{group} {c.name}" for c in app.registered_commands]
    assert len(names) == 18
    for name in names:
        status, out, _ = command(*name.split(), "--help")
        assert status == 0
        assert f"Example: torchckn {name}" in " ".join(out.split()), name


def test_the_options_of_training_are_the_settings(command: Callable[..., Result]) -> None:
    _, out, _ = command("train", "--help")
    for name in Settings.all_options():
        flag = {"network": "network", "options": "--option"}.get(name, "--" + name.replace("_", "-"))
        assert flag in out, name


def test_translate_prints_the_table_and_writes_the_drawing(command: Callable[..., Result], tmp_path: Path) -> None:
    status, out, _ = command(
        "translate", "lenet5", "--filters", 8, "--svg", tmp_path / "a.svg", "--html", tmp_path / "a.html"
    )
    assert status == 0
    assert "conv 5x5, 8 filters, RBFSphere(0.6)" in out
    assert "1x28x28 images, 8 features per image, 10 classes" in out
    assert (tmp_path / "a.svg").read_text().startswith("<svg")
    assert "<table" in (tmp_path / "a.html").read_text()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, "") for name in torchckn.zoo.names()),
        *((name, options) for name in ("lenet5", "resnet20", "mobilenetv2") for options in ("--why", "--kernel match")),
    ],
)
def test_what_translate_prints_fits_80_columns(
    command: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, name: str, options: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = command("translate", name, "--filters", 8, *options.split())
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out


def test_translate_of_lenet5_takes_30_lines(command: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = command("translate", "lenet5")
    assert len(out.splitlines()) <= 30


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lenet1", {}),
        ("lenet5", {"filters": 4}),
        ("lenet5", {"kernel": "match", "linear_kernel": "linear", "options": {"bias": False}}),
        ("allcnn", {"filters": 4}),
        ("allcnn", {"filters": 4, "whiten": True}),
    ],
)
def test_translate_shows_the_network_that_train_builds(
    command: Callable[..., Result], name: str, options: dict[str, Any]
) -> None:
    settings = settings_from({"network": name} | options, "test")
    net = building.build_network(settings, building.load_images(settings), torch.Generator())
    assert isinstance(net, torchckn.CKN)
    arguments: list[object] = []
    for option, value in options.items():
        flag = "--" + option.replace("_", "-")
        arguments += ["--option", "bias=false"] if option == "options" else [flag] if value is True else [flag, value]
    _, out, _ = command("translate", name, *arguments, "--json")
    assert json.loads(out)["graph"] == json.loads(json.dumps(net.graph.to_json()))


def test_translate_shows_the_network_that_was_trained(command: Callable[..., Result], place: Path) -> None:
    trained = building.load_trained(place / "ckn").net
    assert isinstance(trained, torchckn.CKN)
    assert trained.report is not None
    _, out, _ = command("translate", "lenet5", "--filters", 4, "--data", place / "digits.npz", "--json")
    assert json.loads(out)["graph"] == json.loads(json.dumps(trained.graph.to_json()))
    assert json.loads(out)["report"] == json.loads(json.dumps(trained.report.to_json()))


def test_a_network_that_does_not_take_the_default_images_is_translated_for_its_own(command: Callable[..., Result]) -> None:
    _, out, _ = command("translate", "alexnet", "--filters", 4, "--json")
    assert json.loads(out)["graph"]["input_shape"] == [3, 227, 227]
    assert command("translate", "alexnet", "--filters", 4, "--data", "mnist-mini")[0] == 1
    _, out, _ = command("translate", "resnet20", "--filters", 4, "--json")  # any number of channels and image size will do
    assert json.loads(out)["graph"]["input_shape"] == [1, 28, 28]


def test_match_shows_each_activation_s_own_kernel(command: Callable[..., Result]) -> None:
    _, out, _ = command("translate", "lenet5", "--filters", 4, "--kernel", "match", "--linear-kernel", "linear", "--json")
    kernels = {row["operation"]: row["kernel"] for row in json.loads(out)["report"]["rows"]}
    assert (kernels["Conv2d"], kernels["ScaledTanh"]) == ("Linear()", "ArcCosine(0)")


def test_an_ascii_console_gets_the_tables_in_ascii(place: Path) -> None:
    script = textwrap.dedent(
        """
        import sys
        from torchckn.cli import app
        for line in ("translate lenet5 --filters 4", f"runs list {sys.argv[1]}", "zoo"):
            app(line.split(), standalone_mode=False)
        """
    )
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "COLUMNS": "80"}
    done = subprocess.run([sys.executable, "-c", script, str(place)], capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr.decode()
    shown = done.stdout.decode("ascii")
    assert all(word in shown for word in ("conv1", "finished", "lenet5"))


def test_runs_are_listed_and_shown_in_lines_that_fit_80_columns(
    command: Callable[..., Result], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = command("runs", "list", place)
    rows = [line.split() for line in out.splitlines()]
    assert rows[0] == ["run", "network", "method", "steps", "valid", "test", "seconds"]
    assert [row[:4] for row in rows if row[0] == "ckn"] == [["ckn", "lenet5", "(ckn)", "ulr"]]
    assert any(row[0] == "unfinished" and row[4:7] == ["4", "of", "4"] for row in rows)
    _, shown, _ = command("runs", "show", place / "ckn")
    _, compared, _ = command("runs", "compare", place / "ckn", place / "conv")
    for text in (out, shown, compared):
        assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"^validation +\d+\.\d\d %$", shown, re.MULTILINE)
    assert re.search(r"^    filters +4$|^  filters +4$", shown, re.MULTILINE)


def test_names_of_runs_and_networks_are_not_read_as_markup(command: Callable[..., Result], tmp_path: Path) -> None:
    folder = tmp_path / "[bold]run"
    network = {"settings": {"network": "[red]net", "kind": "ckn"}, "classes": [], "image_shape": [], "preprocessing": {}}
    runs.Run(folder, {"training": {"method": "ulr", "steps": 5}, **network}).close()
    for arguments in (("list", tmp_path), ("show", folder), ("compare", folder)):
        status, out, _ = command("runs", *arguments)
        assert status == 0
        assert "[bold]run" in out
        assert "[red]net (ckn)" in out


def test_the_zoo_is_a_table_that_fits_80_columns(command: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = command("zoo")
    assert max(map(len, out.splitlines())) <= 80
    for name, architecture in torchckn.zoo.ARCHITECTURES.items():
        shape = "x".join(map(str, architecture.input_shape))
        assert re.search(rf"^{name} +{shape} +\S", out, re.MULTILINE)


def test_translate_takes_a_network_of_ones_own(command: Callable[..., Result], place: Path) -> None:
    status, out, _ = command(
        "translate", f"{place}/net.py:Small", "--input-shape", "1,28,28", "--option", "width=5", "--json"
    )
    assert status == 0
    assert json.loads(out)["features"] == 5 * 36


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
    config.write_text(f'network = "lenet5"\nfilters = 4\ndata = "{place}/digits.npz"\nsteps = 9\nbatch_size = 64\n')
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


@pytest.mark.parametrize("kind", ["ckn", "convnet"])
def test_the_mean_taken_off_features_can_be_chosen_and_is_in_the_trained_network(
    kind: str, command: Callable[..., Result], place: Path, tmp_path: Path
) -> None:
    choice = f"--filters 4 --kind {kind} --centering feature --steps 1 --lr 0.01"
    status, _, err = command(
        "train", "lenet1", *choice.split(), "--data", place / "digits.npz", "--run", tmp_path / "run", "-q"
    )
    assert (status, err) == (0, "")
    scaling = building.load_trained(tmp_path / "run").net.scaling
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
        "train", network, "--data", tmp_path / "pictures", "--steps", 3, "--batch-size", 20, "--run", tmp_path / "run", "-q"
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
        assert command("predict", place / "ckn", tmp_path / "images", "--json")[1] == json.dumps(rows[:4], indent=2) + "\n"


def test_a_run_on_images_with_a_validation_part_is_evaluated_on_it(
    command: Callable[..., Result], place: Path, tmp_path: Path, digits: data.DataSet
) -> None:
    part = digits.train
    parts = {"": part[:200], "_valid": part[200:240], "_test": part[240:260]}
    arrays = {f"{name}{end}": values for end, some in parts.items() for name, values in zip("xy", some, strict=True)}
    np.savez(tmp_path / "own.npz", **arrays)
    _, out, _ = command("data", "fetch", tmp_path / "own.npz")
    assert "own: 200 training and 40 validation and 20 test images, 10 classes" in out
    status, out, _ = command("evaluate", place / "ckn", "--data", tmp_path / "own.npz", "--part", "valid", "--json")
    assert (status, json.loads(out)["images"]) == (0, 40)


def test_data_sets_are_listed_fetched_and_verified(command: Callable[..., Result], tmp_path: Path) -> None:
    _, out, _ = command("data", "list", "--json", "--data-dir", tmp_path)
    assert {"name": "mnist-mini", "here": True} in json.loads(out)
    assert {"name": "mnist", "here": False} in json.loads(out)
    status, out, _ = command("data", "fetch", "mnist-mini")
    assert (status, "6000 training and 1500 test images" in out) == (0, True)
    assert command("data", "verify", "mnist-mini")[0] == 0
    assert command("data", "where", "--data-dir", tmp_path)[1].strip() == str(tmp_path)


def test_the_version_and_the_zoo_are_told(command: Callable[..., Result]) -> None:
    assert command("--version")[1].strip() == torchckn.__version__
    assert {row["name"] for row in json.loads(command("zoo", "--json")[1])} == set(torchckn.zoo.names())


def test_bench_measures_both_sides(command: Callable[..., Result]) -> None:
    status, out, _ = command("bench", "lenet1", "--filters", 4, "--batch-size", 16, "--json")
    assert status == 0
    assert all(ours > 0 and theirs > 0 for ours, theirs in json.loads(out).values())


#: what is asked for, the status it ends with, and words of the message; {p} is the folder of the fixture
BAD: list[tuple[str, int, str]] = [
    ("nonsense", 2, "No such command"),
    ("translate lenet6", 2, "unknown network 'lenet6': expected one of .*lenet5"),
    ("translate {p}/none.py:Net --input-shape 1,28,28", 2, "none.py does not exist"),
    ("translate {p}/net.py:Smal --input-shape 1,28,28", 2, "has no 'Smal'; it has Small"),
    ("translate {p}/net.py:not_a_network --input-shape 1,28,28", 2, "gives a int, expected a torch.nn.Module"),
    ("translate {p}/broken.py:Broken --input-shape 1,28,28", 2, "cannot be imported: SyntaxError"),
    ("translate {p}/net.py:Color", 2, "does not run on the images of mnist-mini, 1x28x28; name others with --data, or"),
    ("translate {p}/net.py:Small --input-shape 1,28,28 --data mnist", 2, "give either --input-shape, or --data"),
    ("translate {p}/net.py:Small --input-shape 28", 2, "channels,height,width, such as 1,28,28, got '28'"),
    ("translate {p}/net.py:Small --input-shape 1,28,28 --option depth=3", 2, "cannot be built with .*TypeError"),
    ("translate {p}/net.py:Small --input-shape 1,28,28 --filters 3", 2, "filters is for networks of the zoo"),
    ("translate lenet5 --kernel rbg:0.6", 2, "unknown kernel 'rbg'.*'rbf'"),
    ("translate lenet5 --kernel rbf", 2, "expected rbf:NUMBER"),
    ("translate lenet5 --kernel rbf:-1", 2, "sigma"),
    ("translate lenet5 --linear-kernel match", 2, "linear_kernel expected a kernel"),
    ("translate lenet5 --linear-kernel match --input-shape 1,32,32", 2, "linear_kernel expected a kernel"),
    ("translate lenet5 --option bias", 2, "--option: expected name=value, got 'bias'"),
    ("translate lenet5 --option biass=false", 2, "unknown option of lenet5 'biass'.*'bias'"),
    ("translate lenet5 --filters 0", 2, "filters: expected a number greater than or equal to 1, got 0"),
    ("translate lenet5 --option bias=false --strict", 1, "no exact counterpart"),
    ("translate lenet5 --svg {p}/five.png/a.svg", 1, "cannot write"),
    ("train lenet6 --data {p}/digits.npz", 2, "unknown network 'lenet6'"),
    ("train --config {p}/none.toml", 2, "none.toml does not exist"),
    ("train --config {p}/latin.toml", 2, "is not UTF-8 text"),
    ("train --config {p}/broken.toml", 2, "is not valid TOML"),
    ("train --config {p}/unknown.toml", 2, "unknown option 'batch_sice'.*Did you mean 'batch_size'"),
    ("train --config {p}/wrong.toml", 2, "steps: expected an integer, got 'many'"),
    ("train --config {p}/negative.toml", 2, "seed: expected a number greater than or equal to 0, got -1"),
    ("train --steps -1", 2, "steps: expected a number greater than or equal to 0, got -1"),
    ("train --steps many", 2, "integer|valid int"),
    ("train --stepz 3", 2, "No such option"),
    ("train --momentum 2", 2, "momentum: expected a number less than 1, got 2.0"),
    ("train --method newton", 2, "method: expected 'ulr', 'sgo', 'sgo-ball' or 'sgd', got 'newton'"),
    ("train --data nist", 2, "unknown data set 'nist'.*'mnist'"),
    ("train --data {p}/empty", 1, "expected a sub-folder of images for each class, at least two, got 0"),
    ("train --data {p}/mixed", 1, "images must have one size"),
    ("train --data {p}/bad", 1, "2.png cannot be read as an image"),
    ("train --data {p}/nothing.npz", 1, "expected arrays x and y, got a"),
    ("train --data {p}/corrupt.npz", 1, "cannot be read as an .npz file"),
    ("train --data {p}/digits.npz --validation 5000", 2, "hold out between 1 and 299 images"),
    ("train --data {p}/digits.npz --batch-size 5000 --run {p}/new1", 1, "batch_size is 5000, but there are 250"),
    ("train --data {p}/digits.npz --lr fast --run {p}/new2", 2, "unknown learning rate 'fast'"),
    ("train --data {p}/digits.npz --lr true --run {p}/new5", 2, "unknown learning rate 'true'"),
    ("train --data {p}/digits.npz --kind convnet --kernel match", 2, "kernel is for ckn only"),
    ("train --data {p}/digits.npz --kind convnet --preset fast", 2, "--preset is for kernel networks by ulr"),
    ("train --data {p}/digits.npz --preset fats", 2, "unknown preset 'fats'.*Did you mean 'fast'"),
    ("train --data {p}/digits.npz --device gpu", 2, "device = 'gpu' cannot be used here"),
    ("train --data {p}/digits.npz --init-std 3", 2, "init_std is for convnet only"),
    ("train --data {p}/digits.npz --method sgo --tau 1", 2, "tau is for ulr only"),
    ("train --data {p}/digits.npz --lr -1 --run {p}/new3", 2, "positive number"),
    ("train --data {p}/digits.npz --method sgd --run {p}/new4", 2, "'sgd' is for ConvNets"),
    ("train --data {p}/digits.npz --linear-kernel match", 2, "linear_kernel expected a kernel"),
    ("train alexnet --data {p}/digits.npz", 1, "AlexNet does not run on images of shape"),
    ("train --data {p}/digits.npz --run {p}/ckn", 2, "has a run already"),
    ("train --data {p}/digits.npz --run {p}/thesis", 2, "not empty and not a run"),
    ("train --data {p}/digits.npz --run {p}/five.png/run", 2, "cannot use .* for a run"),
    ("train --data {p}/digits.npz --run /proc/run", 2, "cannot use /proc/run for a run"),
    ("train --resume {p}/none", 1, "is not a run folder"),
    ("train --resume {p}/ckn --tau 7", 2, "expected none but .*chunk.*steps.*, got tau"),
    ("train lenet1 --resume {p}/ckn", 2, "is of lenet5, got lenet1; name the same network, or none"),
    ("train --resume {p}/ckn --run {p}/new", 2, "--resume takes a run with the options it has"),
    ("train --resume {p}/other", 2, "was not made by torchckn train"),
    ("evaluate {p}/none", 1, "does not exist"),
    ("evaluate {p}/not.ckn", 1, "is not a file that torchckn wrote, or is truncated or corrupt"),
    ("evaluate {p}/thesis", 1, "is not a run folder"),
    ("evaluate {p}/unfinished", 1, "is not finished.*--resume"),
    ("evaluate {p}/ckn --part dev", 2, "--part expected test, train or valid, got 'dev'"),
    ("evaluate {p}/model.ckn", 2, "name the images with --data"),
    ("evaluate {p}/ckn --data {p}/untested.npz", 2, "has no test part"),
    ("evaluate {p}/ckn --data {p}/digits.npz --part valid", 2, "has no valid part"),
    ("predict {p}/ckn", 2, "Missing argument"),
    ("predict {p}/ckn {p}/none.png", 1, "none.png does not exist"),
    ("predict {p}/ckn {p}/none", 1, "none does not exist; expected an image file or a folder of images"),
    ("predict {p}/ckn {p}/empty", 1, "empty expected image files .*, got none; add images"),
    ("predict {p}/ckn {p}/not.png", 1, "cannot be read as an image"),
    ("predict {p}/ckn {p}/large.png", 1, "30x40 pixels, the network expects 28x28; .*--resize"),
    ("export {p}/ckn -o {p}/a.pb", 2, "ending in .onnx or .pt2"),
    ("draw {p}/thesis", 1, "is not a run folder"),
    ("draw {p}/ckn --port 70000", 2, "65535"),
    ("report {p}/thesis -o {p}/report.html", 1, "not a run"),
    ("data fetch nist", 2, "unknown data set 'nist'"),
    ("data verify mnist --data-dir {p}/empty", 1, "has not been fetched"),
    ("runs list {p}/none", 2, "is not a folder"),
    ("runs show {p}/thesis", 1, "is not a run folder"),
]


@pytest.mark.parametrize(("arguments", "expected", "message"), BAD, ids=[bad[0] for bad in BAD])
def test_bad_input_gets_a_designed_message_and_the_right_status(
    command: Callable[..., Result], place: Path, arguments: str, expected: int, message: str
) -> None:
    status, _, err = command(*arguments.format(p=place).split())
    said = " ".join(err.replace("│", " ").split())
    assert status == expected, said
    assert re.search(message, said), said
    assert "Traceback" not in said
    assert len(err.strip().splitlines()) <= 8, err


def test_a_mistake_in_the_settings_leaves_no_folder_behind(
    command: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for mistake in (["--device", "gpu"], ["--data", "no-such.npz"], ["--option", "bais=false"]):
        assert command("train", "lenet1", *mistake)[0] == 2
    assert list(tmp_path.iterdir()) == []


def test_a_port_in_use_says_so(command: Callable[..., Result], place: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        status, _, err = command("draw", place / "ckn", "--port", taken.getsockname()[1], "--no-open")
    assert status == 2
    assert "cannot be used: Address already in use" in err


def test_a_full_disk_says_so_and_leaves_nothing_half_written(
    command: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    status, _, err = command("translate", "lenet5", "--filters", 4, "--svg", tmp_path / "a.svg")
    assert status == 1
    assert "is the disk full?" in err
    assert list(tmp_path.iterdir()) == []


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


def test_folders_are_made_below_the_working_folder_only(
    command: Callable[..., Result], place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    (work / "link").symlink_to(tmp_path / "slip" / "target")
    for line in (
        ["train", "lenet1", "--data", place / "digits.npz", "--run", tmp_path / "slip" / "run"],
        ["demo", "--output", tmp_path / "slip" / "demo"],
        ["translate", "lenet1", "--input-shape", "1,28,28", "--svg", tmp_path / "slip" / "a.svg"],
        ["translate", "lenet1", "--input-shape", "1,28,28", "--svg", "link"],
    ):
        status, _, err = command(*line)
        assert status == 2
        assert f"the folder {tmp_path / 'slip'} does not exist; create it first" in " ".join(err.split())
    assert not (tmp_path / "slip").exists()
    assert command("translate", "lenet1", "--input-shape", "1,28,28", "--svg", "new/a.svg")[0] == 0


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


def test_an_error_nobody_thought_of_has_a_message_and_a_switch_for_its_traceback(
    command: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("nobody thought of this")

    monkeypatch.setattr(runs, "summary", broken)
    monkeypatch.setattr(runs, "read_config", broken)
    status, _, err = command("runs", "show", "anything")
    assert status == 1
    assert "unexpected ZeroDivisionError: nobody thought of this. This is a bug: please report it" in " ".join(err.split())
    monkeypatch.setenv("TORCHCKN_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        command("runs", "show", "anything")


@pytest.mark.parametrize("folder", [".", ".."])
def test_a_folder_without_a_name_of_its_own_is_refused_like_any_other(
    command: Callable[..., Result], few_digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "mine.txt").touch()
    monkeypatch.chdir(tmp_path / "inside")
    status, _, err = command("train", "lenet1", "--data", str(few_digits), "--steps", "0", "--run", folder)
    assert status == 2
    assert f"error: {folder} is not empty and not a run" in " ".join(err.split())
    assert [path.name for path in tmp_path.rglob("*")] == ["inside", "mine.txt"]


def test_a_message_is_of_a_length_that_can_be_read(command: Callable[..., Result]) -> None:
    status, _, err = command("runs", "show", "9" * 5000)
    assert status == 1
    assert err.startswith("error: 999")
    assert "999 ... " in err
    assert len(err) < 2100
