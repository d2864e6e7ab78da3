"""Ready for a GPU, shown without one: whole steps on fake CUDA tensors, which refuse mixed devices and any read of a value.

Copies between host and device, and operations that make the host wait, are counted by a dispatch mode in :mod:`tests.fake_cuda`.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks import tables
from torch import nn

import torchckn
from torchckn import zoo
from torchckn.errors import NumericalError
from torchckn.fit import ulr
from torchckn.fit.methods import METHODS, Method, MethodOptions
from torchckn.fit.schedules import Search
from torchckn.nn import base, checks, invsqrt
from torchckn.nn.checks import Deferred, require
from torchckn.nn.devices import prefers_convolutions

from . import fake_cuda
from .contracts import KERNELS
from .fake_cuda import steps
from .fake_cuda.steps import small
from .training import digits, network

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


@pytest.mark.parametrize("name", ["lenet5", pytest.param("resnet20", marks=pytest.mark.slow)])
def test_a_step_of_a_network_stays_on_the_device_and_waits_once(device: Any, name: str) -> None:
    device(steps.step, name, None, "ulr", {})


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ulr", "sgo", "sgo-ball"])
@pytest.mark.parametrize("name", zoo.names())
def test_a_step_of_every_network_stays_on_the_device_and_waits_once(device: Any, name: str, method: str) -> None:
    device(steps.step, name, None, method, {"radius": 1.0} if method == "sgo-ball" else {})


@pytest.mark.slow
@pytest.mark.parametrize("kernel", range(len(KERNELS)), ids=[str(case) for case in KERNELS])
@pytest.mark.parametrize("name", ["allcnn", "resnet20"])
def test_a_step_of_a_deep_network_with_every_kernel_stays_on_the_device_and_waits_once(
    device: Any, name: str, kernel: int
) -> None:
    device(steps.step, name, kernel, "ulr", {})


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in zoo.names() if name != "nin"])  # which has no linear classifier
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
    results = [
        m.step(images.to(m.net.head.weight.device), labels.to(m.net.head.weight.device), lr=0.01) for m in (here, there)
    ]
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


@pytest.fixture
def costly_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Reads cost time here, as on a GPU; how many numbers each of them had."""
    reads: list[int] = []

    def host(numbers: torch.Tensor) -> list[float]:
        reads.append(len(numbers))
        return numbers.tolist()

    monkeypatch.setattr(checks, "host", host)
    for module in (checks, ulr, base, invsqrt):
        monkeypatch.setattr(module, "reads_are_free", lambda device: False)
    return reads


def test_a_step_that_ruins_the_filters_is_found_by_the_next_read(costly_reads: list[int]) -> None:
    method = METHODS["ulr"](small(), MethodOptions(lam=2**-10, head_update="reuse"))
    images, labels = torch.rand(6, 1, 8, 8), torch.arange(6)
    method.step(images, labels, lr=float("inf"))
    with pytest.raises(NumericalError, match="a step made a filter zero or not finite"):
        method.checks.read()


@pytest.mark.parametrize("method", ["ulr", "sgo"])
def test_training_reads_results_once_per_step(costly_reads: list[int], method: str) -> None:
    reads_by_step: list[int] = []

    class Count(torchckn.Callback):
        def on_step_end(self, training: Any, record: dict[str, Any]) -> None:
            reads_by_step.append(len(costly_reads))

    net = network()
    net.filters_fitted.fill_(True)
    options: dict[str, Any] = {"lam": 2**-8, "steps": 5, "batch_size": 50, "lr": 2**-6, "final_head": False}
    torchckn.train(net, digits()[0], method=method, callbacks=[Count()], **options)
    assert [later - before for before, later in itertools.pairwise(reads_by_step[:-1])] == [1, 1, 1]
    assert reads_by_step[-1] - reads_by_step[-2] <= 2  # after the last step nobody else reads what it did


class RuinsThirdStep(METHODS["ulr"]):  # type: ignore[misc]
    count = 0

    def step(self, images: torch.Tensor, labels: torch.Tensor, lr: float) -> Any:
        self.count += 1
        return super().step(images, labels, float("inf") if self.count == 3 else lr)


@pytest.mark.parametrize("steps", [3, 5])
def test_a_failure_that_is_found_one_step_later_leaves_the_network_of_before(
    costly_reads: list[int], tmp_path: Path, steps: int
) -> None:
    states: list[dict[str, torch.Tensor]] = []

    class Keep(torchckn.Callback):
        def on_step_end(self, training: Any, record: dict[str, Any]) -> None:
            states.append({name: value.clone() for name, value in training.net.state_dict().items()})

    options: dict[str, Any] = {"lam": 2**-8, "batch_size": 50, "lr": 2**-6, "final_head": False, "head_update": "reuse"}
    options |= {"patches": 100, "steps": steps, "run_dir": tmp_path / "run"}
    net = network()
    with pytest.raises(
        NumericalError, match=r"failed: a step made a filter zero .* The network is as it was before step \d"
    ):
        torchckn.train(net, digits()[0], callbacks=[Keep()], method_class=RuinsThirdStep, **options)
    assert any(all(torch.equal(net.state_dict()[name], value) for name, value in state.items()) for state in states[:2])
    again = network()
    torchckn.train(again, digits()[0], resume=True, **options)  # from the checkpoint, which has what the network had
    whole = network()
    torchckn.train(whole, digits()[0], **options | {"run_dir": None})
    assert all(torch.equal(again.state_dict()[name], value) for name, value in whole.state_dict().items())


class RuinsLastStepOfATrial(METHODS["ulr"]):  # type: ignore[misc]
    count = 0

    def step(self, images: torch.Tensor, labels: torch.Tensor, lr: float) -> Any:
        self.count += 1
        return super().step(images, labels, float("inf") if self.count == 2 else lr)


def test_a_learning_rate_that_ruins_the_filters_is_not_taken_and_stops_nothing(costly_reads: list[int]) -> None:
    net = network()
    net.filters_fitted.fill_(True)
    options: dict[str, Any] = {"lam": 2**-8, "steps": 2, "batch_size": 50, "final_head": False, "head_update": "reuse"}
    rates = Search(first=(2**-6, 2**-7), tries=2)
    result = torchckn.train(net, digits()[0], lr=rates, method_class=RuinsLastStepOfATrial, **options)
    assert [record["lr"] for record in result.history[1:]] == [2**-7, 2**-7]


@pytest.mark.parametrize(
    ("device", "capability", "vendor", "expected"),
    [
        ("cpu", "AVX512", "AuthenticAMD", True),
        ("cpu", "AVX512", "GenuineIntel", False),
        ("cpu", "AVX2", "AuthenticAMD", False),
        ("cuda", "AVX512", "AuthenticAMD", False),
    ],
)
def test_products_are_convolutions_where_mkl_uses_half_of_a_register(
    device: str, capability: str, vendor: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(Path, "read_text", lambda path, **how: f"vendor_id\t: {vendor}\n")
    assert prefers_convolutions.__wrapped__(torch.device(device)) is expected
