"""What the command says when it is asked for something wrong, or when something goes wrong."""

from __future__ import annotations

import errno
import importlib.abc
import os
import re
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from torchckn import __main__, runs
from torchckn.cli.training import _resumable
from torchckn.errors import Interrupted

from . import forks
from .command_line import Result

pytestmark = pytest.mark.usefixtures("_few_penalties")


#: what is asked for, the status it ends with, and words of the message; {p} is the folder of the fixture
BAD: list[tuple[str, int, str]] = [
    ("nonsense", 2, "No such command"),
    ("translate lenet6", 2, "unknown network 'lenet6': expected one of .*lenet5"),
    ("translate {p}/none.py:Net --input-shape 1,28,28", 2, "none.py does not exist"),
    ("train {p}:Net --data {p}/digits.npz", 2, "is not a file; give your own network as file.py:ClassName"),
    ("translate {p}/exits.py:Net --input-shape 1,28,28", 2, "exits.py cannot be imported: SystemExit: 2"),
    ("train {p}/net.py:Misspelled --kind convnet --data {p}/digits.npz", 1, "does not run on images .* no attribute 'con'"),
    ("translate {p}/net.py:Smal --input-shape 1,28,28", 2, "has no 'Smal'; it has Small"),
    ("translate {p}/net.py:not_a_network --input-shape 1,28,28", 2, "gives a int, expected a torch.nn.Module"),
    ("translate {p}/net.py:built --input-shape 1,28,28 --option width=3", 2, "is built already and takes no options"),
    ("translate {p}/broken.py:Broken --input-shape 1,28,28", 2, "cannot be imported: SyntaxError"),
    (
        "translate {p}/net.py:Color",
        2,
        r"images of mnist-mini, 1x28x28 \(.*channels.*\); name others with --data, or",
    ),
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
    ("translate lenet5 --svg {p}/five.png/a.svg", 2, "cannot write .*: expected a folder, got the file .*five.png; choose"),
    ("translate {p}/broken.py:Broken --svg {p}/absent/a.svg", 2, "absent does not exist; create it first"),  # at first
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
    ("train --data {p}/empty", 1, "expected a sub-folder of images for each class, at least two, got none; move"),
    ("train --data {p}/mixed", 1, "images must have one size"),
    ("train --data {p}/bad", 1, "2.png cannot be read as an image"),
    ("train --data {p}/nothing.npz", 1, "expected arrays x and y, got a"),
    ("train --data {p}/corrupt.npz", 1, "cannot be read as an .npz file"),
    ("train --data {p}/digits.npz --validation 5000", 2, "validation expected fewer than the 300 images"),
    ("train --data {p}/digits.npz --batch-size 5000 --run {p}/new1", 2, "batch_size is 5000, but there are 250"),
    ("train --data {p}/digits.npz --lr fast --run {p}/new2", 2, "unknown learning rate 'fast'"),
    ("train --data {p}/digits.npz --lr true --run {p}/new5", 2, "unknown learning rate 'true'"),
    ("train --data {p}/digits.npz --kind convnet --kernel match", 2, "kernel is for ckn only"),
    ("train --data {p}/digits.npz --kind convnet --preset fast", 2, "--preset is for kernel networks trained by ulr"),
    ("train --data {p}/digits.npz --preset fats", 2, "unknown preset 'fats'.*Did you mean 'fast'"),
    ("train --data {p}/digits.npz --device gpu", 2, "device = 'gpu' is not available"),
    ("train --data {p}/digits.npz --init-std 3", 2, "init_std is for convnet only"),
    ("train --data {p}/digits.npz --method sgo --tau 1", 2, "tau is for ulr only"),
    (
        "train --data {p}/digits.npz --kind convnet --folds 5",
        2,
        "folds is for ulr, sgo, sgo-ball only, got convnet trained by",
    ),
    ("train --data {p}/digits.npz --kind convnet --start-images 5", 2, "start_images is for ulr, sgo, sgo-ball only"),
    ("train --data {p}/digits.npz --lr -1 --run {p}/new3", 2, "positive number"),
    ("train --data {p}/digits.npz --method sgd --run {p}/new4", 2, "'sgd' is for ConvNets"),
    ("train --data {p}/digits.npz --linear-kernel match", 2, "linear_kernel expected a kernel"),
    ("train alexnet --data {p}/digits.npz", 1, "AlexNet does not run on images of shape"),
    ("train --data {p}/digits.npz --run {p}/ckn", 2, "has a run already"),
    ("train --data {p}/digits.npz --run {p}/thesis", 2, "not empty and not a run"),
    ("train --data {p}/digits.npz --run {p}/five.png/run", 2, "expected a folder, got the file .*five.png; choose"),
    ("train --data {p}/digits.npz --run /proc/run", 2, "cannot use /proc/run for a run"),
    ("train --resume {p}/none", 2, "does not exist; expected the folder of a run"),
    ("train --resume {p}/ckn --tau 7", 2, "expected no other options than .*chunk.*steps.*, got tau"),
    ("train lenet1 --resume {p}/ckn", 2, "is of lenet5, got lenet1; name the same network, or none"),
    ("train --resume {p}/ckn --run {p}/new", 2, "--resume uses the options of the run"),
    ("train --resume {p}/other", 2, "was not made by torchckn train"),
    ("evaluate {p}/none", 2, "does not exist"),
    ("export {p}/none -o {p}/a.onnx", 2, "does not exist"),
    ("report {p}/none -o {p}/a.html", 2, "does not exist"),
    ("runs show {p}/none", 2, "does not exist"),
    ("train --unlabeled {p}/none", 2, "is not a folder; expected a folder of image files"),
    ("evaluate {p}/not.ckn", 1, "is not a file that torchckn wrote, or is truncated or corrupt"),
    ("evaluate {p}/thesis", 2, "is not a run folder"),
    ("evaluate {p}/unfinished", 1, "is not finished.*--resume"),
    ("evaluate {p}/ckn --part dev", 2, "--part expected test, train or valid, got 'dev'"),
    ("evaluate {p}/model.ckn", 2, "name the images with --data"),
    ("evaluate {p}/ckn --data {p}/untested.npz", 2, "has no test part"),
    ("evaluate {p}/ckn --data {p}/small.npz", 1, "small has images of 1x9x9, the network of .*ckn expects 1x28x28; resize"),
    ("report {p}/ckn --data {p}/small.npz -o {p}/a.html", 1, "small has images of 1x9x9, .* expects 1x28x28; resize"),
    ("draw {p}/ckn --data {p}/small.npz", 1, "small has images of 1x9x9, .* expects 1x28x28; resize"),
    ("evaluate {p}/ckn --data {p}/digits.npz --part valid", 2, "has no valid part"),
    ("predict {p}/ckn", 2, "Missing argument"),
    ("predict {p}/ckn {p}/none.png", 2, "none.png does not exist"),
    ("predict {p}/ckn {p}/none", 2, "none does not exist; expected an image file or a folder of images"),
    ("predict {p}/ckn {p}/empty", 1, "empty expected image files .*, got none; add images"),
    ("predict {p}/ckn {p}/not.png", 1, "cannot be read as an image"),
    ("predict {p}/ckn {p}/large.png", 1, "30x40 pixels, the network expects 28x28; .*--resize"),
    ("export {p}/ckn -o {p}/a.pb", 2, "ending in .onnx or .pt2"),
    ("draw {p}/thesis", 2, "is not a run folder"),
    ("draw {p}/ckn --port 70000", 2, "65535"),
    ("report {p}/thesis -o {p}/report.html", 2, "not a run"),
    ("data fetch nist", 2, "unknown data set 'nist'"),
    ("data verify mnist --data-dir {p}/empty", 1, "has not been fetched"),
    ("runs list {p}/none", 2, "is not a folder"),
    ("runs show {p}/thesis", 2, "is not a run folder"),
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
    (work / "file").touch()
    status, _, err = command("train", "lenet1", "--data", place / "digits.npz", "--run", "file/deep/run")
    assert status == 2
    assert "cannot use file/deep/run for a run: Not a directory; choose another folder" in " ".join(err.split())
    assert command("translate", "lenet1", "--input-shape", "1,28,28", "--svg", "new/a.svg")[0] == 0


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


@pytest.mark.parametrize(
    "line",
    [
        "report {p}/ckn -o {p}/ckn/config.toml",
        "report {p}/ckn -o {p}/link.html",
        "translate lenet5 --filters 2 --save {p}/ckn/checkpoint/last.safetensors",
        "translate lenet5 --filters 2 --svg {p}/ckn/model/model.safetensors",
    ],
)
def test_no_output_takes_the_place_of_a_file_of_a_run(line: str, command: Callable[..., Result], place: Path) -> None:
    (place / "link.html").unlink(missing_ok=True)
    (place / "link.html").symlink_to(place / "ckn" / "result.json")
    before = {file: file.read_bytes() for file in (place / "ckn").rglob("*") if file.is_file()}
    status, _, err = command(*line.format(p=place).split())
    assert status == 2
    assert re.search("is a file of the run .*ckn, which would lose it; choose another name", err)
    assert before == {file: file.read_bytes() for file in (place / "ckn").rglob("*") if file.is_file()}
    (place / "link.html").unlink()


def test_a_warning_is_a_line_without_code_and_control_characters(place: Path, tmp_path: Path) -> None:
    shutil.copy(place / "five.png", tmp_path / "five.png")
    (tmp_path / "\x1b[31m.txt").touch()
    process = forks.Popen(["-m", "torchckn", "predict", place / "ckn", tmp_path])
    _, err = process.communicate(timeout=60)
    assert re.match(r"warning: .*1 file was not read: [^\x1b]*31m.txt", err)
    assert "\x1b" not in err
    assert "find_images" not in err


def test_a_run_that_has_not_begun_is_not_one_to_resume(tmp_path: Path) -> None:
    with pytest.raises(Interrupted, match="interrupted; the run had not begun"), _resumable(tmp_path / "run", "lenet5"):
        raise KeyboardInterrupt
    (tmp_path / "config.toml").touch()
    with (
        pytest.raises(Interrupted, match="interrupted; resume it with: torchckn train --resume"),
        _resumable(tmp_path, "lenet5"),
    ):
        raise KeyboardInterrupt
    with (
        pytest.raises(Interrupted, match="with: torchckn train 'my net.py:Net' --resume"),
        _resumable(tmp_path, "my net.py:Net"),
    ):
        raise KeyboardInterrupt


def test_an_interrupt_while_the_command_is_imported_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupting(importlib.abc.MetaPathFinder):
        def find_spec(self, *_: object) -> None:
            raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "torchckn.cli")
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    assert ended.value.code == 130
