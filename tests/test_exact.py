from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import torchckn
from torchckn import kernels
from torchckn.errors import ConfigError, DataError, NumericalError
from torchckn.graph import (
    AdaptiveAveragePool,
    AsImage,
    AveragePool,
    Conv,
    Dense,
    DirectSum,
    Flatten,
    GaussianPool,
    Graph,
    Local,
    MaxPool,
    Node,
    Normalize,
    Pad,
    SelectChannels,
    ShuffleChannels,
    SpaceToDepth,
    Upsample,
    Whiten,
    Window,
)
from torchckn.kernels import ArcCosine, Linear, RBFSphere

from . import oracles


def images(n: int, *shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_one_layer_is_the_sum_of_patch_kernels_over_positions() -> None:
    x, y = images(2, 2, 5, 5), images(3, 2, 5, 5, seed=1)
    graph = Graph((2, 5, 5), [Conv("conv", filters=1, kernel_size=(3, 2), stride=(2, 1), padding=(1, 0))])
    where = [(a, b) for a in oracles.positions(5, 3, 2, 1, 1) for b in oracles.positions(5, 2, 1, 0, 1)]

    def kernel(p: np.ndarray, q: np.ndarray) -> float:
        at = [[oracles.patch(image, a, b, (3, 2), (1, 1)) for a, b in where] for image in (p, q)]
        return sum(oracles.kernel("RBFSphere", u, v, sigma=0.6) for u, v in zip(*at, strict=True))

    expected = [[kernel(p, q) for q in y.numpy()] for p in x.numpy()]
    np.testing.assert_allclose(torchckn.exact_kernel(graph, x, y), expected, rtol=1e-10)


def test_average_pooling_weighs_all_pairs_of_patches() -> None:
    """Section 3.1: K(F, F') = sum_ij w_ij k(patch_i, patch_j), here w_ij = 1 / p^2 for global pooling."""
    x = images(2, 1, 4, 4)
    graph = Graph((1, 4, 4), [Conv("conv", filters=1, kernel_size=(2, 2), kernel=ArcCosine(1)), AdaptiveAveragePool("pool")])
    patches = [[oracles.patch(i, a, b, (2, 2), (1, 1)) for a, b in itertools.product(range(3), repeat=2)] for i in x.numpy()]
    expected = [
        [sum(oracles.kernel("ArcCosine", u, v, order=1) for u in p for v in q) / 81 for q in patches] for p in patches
    ]
    np.testing.assert_allclose(torchckn.exact_kernel(graph, x), expected, rtol=1e-10)


def finite_feature_networks() -> dict[str, list[Node]]:
    """Networks of linear kernels with as many filters as dimensions, for which only eps is an approximation."""
    linear = {"kernel": Linear(), "eps": 1e-12}
    return {
        "convolution": [Conv("c", filters=18, kernel_size=(3, 3), **linear)],
        "padding, stride, dilation": [
            Conv("c", filters=8, kernel_size=(2, 2), stride=(2, 1), padding=(1, 2), dilation=(2, 2), **linear)
        ],
        "pooling": [
            Conv("c", filters=18, kernel_size=(3, 3), **linear),
            AveragePool("p", kernel_size=(2, 2), stride=(2, 2)),
        ],
        "Gaussian pooling": [Conv("c", filters=18, kernel_size=(3, 3), **linear), GaussianPool("p", stride=2)],
        "fully connected": [Conv("c", filters=2, **linear), Dense("d", filters=72, **linear)],
        "local": [Local("l", filters=18, kernel_size=(3, 3), **linear)],
        "local regions, pooled": [
            Local("l", filters=18, kernel_size=(3, 3), regions=(2, 2), **linear),
            AveragePool("p", kernel_size=(2, 2), stride=(2, 2)),
        ],
        "branches": [
            Conv("a", filters=2, inputs=("input",), **linear),
            Conv("b", filters=18, kernel_size=(3, 3), padding=(1, 1), inputs=("input",), **linear),
            DirectSum("s", inputs=("a", "b", "input")),
            Conv("c", filters=22, **linear),
        ],
        "padding": [Pad("p", padding=(1, 2, 0, 1)), Conv("c", filters=8, kernel_size=(2, 2), **linear)],
        "normalisation": [Conv("c", filters=18, kernel_size=(3, 3), **linear), Normalize("n")],
        "flattening": [
            Conv("a", filters=2, **linear),
            Flatten("f"),
            Conv("b", filters=8, kernel_size=(2, 2), inputs=("input",), **linear),
            Flatten("g"),
            DirectSum("s", inputs=("f", "g")),
            Dense("d", filters=272, **linear),
        ],
        "interpolation": [
            Conv("c", filters=18, kernel_size=(3, 3), **linear),
            Upsample("u", output_size=(7, 9), mode="bilinear"),
            Conv("d", filters=72, kernel_size=(2, 2), **linear),
        ],
        "nearest pixels": [Conv("c", filters=2, **linear), Upsample("u", output_size=(12, 3))],
        "fixed window": [
            Conv("c", filters=2, **linear),
            Pad("p", padding=(1, 2, 1, 0), mode="reflect"),
            Window("w", window=((1.0, 2.0, 0.5), (-1.0, 0.0, 1.0)), stride=(2, 1), padding=(1, 0)),
        ],
        "blocks as channels": [
            Conv("c", filters=2, **linear),
            SpaceToDepth("s", block=2),
            Conv("d", filters=72, kernel_size=(3, 3), **linear),
        ],
        "cropping": [Conv("c", filters=2, **linear), Pad("p", padding=(-1, -2, 0, -1)), AveragePool("s", stride=(2, 2))],
        "norm of the image": [Conv("c", filters=18, kernel_size=(3, 3), **linear), Normalize("n", over="image")],
        "chosen channels": [SelectChannels("s", channels=(1,)), Conv("c", filters=9, kernel_size=(3, 3), **linear)],
        "shuffled channels": [
            Conv("c", filters=18, kernel_size=(3, 3), **linear),
            ShuffleChannels("s", order=(0, 2, 1)),
            Conv("d", filters=18, **linear),
        ],
        "vector as an image": [
            Dense("d", filters=72, **linear),
            AsImage("i"),
            Upsample("u", output_size=(2, 2)),
            Conv("c", filters=72, **linear),
        ],
        "whitening": [Whiten("w"), Conv("c", filters=18, **linear)],
        "pooling alone": [AveragePool("p", kernel_size=(3, 3), padding=(1, 1), stride=(1, 1))],
    }


@pytest.mark.parametrize("name", finite_feature_networks())
def test_where_nothing_is_approximated_the_features_have_the_exact_kernel(name: str) -> None:
    x = images(3, 2, 6, 6)
    graph = Graph((2, 6, 6), finite_feature_networks()[name])
    ckn = torchckn.CKN(graph, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).eval()
    features = ckn.features(x).detach()
    torch.testing.assert_close(features @ features.T, torchckn.exact_kernel(ckn, x), rtol=1e-7, atol=1e-7)


def test_blocks_of_pairs_give_the_same_as_one_pair_at_a_time(monkeypatch: pytest.MonkeyPatch, small_graph: Graph) -> None:
    x, y = images(5, 1, 10, 10), images(4, 1, 10, 10, seed=1)
    whole = torchckn.exact_kernel(small_graph, x, y)
    monkeypatch.setattr("torchckn.exact._BLOCK", 100**2 * 10)
    torch.testing.assert_close(torchckn.exact_kernel(small_graph, x, y), whole)
    torch.testing.assert_close(torchckn.exact_kernel(small_graph, x[:1], y[2:3]), whole[:1, 2:3])


def test_the_exact_kernel_is_symmetric_and_positive_definite(small_graph: Graph) -> None:
    gram = torchckn.exact_kernel(small_graph, images(6, 1, 10, 10))
    torch.testing.assert_close(gram, gram.T)
    assert torch.linalg.eigvalsh(gram).min() > 0


def test_the_exact_kernel_depends_on_trained_bandwidths_and_not_on_filters() -> None:
    graph = Graph((1, 4, 4), [Conv("c", filters=2, kernel_size=(2, 2), kernel=RBFSphere(0.6, trainable=True))])
    x = images(2, 1, 4, 4)
    ckn = torchckn.CKN(graph)
    before = torchckn.exact_kernel(ckn, x)
    torch.testing.assert_close(before, torchckn.exact_kernel(torchckn.CKN(graph), x))
    torch.testing.assert_close(before, torchckn.exact_kernel(graph, x))
    ckn.kernel_layers()["c"].kernel.sigma.data.fill_(0.3)  # type: ignore[union-attr]
    narrower = Graph((1, 4, 4), [Conv("c", filters=2, kernel_size=(2, 2), kernel=RBFSphere(0.3))])
    torch.testing.assert_close(torchckn.exact_kernel(ckn, x), torchckn.exact_kernel(narrower, x))


def test_zero_images_follow_the_convention_of_the_layers() -> None:
    x = torch.zeros(1, 1, 4, 4)
    for kernel, expected in ((RBFSphere(0.6), 0.0), (kernels.ArcCosine(0), 0.5 * 9)):
        graph = Graph((1, 4, 4), [Conv("c", filters=2, kernel_size=(2, 2), kernel=kernel)])
        assert torchckn.exact_kernel(graph, x).item() == pytest.approx(expected)


KERNELS_WITH_RANDOM_FEATURES = [Linear(), ArcCosine(0), ArcCosine(1), ArcCosine(2), RBFSphere(0.6)]


def random_features(layer: Node, x: torch.Tensor, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    graph = Graph(tuple(x.shape[1:]), [layer])
    return torchckn.CKN(graph, weights="random-features", generator=generator, dtype=torch.float64).features(x)


@pytest.mark.parametrize("regions", [None, (2, 1)], ids=str)
@pytest.mark.parametrize("kernel", KERNELS_WITH_RANDOM_FEATURES, ids=str)
def test_random_features_of_a_local_layer_have_the_exact_kernel_as_their_mean(
    kernel: kernels.Kernel, regions: tuple[int, int] | None
) -> None:
    x = images(3, 2, 3, 3)
    local = Local("l", filters=4000, kernel_size=(2, 2), regions=regions, kernel=kernel)
    convolution = Conv("l", filters=4000, kernel_size=(2, 2), kernel=kernel)

    def error(layer: Node) -> float:
        """The mean over seeds of the relative distance to the exact kernel."""
        exact = torchckn.exact_kernel(Graph((2, 3, 3), [layer]), x)
        grams = [features @ features.T for features in (random_features(layer, x, seed) for seed in range(3))]
        return float(sum((gram - exact).norm() / exact.norm() for gram in grams) / len(grams))

    assert error(local) < 2 * error(convolution) < 0.06


@pytest.mark.parametrize("kernel", KERNELS_WITH_RANDOM_FEATURES, ids=str)
def test_random_features_of_a_local_layer_with_one_region_are_those_of_convolution(kernel: kernels.Kernel) -> None:
    x = images(3, 2, 3, 3)
    options = {"filters": 50, "kernel_size": (2, 2), "kernel": kernel}
    local = random_features(Local("l", regions=(1, 1), **options), x)
    torch.testing.assert_close(local, random_features(Conv("l", **options), x))


def test_max_pooling_has_no_exact_kernel() -> None:
    graph = Graph((1, 4, 4), [Conv("c", filters=2), MaxPool("m", kernel_size=(2, 2))])
    with pytest.raises(ConfigError, match="'m' is max pooling, which acts on coordinates"):
        torchckn.exact_kernel(graph, torch.ones(1, 1, 4, 4))


def test_groups_of_channels_have_no_exact_kernel() -> None:
    graph = Graph((2, 4, 4), [Conv("c", filters=2, groups=2)])
    with pytest.raises(ConfigError, match="'c' has 2 groups of channels"):
        torchckn.exact_kernel(graph, torch.ones(1, 2, 4, 4))


def test_mixing_regions_has_no_exact_kernel() -> None:
    graph = Graph((1, 4, 4), [Local("l", filters=2, kernel_size=(2, 2)), AdaptiveAveragePool("p")])
    with pytest.raises(NumericalError, match="mixes its regions"):
        torchckn.exact_kernel(graph, torch.ones(1, 1, 4, 4))


def test_images_of_another_shape_and_images_too_large_are_refused(small_graph: Graph) -> None:
    with pytest.raises(DataError, match=r"images \(n, \*\(1, 10, 10\)\), got \(2, 1, 8, 8\)"):
        torchckn.exact_kernel(small_graph, torch.zeros(2, 1, 8, 8))
    large = Graph((1, 128, 128), [Conv("c", filters=2)])
    with pytest.raises(DataError, match="16384.2 numbers for each pair"):
        torchckn.exact_kernel(large, torch.zeros(1, 1, 128, 128))
