"""The command in this process, and a folder of things that it can be used with, for tests."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import torchckn
from torchckn import cli, data, runs

from .training import try_few_penalties

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

class Misspelled(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 5)

    def forward(self, x):
        return self.con(x)

not_a_network = 3
built = Small()
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
    np.savez(folder / "small.npz", x=np.zeros((10, 9, 9)), y=np.arange(10))
    np.savez(folder / "nothing.npz", a=np.zeros(3))
    (folder / "corrupt.npz").write_bytes(b"PK\x03\x04 and no more")
    (folder / "net.py").write_text(NETWORK)
    (folder / "broken.py").write_text("class Broken(\n")
    (folder / "exits.py").write_text("import argparse, sys\n\nsys.exit(2)\n")
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
    with pytest.MonkeyPatch.context() as patch:
        try_few_penalties(patch)
        for name, kind in (("ckn", "ckn --patches 300"), ("conv", "convnet")):
            arguments = [
                *base,
                "--kind",
                *kind.split(),
                "--steps",
                "4",
                "--lr",
                "0.01",
                "--run",
                str(folder / name),
                "--quiet",
            ]
            cli.app(arguments, standalone_mode=False)
    shutil.copytree(folder / "ckn", folder / "unfinished")
    shutil.rmtree(folder / "unfinished" / "model")
    (folder / "unfinished" / "result.json").unlink()
    runs.Run(folder / "other", {"method": "ulr"}).close()
    return folder
