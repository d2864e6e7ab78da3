"""What the command prints: help, networks and runs as tables that fit a terminal."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import torchckn
from torchckn import building, cli, runs
from torchckn.settings import Settings, settings_from
from torchckn.trained import load_trained

from . import forks
from .command_line import Result

pytestmark = pytest.mark.usefixtures("_few_penalties")


QUICK = (["--help"], ["zoo"], ["train", "--help"], ["translate", "--help"], ["runs", "list", "--help"], ["data", "--help"])


def test_help_and_the_zoo_need_no_torch() -> None:
    script = textwrap.dedent(
        """
        import sys, torchckn.cli
        for line in sys.argv[1:]:
            torchckn.cli.app(line.split(), standalone_mode=False)
            imported = {"torch", "numpy", "scipy", "matplotlib"} & sys.modules.keys()
            assert not imported, f"{line} imports {imported}"
        """
    )
    done = subprocess.run([sys.executable, "-c", script, *map(" ".join, QUICK)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "lenet5" in done.stdout
    assert done.stdout.count("Usage") == len(QUICK) - 1


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
        # The report itself is tested with all networks (test_translation_report.py).
        pytest.param(name, options, marks=() if name in ("lenet5", "resnet20") else pytest.mark.slow)
        for name in torchckn.zoo.names()
        for options in ("", "--why", "--kernel match")
    ],
)
def test_what_translate_prints_fits_80_columns(
    command: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, name: str, options: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = command("translate", name, "--filters", 8, *options.split())
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out


def test_the_terminal_in_the_docs_shows_what_translate_prints(
    command: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "88")
    _, out, _ = command("translate", "lenet5", "--filters", 8)
    picture = (Path(__file__).parent.parent / "docs" / "images" / "terminal.svg").read_text()
    texts = html.unescape(re.sub(r"<[^>]*>", "", picture)).replace("\N{NO-BREAK SPACE}", " ")
    assert [line for line in out.splitlines() if "".join(line.split()) not in "".join(texts.split())] == []


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
    trained = load_trained(place / "ckn").net
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
        sys.stdout = open(1, "w", encoding="ascii", closefd=False)
        for line in ("translate lenet5 --filters 4", f"runs list {sys.argv[1]}", "zoo"):
            app(line.split(), standalone_mode=False)
        """
    )
    done = forks.run(["-c", script, place], env=os.environ | {"COLUMNS": "80"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert all(word in done.stdout for word in ("conv1", "finished", "lenet5"))


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
    assert re.search(r"^  digests\n    network +[0-9a-f]{16}\n    training data +[0-9a-f]{16}$", shown, re.MULTILINE)
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


def test_the_version_and_the_zoo_are_told(command: Callable[..., Result]) -> None:
    assert command("--version")[1].strip() == torchckn.__version__
    assert {row["name"] for row in json.loads(command("zoo", "--json")[1])} == set(torchckn.zoo.names())
