"""Whatever records operations sees those of plain torch, and no compiled code: traces, graphs, dispatch modes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from torchckn import CKN
from torchckn.graph import Conv, Graph, Product
from torchckn.kernels import ArcCosine, Dual, Kernel, RBFSphere
from torchckn.nn import KernelConv2d, native

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C++ compiler: the plain layer is used and tested")


class Operations(TorchDispatchMode):
    """The names of the operations within this context."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("kernel", [RBFSphere(0.6), ArcCosine(1)], ids=str)
@pytest.mark.parametrize("images", [2, 6], ids=["in a chain", "layer by layer"])
def test_a_traced_network_gives_the_numbers_of_the_network(kernel: Kernel, images: int, generator: torch.Generator) -> None:
    nodes = [Conv("a", filters=8, kernel_size=(3, 3), kernel=kernel), Conv("b", filters=8, kernel=kernel)]
    net = CKN(Graph((2, 7, 7), nodes), generator=generator).eval()
    x, other = torch.randn(2, images, 2, 7, 7, generator=generator)
    with torch.no_grad():
        traced = torch.jit.trace(net, x, check_trace=False)
        torch.testing.assert_close(traced(other), net(other), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("kernel", [RBFSphere(0.6), RBFSphere(0.6, trainable=True), ArcCosine(1), Dual("gelu")], ids=str)
@pytest.mark.parametrize("block", [None, 3])
def test_a_network_is_traced_with_gradients_enabled(kernel: Kernel, block: int | None, generator: torch.Generator) -> None:
    nodes = [
        Conv("a", filters=8, kernel_size=(3, 3), kernel=kernel, root_block=block),
        Conv("b", filters=8, kernel=kernel, groups=2),
        Product("c", filters=4, inputs=("a", "b")),
    ]
    net = CKN(Graph((2, 7, 7), nodes), generator=generator).eval()
    x, other = torch.randn(2, 2, 2, 7, 7, generator=generator)
    traced = torch.jit.trace(net, x)  # which traces again without gradients, and compares
    torch.testing.assert_close(traced(other), net(other), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kernel", [RBFSphere(0.6), ArcCosine(1)], ids=str)
def test_the_graph_of_a_layer_gives_the_numbers_of_the_layer(kernel: Kernel, generator: torch.Generator) -> None:
    layer = KernelConv2d(2, 8, 3, kernel=kernel, pool=nn.AvgPool2d(2), generator=generator).eval()
    x, other = torch.randn(2, 3, 2, 7, 7, generator=generator)
    with torch.no_grad():
        expected = layer(other)
        torch.testing.assert_close(make_fx(lambda z: layer(z))(x)(other), expected, rtol=1e-4, atol=1e-5)


def test_a_dispatch_mode_sees_all_operations_of_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x, calls = KernelConv2d(2, 8, 3).eval(), torch.randn(2, 2, 7, 7), []
    plain = native.call
    monkeypatch.setattr(native, "call", lambda name, *arguments: (calls.append(name), plain(name, *arguments))[1])
    expected = layer(x)
    assert "direct_forward" in calls
    calls.clear()
    with Operations() as operations:
        out = layer(x)
    assert not calls
    assert {"convolution", "exp"} <= set(operations.names)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
