"""torch.compile takes whole networks in one graph, which is what fuses their passes on a GPU."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from torchckn import zoo
from torchckn.network import Classifier

from .contracts import KERNELS
from .fake_cuda import steps

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"),
]

every_kernel = pytest.mark.parametrize("kernel", range(len(KERNELS)), ids=[str(case) for case in KERNELS])


@pytest.fixture(autouse=True)
def same_networks() -> None:
    """Filters are random, and the rounding errors of a steep kernel depend on them."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Graphs of other tests count towards the number that torch compiles of one function."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def gradients(net: torch.nn.Module, parameters: dict[str, Tensor], x: Tensor) -> tuple[Tensor, list[Tensor]]:
    scores = net(x)
    return scores.detach(), list(torch.autograd.grad(scores.square().sum(), list(parameters.values())))


def compare(net: Classifier, backend: str) -> None:
    """Scores and gradients of a network and of one graph of it, in float64."""
    net = net.double().train()
    x = torch.rand(2, *net.input_shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    compiled = torch.compile(copy.deepcopy(net), backend=backend, fullgraph=True)
    trained = [{name: p for name, p in one.named_parameters() if p.requires_grad} for one in (net, compiled)]
    (scores, expected), (same_scores, found) = (
        gradients(one, parameters, x) for one, parameters in zip((net, compiled), trained, strict=True)
    )
    torch.testing.assert_close(same_scores, scores, rtol=1e-9, atol=1e-9)
    for name, ours, theirs in zip(trained[0], expected, found, strict=True):
        size = float(ours.abs().max()) or 1.0
        torch.testing.assert_close(
            theirs / size, ours / size, rtol=0, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}"
        )


@every_kernel
def test_a_network_with_every_kernel_and_its_gradient_are_one_graph_each(kernel: int) -> None:
    compare(steps.build("small", kernel, "ulr"), "aot_eager")


@every_kernel
def test_a_network_of_the_zoo_with_every_kernel_is_one_graph(kernel: int) -> None:
    compare(steps.build("lenet5", kernel, "ulr"), "eager")


@pytest.mark.parametrize("name", zoo.names())
def test_every_network_of_the_zoo_is_one_graph(name: str) -> None:
    compare(steps.build(name, None, "ulr"), "eager")


@pytest.mark.parametrize("name", ["lenet1", "allcnn"])
def test_compiled_networks_have_the_same_numbers(name: str) -> None:
    compare(steps.build(name, None, "ulr"), "inductor")
