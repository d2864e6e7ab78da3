"""Ready for a GPU, shown without one: whole steps on fake CUDA tensors, which refuse mixed devices and any read of a value.

Copies between host and device, and operations that make the host wait, are counted by a dispatch mode in :mod:`tests.fake_cuda`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from benchmarks import tables
from torch import nn

from torchckn import zoo
from torchckn.errors import NumericalError
from torchckn.fit import ulr
from torchckn.fit.methods import METHODS, Method, MethodOptions
from torchckn.nn import base, checks, invsqrt
from torchckn.nn.checks import Deferred, require

from . import fake_cuda
from .contracts import KERNELS
from .fake_cuda import steps
from .fake_cuda.steps import small

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
    ("sgd", {}),
]


@pytest.fixture(scope="module")
def device(pytestconfig: pytest.Config) -> Iterator[Callable[..., None]]:
    """Runs functions of :mod:`tests.fake_cuda.steps` in a process that has the device."""
    if fake_cuda.compiler() is None or torch.version.cuda:
        pytest.skip("needs a C++ compiler, and a torch without CUDA")
    assert pytestconfig.cache is not None
    with fake_cuda.process_with(fake_cuda.compiled(pytestconfig.cache.mkdir("fake_cuda"))) as process:
        yield lambda function, *arguments: process.submit(function, *arguments).result(timeout=600)


@pytest.mark.parametrize(("method", "options"), METHOD_CASES, ids=str)
def test_a_step_of_every_method_stays_on_the_device_and_waits_once(
    device: Any, method: str, options: dict[str, Any]
) -> None:
    device(steps.step, "lenet5" if method == "sgd" else "small", None, method, options, 2)


@pytest.mark.parametrize("kernel", range(len(KERNELS)), ids=[str(case) for case in KERNELS])
def test_a_step_with_every_kernel_stays_on_the_device_and_waits_once(device: Any, kernel: int) -> None:
    device(steps.step, "small", kernel, "ulr", {})


@pytest.mark.parametrize("name", ["lenet5", "resnet20"])
def test_a_step_of_a_network_stays_on_the_device_and_waits_once(device: Any, name: str) -> None:
    device(steps.step, name, None, "ulr", {})


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [None, *range(len(KERNELS))], ids=["match", *(str(case) for case in KERNELS)])
@pytest.mark.parametrize("method", ["ulr", "sgo", "sgo-ball"])
@pytest.mark.parametrize("name", zoo.names())
def test_a_step_of_every_network_stays_on_the_device_and_waits_once(
    device: Any, name: str, method: str, kernel: int | None
) -> None:
    device(steps.step, name, kernel, method, {"radius": 1.0} if method == "sgo-ball" else {})


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.names())
def test_a_step_of_every_convnet_stays_on_the_device_and_waits_once(device: Any, name: str) -> None:
    device(steps.step, name, None, "sgd", {})


def test_a_step_on_the_device_refuses_another_device(device: Any) -> None:
    device(steps.mixed_devices_are_refused)


def test_a_step_on_the_device_refuses_a_read_that_is_not_deferred(device: Any) -> None:
    device(steps.reads_are_refused)


on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def methods_on(devices: list[str], method: str, options: dict[str, Any]) -> list[Method]:
    net = steps.build("lenet5" if method == "sgd" else "small", None, method)
    return [METHODS[method](copy.deepcopy(net).to(device), MethodOptions(lam=2**-10, **options)) for device in devices]


@on_a_gpu
@pytest.mark.parametrize(("method", "options"), METHOD_CASES, ids=str)
def test_a_step_on_a_gpu_has_the_numbers_of_the_cpu(method: str, options: dict[str, Any]) -> None:
    here, there = methods_on(["cpu", "cuda"], method, options)
    images, labels = torch.rand(6, *here.net.input_shape), torch.arange(6)
    results = [m.step(images.to(m.net.lam.device), labels.to(m.net.lam.device), lr=0.01) for m in (here, there)]
    assert results[1].loss == pytest.approx(results[0].loss, rel=1e-4)
    for ours, theirs in zip(here.net.parameters(), there.net.parameters(), strict=True):
        torch.testing.assert_close(theirs.cpu(), ours, rtol=1e-3, atol=1e-4)


@on_a_gpu
@pytest.mark.parametrize(("method", "options"), METHOD_CASES, ids=str)
def test_a_step_on_a_gpu_waits_once(method: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """torch makes every other wait an error."""
    (trained,) = methods_on(["cuda"], method, options)
    batch = torch.rand(6, *trained.net.input_shape, device="cuda"), torch.arange(6, device="cuda")
    trained.step(*batch, lr=0.01)  # what is prepared once
    reads = []

    def host(numbers: torch.Tensor) -> list[float]:
        torch.cuda.set_sync_debug_mode("default")
        reads.append(numbers.tolist())
        torch.cuda.set_sync_debug_mode("error")
        return reads[-1]

    monkeypatch.setattr(checks, "host", host)
    torch.cuda.set_sync_debug_mode("error")
    try:
        trained.step(*batch, lr=0.01)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(reads) == 1


def test_benchmarks_on_a_device_that_is_not_there_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    for device in ("cuda:99", "tpu"):
        with pytest.raises(SystemExit, match="2"):
            tables.main(["--device", device])
        assert f"expected cpu, or a CUDA GPU that torch {torch.__version__} can use" in capsys.readouterr().err


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
    method = METHODS["ulr"](small(), MethodOptions(lam=2**-10, head_update="reuse"))
    images, labels = torch.rand(6, 1, 8, 8), torch.arange(6)
    method.step(images, labels, lr=float("inf"))
    with pytest.raises(NumericalError, match="a step made a filter zero or not finite"):
        method.state()
