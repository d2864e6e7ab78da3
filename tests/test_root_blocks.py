"""Wide layers: filters in blocks, each with an inverse root of its own (the ensemble Nystrom method)."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import torchckn
from torchckn import kernels
from torchckn.errors import ConfigError
from torchckn.fit.conditioning import layer_facts
from torchckn.graph import Conv, Dense, Graph, Local, Node
from torchckn.nn import KernelConv2d, KernelLinear, KernelLocal2d
from torchckn.nn.functional import block_count, filter_blocks, projection

from .contracts import EXACT, Case, every_kernel, unit_rows

TOLERANCE = {"rtol": EXACT[torch.float64], "atol": EXACT[torch.float64]}


@given(filters=st.integers(1, 40), block=st.integers(1, 50))
def test_blocks_are_as_equal_as_can_be_and_at_most_as_large_as_asked(filters: int, block: int) -> None:
    rows = torch.arange(filters)[:, None].double()
    blocks = filter_blocks(rows, block)
    sizes = [len(part) for part in blocks]
    assert len(blocks) == block_count(filters, block) == -(-filters // block)
    assert max(sizes) <= block
    assert max(sizes) - min(sizes) <= 1
    assert torch.equal(torch.cat(blocks), rows)


@every_kernel
def test_the_gram_matrix_of_the_features_is_the_average_of_the_blocks_nystrom_approximations(
    case: Case, generator: torch.Generator
) -> None:
    kernel, x = case.build().double(), torch.randn(6, 9, generator=generator, dtype=torch.float64)
    layer = KernelLinear(9, 7, kernel, root_block=3, generator=generator).double()
    features = layer(x)
    approximations = []
    for block in (layer.weight[:3], layer.weight[3:5], layer.weight[5:]):  # 3, 2, 2 of 7 filters
        between = kernel.gram(x, block)
        inverse = torch.linalg.inv(kernel.gram(block, block) + layer.eps * torch.eye(len(block), dtype=torch.float64))
        approximations.append(between @ inverse @ between.T)
    torch.testing.assert_close(features @ features.T, torch.stack(approximations).mean(0), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("block", [5, 6, None])
def test_one_block_is_the_layer_without_blocks(block: int | None, generator: torch.Generator) -> None:
    weight = unit_rows(5, 8, generator=generator)
    kernel = kernels.RBFSphere(0.6)
    assert torch.equal(projection(weight, kernel, 1e-3, block=block), projection(weight, kernel, 1e-3))


def _layers(generator: torch.Generator, kernel: kernels.Kernel) -> dict[str, Any]:
    options: dict[str, Any] = {"kernel": kernel, "root_block": 2, "generator": generator}
    return {
        "conv": KernelConv2d(4, 5, 3, **options),
        "groups": KernelConv2d(4, 6, 3, groups=2, pool=nn.AvgPool2d(2), **options),
        "local": KernelLocal2d(4, 3, 2, 4, regions=2, **options),
        "dense": KernelLinear(4 * 4 * 4, 5, **options),
    }


@pytest.mark.parametrize("kind", ["conv", "groups", "local", "dense"])
def test_the_root_has_a_block_for_each_block_of_filters_of_a_group_or_region(kind: str, generator: torch.Generator) -> None:
    layer = _layers(generator, kernels.RBFSphere(0.6))[kind].double()
    weight, root = layer.filter_matrix(), layer.projection()
    sizes = {5: (2, 2, 1), 3: (2, 1)}[weight.shape[-2]]
    expected = torch.zeros_like(root)
    for index in range(weight[..., 0, 0].numel()):
        start = 0
        for size in sizes:
            here = slice(start, start + size)
            part = projection(weight.reshape(-1, *weight.shape[-2:])[index, here], layer.kernel, layer.eps)
            expected.reshape(-1, *root.shape[-2:])[index, here, here] = part / len(sizes) ** 0.5
            start += size
    torch.testing.assert_close(root, expected, **TOLERANCE)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", ["conv", "groups", "local", "dense"])
@pytest.mark.parametrize("kernel", [kernels.RBFSphere(0.6), kernels.ArcCosine(1)], ids=str)
def test_gradients_of_a_layer_in_blocks_are_those_of_finite_differences(
    kernel: kernels.Kernel, kind: str, training: bool, generator: torch.Generator
) -> None:
    layer = _layers(generator, kernel)[kind].double().train(training)
    x = torch.randn(2, 4, 4, 4, generator=generator, dtype=torch.float64)

    def features(weight: torch.Tensor) -> torch.Tensor:
        on_sphere = weight / torch.linalg.vector_norm(weight.flatten(-layer.filter_dims), dim=-1).reshape(
            *weight.shape[: weight.ndim - layer.filter_dims], *[1] * layer.filter_dims
        )
        return torch.func.functional_call(layer, {"weight": on_sphere}, (x,))

    torch.autograd.gradcheck(features, (layer.weight.detach().clone().requires_grad_(),), fast_mode=True)


def test_a_graph_keeps_its_blocks_in_its_file_and_in_its_labels() -> None:
    nodes: list[Node] = [
        Conv("conv", filters=8, kernel_size=(3, 3), groups=2, root_block=2),
        Local("local", filters=3, kernel_size=(2, 2), root_block=2),
        Dense("dense", filters=6, root_block=4),
        Dense("narrow", filters=6),
    ]
    graph = Graph((2, 5, 5), nodes)
    plain = json.loads(json.dumps(graph.to_json()))
    assert "root_block" not in json.dumps(plain["nodes"][-1])  # as in files without blocks
    assert Graph.from_json(plain) == graph
    assert [node.label() for node in graph.nodes] == [
        "conv 3x3, 2 groups, 2 root blocks",
        "local 2x2, 2 root blocks",
        "fully connected, 2 root blocks",
        "fully connected",
    ]
    assert [layer.root_block for layer in torchckn.CKN(graph).kernel_layers().values()] == [2, 2, 4, None]


@pytest.mark.parametrize("block", [0, -1, 2.0, True, "512"])
def test_a_block_that_is_no_number_of_filters_is_refused(block: Any) -> None:
    with pytest.raises(ConfigError, match=r"root_block expected a number of filters >= 1, or None"):
        KernelLinear(3, 4, root_block=block)
    with pytest.raises(ConfigError, match=r"root_block of node 'dense' expected a number of filters >= 1"):
        Dense("dense", filters=4, root_block=block)
    with pytest.raises(ConfigError, match=r"root_block expected a number of filters >= 1, 'auto' or 'all'"):
        torchckn.translate(_net(4), (1, 6, 6), root_block=block)


def _net(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, width, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * width, 8), nn.ReLU(), nn.Linear(8, 3)
    )


def test_a_translation_puts_wide_layers_in_blocks_and_says_so() -> None:
    ckn = torchckn.translate(_net(12), (1, 6, 6), root_block=10)
    conv, dense = ckn.kernel_layers().values()
    assert (conv.root_block, dense.root_block) == (10, None)
    assert ckn.report is not None
    said = {row.source: " ".join(row.reasons) for row in ckn.report.rows}
    assert "the average of 2 Nystrom approximations, each by at most 10 filters" in said["0"]
    assert not any("Nystrom" in text for source, text in said.items() if source != "0")
    assert next(row.correspondence for row in ckn.report.rows) == "exact"
    assert "2 root blocks" in str(ckn.summary())


def test_layers_are_put_in_blocks_by_themselves_beyond_a_width() -> None:
    widest = torchckn.translation.ROOT_BLOCK
    for width, block in ((widest, None), (widest + 1, widest)):
        ckn = torchckn.translate(_net(width), (1, 6, 6))
        assert next(iter(ckn.kernel_layers().values())).root_block == block
    ckn = torchckn.translate(_net(widest + 1), (1, 6, 6), root_block="all")
    assert next(iter(ckn.kernel_layers().values())).root_block is None


def test_saving_exporting_and_the_exact_kernel_work_with_blocks(tmp_path: Any, generator: torch.Generator) -> None:
    in_blocks = torchckn.translate(_net(6), (1, 6, 6), root_block=4, generator=generator).eval()
    whole = torchckn.translate(_net(6), (1, 6, 6), root_block="all").eval()
    x = torch.rand(3, 1, 6, 6, generator=generator)
    torch.testing.assert_close(torchckn.exact_kernel(in_blocks, x, x), torchckn.exact_kernel(whole, x, x))
    torchckn.save(in_blocks, tmp_path / "model.ckn")
    loaded = torchckn.load(tmp_path / "model.ckn")
    assert torch.equal(loaded(x), in_blocks(x))
    torch.testing.assert_close(torchckn.export.plain(in_blocks)(x), in_blocks(x).softmax(1))
    in_blocks.layers[next(iter(in_blocks.kernel_layers()))].root_block = None  # the cached root is computed again
    assert not torch.allclose(in_blocks(x), loaded(x))


def test_the_report_s_facts_are_those_of_the_blocks(generator: torch.Generator) -> None:
    graph = Graph((1, 4, 4), [Dense("dense", filters=4, root_block=2)])
    ckn = torchckn.CKN(graph, generator=generator).double()
    (facts,) = layer_facts(ckn, torch.rand(5, 1, 4, 4, generator=generator, dtype=torch.float64))
    layer = next(iter(ckn.kernel_layers().values()))
    roots = [projection(block, layer.kernel, layer.eps) for block in filter_blocks(layer.filter_matrix().detach(), 2)]
    spectra = torch.cat([torch.linalg.eigvalsh(root) ** -2 for root in roots])
    assert facts.smallest == pytest.approx(float(spectra.min()))
    assert facts.largest == pytest.approx(float(spectra.max()))
    assert facts.error is not None
    assert 0 < facts.error < 1
