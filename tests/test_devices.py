"""Ready for a GPU, shown without one: steps on fake tensors, which refuse mixed devices and any read of a value by the host.

Without CUDA in its build, torch has no autograd on fake CUDA tensors. So whole steps run on fake CPU tensors, with reads as on
an accelerator, and what needs no autograd (Newton's root) on fake CUDA tensors.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

import torchckn
from torchckn import zoo
from torchckn.errors import NumericalError
from torchckn.fit import ulr
from torchckn.fit.methods import METHODS, Method, MethodOptions
from torchckn.graph import AveragePool, Conv, Dense, Graph
from torchckn.nn import base, checks, invsqrt
from torchckn.nn.checks import Deferred, require
from torchckn.nn.devices import CLOSED_FORM_UP_TO
from torchckn.nn.functional import projection

from .contracts import KERNELS, Case

WIDTH = CLOSED_FORM_UP_TO + 2  # so that an accelerator takes Newton's method
METHOD_CASES: list[tuple[str, dict[str, Any]]] = [
    ("ulr", {}),
    ("ulr", {"head_update": "reuse"}),
    ("ulr", {"hessian": "full"}),
    ("ulr", {"hessian": "diag"}),
    ("ulr", {"hessian": "cg"}),
    ("ulr", {"loss": "square"}),
    ("sgo", {}),
    ("sgo", {"loss": "square"}),
    ("sgo-ball", {"radius": 1.0}),
]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many numbers each read got, with reads as on an accelerator; every number is 1, so that all checks hold."""
    sizes: list[int] = []

    def host(numbers: Tensor) -> list[float]:
        sizes.append(len(numbers))
        return [1.0] * len(numbers)

    monkeypatch.setattr(checks, "host", host)
    for module in (checks, ulr, base, invsqrt):
        monkeypatch.setattr(module, "reads_are_free", lambda device: False)
    return sizes


def fake(net: nn.Module, device: str) -> nn.Module:
    """The network with fake tensors, within a FakeTensorMode."""
    for module in net.modules():
        for name, old in module._parameters.items():
            if old is not None:
                new = torch.empty(old.shape, dtype=old.dtype, device=device)
                module._parameters[name] = nn.Parameter(new, requires_grad=old.requires_grad)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype, device=device)
    return net


def fake_method(net: torchckn.network.Classifier, method: str, options: dict[str, Any], device: str) -> tuple[Method, Any]:
    fake(net, device)
    batch = torch.empty(6, *net.input_shape, device=device), torch.empty(6, dtype=torch.long, device=device)
    return METHODS[method](net, MethodOptions(lam=2**-10, **options)), batch


def small(kernel: Any) -> torchckn.CKN:
    nodes = [Conv("conv", filters=WIDTH, kernel_size=(3, 3), kernel=kernel), AveragePool("pool", kernel_size=(2, 2))]
    return torchckn.CKN(Graph((1, 8, 8), [*nodes, Dense("dense", filters=5, kernel=kernel)]))


def step_reads_once(net: Any, method: str, options: dict[str, Any], reads: list[int]) -> None:
    with FakeTensorMode():
        trained, batch = fake_method(net, method, options, "cpu")
        trained.step(*batch, lr=0.1)
        assert len(reads) == 1
        trained.step(*batch, lr=0.1)
    assert len(reads) == 2
    assert min(reads) > 2  # loss, accuracy and checks together


@pytest.mark.parametrize(("method", "options"), METHOD_CASES, ids=str)
def test_the_host_reads_once_in_a_step_of_every_method(method: str, options: dict[str, Any], reads: list[int]) -> None:
    step_reads_once(torchckn.translate(zoo.build("lenet5", filters=4)), method, options, reads)


@pytest.mark.parametrize("name", zoo.names())
def test_the_host_reads_once_in_a_step_of_every_network_of_the_zoo(name: str, reads: list[int]) -> None:
    step_reads_once(torchckn.translate(zoo.build(name, filters=4)), "ulr", {}, reads)


#: on a CPU, where reads are free, the map of a trained bandwidth reads it
FIXED = [case for case in KERNELS if not any(parameter.requires_grad for parameter in case.build().parameters())]


@pytest.mark.parametrize("case", FIXED, ids=str)
def test_the_host_reads_once_in_a_step_with_every_kernel(case: Case, reads: list[int]) -> None:
    step_reads_once(small(case.build()), "ulr", {}, reads)


def test_newton_s_root_stays_on_the_device(reads: list[int]) -> None:
    with FakeTensorMode(), Deferred(), torch.no_grad():
        weight = torch.empty(2 * WIDTH, 20, device="cuda")
        root = projection(weight, torchckn.kernels.RBFSphere(0.6), 1e-3, block=WIDTH)
        assert (root.device.type, root.shape) == ("cuda", (2 * WIDTH, 2 * WIDTH))
    assert not reads


def test_a_fake_step_refuses_a_read_that_is_not_deferred() -> None:
    net = small(torchckn.kernels.RBFSphere(0.6))
    with FakeTensorMode():
        method, batch = fake_method(net, "ulr", {}, "cpu")
        with pytest.raises(DataDependentOutputException):  # on a CPU, checks read at once
            method.step(*batch, lr=0.1)


def test_deferred_checks_raise_the_first_error_when_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "reads_are_free", lambda device: False)
    with Deferred() as deferred:
        require(torch.tensor([True, True]), lambda: NumericalError("fine"))
        require(torch.tensor([True, False]), lambda: NumericalError("the second"))
        require(torch.tensor(False), lambda: NumericalError("the third"))
        with pytest.raises(NumericalError, match="the second"):
            deferred.read(torch.tensor(1.0))
        assert deferred.read(torch.tensor(0.5), torch.tensor(2, dtype=torch.long)) == [0.5, 2.0]  # each is reported once
        assert deferred.read() == []
    with pytest.raises(NumericalError, match="at once"):
        require(torch.tensor(False), lambda: NumericalError("at once"))


def test_conjugate_gradients_without_reads_find_the_same_step(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(40, 6, generator=generator, dtype=torch.float64)
    labels, head = torch.arange(40) % 3, nn.Linear(6, 3).double()
    expected = ulr.reduced_objective(features, labels, head, 2**-8, hessian="cg").eta
    monkeypatch.setattr(ulr, "reads_are_free", lambda device: False)
    assert torch.equal(ulr.reduced_objective(features, labels, head, 2**-8, hessian="cg").eta, expected)


def test_a_step_that_ruins_the_filters_is_found_by_the_next_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (checks, ulr, base, invsqrt):
        monkeypatch.setattr(module, "reads_are_free", lambda device: False)
    method = METHODS["ulr"](small(torchckn.kernels.RBFSphere(0.6)), MethodOptions(lam=2**-10, head_update="reuse"))
    images, labels = torch.rand(6, 1, 8, 8), torch.arange(6)
    method.step(images, labels, lr=float("inf"))
    with pytest.raises(NumericalError, match="a step made a filter zero or not finite"):
        method.state()
