"""Networks that are exported, and how their files are compared with them, for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import torchckn
from torchckn.graph import Graph


def photographs(count: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Noise of many contrasts and colours, so that the networks' outputs differ between images."""
    colour, contrast = (torch.rand(count, channels, 1, 1, generator=generator) for channels in (shape[0], 1))
    return colour * (1 - contrast) + contrast * torch.rand(count, *shape, generator=generator)


def fitted(ckn: torchckn.CKN, images: Tensor, generator: torch.Generator) -> torchckn.CKN:
    """As after training: filters from patches, calibrated features, and a head whose scores differ between images."""
    torchckn.fit_filters(ckn, images, patches=200, init="random", generator=generator, progress=False)
    with torch.no_grad():
        ckn.eval().scaling.calibrate(ckn.features(images))
        ckn.head.weight.normal_(generator=generator)
    return ckn


def probabilities(network: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.softmax(network(images), 1)


def run_onnx(path: Path, images: Tensor) -> Tensor:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (found,) = session.run(["probabilities"], {"images": images.numpy()})
    assert isinstance(found, np.ndarray)
    return torch.from_numpy(found)


def difference(found: Tensor, expected: Tensor) -> float:
    """The largest difference, as a fraction of an image's largest probability."""
    assert found.shape == expected.shape
    return ((found - expected).abs() / expected.amax(1, keepdim=True)).max().item()


def assert_depends_on_the_image(expected: Tensor) -> None:
    """Otherwise constants would be compared."""
    assert (expected - expected[0]).abs().max() > 1e-3


@pytest.fixture
def small_network(small_graph: Graph, generator: torch.Generator) -> torchckn.CKN:
    ckn = torchckn.CKN(small_graph, classes=3, centering="none", generator=generator)
    return fitted(ckn, photographs(6, (1, 10, 10), generator), generator)
