"""The fixtures that several files use, and hypothesis' profile."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

from torchckn import data
from torchckn.graph import AveragePool, Conv, Dense, Graph
from torchckn.kernels import ArcCosine, RBFSphere

from .command_line import command, place
from .drawing import drawing_runs, server
from .experiments import spec
from .exporting import small_network
from .processes import groups
from .reports import copied, runs
from .training import mnist_mini, try_few_penalties

__all__ = [
    "command",
    "copied",
    "drawing_runs",
    "groups",
    "place",
    "runs",
    "server",
    "small_network",
    "spec",
]  # fixtures of several files

# Deadlines measure the machine, not the code; a fixed seed makes a failure repeatable.
settings.register_profile("torchckn", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("torchckn")


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def _few_penalties(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of something else than the choice of a penalty."""
    try_few_penalties(monkeypatch)


@pytest.fixture(scope="session")
def digits() -> data.DataSet:
    """The digits that come with the package, loaded once per process. Tests read them and change nothing in place."""
    return mnist_mini()


@pytest.fixture(scope="session")
def few_digits(digits: data.DataSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tenth of them as a file of one's own, digits.npz: enough to see that a run works, and ten times as fast."""
    assert digits.test is not None
    file = tmp_path_factory.mktemp("data") / "digits.npz"
    train, test = (
        torch.cat([torch.nonzero(part.labels == digit).flatten()[:count] for digit in range(10)])
        for part, count in ((digits.train, 60), (digits.test, 15))
    )
    np.savez(
        file,
        x=digits.train.images[train],
        y=digits.train.labels[train],
        x_test=digits.test.images[test],
        y_test=digits.test.labels[test],
    )
    return file


@pytest.fixture
def small_graph() -> Graph:
    return Graph(
        (1, 10, 10),
        [
            Conv("conv", filters=6, kernel_size=(3, 3), kernel=RBFSphere(0.6)),
            AveragePool("pool", kernel_size=(2, 2), stride=(2, 2)),
            Dense("dense", filters=5, kernel=ArcCosine(1)),
        ],
    )
