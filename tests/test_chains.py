"""Layers in one call of compiled code, for few images: the numbers of the layers one by one, and never those of before."""

from __future__ import annotations

import copy
import pickle
import sys
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import torchckn
from torchckn.errors import DataError
from torchckn.graph import AdaptiveAveragePool, AveragePool, Conv, DirectSum, Graph
from torchckn.kernels import ArcCosine, Linear, RBFSphere
from torchckn.nn import chains, native

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C++ compiler: layers run one by one")


def network(filters: int = 8, seed: int = 0) -> torchckn.CKN:
    nodes = [
        Conv("first", filters=filters, kernel_size=(3, 3), padding=(1, 1), kernel=RBFSphere(0.6)),
        AveragePool("pool", kernel_size=(2, 2)),
        Conv("identity", filters=filters, init="identity", kernel=ArcCosine(1)),
        Conv("second", filters=filters + 1, kernel_size=(3, 3), stride=(2, 2), kernel=RBFSphere(0.5)),
        Conv("last", filters=filters + 2, kernel=Linear()),
        AdaptiveAveragePool("average"),
    ]
    return torchckn.CKN(Graph((2, 12, 12), nodes), generator=torch.Generator().manual_seed(seed)).eval()


def images(count: int = 2) -> Tensor:
    return torch.randn(count, 2, 12, 12, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def one_by_one(net: torchckn.CKN, x: Tensor) -> Tensor:
    """The features without chains."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chains, "FEW_IMAGES", 0)
        return net.features(x)


@torch.no_grad()
def in_chains(net: torchckn.CKN, x: Tensor) -> Tensor:
    """The features, three layers of which have to be computed in one call."""
    calls: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        plain = native.call
        patch.setattr(native, "call", lambda name, *arguments: (calls.append(name), plain(name, *arguments))[1])
        features = net.features(x)
    assert "chain" in calls
    return features


@settings(max_examples=20, deadline=None)
@given(filters=st.sampled_from([1, 7, 8, 16, 24, 32, 40, 70]), count=st.integers(1, chains.FEW_IMAGES))
def test_a_chain_gives_the_numbers_of_its_layers(filters: int, count: int) -> None:
    net, x = network(filters), images(count)
    torch.testing.assert_close(in_chains(net, x), one_by_one(net, x), rtol=1e-4, atol=1e-5)
    in_double = net.double().features(x.double())
    found = in_chains(net.float(), x).double()
    assert (found - in_double).norm() <= 1e-4 * in_double.norm()


@torch.no_grad()
def test_a_chain_goes_up_to_the_global_average(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    plain = native.call
    monkeypatch.setattr(native, "call", lambda name, *arguments: (calls.append(name), plain(name, *arguments))[1])
    assert network().features(images(1)).shape == (1, 10)
    assert [name for name in calls if name != "pack"] == ["chain"]


@torch.no_grad()
@pytest.mark.parametrize("count", [1, 3])
def test_a_chain_gives_the_same_bits_on_any_number_of_threads(count: int) -> None:
    net, x = network(40), torch.randn(count, 2, 12, 12, generator=torch.Generator().manual_seed(2))
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(net.features(x))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_layers_that_somebody_watches_or_replaces_run_one_by_one() -> None:
    net, x = network(), images(1)
    net.layers["second"].forward = lambda y: 2 * type(net.layers["second"]).forward(net.layers["second"], y)  # type: ignore[method-assign]
    with torch.no_grad():
        torch.testing.assert_close(net.features(x), one_by_one(net, x))
    calls: list[nn.Module] = []
    handle = nn.modules.module.register_module_forward_hook(lambda module, _, __: calls.append(module))
    try:
        with torch.no_grad():
            network().features(x)
    finally:
        handle.remove()
    assert sum(isinstance(module, torchckn.nn.KernelConv2d) for module in calls) == 4


def test_a_chain_follows_every_change_of_its_layers() -> None:
    net, x = network(), images()
    before = in_chains(net, x)
    net.layers["second"].weight.data.copy_(net.layers["second"].weight.flip(0))
    changed = in_chains(net, x)
    assert not torch.equal(changed, before)
    torch.testing.assert_close(changed, one_by_one(net, x), rtol=1e-4, atol=1e-5)
    net.layers["first"].kernel = RBFSphere(0.3)
    torch.testing.assert_close(in_chains(net, x), one_by_one(net, x), rtol=1e-4, atol=1e-5)
    net.layers["first"] = network(seed=5).layers["first"]
    torch.testing.assert_close(in_chains(net, x), one_by_one(net, x), rtol=1e-4, atol=1e-5)
    net.layers["first"].eps = 0.1
    torch.testing.assert_close(in_chains(net, x), one_by_one(net, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("first", {"padding": (0, 0)}),
        ("first", {"pool": nn.AvgPool2d(3)}),
        ("first", {"pool": None}),
        ("second", {"stride": (1, 1)}),
        ("second", {"dilation": (2, 2)}),
    ],
)
def test_a_chain_follows_a_change_of_geometry(name: str, change: dict[str, object]) -> None:
    net, x = network(), images()
    before = in_chains(net, x)
    for attribute, value in change.items():
        setattr(net.layers[name], attribute, value)
    changed = in_chains(net, x)
    assert not torch.allclose(changed, before, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(changed, one_by_one(net, x), rtol=1e-4, atol=1e-5)


def test_threads_with_different_numbers_of_images_get_their_own_numbers() -> None:
    net = network(16)
    inputs = [images(1), images(4)]
    expected = [in_chains(net, x) for x in inputs]
    right = [0, 0]

    def work(i: int) -> None:
        with torch.no_grad():
            for _ in range(200):
                right[i] += torch.equal(net.features(inputs[i]), expected[i])

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(i,)) for i in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert right == [200, 200]


def test_an_interrupted_preparation_leaves_the_chain_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = network(16), images(2)
    expected, calls = in_chains(net, x), []
    prepared = [chain._prepared for chain in net._chains.values()]

    def interrupted(weight: Tensor, patches: object) -> Tensor:
        calls.append(weight)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return plain(weight, patches)  # type: ignore[arg-type]

    plain = chains._packed
    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(chains, "_packed", interrupted)
        with pytest.raises(KeyboardInterrupt):
            net.features(images(1))
    assert [chain._prepared for chain in net._chains.values()] == prepared
    assert torch.equal(in_chains(net, x), expected)
    torch.testing.assert_close(in_chains(net, images(1)), one_by_one(net, images(1)), rtol=1e-4, atol=1e-5)


def test_a_layer_of_other_channels_is_an_error_and_not_part_of_a_chain() -> None:
    net, x = network(), images()
    in_chains(net, x)
    net.layers["second"] = network(16).layers["second"]
    with torch.no_grad(), pytest.raises(DataError, match=r"expected a batch of images \(N, 16, H, W\)"):
        net.features(x)


def test_copies_of_a_network_have_chains_of_their_own() -> None:
    net, x = network(), images()
    expected = in_chains(net, x)
    for same in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(in_chains(same, x), expected)
        same.layers["first"].weight.data.copy_(same.layers["first"].weight.flip(0))
        assert not torch.equal(in_chains(same, x), expected)
    assert torch.equal(in_chains(net, x), expected)


@pytest.mark.parametrize("wide", [{"filters": chains.WIDEST + 1}, {"filters": 16, "root_block": 8}], ids=["wide", "blocks"])
def test_wide_layers_and_layers_of_several_roots_run_by_themselves(wide: dict[str, int]) -> None:
    nodes = [Conv("a", filters=8, kernel_size=(3, 3)), Conv("b", **wide), Conv("c", filters=8), Conv("d", filters=8)]
    net = torchckn.CKN(Graph((2, 12, 12), nodes), generator=torch.Generator().manual_seed(0)).eval()
    assert [chain.names for chain in net._chains.values()] == [["a"], ["c", "d"]]
    torch.testing.assert_close(in_chains(net, images()), one_by_one(net, images()), rtol=1e-4, atol=1e-5)


def test_a_layer_that_is_watched_runs_by_itself() -> None:
    net, x = network(), images()
    seen: list[Tensor] = []
    net.layers["second"].register_forward_hook(lambda module, inputs, output: seen.append(output))
    with torch.no_grad():
        net.features(x)
    assert len(seen) == 1


def test_gradients_do_not_go_through_chains() -> None:
    net, x = network(), images().requires_grad_()
    net.features(x).sum().backward()
    assert x.grad is not None
    assert float(x.grad.abs().sum()) > 0


def test_what_two_layers_need_is_not_inside_of_a_chain() -> None:
    nodes = [
        Conv("a", filters=8, kernel_size=(3, 3)),
        Conv("b", filters=8),
        Conv("c", filters=8, inputs=("a",)),
        DirectSum("sum", inputs=("b", "c")),
    ]
    net = torchckn.CKN(Graph((2, 12, 12), nodes), generator=torch.Generator().manual_seed(0)).eval()
    torch.testing.assert_close(in_chains(net, images()), one_by_one(net, images()), rtol=1e-4, atol=1e-5)
