from __future__ import annotations

import pytest
import torch
from hypothesis import settings

from torchckn.graph import AveragePool, Conv, Dense, Graph
from torchckn.kernels import ArcCosine, RBFSphere

# Deadlines measure the machine, not the code; a fixed seed makes a failure repeatable.
settings.register_profile("torchckn", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("torchckn")


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


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
