"""Command lines with something wrong in them: ``python -m tests.faults.commands FOLDER COUNT``."""

from __future__ import annotations

import contextlib
import io
import os
import random
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

import torchckn
from torchckn import cli, data
from torchckn.settings import Settings

from .harness import try_all
from .odd_runs import odd_runs, toml_files

TRAIN = [
    "train",
    "lenet1",
    "--data",
    "digits.npz",
    "--filters",
    "3",
    "--steps",
    "1",
    "--batch-size",
    "16",
    "--patches",
    "50",
]
TRAIN += ["--lambdas", "0.01", "--quiet"]
BIG = str(2**64)

#: values that some option does not have; every option is given each of them sooner or later
VALUES = [
    *(
        "",
        " ",
        "-1",
        "0",
        "1",
        "1.5",
        "nan",
        "inf",
        "-inf",
        "1e400",
        "1e-400",
        BIG,
        "-" + BIG,
        "9" * 5000,
        "0x10",
        "1,2,3",
        ",",
    ),
    *(
        "None",
        "true",
        "[/bold]x",
        "[red]",
        "]",
        "[" * 5000,
        "é",
        "\x01",
        "a b",
        "..",
        "/",
        "/dev/null",
        "/nonexistent/x",
        "~",
    ),
    *(
        "rbf",
        "rbf:",
        "rbf:0",
        "rbf:-1",
        "rbf:1e200",
        "rbf:1e-200",
        "rbf:nan",
        "matern:1e9:1",
        "polynomial:99999:1",
        "arccosine:7",
    ),
    *(
        "newton:0",
        "newton:" + "9" * 5000,
        "cosine:",
        "cosine:nan",
        "root:0",
        "search:1",
        "meta",
        "cuda:99",
        "cpu:1",
        "a.py:B",
    ),
]


def main(folder: Path, count: int) -> None:
    _prepare(folder)
    os.environ["TORCHCKN_DATA"] = str(folder / "data")
    before = _tree(folder)
    lines = list(_failed_once())
    chance = random.Random(0)
    while len(lines) < count:
        lines.append(_random_line(chance))
    if count < len(lines):  # a sample: what has failed once comes first
        lines = lines[: count // 2] + lines[-(count - count // 2) :]

    def attempt(line: list[str], leaves: bool) -> Callable[[], str]:
        def run() -> str:
            os.chdir(folder)
            status, text = _call(line)
            problem = _problem(status, text)
            after = _tree(folder)
            if not problem and status and after != before and not leaves:
                problem = f"it failed and left {sorted(after.keys() ^ before.keys())[:3]}"
            if after != before:
                _restore(folder, after, before)
            return f"FAILED {problem}" if problem else ("refused" if status else "done")

        return run

    try_all((" ".join(line)[:150], attempt(line, leaves)) for line, leaves in lines)


def _call(line: list[str]) -> tuple[int, str]:
    """The status of a command line, and all that it printed; -1 if an exception got through."""
    text, status = io.StringIO(), 0
    sys.argv = ["torchckn", *line]
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            cli.main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        except BaseException as error:
            return -1, f"Traceback {type(error).__name__}: {error}"
    return status, text.getvalue()


def _problem(status: int, text: str) -> str | None:
    if "Traceback" in text or "This is a bug" in text or status not in (0, 1, 2):
        return f"status {status}: {text[-300:]}"
    if status and not any(word in text for word in ("error", "Error", "Usage")):
        return f"status {status} without a message: {text[-300:]}"
    if status and len(text) > 6000:
        return f"a message of {len(text)} characters: {text[:200]}"
    return None


def _prepare(folder: Path) -> None:
    images, labels = data.load("mnist-mini").train
    index = torch.cat([torch.nonzero(labels == digit).flatten()[:8] for digit in range(10)])
    np.savez(folder / "digits.npz", x=images[index], y=labels[index], x_test=images[index], y_test=labels[index])
    os.chdir(folder)
    assert _call([*TRAIN, "--run", "all/good"])[0] == 0
    torchckn.save(torchckn.translate(torchckn.zoo.build("lenet1", filters=3)), folder / "model.ckn")
    for name, change in odd_runs():
        shutil.copytree("all/good", f"odd/{name}")
        change(Path("odd") / name)
    for name, text in toml_files():
        (folder / f"{name}.toml").write_bytes(text)
    (folder / "own.py").write_text("from torch import nn\nclass Net(nn.Linear):\n    pass\nraise RuntimeError('[/bold]')\n")
    (folder / "link").symlink_to(folder / "target")
    (folder / "circle").symlink_to(folder / "circle")
    os.mkfifo(folder / "pipe")
    os.mkfifo(folder / "pipe.onnx")


def _failed_once() -> Iterator[tuple[list[str], bool]]:
    """What ended in a traceback, or left something behind, once; with whether a failure may leave a run."""
    quick = [*TRAIN, "--steps", "0"]
    for more in (
        *(
            ["--option", "filters=8"],
            ["--option", "classes=-1"],
            ["--seed", "18446744073709551616"],
            ["--filters", "1000000"],
        ),
        *(["--kernel", "rbf:1e200"], ["--kernel", "rbf:1e-200"], ["--device", "meta"], ["--lr", "nan"], ["--tau", "inf"]),
        *(["--method", "sgd"], ["--batch-size", "100000"], ["--option", "classes=1000000000"], ["--option", "classes=x"]),
        *(
            ["--option", "bias=" + "[" * 5000],
            ["--option", "x"],
            ["--option", "=1"],
            ["--option", "self=1"],
            ["--lr", "[/bold]"],
        ),
        *(["--lambdas", "nan"], ["--lambdas", ""], ["--trainable", "x"], ["--validation", "100000"], ["--validation", "80"]),
        *(
            ["--patches", "9223372036854775807"],
            ["--steps", BIG],
            ["--epochs", BIG],
            ["--chunk", BIG],
            ["--momentum", "nan"],
        ),
        *(
            ["--linear-kernel", "match"],
            ["--inverse-sqrt", "newton:" + "9" * 5000],
            ["--data", "[/bold]x"],
            ["--data", "/dev/zero"],
        ),
        *(
            ["--data", "pipe"],
            ["--data", "link"],
            ["--data", "circle"],
            ["--data", "."],
            ["--data-dir", "/dev/null", "--data", "mnist"],
        ),
    ):
        yield [*TRAIN, *more], False
    for network in (
        "[/bold]x",
        "own.py:Net",
        "own.py:",
        ":Net",
        "nothing.py:Net",
        "pipe:Net",
        "/dev/null:x",
        "\x00:x",
        "..:x",
        "circle:x",
    ):
        yield ["train", network, "--data", "digits.npz", "--quiet"], False
    for name, _ in toml_files():
        yield [*TRAIN, "--config", f"{name}.toml"], False
    yield [*TRAIN, "--config", "pipe2"], False
    for folder in ("odd", "all", ".", "nothing", "digits.npz", "circle"):
        yield ["runs", "list", folder], False
        yield ["runs", "list", folder, "--json"], False
    for name, _ in odd_runs():
        yield ["runs", "show", f"odd/{name}"], False
        yield ["train", "--resume", f"odd/{name}", "--quiet"], True
        yield ["evaluate", f"odd/{name}"], False
    for name, _ in list(odd_runs())[::3]:
        yield ["runs", "compare", f"odd/{name}", "all/good"], False
        yield ["predict", f"odd/{name}", "digits.npz"], False
    for output in (
        "/dev/null",
        "/dev/full",
        "pipe.onnx",
        "link",
        "circle",
        ".",
        "all",
        "/nonexistent/a/b.onnx",
        "new/a.onnx",
        "digits.npz",
    ):
        yield ["export", "model.ckn", "-o", output], False
        yield ["translate", "lenet1", "--input-shape", "1,28,28", "--save", output], False
        yield ["translate", "lenet1", "--input-shape", "1,28,28", "--svg", output], False
        yield [*quick, "--run", output], False
    for shape in ("", "1", "1,28", "1,28,28,28", "0,0,0", "-1,28,28", "1,100000000,100000000", "a,b,c", "1,1,1", "1x28x28"):
        yield ["translate", "lenet1", f"--input-shape={shape}"], False


def _random_line(chance: random.Random) -> tuple[list[str], bool]:
    """A command with an odd value for one or two of its options."""
    options = ["--" + name.replace("_", "-") for name in Settings.all_options() if name not in ("network",)]
    options = [
        name for name in options if name not in ("--options", "--whiten", "--rollback", "--final-head", "--bandwidths")
    ]
    options = [name for name in options if name not in ("--keep-best", "--normalize")] + ["--option", "--config", "--resume"]
    line = list(TRAIN)
    for _ in range(chance.choice((1, 1, 2))):
        line += [chance.choice(options), chance.choice(VALUES)]
    return line, False


def _tree(folder: Path) -> dict[str, tuple[int, int] | None]:
    """Every file, with size and time."""
    found: dict[str, tuple[int, int] | None] = {}
    for path in folder.rglob("*"):
        if path.name != ".lock":
            status = path.lstat()
            found[str(path)] = None if path.is_dir() and not path.is_symlink() else (status.st_size, status.st_mtime_ns)
    return found


def _restore(folder: Path, after: dict[str, tuple[int, int] | None], before: dict[str, tuple[int, int] | None]) -> None:
    """As it was, so that one command line does not depend on another; what a command changed is made again."""
    for name in sorted(after.keys() - before.keys(), reverse=True):
        path = Path(name)
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    before.clear()
    before.update(_tree(folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), int(sys.argv[2]))
