"""Training steps on fake tensors on "cuda": to be run in a process that has the device, see :mod:`tests.fake_cuda`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import torchckn
from torchckn import zoo
from torchckn.fit import ulr
from torchckn.fit.methods import METHODS, Method, MethodOptions
from torchckn.graph import AveragePool, Conv, Dense, Graph
from torchckn.kernels import Kernel, RBFSphere
from torchckn.network import Classifier
from torchckn.nn import checks, invsqrt

from ..contracts import KERNELS

#: what asks the host, on a real device, whether it has succeeded
WAITING = {"_linalg_eigh", "_linalg_svd", "_linalg_det", "linalg_cholesky", "linalg_inv", "_linalg_solve_ex"}


@dataclass
class Waits(TorchDispatchMode):
    """Where the host would wait for the device: copies from one to the other, decompositions, and reads of results."""

    reads: list[int] = field(default_factory=list)
    others: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def host(self, numbers: Tensor) -> list[float]:
        """In place of :func:`torchckn.nn.checks.host`. Every number is 1, so that all checks hold."""
        assert numbers.device.type == "cuda"
        self.reads.append(len(numbers))
        return [1.0] * len(numbers)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        devices = {leaf.device.type for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, Tensor)}
        copies = func.overloadpacket in (torch.ops.aten._to_copy, torch.ops.aten.copy_)
        if (copies and len(devices) > 1) or func.overloadpacket.__name__ in WAITING:
            self.others.append(str(func))
        return result


@contextmanager
def fake_cuda() -> Iterator[Waits]:
    waits = Waits()
    patches = [(checks, "host", waits.host), (invsqrt, "ITERATIONS", 2), (ulr, "CG_ITERATIONS", 2)]  # more only take longer
    with ExitStack() as stack:
        for module, name, value in patches:
            stack.enter_context(mock.patch.object(module, name, value))
        for mode in (FakeTensorMode(), waits):
            stack.enter_context(mode)
        yield waits


def on_cuda(net: nn.Module) -> nn.Module:
    """The network with fake tensors on the device, within a FakeTensorMode."""
    for module in net.modules():
        for name, old in module._parameters.items():
            if old is not None:
                new = torch.empty(old.shape, dtype=old.dtype, device="cuda")
                module._parameters[name] = nn.Parameter(new, requires_grad=old.requires_grad)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype, device="cuda")
    return net


def small(kernel: Kernel | None = None) -> torchckn.CKN:
    kernel = kernel or RBFSphere(0.6)
    nodes = [Conv("conv", filters=6, kernel_size=(3, 3), kernel=kernel), AveragePool("pool", kernel_size=(2, 2))]
    return torchckn.CKN(Graph((1, 8, 8), [*nodes, Dense("dense", filters=40, kernel=kernel)]))


def build(network: str, kernel: int | None, method: str) -> Classifier:
    """A network of the zoo, or ``"small"``, with a kernel by its place among the contracts; a ConvNet for sgd."""
    if network == "small":
        return small(None if kernel is None else KERNELS[kernel].build())
    net = zoo.build(network, filters=4)
    if method == "sgd":
        return torchckn.ScaledConvNet(net)
    return torchckn.translate(net, kernel="match" if kernel is None else KERNELS[kernel].build())


def prepared(net: Classifier, method: str, **options: Any) -> tuple[Method, tuple[Tensor, Tensor]]:
    on_cuda(net)
    batch = torch.empty(6, *net.input_shape, device="cuda"), torch.empty(6, dtype=torch.long, device="cuda")
    return METHODS[method](net, MethodOptions(lam=2**-10, **options)), batch


def step(network: str, kernel: int | None, method: str, options: dict[str, Any], count: int = 1) -> None:
    """Steps in which the host waits once each, and every tensor is on the device."""
    net = build(network, kernel, method)
    with fake_cuda() as waits:
        trained, batch = prepared(net, method, **options)
        waits.others.clear()
        for _ in range(count):
            trained.step(*batch, lr=0.1)
    assert len(waits.reads) == count
    assert min(waits.reads) > 2  # loss, accuracy and checks together
    assert not waits.others, waits.others
    trained_parameters = [parameter for group in net.parameter_groups() for parameter in group["params"]]
    assert all(parameter.grad is not None and parameter.grad.device.type == "cuda" for parameter in trained_parameters)


def mixed_devices_are_refused() -> None:
    net = small()
    with fake_cuda():
        method, batch = prepared(net, "ulr")
        net.layers["dense"].register_forward_hook(lambda module, inputs, output: output + torch.zeros(40))
        with pytest.raises(RuntimeError, match="found at least two devices"):
            method.step(*batch, lr=0.1)


def reads_are_refused() -> None:
    net = small()
    with fake_cuda():
        method, batch = prepared(net, "ulr")
        net.layers["dense"].register_forward_hook(lambda module, inputs, output: float(output.sum()) and None)
        with pytest.raises(DataDependentOutputException):
            method.step(*batch, lr=0.1)
