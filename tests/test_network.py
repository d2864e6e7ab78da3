from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import pytest
import torch

import torchckn
from torchckn.errors import ConfigError, DataError
from torchckn.graph import AveragePool, Conv, Dense, Graph
from torchckn.graph.preprocessing import Preprocessing
from torchckn.kernels import RBFSphere
from torchckn.network import FeatureScaling
from torchckn.nn.checks import check_layers

from .test_graph import every_operation


def test_a_network_is_features_then_scaling_then_head(small_graph: Graph, generator: torch.Generator) -> None:
    ckn = torchckn.CKN(small_graph, classes=3, generator=generator).eval()
    x = torch.rand(4, 1, 10, 10, generator=generator)
    expected = ckn.head(ckn.scaling(ckn.features(x)))
    assert torch.equal(ckn(x), expected)
    assert ckn(x).shape == (4, 3)


def test_features_run_through_the_layers_in_the_graph_s_order(generator: torch.Generator) -> None:
    ckn = torchckn.CKN(every_operation(), generator=generator)
    x = torch.rand(2, 3, 16, 16, generator=generator)
    step = ckn.layers
    white = step["white"](step["chosen"](x))
    blur = step["blur"](step["gated"](step["first"](white), step["copies"](step["gate"](white))))
    expected = step["sum"](step["left"](blur), step["right"](blur), blur)
    order = [node.name for node in ckn.graph.nodes]
    for name in order[order.index("same") :]:
        expected = expected if name in ckn.absorbed else step[name](expected)
    torch.testing.assert_close(ckn.features(x), expected.flatten(1))


def test_every_trainable_parameter_gets_a_gradient(generator: torch.Generator) -> None:
    ckn = torchckn.CKN(every_operation(), generator=generator)
    ckn(torch.rand(2, 3, 16, 16, generator=generator)).square().sum().backward()
    missing = [name for name, p in ckn.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())]
    assert not missing
    assert not ckn.layers["same"].weight.requires_grad


def test_a_generator_decides_the_whole_network(small_graph: Graph) -> None:
    one, same, other = (torchckn.CKN(small_graph, generator=torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_a_network_is_built_without_touching_the_global_generator(small_graph: Graph) -> None:
    before = torch.get_rng_state()
    torchckn.CKN(small_graph, generator=torch.Generator().manual_seed(0))
    assert torch.equal(torch.get_rng_state(), before)


def test_normalize_reaches_every_layer(small_graph: Graph) -> None:
    ckn = torchckn.CKN(small_graph)
    expected = copy.deepcopy(ckn.state_dict())
    for layer in ckn.kernel_layers().values():
        layer.weight.data *= 3
    for name, value in ckn.normalize_().state_dict().items():
        torch.testing.assert_close(value, expected[name])


@pytest.mark.parametrize("centering", ["image", "feature", "none"])
def test_scaled_features_are_centred_with_average_norm_one(centering: str, generator: torch.Generator) -> None:
    features = 5 + torch.randn(20, 7, generator=generator, dtype=torch.float64)
    scaling = FeatureScaling(7, centering).double()
    of_the_batch = scaling(features)
    scaling.calibrate(features)
    of_the_training_set = scaling.eval()(features)
    torch.testing.assert_close(of_the_batch, of_the_training_set)
    assert of_the_batch.norm(dim=1).mean().item() == pytest.approx(1)
    if centering != "none":
        means = of_the_batch.mean({"image": 1, "feature": 0}[centering])
        torch.testing.assert_close(means, torch.zeros_like(means))


def test_in_eval_mode_an_image_s_scores_do_not_depend_on_its_batch(small_graph: Graph, generator: torch.Generator) -> None:
    ckn = torchckn.CKN(small_graph, generator=generator).eval()
    x = torch.rand(6, 1, 10, 10, generator=generator)
    ckn.scaling.calibrate(ckn.features(x))
    torch.testing.assert_close(ckn(x)[2:3], ckn(x[2:3]))


def test_scaling_survives_features_that_are_all_zero() -> None:
    assert torch.equal(FeatureScaling(4)(torch.zeros(3, 4)), torch.zeros(3, 4))
    features = torch.zeros(3, 4, requires_grad=True)
    FeatureScaling(4)(features).sum().backward()
    assert features.grad is not None
    assert torch.isfinite(features.grad).all()


def test_a_pool_is_not_absorbed_where_others_need_what_comes_before_it() -> None:
    graph = Graph(
        (1, 8, 8),
        [
            Conv("conv", filters=4, kernel_size=(3, 3)),
            AveragePool("pool", kernel_size=(2, 2), stride=(2, 2)),
            Conv("after", filters=2, kernel_size=(2, 2), stride=(2, 2), inputs=("conv",)),
            torchckn.graph.DirectSum("sum", inputs=("pool", "after")),
        ],
    )
    ckn = torchckn.CKN(graph)
    assert ckn.absorbed == {}
    assert ckn.features(torch.rand(1, 1, 8, 8)).shape == (1, 6 * 9)


def test_the_summary_lists_layers_kernels_shapes_and_parameters() -> None:
    ckn = torchckn.CKN(every_operation())
    summary = ckn.summary()
    assert summary.parameters == sum(p.numel() for p in ckn.parameters())
    assert summary.trainable == sum(p.numel() for p in ckn.parameters() if p.requires_grad)
    text = str(summary)
    assert "RBFSphere(0.5, trained)" in text
    assert "15x8x8" in text
    assert f"{summary.parameters:,} parameters, {15 * 15} of them fixed" in text
    rows = {row["name"]: row for row in summary.to_json()}
    assert rows["left"]["filters"] == 5
    assert rows["left"]["output_shape"] == (5, 8, 8)


def test_trained_bandwidths_show_in_the_current_graph() -> None:
    graph = Graph((1, 8, 8), [Conv("conv", filters=2, kernel=RBFSphere(0.6, trainable=True))])
    ckn = torchckn.CKN(graph)
    ckn.kernel_layers()["conv"].kernel.sigma.data.fill_(0.25)  # type: ignore[union-attr]
    assert str(ckn.current_graph().nodes[0].kernel) == "RBFSphere(0.25, trained)"  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("trainable", [False, True])
def test_torch_compile_and_export_take_a_network(trainable: bool, generator: torch.Generator) -> None:
    kernel = RBFSphere(0.6, trainable=trainable)
    graph = Graph((1, 10, 10), [Conv("c", filters=4, kernel_size=3, kernel=kernel), AveragePool("p", kernel_size=2)])
    ckn = torchckn.CKN(graph, generator=generator).eval()
    x = torch.rand(2, 1, 10, 10, generator=generator)
    expected = ckn(x)
    torch.testing.assert_close(torch.compile(ckn, backend="eager", fullgraph=True)(x), expected)
    torch.testing.assert_close(torch.export.export(ckn, (x,)).module()(x), expected)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(2, 1, 9, 10), r"expected images \(N, 1, 10, 10\), got \(2, 1, 9, 10\)"),
        (torch.zeros(10, 10), r"got \(10, 10\); a single image needs x\[None\]"),
        (torch.zeros(2, 1, 10, 10, dtype=torch.float64), "float32 filters .* got torch.float64"),
        (torch.full((2, 1, 10, 10), torch.nan), "finite input, got NaN"),
    ],
)
def test_bad_images_are_refused_with_a_reason(small_graph: Graph, images: torch.Tensor, message: str) -> None:
    with pytest.raises(DataError, match=message):
        torchckn.CKN(small_graph)(images)


@pytest.mark.parametrize("name", ["conv", "dense"])
@pytest.mark.parametrize("images", [2, 6], ids=["few", "more"])
def test_a_layer_whose_output_is_not_finite_is_named_on_request(
    name: str, images: int, small_graph: Graph, generator: torch.Generator
) -> None:
    ckn = torchckn.CKN(small_graph, generator=generator).eval()
    x = torch.rand(images, *small_graph.input_shape, generator=generator)
    ckn.kernel_layers()[name].cached_root().root[0, 0] = torch.nan
    with torch.no_grad():
        assert not torch.isfinite(ckn.features(x)).all()
        with check_layers(), pytest.raises(DataError, match=f"what follows layer '{name}' expected finite input, got NaN"):
            ckn.features(x)


def test_an_unknown_centring_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(ConfigError, match="unknown centering 'images'.*Did you mean 'image'"):
        FeatureScaling(3, "images")


def test_a_network_without_classes_is_refused(small_graph: Graph) -> None:
    with pytest.raises(ConfigError, match="classes expected an integer >= 1, got 0"):
        torchckn.CKN(small_graph, classes=0)


def test_calibrate_wants_features_of_at_least_one_image() -> None:
    with pytest.raises(DataError, match=r"at least one image, got \(0, 3\)"):
        FeatureScaling(3).calibrate(torch.zeros(0, 3))


def test_pixels_are_judged_by_the_statistics_of_the_network(recwarn: pytest.WarningsRecorder) -> None:
    shades = torch.arange(16.0).reshape(1, 1, 4, 4) * 17
    for scale in (1.0, 255.0):
        pixels = Preprocessing.fit(shades / scale)
        body = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2))
        networks = (
            torchckn.CKN(Graph((1, 4, 4), [*pixels.nodes(), Conv("conv", filters=2, kernel_size=3)]), classes=2),
            torchckn.ScaledConvNet(body, (1, 4, 4), pixels),
        )
        for net in networks:
            net(shades / scale)
            assert not recwarn.list, "the range that its statistics are of"
            if scale == 255:
                with pytest.warns(UserWarning, match="expected pixels from 0 to 1, got numbers from 0 to 255"):
                    net(shades)


def test_a_state_that_does_not_fit_leaves_the_penalty_as_it_is(small_graph: Graph) -> None:
    ckn, other = torchckn.CKN(small_graph), torchckn.CKN(small_graph, classes=7)
    ckn.penalty = 0.25
    with pytest.raises(RuntimeError, match="size mismatch for head.weight"):
        ckn.load_state_dict(other.state_dict())
    assert ckn.penalty == 0.25
    with pytest.raises(RuntimeError, match=r"lam expected a number >= 0, got \[1.0, 1.0\]"):
        ckn.load_state_dict(ckn.state_dict() | {"lam": torch.ones(2)})


def test_bytes_for_a_network_of_larger_numbers_give_a_warning() -> None:
    images = torch.randint(0, 256, (8, 1, 6, 6), dtype=torch.uint8)
    for statistics_of, warns in ((images, False), (images.float(), True)):
        pixels = Preprocessing.fit(statistics_of)
        ckn = torchckn.CKN(Graph((1, 6, 6), [*pixels.nodes(), Dense("dense", filters=4)]), 3)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ckn.eval()(images)
        assert ["fitted to images of numbers beyond 0 to 1, got bytes" in str(w.message) for w in caught] == [True] * warns


@pytest.mark.parametrize(
    "call", ["network", "features", "layer", "exact_kernel", "compare_kernels", "fit", "gram", "inverse_sqrt"]
)
def test_arrays_of_numpy_are_refused_with_the_remedy(call: str) -> None:
    ckn = torchckn.CKN(Graph((1, 6, 6), [Conv("conv", filters=2, kernel_size=3)]), classes=2)
    images: Any = np.zeros((2, 1, 6, 6), np.float32)
    calls: dict[str, Any] = {
        "network": lambda: ckn(images),
        "features": lambda: ckn.features(images),
        "layer": lambda: torchckn.nn.KernelConv2d(1, 2, 3)(images),
        "exact_kernel": lambda: torchckn.exact_kernel(ckn, images),
        "compare_kernels": lambda: torchckn.compare_kernels(ckn, images),
        "fit": lambda: Preprocessing.fit(images),
        "gram": lambda: RBFSphere().gram(images[0, 0]),
        "inverse_sqrt": lambda: torchckn.inverse_sqrt(images[0, 0]),
    }
    with pytest.raises(DataError, match=r"expected a torch.Tensor, got numpy.ndarray; use torch.from_numpy\(x\)"):
        calls[call]()
