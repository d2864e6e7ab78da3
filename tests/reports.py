"""Runs that reports are made of, and pages taken apart, for tests."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchckn
from torchckn import data, report
from torchckn.kernels import RBFSphere

from .training import mnist_mini

STEPS = 6


class Small(nn.Sequential):
    """A ConvNet for small pictures."""

    def __init__(self) -> None:
        layers = (nn.Conv2d(1, 6, 5), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(150, 12), nn.ReLU())
        super().__init__(*layers, nn.Linear(12, 10))


def digits(count: int = 300) -> tuple[Tensor, Tensor]:
    images, labels = mnist_mini().train
    return torch.nn.functional.avg_pool2d(images[:count].float() / 255, 2), labels[:count]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A kernel network's and a ConvNet's run, made once for all tests."""
    folder = tmp_path_factory.getbasetemp() / "report-runs"
    made = folder / "kernel", folder / "convnet"
    if folder.exists():
        return made
    images, labels = digits()
    generator = torch.Generator().manual_seed(0)
    options: dict[str, Any] = {
        "steps": STEPS,
        "batch_size": 64,
        "patches": 200,
        "lambdas": [2.0**-6, 2.0**-12],
        "evaluate_every": 2,
        "generator": generator,
    }
    ckn = torchckn.translate(Small(), (1, 14, 14), RBFSphere(0.6), generator=generator)
    convnet = torchckn.ScaledConvNet(Small(), (1, 14, 14), generator=generator).initialize_(0.2, generator)
    for net, method, path in ((ckn, "ulr", made[0]), (convnet, "sgd", made[1])):
        torchckn.train(
            net, (images[:200], labels[:200]), (images[200:], labels[200:]), method=method, lr=2**-4, run_dir=path, **options
        )
    return made


@pytest.fixture
def copied(runs: tuple[Path, Path], tmp_path: Path) -> Path:
    """The kernel network's run, to be damaged."""
    return Path(shutil.copytree(runs[0], tmp_path / "copied"))


class Page(HTMLParser):
    """A page taken apart: elements in their order, and the text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {key: value or "" for key, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, *tags: str) -> list[dict[str, str]]:
        return [attributes for tag, attributes in self.elements if tag in tags]

    @property
    def data(self) -> Any:
        found = re.search(r'<script type="application/json" id="data">(.*?)</script>', self.source, re.DOTALL)
        assert found
        return json.loads(found[1])


def page(runs: Any, folder: Path, given: Any = None) -> Page:
    return Page(report.write(runs, folder / "report.html", data=given))


def small_digits(test: data.Part | None, name: str = "digits") -> data.DataSet:
    return data.DataSet(name, data.Part(*digits()), test, tuple("0123456789"))


def cells(page: Page) -> dict[str, str]:
    """The first row of the first table, by the heads of its columns."""
    table = page.source.split("<table>")[1].split("</table>")[0]
    plain = [re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<t[hd].*?</t[hd]>", table, re.DOTALL)]
    count = len(plain) // 2
    return dict(zip(plain[:count], plain[count:], strict=True))
