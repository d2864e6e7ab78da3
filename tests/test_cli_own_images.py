"""The command with images of one's own: moved, of another size or color, found by the names of their classes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from torchckn import ConfigError, DataError, data, runs
from torchckn.draw.board import Board
from torchckn.trained import load_run_data

from .command_line import Result

pytestmark = pytest.mark.usefixtures("_few_penalties")


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


def test_a_run_whose_images_were_moved_is_resumed_from_their_new_place(
    command: Callable[..., Result], place: Path, tmp_path: Path
) -> None:
    before, after, run = tmp_path / "before.npz", tmp_path / "after.npz", tmp_path / "run"
    before.write_bytes((place / "digits.npz").read_bytes())
    small = ["--filters", 4, "--batch-size", 64, "--patches", 200, "--lr", 0.01, "--lam", 0.01, "--steps", 0]
    assert command("train", "lenet1", *small, "--data", before, "--run", run, "-q")[0] == 0
    before.rename(after)
    again = ["train", "--resume", run, "--steps", 2, "--json"]
    status, _, err = command(*again)
    assert (status, f"{before}, which is not there; pass its new path with --data" in " ".join(err.split())) == (2, True)
    status, _, err = command(*again, "--data", "mnist-mini")
    assert (status, "another configuration: data, " in " ".join(err.split())) == (2, True)
    with np.load(after) as arrays:
        np.savez(tmp_path / "other.npz", **{**arrays, "x_test": arrays["x_test"] + 1})
    status, _, err = command(*again, "--data", tmp_path / "other.npz")
    assert (status, "another configuration: steps, test_data" in " ".join(err.split())) == (2, True)
    status, out, _ = command(*again, "--data", after)
    assert (status, json.loads(out)["steps"]) == (0, 2)
    assert command("train", "--resume", run, "-q")[0] == 0  # the run knows the new place
    assert runs.read_config(run)["settings"]["data"] == str(after)


def test_a_run_whose_images_were_moved_is_shown_with_those_of_another_place(
    command: Callable[..., Result], place: Path, tmp_path: Path
) -> None:
    before, after, run = tmp_path / "before.npz", tmp_path / "after.npz", tmp_path / "run"
    before.write_bytes((place / "digits.npz").read_bytes())
    small = ["--filters", 4, "--batch-size", 64, "--patches", 200, "--lam", 0.01, "--steps", 0]
    assert command("train", "lenet1", *small, "--data", before, "--run", run, "-q")[0] == 0
    before.rename(after)
    page = tmp_path / "report.html"
    for line in (["evaluate", run], ["report", run, "-o", page], ["draw", run]):
        status, _, err = command(*line)
        assert (status, f"{before}, which is not there; pass its new path with --data" in " ".join(err.split())) == (2, True)
    assert command("evaluate", run, "--data", after)[0] == 0
    assert command("report", run, "-o", page, "--data", after)[0] == 0
    assert "40 test images of after" in page.read_text()
    assert len(Board([run], data=str(after)).entries[0].pictures) == 300


def test_images_become_grey_or_colored_as_the_network_was_trained(
    command: Callable[..., Result], place: Path, tmp_path: Path
) -> None:
    with np.load(place / "digits.npz") as arrays:
        colored = {name: np.repeat(x, 3, 1) if name.startswith("x") else x for name, x in arrays.items()}
        np.savez(tmp_path / "colored.npz", **colored)
    small = ["--filters", 4, "--batch-size", 64, "--patches", 200, "--lam", 0.01, "--steps", 0, "--json"]
    for one, other in ((place / "digits.npz", "colored.npz"), (tmp_path / "colored.npz", place / "digits.npz")):
        run = tmp_path / one.stem
        assert command("train", "lenet1", *small, "--data", one, "--run", run)[0] == 0
        status, out, err = command("evaluate", run, "--json")
        assert status == 0, err
        status, again, err = command("evaluate", run, "--data", tmp_path / other, "--json")
        assert status == 0, err
        assert json.loads(again)["accuracy"] == json.loads(out)["accuracy"]
        assert command("report", run, "--data", tmp_path / other, "-o", tmp_path / "report.html")[0] == 0


def test_training_says_what_the_convnet_was_not_built_for(
    command: Callable[..., Result], place: Path, tmp_path: Path
) -> None:
    small = ["--option", "classes=7", "--patches", 200, "--lam", 0.01, "--steps", 0]
    with np.load(place / "digits.npz") as arrays:
        np.savez(tmp_path / "colored.npz", x=np.repeat(arrays["x"], 3, 1), y=arrays["y"])
    status, out, err = command(
        "train", f"{place}/net.py:Small", *small, "--data", tmp_path / "colored.npz", "--run", tmp_path / "run"
    )
    assert status == 0, err
    assert "number of channels: 3 in the images, 1 in the ConvNet; the kernel network is made for the images" in out
    assert "number of classes: 10 in the images, 7 in the ConvNet; the kernel network is made for the images" in out
    _, out, _ = command(
        "train", f"{place}/net.py:Small", *small[2:], "--data", place / "digits.npz", "--run", tmp_path / "other"
    )
    assert "number of" not in out


def test_own_images_are_found_from_any_folder_and_evaluated_by_the_names_of_their_classes(
    command: Callable[..., Result], tmp_path: Path, digits: data.DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, labels = digits.train
    for digit, name in enumerate(("zero", "one", "six")):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for i, image in enumerate(images[labels == (0, 1, 6)[digit]][:20]):
            picture = Image.fromarray(image[0].numpy())
            (picture if i % 2 else picture.resize((20, 20))).save(tmp_path / "pictures" / name / f"{i}.png")
    monkeypatch.chdir(tmp_path)
    options = [
        "--filters",
        "4",
        "--patches",
        "300",
        "--image-size",
        "28",
        "--steps",
        "0",
        "--augment",
        "shift",
        "--copies",
        "2",
        "--validation",
        "0",
    ]
    status, out, err = command("train", "lenet1", "--data", "pictures", *options, "--run", "run")
    assert status == 0, err
    assert "torchckn evaluate" not in out, "there are no test images"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    run = tmp_path / "run"

    def accuracy(*given: object) -> float:
        status, out, err = command("evaluate", run, "--part", "train", "--json", *given)
        assert status == 0, err
        return float(json.loads(out)["accuracy"])

    assert accuracy() > 0.9
    (tmp_path / "some").mkdir()
    for name in ("zero", "one"):  # whose numbers in training are 2 and 0
        shutil.copytree(tmp_path / "pictures" / name, tmp_path / "some" / name)
    assert accuracy("--data", tmp_path / "some") > 0.9
    (tmp_path / "some" / "one").rename(tmp_path / "some" / "uno")
    status, _, err = command("evaluate", run, "--part", "train", "--data", tmp_path / "some")
    assert status == 1
    assert "expected images of the classes one, six, zero, got uno; rename" in err
    status, _, err = command("report", run, "-o", tmp_path / "report.html")
    assert status == 0, err
    assert len(Board([run]).entries[0].pictures) == 60
    status, _, err = command("report", run, "-o", tmp_path / "report.pdf")
    assert status == 2
    assert "--output expected a file ending in .html, got" in err
    (tmp_path / "pictures" / "one").rename(tmp_path / "pictures" / "uno")
    status, _, err = command("report", run, "-o", tmp_path / "report.html")
    assert status == 1
    assert "expected images of the classes one, six, zero, got uno; rename" in err
    with pytest.raises(DataError, match="expected images of the classes one, six, zero, got uno; rename"):
        Board([run])


def test_images_of_another_size_are_resized_for_the_network(
    command: Callable[..., Result], place: Path, tmp_path: Path, digits: data.DataSet
) -> None:
    for i, (image, label) in enumerate(zip(*digits.test, strict=True)):
        folder = tmp_path / "large" / str(int(label))
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0].numpy()).resize((56, 56)).save(folder / f"{i}.png")
    run = tmp_path / "run"
    small = ["--filters", 8, "--batch-size", 64, "--patches", 200, "--lam", 0.001, "--steps", 0]
    assert command("train", "lenet1", *small, "--data", place / "digits.npz", "--run", run, "-q")[0] == 0
    others = ["evaluate", run, "--data", tmp_path / "large", "--part", "train"]
    status, _, err = command(*others)
    assert status == 1
    assert "1x56x56" in err
    assert "(evaluate: --resize, for a folder of images)" in " ".join(err.split())
    status, out, err = command(*others, "--resize", "--json")
    assert status == 0, err
    assert json.loads(out)["accuracy"] > 0.7
    status, _, err = command("evaluate", run, "--resize")
    assert status == 2
    assert "--resize is for other images than those of the run: name their folder with --data" in " ".join(err.split())


def test_images_cannot_be_resized_for_a_network_that_is_not_square() -> None:
    with pytest.raises(ConfigError, match=r"--resize expected a network for square images, got 1x28x20; resize the images"):
        load_run_data("run", None, None, (1, 28, 20), "pictures", resize=True)
    with pytest.raises(ConfigError, match=r"--resize expected a network for square images, got an unknown size"):
        load_run_data("run", None, None, None, "pictures", resize=True)
