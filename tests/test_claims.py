"""Statements of the paper and of its theory, as tests."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from benchmarks.accuracy import COUNTS, KINDS, gradient_error, median_error
from benchmarks.networks import SHAPES, kernel_network, reference_network

import torchckn
from torchckn import kernels
from torchckn.graph import AdaptiveAveragePool, AveragePool, Conv, Dense, DirectSum, GaussianPool, Graph, Node
from torchckn.kernels import ArcCosine, RBFSphere
from torchckn.nn import KernelConv2d, KernelLayer, KernelLinear

from .contracts import KERNELS, Case, unit_rows


@pytest.mark.parametrize("case", KERNELS, ids=str)
def test_with_the_data_as_filters_the_nystrom_gram_is_the_kernel_s(case: Case, generator: torch.Generator) -> None:
    """Section 3.1: the projection onto the span of the data does not change the data."""
    data = unit_rows(6, 8, generator=generator)
    layer = KernelLinear(8, 6, kernel=case.build(), eps=1e-12).double()
    layer.weight.data = data.clone()
    features = layer(data * torch.arange(1, 7)[:, None])  # norms are preserved as well
    expected = case.build().gram(data * torch.arange(1, 7)[:, None])
    torch.testing.assert_close(features @ features.T, expected, rtol=1e-7, atol=1e-7)


def test_the_nystrom_approximation_never_exceeds_the_kernel(generator: torch.Generator) -> None:
    """A projection shortens vectors: the Gram matrix of the residuals is positive semidefinite."""
    data = torch.randn(12, 6, generator=generator, dtype=torch.float64)
    for filters in (1, 4, 9):
        layer = KernelLinear(6, filters, kernel=RBFSphere(0.6), eps=0, generator=generator).double()
        features = layer(data)
        left_out = layer.kernel.gram(data) - features @ features.T
        assert torch.linalg.eigvalsh(left_out).min() > -1e-9


def sample_filters(ckn: torchckn.CKN, images: torch.Tensor, generator: torch.Generator) -> None:
    """Set every layer's filters to patches of the layer's own input, layer after layer."""

    def fill(layer: KernelLayer, inputs: tuple[torch.Tensor]) -> None:
        x = inputs[0]
        if isinstance(layer, KernelConv2d):
            patches = (
                F.unfold(x, layer.kernel_size, layer.dilation, layer.padding, layer.stride).transpose(1, 2).flatten(0, 1)
            )
        else:
            patches = x.flatten(1)
        indices = torch.randperm(len(patches), generator=generator)[: layer.filters]
        with torch.no_grad():
            layer.weight.copy_(patches[indices].reshape(layer.weight.shape))
        layer.normalize_()

    hooks = [layer.register_forward_pre_hook(fill) for layer in ckn.kernel_layers().values()]
    ckn.features(images)
    for hook in hooks:
        hook.remove()


def two_layers(filters: int) -> list[Node]:
    return [
        Conv("conv1", filters=filters, kernel_size=(3, 3), kernel=RBFSphere(0.6)),
        AveragePool("pool", kernel_size=(2, 2), stride=(2, 2)),
        Conv("conv2", filters=filters, kernel_size=(2, 2), kernel=RBFSphere(0.6)),
    ]


def three_layers(filters: int) -> list[Node]:
    return [
        Conv("conv1", filters=filters, kernel_size=(3, 3), kernel=ArcCosine(1)),
        Conv("short", filters=filters, kernel_size=(1, 1), kernel=RBFSphere(0.6)),
        DirectSum("both", inputs=("conv1", "short")),
        GaussianPool("pool", stride=2),
        Conv("conv2", filters=filters, kernel_size=(2, 2), kernel=RBFSphere(0.6)),
        AdaptiveAveragePool("mean", output_size=(2, 2)),
        Dense("dense", filters=filters, kernel=ArcCosine(1)),
    ]


@pytest.mark.parametrize(("nodes", "most"), [(two_layers, 256), (three_layers, 128)])
def test_the_feature_gram_approaches_the_exact_kernel_as_filters_grow(nodes: Callable[[int], list[Node]], most: int) -> None:
    """Section 3.1: the number of filters controls the quality of the approximation. Median over seeds."""
    medians = []
    for filters in (4, 16, 64, most):
        errors = []
        for seed in range(5):
            g = torch.Generator().manual_seed(seed)
            images = torch.rand(most + 44, 1, 10, 10, generator=g, dtype=torch.float64)
            held_out = torch.rand(4, 1, 10, 10, generator=g, dtype=torch.float64)
            ckn = torchckn.CKN(Graph((1, 10, 10), nodes(filters)), dtype=torch.float64, generator=g)
            with torch.no_grad():
                sample_filters(ckn, images, g)
                features = ckn.features(held_out)
            exact = torchckn.exact_kernel(ckn, held_out)
            errors.append(float((features @ features.T - exact).norm() / exact.norm()))
        medians.append(statistics.median(errors))
    assert medians == sorted(medians, reverse=True)
    assert medians[-1] < medians[0] / 3


@pytest.mark.parametrize(
    ("activation", "order", "factor"),
    [(lambda u: (u > 0).double(), 0, 2.0), (F.relu, 1, 2.0), (lambda u: F.relu(u) ** 2, 2, 2 / 3)],
    ids=["step", "relu", "squared relu"],
)
def test_random_features_approach_the_arc_cosine_kernel(
    activation: Callable[[torch.Tensor], torch.Tensor], order: int, factor: float, generator: torch.Generator
) -> None:
    """The first proposition: E_w[a(w, x) a(w, x')] is a kernel; a ConvNet with Gaussian weights estimates it."""
    images = torch.randn(3, 2, 6, 6, generator=generator, dtype=torch.float64)
    graph = Graph(
        (2, 6, 6), [Conv("conv", filters=1, kernel_size=(3, 3), kernel=ArcCosine(order)), AdaptiveAveragePool("pool")]
    )
    exact = torchckn.exact_kernel(graph, images)
    errors = []
    for filters in (100, 10_000, 1_000_000):
        gram = torch.zeros(3, 3, dtype=torch.float64)
        for _ in range(max(1, filters // 50_000)):
            some = min(filters, 50_000)
            weight = torch.randn(some, 2, 3, 3, generator=generator, dtype=torch.float64)
            features = activation(F.conv2d(images, weight)).mean((2, 3))
            gram += factor * features @ features.T / filters
        errors.append(float((gram - exact).norm() / exact.norm()))
    assert errors[2] < 0.01
    assert errors[2] < errors[0]


#: of the largest matrices, the hardest kind stands for the others, which take as long
LARGEST = [pytest.param(kind, COUNTS[-1], marks=pytest.mark.slow) for kind in KINDS if kind != "duplicated"]


@pytest.mark.parametrize(("kind", "count"), [*itertools.product(KINDS, COUNTS[:-1]), ("duplicated", COUNTS[-1]), *LARGEST])
def test_the_closed_form_gradient_is_accurate_in_float32_and_never_nan(kind: str, count: int) -> None:
    """Section 4.2, with the closed form instead: at least as accurate as 20 Newton iterations, everywhere."""
    closed = gradient_error(kind, count, "eigh")  # type: ignore[arg-type]
    assert closed < 1e-6
    assert closed <= gradient_error(kind, count, "newton")  # type: ignore[arg-type]


def test_the_closed_form_gradient_is_far_more_accurate_than_the_svd_s() -> None:
    assert median_error("random", 128, "svd") > 50 * median_error("random", 128, "eigh")


def test_newton_and_closed_form_agree_in_value_and_gradient(generator: torch.Generator) -> None:
    weight = unit_rows(16, 9, generator=generator).requires_grad_()
    results = []
    for method in ("eigh", "newton", "svd"):
        gram = kernels.RBFSphere(0.6).kappa(weight @ weight.T) + 1e-3 * torch.eye(16)
        root = torchckn.inverse_sqrt(gram, method, iters=40)  # type: ignore[arg-type]
        results.append((root, torch.autograd.grad(root.square().sum(), weight)[0]))
    for root, gradient in results[1:]:
        torch.testing.assert_close(root, results[0][0], rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(gradient, results[0][1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", SHAPES)
def test_the_fast_network_is_the_paper_s_plain_transcription(name: str, generator: torch.Generator) -> None:
    """Features and their gradient against ``benchmarks/reference.py``, which shares no code with the library."""
    torch.manual_seed(0)
    fast, plain = kernel_network(name, 6).double(), reference_network(name, 6).double()
    layers = list(fast.kernel_layers().values())
    for layer, reference in zip(layers, plain.layers, strict=True):
        reference.weight.data = layer.weight.detach().flatten(1).clone()
    images = torch.randn(2, *SHAPES[name][0], generator=generator, dtype=torch.float64)
    ours, theirs = fast.features(images), plain.features(images)
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-7)
    ours.square().sum().backward()
    theirs.square().sum().backward()
    for layer, reference in zip(layers, plain.layers, strict=True):
        if layer.weight.requires_grad:
            assert layer.weight.grad is not None
            torch.testing.assert_close(layer.weight.grad.flatten(1), reference.weight.grad, rtol=1e-5, atol=1e-7)
