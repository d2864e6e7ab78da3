"""Gradients of filters as sums over images: the same bits however a batch is divided."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import torchckn
from torchckn import distributed, zoo
from torchckn.choices import Native
from torchckn.fit import chunks
from torchckn.fit.chunks import batch_gradient, share_of_batch, unit_of_sums
from torchckn.fit.methods import METHODS, MethodOptions
from torchckn.graph import AveragePool, Conv, Dense, GaussianPool, Graph, Local
from torchckn.kernels import ArcCosine, Kernel, Linear, Matern, RBFSphere
from torchckn.nn import native
from torchckn.nn.shared_roots import shared_projections
from torchckn.nn.sums import GradientSums, in_units, linear

from .processes import Processes
from .training import convnet, mnist_mini, network, seeded

KERNELS = [RBFSphere(0.6), ArcCosine(1), Linear(), Matern(1.5, 0.7)]  # compiled, compiled, without a map, in plain torch


def small(kernel: Kernel, filters: int, window: int | None, seed: int = 0) -> torchckn.CKN:
    """``window``: of an average; None: Gaussian pooling."""
    size = (window or 1, window or 1)
    average = AveragePool("pool", kernel_size=size, stride=size)
    nodes = [
        Conv("conv1", filters=filters, kernel_size=(3, 3), padding=(1, 1), kernel=kernel),
        average if window else GaussianPool("pool", stride=2),
        Conv("same", filters=filters, init="identity", trainable=False, kernel=RBFSphere(0.6)),
        Conv("conv2", filters=16, kernel_size=(3, 3), kernel=kernel),
        Dense("dense", filters=6, kernel=kernel),
    ]
    return torchckn.CKN(Graph((2, 10, 10), nodes), generator=seeded(seed))


def sums_of(net: torchckn.CKN, images: Tensor, cotangents: Tensor, ends: Sequence[int], unit: int) -> list[Tensor]:
    """The sums of all leaves' gradients, from images that go through the network in several pieces."""
    with shared_projections(net) as roots:
        sums = GradientSums([*(p for p in net.parameters() if p.requires_grad), *roots], unit)
        for start, end in zip([0, *ends], [*ends, len(images)], strict=True):
            with sums.active():
                features = net.features(images[start:end])
            sums.backward(features, cotangents[start:end])
    assert len(sums.sums) >= 6  # three layers' filters and roots
    return [sums.sums[i] for i in sorted(sums.sums)]


@settings(max_examples=25)
@given(
    kernel=st.sampled_from(KERNELS),
    filters=st.sampled_from([5, 8, 16, 40]),
    window=st.sampled_from([1, 2, 3, None]),  # 3 does not divide 10
    images=st.integers(1, 40),
    unit=st.sampled_from([4, 8, 16]),
    seed=st.integers(0, 2**16),
    data=st.data(),
)
def test_sums_are_the_same_wherever_a_batch_is_divided_between_units(
    kernel, filters, window, images, unit, seed, data
) -> None:
    net = small(kernel, filters, window, seed)
    x = torch.randn(images, 2, 10, 10, generator=seeded(seed))
    cotangents = torch.randn(images, 6, generator=seeded(seed + 1))
    whole = sums_of(net, x, cotangents, [], unit)
    borders = range(unit, images - 1, unit)  # not one image alone, which torch convolves in another way
    ends = sorted(data.draw(st.sets(st.sampled_from(borders)))) if borders else []
    parts = sums_of(net, x, cotangents, ends, unit)
    assert all(one.dtype == torch.float64 for one in whole)
    assert all(torch.equal(one.float(), other.float()) for one, other in zip(whole, parts, strict=True))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 5e-5)])
@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_the_gradient_by_sums_is_that_of_autograd(kernel: Kernel, dtype: torch.dtype, tolerance: float) -> None:
    images = torch.randn(24, 2, 10, 10, generator=seeded(3), dtype=dtype)
    for filters, window in ((16, 2), (16, 3), (16, None), (40, None)):
        net, other = (small(kernel, filters, window).to(dtype) for _ in range(2))
        net.features(images).square().sum().backward()
        batch_gradient(other, images, lambda x: (x.square().sum(), None))
        pairs = zip(net.named_parameters(), other.parameters(), strict=True)
        trained = [(name, one.grad, two.grad) for (name, one), two in pairs if one.grad is not None]
        assert len(trained) == 3
        for name, expected, by_sums in trained:
            assert by_sums is not None
            assert (by_sums - expected).norm() <= tolerance * expected.norm(), name


@pytest.mark.parametrize("ends", [[], [8, 16]], ids=["whole", "divided"])
def test_products_of_matrices_may_be_convolutions(ends: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(22, 2, 10, 10, generator=seeded(1))
    cotangents = torch.randn(22, 6, generator=seeded(2))
    sums, features = {}, {}
    for convolved in (False, True):
        monkeypatch.setattr("torchckn.nn.sums.prefers_convolutions", lambda device, answer=convolved: answer)
        net = small(RBFSphere(0.6), 64, 1)
        sums[convolved] = sums_of(net, x, cotangents, ends, 8)
        features[convolved] = net.features(x), net.eval().features(x)
        assert all(map(torch.equal, sums_of(net.train(), x, cotangents, [16], 8), sums[convolved]))
    for by_product, by_convolution in zip(sums[False], sums[True], strict=True):
        assert (by_product - by_convolution).norm() <= 1e-5 * by_product.norm()
    assert not all(map(torch.equal, sums[False], sums[True]))  # else the convolutions were not taken
    for one, other in zip(features[False], features[True], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("filters", "side", "dtype", "expected"),
    [
        (64, 8, torch.float32, True),
        (64, 7, torch.float32, False),  # few positions
        (63, 32, torch.float32, False),  # few filters
        (128, 4, torch.float32, True),
        (64, 8, torch.float64, False),
    ],
)
def test_only_large_products_are_convolutions(
    filters: int, side: int, dtype: torch.dtype, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Tensor] = []
    convolve = F.conv2d
    monkeypatch.setattr("torchckn.nn.sums.prefers_convolutions", lambda device: True)
    monkeypatch.setattr(F, "conv2d", lambda x, *rest: (calls.append(x), convolve(x, *rest))[1])
    linear(torch.ones(2, side, side, filters, dtype=dtype), torch.ones(filters, filters, dtype=dtype))
    assert bool(calls) is expected


@pytest.mark.parametrize("convolved", [False, True])
def test_products_are_not_rounded_if_backward_is_within_autocast(convolved: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchckn.nn.sums.prefers_convolutions", lambda device: convolved)
    x = torch.randn(6, 8, 8, 64, generator=seeded(1)).requires_grad_()
    matrix = torch.randn(64, 64, generator=seeded(2)).requires_grad_()
    with in_units(4):
        out = linear(x, matrix)
    gradients = []
    for is_within in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=is_within):
            gradients.append(torch.autograd.grad(out, (x, matrix), torch.ones_like(out), retain_graph=True))
    assert all(map(torch.equal, *gradients))


def test_a_unit_is_a_quarter_of_a_batch_and_never_divides_what_is_summed_by_autograd() -> None:
    net = network()
    assert [unit_of_sums(net, n) for n in (1, 16, 20, 64, 100, 128, 256, 10_000)] == [4, 4, 4, 16, 16, 32, 32, 32]
    assert unit_of_sums(net, 256, chunk=64) == 32
    assert unit_of_sums(net, 256, chunk=20) == 20  # no multiple of 32: whole chunks
    assert unit_of_sums(net, 256, precision="bfloat16") == chunks.CHUNK
    with net.training_only(None, bandwidths=True):  # whose gradient is a sum over images, too
        assert unit_of_sums(net, 256) == chunks.CHUNK
    assert unit_of_sums(convnet(), 256) == chunks.CHUNK
    local = Local(
        "local", filters=4, kernel_size=(3, 3), trainable=False
    )  # it multiplies matrices of a whole chunk, trained or not
    nodes = [Conv("conv", filters=8, kernel_size=(3, 3)), local, Dense("dense", filters=6)]
    assert unit_of_sums(torchckn.CKN(Graph((1, 8, 8), nodes)), 256) == chunks.CHUNK


def test_what_is_computed_outside_of_training_leaves_its_gradient_to_autograd() -> None:
    net = small(RBFSphere(0.6), 8, 2)
    images = torch.randn(6, 2, 10, 10, generator=seeded(1))
    batch_gradient(net, images, lambda x: (x.square().sum(), None))
    by_sums = net.layers.conv1.weight.grad.clone()  # type: ignore[union-attr, operator]
    net.zero_grad()
    loss = net.features(images).square().sum()
    loss.backward(retain_graph=True)
    once = net.layers.conv1.weight.grad.clone()  # type: ignore[union-attr, operator]
    loss.backward()  # a second time: the graph still has what it needs
    torch.testing.assert_close(once, by_sums, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(net.layers.conv1.weight.grad, 2 * once)  # type: ignore[union-attr]


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_layers_that_are_computed_again_on_the_way_back_have_the_same_gradient(kernel: Kernel) -> None:
    class Checkpointed(torchckn.CKN):
        def features(self, x: Tensor) -> Tensor:
            return checkpoint(super().features, x, use_reentrant=False)

    images = torch.randn(6, 2, 10, 10, generator=seeded(1))
    nets = small(kernel, 8, 2), small(kernel, 8, 2)
    nets[1].__class__ = Checkpointed
    for net in nets:
        batch_gradient(net, images, lambda x: (x.square().sum(), None))
    for one, other in zip(*(net.parameters() for net in nets), strict=True):
        assert one.grad is other.grad is None or torch.equal(one.grad, other.grad)  # type: ignore[arg-type]


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_autocast_around_a_step_leaves_sums_to_autograd(kernel: Kernel) -> None:
    net, images = small(kernel, 8, 2), torch.randn(6, 2, 10, 10, generator=seeded(1))
    with torch.autocast("cpu", torch.bfloat16):
        assert unit_of_sums(net, 256) == chunks.CHUNK
        batch_gradient(net, images, lambda x: (x.square().sum(), None))
    assert all(
        p.grad is not None and p.grad.isfinite().all()
        for layer in ("conv1", "dense")
        for p in net.layers[layer].parameters()
    )


def test_a_graph_that_adds_to_sums_is_gone_through_once() -> None:
    net, images = small(RBFSphere(0.6), 16, 2), torch.randn(6, 2, 10, 10, generator=seeded(1))
    sums = GradientSums([net.layers.conv2.weight], 4)  # type: ignore[list-item, union-attr]
    images.requires_grad_()
    with sums.active():
        loss = net.features(images).square().sum()
        torch.autograd.grad(loss, images, retain_graph=True)
        with pytest.raises(RuntimeError, match="can be gone through once; make it again"):
            torch.autograd.grad(loss, images)


def test_hooks_of_filters_are_called() -> None:
    images = torch.randn(6, 2, 10, 10, generator=seeded(1))
    gradients = []
    for factor in (1, 3):
        net = small(RBFSphere(0.6), 8, 2)
        net.layers.conv2.weight.register_hook(lambda gradient, factor=factor: factor * gradient)  # type: ignore[union-attr, operator]
        batch_gradient(net, images, lambda x: (x.square().sum(), None))
        gradients.append([net.layers.conv1.weight.grad, net.layers.conv2.weight.grad])  # type: ignore[union-attr]
    (same, once), (same_again, thrice) = gradients
    torch.testing.assert_close(same, same_again)
    assert not torch.allclose(once, thrice)


def steps(method: str, match: bool, batch_size: int) -> dict[str, Tensor]:
    """Three steps on chunks of the usual size, each process on its share of every batch."""
    convnet = zoo.build("lenet5", filters=16, padding=2)
    net = torchckn.translate(convnet, (1, 28, 28), "match" if match else RBFSphere(0.6), generator=seeded(0))
    images, labels = mnist_mini().train
    one = METHODS[method](net, MethodOptions(lam=2**-8, momentum=0.5))
    for i in range(3):
        index = torch.arange(i * batch_size, (i + 1) * batch_size)
        mine = index[share_of_batch(net, batch_size)]
        one.step(images[mine], labels[mine], lr=2**-6)
    return net.state_dict()


def gradient_of_half(native_of_last: Native) -> dict[str, Tensor]:
    """The gradient on ten images, of which each of two processes has five; the last one with another setting."""
    net, images = small(RBFSphere(0.6), 8, 2), torch.randn(10, 2, 10, 10, generator=seeded(1))
    mine = images[distributed.share(10)]
    with native.use(native_of_last if distributed.rank() else "auto"):
        batch_gradient(net, mine, lambda x: (x.square().sum(), None), batch_size=10)
    return {name: p.grad for name, p in net.named_parameters() if p.grad is not None}


def test_processes_with_and_without_compiled_code_add_up_the_same_filters(tmp_path: Path) -> None:
    group = Processes(2, tmp_path)
    try:
        one = gradient_of_half("auto")
        for other in group(gradient_of_half, "off"):
            assert other.keys() == one.keys()
            assert all((other[name] - one[name]).norm() <= 1e-4 * one[name].norm() for name in one)
    finally:
        group.close()


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory):
    mnist_mini()  # loaded once, before the processes are forked
    group = Processes(3, tmp_path_factory.mktemp("three"))
    yield group
    group.close()


@pytest.mark.parametrize(
    ("method", "match", "batch_size"), [("ulr", True, 100), ("ulr", False, 256), ("sgo", True, 64), ("sgo", False, 100)]
)
def test_processes_that_divide_a_chunk_end_with_the_bits_of_one(
    three: Processes, method: str, match: bool, batch_size: int
) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        one = steps(method, match, batch_size)
    finally:
        torch.set_num_threads(threads)
    for other in three(steps, method, match, batch_size):
        assert all(torch.equal(other[name], value) for name, value in one.items())


def test_no_image_is_left_for_a_chunk_of_its_own() -> None:
    net, images = network(), torch.arange(13.0)[:, None, None, None]
    assert [len(piece) for piece in chunks._pieces(net, images, 4, None)] == [4, 4, 5]
    assert torch.cat(chunks._pieces(net, images, 4, None)).equal(images)
    assert [len(piece) for piece in chunks._pieces(net, images[:1], 4, None)] == [1]
    assert [len(piece) for piece in chunks._pieces(net, images[:3], 1, None)] == [1, 1, 1]
