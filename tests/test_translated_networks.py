"""Whole networks: those of the paper, those of the zoo, and networks as people write them."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

import torchckn
from torchckn import translate, zoo
from torchckn.graph import KernelNode
from torchckn.kernels import ArcCosine, Linear, RBFSphere

from .networks import NETWORKS, rows_of, run_and_save


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "lenet1",
            [  # filters' shape, kernel, trained?, output
                ((4, 1, 5, 5), Linear(), True, (4, 24, 24)),
                (None, None, None, (4, 12, 12)),
                ((4, 4, 1, 1), ArcCosine(0), False, (4, 12, 12)),
                ((12, 4, 5, 5), Linear(), True, (12, 8, 8)),
                (None, None, None, (12, 4, 4)),
                ((12, 12, 1, 1), ArcCosine(0), False, (12, 4, 4)),
            ],
        ),
        (
            "lenet5",
            [
                ((6, 1, 5, 5), Linear(), True, (6, 28, 28)),
                (None, None, None, (6, 14, 14)),
                ((6, 6, 1, 1), ArcCosine(0), False, (6, 14, 14)),
                ((16, 6, 5, 5), Linear(), True, (16, 10, 10)),
                (None, None, None, (16, 5, 5)),
                ((16, 16, 1, 1), ArcCosine(0), False, (16, 5, 5)),
                ((120, 400), ArcCosine(0), True, (120,)),
                ((84, 120), ArcCosine(0), True, (84,)),
            ],
        ),
        (
            "allcnn",
            [
                ((96, 3, 3, 3), ArcCosine(1), True, (96, 32, 32)),
                ((96, 96, 3, 3), ArcCosine(1), True, (96, 32, 32)),
                ((96, 96, 3, 3), ArcCosine(1), True, (96, 15, 15)),
                ((192, 96, 3, 3), ArcCosine(1), True, (192, 15, 15)),
                ((192, 192, 3, 3), ArcCosine(1), True, (192, 15, 15)),
                ((192, 192, 3, 3), ArcCosine(1), True, (192, 7, 7)),
                ((192, 192, 3, 3), ArcCosine(1), True, (192, 7, 7)),
                ((192, 192, 1, 1), ArcCosine(1), True, (192, 7, 7)),
                ((10, 192, 1, 1), ArcCosine(1), True, (10, 7, 7)),
                (None, None, None, (10, 1, 1)),
            ],
        ),
    ],
)
def test_the_paper_s_networks_become_what_its_appendix_says(name: str, expected: list[Any]) -> None:
    ckn = translate(zoo.build(name))
    found = []
    for node in ckn.graph.nodes:
        shape = ckn.graph.shapes[node.name]
        if isinstance(node, KernelNode):
            weight = ckn.layers[node.name].weight
            found.append((tuple(weight.shape), node.kernel, weight.requires_grad, shape))
        else:
            found.append((None, None, None, shape))
    assert found == [(w, k and k.spec(), t, s) for w, k, t, s in expected]
    assert ckn.head.out_features == 10


@pytest.mark.parametrize("name", ["lenet1", "lenet5", "allcnn"])
def test_an_rbf_kernel_for_all_takes_the_place_of_nonlinear_kernels_only(name: str) -> None:
    matched = translate(zoo.build(name, filters=4))
    chosen = translate(zoo.build(name, filters=4), kernel=RBFSphere(0.6))
    for a, b in zip(matched.graph.nodes, chosen.graph.nodes, strict=True):
        if isinstance(a, KernelNode):
            assert isinstance(b, KernelNode)
            assert b.kernel == (a.kernel if a.kernel == Linear().spec() else RBFSphere(0.6).spec())


@pytest.mark.parametrize("name", zoo.names())
def test_every_network_of_the_zoo_is_translated_trained_and_saved(name: str, tmp_path: Any) -> None:
    net = zoo.build(name, filters=4, classes=7)
    ckn = translate(net)
    if net.input_shape[1] > 32:  # large images: forward only
        with torch.no_grad():
            assert ckn(torch.randn(2, *net.input_shape)).shape == (2, 7)
        again = torchckn.load(torchckn.save(ckn.eval(), tmp_path / "model"))
        assert all(torch.equal(a, b) for a, b in zip(again.state_dict().values(), ckn.state_dict().values(), strict=True))
        assert again.report == ckn.report
        assert again.graph == ckn.graph
    else:
        run_and_save(ckn, net.input_shape, 7, tmp_path)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_as_people_write_them_run_backpropagate_and_save(name: str, tmp_path: Any) -> None:
    run_and_save(translate(NETWORKS[name](), (1, 12, 12)), (1, 12, 12), 3, tmp_path)


@pytest.mark.parametrize("name", NETWORKS)
def test_shapes_follow_the_convnet_s(name: str) -> None:
    """Every layer's height and width are those of the ConvNet; its channels as well, but behind sums."""
    net = NETWORKS[name]()
    ckn = translate(net, (1, 12, 12))
    seen: dict[str, tuple[int, ...]] = {}
    for path, module in net.named_modules():
        module.register_forward_hook(lambda _m, _i, out, path=path: seen.__setitem__(path, tuple(out.shape[1:])))
    net.eval()(torch.zeros(2, 1, 12, 12))
    checked = 0
    for source, row in rows_of(ckn).items():
        if row.layer in ckn.graph.shapes and source in seen and len(seen[source]) == 3:
            assert ckn.graph.shapes[row.layer][1:] == seen[source][1:]
            checked += 1
    assert checked or name == "lambdas"


def test_layer_options_reach_every_layer() -> None:
    ckn = translate(zoo.build("lenet5", filters=4), eps=0.01, inverse_sqrt="newton", init="sample")
    for node in ckn.graph.nodes:
        if isinstance(node, KernelNode):
            assert (node.eps, node.inverse_sqrt) == (0.01, "newton")
            assert node.init in ("sample", "identity")


def test_a_trainable_bandwidth_is_each_layer_s_own() -> None:
    ckn = translate(zoo.build("allcnn", filters=4), kernel=RBFSphere(0.6, trainable=True))
    sigmas = [p for n, p in ckn.named_parameters() if n.endswith("sigma")]
    assert len(sigmas) == 9
    assert len({id(p) for p in sigmas}) == 9


def test_a_generator_decides_the_filters() -> None:
    net = zoo.build("lenet1")
    one, same = (translate(net, generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_device_and_mode_carry_over(dtype: torch.dtype) -> None:
    net = zoo.build("lenet5", filters=4).to(dtype).eval()
    ckn = translate(net)
    assert {p.dtype for p in ckn.parameters()} == {dtype}
    assert not ckn.training
    assert ckn(torch.rand(1, 1, 32, 32, dtype=dtype)).dtype == dtype


@pytest.mark.slow  # for want of a quiet machine, not because it takes long
@pytest.mark.parametrize("name", ["resnet20", "vgg11"])
def test_translation_takes_less_than_two_seconds(name: str) -> None:
    net = zoo.build(name)
    start = time.perf_counter()
    translate(net)
    assert time.perf_counter() - start < 2


def test_a_network_without_a_last_linear_layer_gets_a_head_and_the_report_says_so() -> None:
    ckn = translate(NETWORKS["all convolutional"](), (1, 12, 12))
    assert ckn.report is not None
    assert (ckn.head.in_features, ckn.head.out_features) == (3, 3)
    assert "one is added" in ckn.report.rows[-1].why
