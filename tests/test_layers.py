from __future__ import annotations

import copy
import io
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import torchckn
from torchckn import kernels
from torchckn.errors import ConfigError, DataError, NumericalError
from torchckn.nn import GaussianPool2d, KernelConv2d, KernelLayer, KernelLinear, KernelLocal2d, KernelSum, base, layers

from . import oracles
from .contracts import EXACT, KERNELS, Case, is_rough

every_kernel = pytest.mark.parametrize("case", KERNELS, ids=str)


#: examples for each of sixteen kernels
few_for_each = settings(max_examples=15)


@st.composite
def conv_problems(draw: st.DrawFn) -> dict[str, Any]:
    """Shapes, strides, paddings, dilations and pools that fit together."""
    pairs = lambda low, high: st.tuples(st.integers(low, high), st.integers(low, high))  # noqa: E731
    size, dilation, padding = draw(pairs(1, 3)), draw(pairs(1, 2)), draw(pairs(0, 2))
    span = [d * (k - 1) + 1 for d, k in zip(dilation, size, strict=True)]
    least = [max(1, s - 2 * p) for s, p in zip(span, padding, strict=True)]
    image = tuple(n + draw(st.integers(1, 4)) for n in least)
    return {
        "images": (draw(st.integers(1, 2)), draw(st.integers(1, 3)), *image),
        "filters": draw(st.integers(1, 5)),
        "size": size,
        "geometry": {"stride": draw(pairs(1, 2)), "padding": padding, "dilation": dilation},
        "pool": draw(st.booleans()),
        "seed": draw(st.integers(0, 10_000)),
    }


@every_kernel
@few_for_each
@given(problem=conv_problems())
def test_the_convolutional_layer_equals_the_loop_oracle(case: Case, problem: dict[str, Any]) -> None:
    g = torch.Generator().manual_seed(problem["seed"])
    x = torch.randn(problem["images"], generator=g, dtype=torch.float64)
    layer = KernelConv2d(
        x.shape[1], problem["filters"], problem["size"], **problem["geometry"], kernel=case.build(), generator=g
    ).double()
    weight = layer.weight.detach().numpy()
    expected = oracles.conv_layer(x.numpy(), weight, case.name, eps=1e-3, **problem["geometry"], **case.arguments)
    if problem["pool"]:
        size = min(2, *expected.shape[2:])
        layer.pool = nn.AvgPool2d(size, 1)
        expected = oracles.average_pool(expected, size, 1)
    np.testing.assert_allclose(layer(x).detach(), expected, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(layer.eval()(x).detach(), expected, rtol=1e-10, atol=1e-10)
    single = copy.deepcopy(layer).float()(x.float()).double().detach()
    loose = 50 if is_rough(case) else 1  # a slope that is unbounded at |t| = 1 amplifies rounding errors of the input
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(single, expected, rtol=0, atol=EXACT[torch.float32] * loose * scale)


@every_kernel
@few_for_each
@given(seed=st.integers(0, 10_000), regions=st.sampled_from([None, 1, (2, 1), 2]))
def test_the_local_layer_equals_the_loop_oracle(case: Case, seed: int, regions: Any) -> None:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 2, 5, 4, generator=g, dtype=torch.float64)
    layer = KernelLocal2d(2, 3, (3, 2), (5, 4), regions=regions, padding=(1, 0), kernel=case.build(), generator=g).double()
    expected = oracles.conv_layer(
        x.numpy(),
        layer.weight.detach().numpy(),
        case.name,
        eps=1e-3,
        stride=(1, 1),
        padding=(1, 0),
        dilation=(1, 1),
        region_of=layer.region_of.tolist(),
        **case.arguments,
    )
    np.testing.assert_allclose(layer(x).detach(), expected, rtol=1e-10, atol=1e-10)
    layer.pool = nn.AvgPool2d(2)
    np.testing.assert_allclose(layer(x).detach(), oracles.average_pool(expected, 2, 2), rtol=1e-10, atol=1e-10)


@every_kernel
@few_for_each
@given(seed=st.integers(0, 10_000), features=st.integers(1, 6), filters=st.integers(1, 5))
def test_the_fully_connected_layer_equals_the_loop_oracle(case: Case, seed: int, features: int, filters: int) -> None:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(3, features, generator=g, dtype=torch.float64)
    layer = KernelLinear(features, filters, kernel=case.build(), generator=g).double()
    w = layer.weight.detach().numpy()
    root = oracles.projection(w, case.name, 1e-3, **case.arguments)
    values = np.array([[oracles.kernel(case.name, f, row, **case.arguments) for f in w] for row in x.numpy()])
    np.testing.assert_allclose(layer(x).detach(), values @ root, rtol=1e-10, atol=1e-10)


def test_regions_divide_the_positions_into_a_grid() -> None:
    index = layers.region_index((4, 5), (2, 2)).reshape(4, 5)
    assert index.tolist() == [[0, 0, 0, 1, 1], [0, 0, 0, 1, 1], [2, 2, 2, 3, 3], [2, 2, 2, 3, 3]]


@every_kernel
def test_an_identity_layer_is_the_layer_with_identity_filters(case: Case, generator: torch.Generator) -> None:
    x = torch.randn(2, 4, 3, 3, generator=generator, dtype=torch.float64)
    identity = KernelConv2d(4, 4, 1, kernel=case.build(), init="identity").double()
    ordinary = KernelConv2d(4, 4, 1, kernel=case.build()).double()
    ordinary.weight.data = torch.eye(4, dtype=torch.float64)[:, :, None, None]
    torch.testing.assert_close(identity(x), ordinary(x), rtol=1e-12, atol=1e-12)
    assert not identity.weight.requires_grad


def test_an_identity_layer_of_vectors_is_the_one_of_single_pixels(generator: torch.Generator) -> None:
    x = torch.randn(3, 5, generator=generator)
    of_vectors = KernelLinear(5, 5, kernel=kernels.ArcCosine(1), init="identity")
    of_pixels = KernelConv2d(5, 5, 1, kernel=kernels.ArcCosine(1), init="identity")
    torch.testing.assert_close(of_vectors(x), of_pixels(x[:, :, None, None])[:, :, 0, 0])


@every_kernel
def test_groups_are_layers_side_by_side(case: Case, generator: torch.Generator) -> None:
    x = torch.randn(2, 6, 5, 5, generator=generator, dtype=torch.float64)
    grouped = KernelConv2d(6, 4, 3, groups=2, padding=1, kernel=case.build(), generator=generator).double()
    halves = []
    for i in range(2):
        half = KernelConv2d(3, 2, 3, padding=1, kernel=case.build()).double()
        half.weight.data = grouped.weight.data[2 * i : 2 * i + 2].clone()
        halves.append(half(x[:, 3 * i : 3 * i + 3]))
    torch.testing.assert_close(grouped(x), torch.cat(halves, 1))
    grouped.pool = nn.AvgPool2d(2)
    torch.testing.assert_close(grouped.eval()(x), nn.AvgPool2d(2)(torch.cat(halves, 1)))


def test_pooling_before_the_projection_gives_the_same_numbers(generator: torch.Generator) -> None:
    x = torch.randn(2, 3, 8, 8, generator=generator, dtype=torch.float64)
    for pool in (nn.AvgPool2d(2), GaussianPool2d(2), nn.AdaptiveAvgPool2d(1)):
        layer = KernelConv2d(3, 5, 3, generator=generator).double()
        after = pool(layer(x))
        layer.pool = pool
        torch.testing.assert_close(layer(x), after, rtol=1e-12, atol=1e-12)


@given(
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    stride=st.integers(1, 4),
    window=st.integers(1, 5),
    sigma=st.floats(0.3, 3),
)
def test_gaussian_pooling_equals_the_loop_oracle(size: tuple[int, int], stride: int, window: int, sigma: float) -> None:
    x = torch.randn(2, 2, *size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pool = GaussianPool2d(stride, sigma, window, padding=window // 2)
    expected = oracles.gaussian_pool(x.numpy(), stride, sigma, window, window // 2)
    np.testing.assert_allclose(pool(x), expected, atol=1e-12)


def test_gaussian_pooling_has_the_defaults_of_the_literature() -> None:
    pool = GaussianPool2d(6)
    assert (pool.kernel_size, pool.padding, pool.sigma) == (13, 6, pytest.approx(6 / 2**0.5))
    assert pool(torch.zeros(1, 1, 14, 14)).shape == (1, 1, 3, 3)
    inside = GaussianPool2d(1)(torch.ones(1, 1, 9, 9))[0, 0, 2:-2, 2:-2]
    torch.testing.assert_close(inside, torch.ones_like(inside))


def test_a_direct_sum_adds_kernels(generator: torch.Generator) -> None:
    a, b = (torch.randn(4, c, 2, 2, generator=generator) for c in (3, 5))
    both = KernelSum()(a, b).flatten(1)
    torch.testing.assert_close(both @ both.T, a.flatten(1) @ a.flatten(1).T + b.flatten(1) @ b.flatten(1).T)


# Degenerate inputs: finite values, finite gradients.


def degenerate(name: str) -> torch.Tensor:
    x = torch.randn(2, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    return {"zero": x * 0, "constant": x * 0 + 3, "tiny": x * 1e-30, "partly zero": x * (torch.arange(4) > 1), "usual": x}[
        name
    ]


@every_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("images", ["zero", "constant", "tiny", "partly zero"])
@pytest.mark.parametrize("size", [1, 3])
def test_degenerate_images_give_finite_values_and_gradients(case: Case, dtype: torch.dtype, images: str, size: int) -> None:
    x = degenerate(images).to(dtype).requires_grad_()
    layer = KernelConv2d(2, 4, size, padding=1, kernel=case.build()).to(dtype)
    assert_finite_step(layer, x)


@every_kernel
@pytest.mark.parametrize("filters", ["duplicate", "opposite", "data", "many"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_degenerate_filters_give_finite_values_and_gradients(case: Case, filters: str, dtype: torch.dtype) -> None:
    x = degenerate("usual").to(dtype).requires_grad_()
    layer = KernelConv2d(2, 40 if filters == "many" else 4, 3, kernel=case.build()).to(dtype)
    with torch.no_grad():
        if filters == "duplicate":
            layer.weight[1:] = layer.weight[:1]
        elif filters == "opposite":
            layer.weight[1] = -layer.weight[0]
        elif filters == "data":
            layer.weight[0] = x[0, :, :3, :3] / x[0, :, :3, :3].norm()
    assert_finite_step(layer, x)


def assert_finite_step(layer: KernelLayer, x: torch.Tensor) -> None:
    y = layer(x)
    assert torch.isfinite(y).all()
    y.square().sum().backward()
    assert x.grad is not None
    for tensor in (x, *layer.parameters()):
        assert tensor.grad is not None
        assert torch.isfinite(tensor.grad).all()


@every_kernel
@pytest.mark.parametrize("training", [True, False])
def test_gradients_in_float32_are_those_of_float64(case: Case, training: bool, generator: torch.Generator) -> None:
    layer = KernelConv2d(1, 3, 2, kernel=case.build(), generator=generator).train(training)
    x = torch.randn(4, 1, 8, 8, generator=generator)
    gradients = []
    for copied, images in ((layer, x), (copy.deepcopy(layer).double(), x.double())):
        copied(images).square().sum().backward()
        assert copied.weight.grad is not None
        gradients.append(copied.weight.grad.double())
    curved = min(case.arguments.get("nu", 9), case.arguments.get("order", 9)) < 2  # unbounded second derivative at 1
    assert (gradients[0] - gradients[1]).norm() < (5e-3 if curved else 1e-4) * gradients[1].norm()


# The cache of the projection in eval mode.


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    calls: list[int] = []
    original = base.projection

    def counting(*args: Any, **kwargs: Any) -> torch.Tensor:
        calls.append(1)
        return original(*args, **kwargs)

    monkeypatch.setattr(base, "projection", counting)
    return calls


def changes() -> dict[str, Any]:
    def edit(layer: KernelLayer) -> None:
        with torch.no_grad():
            layer.weight.copy_(layer.weight.flip(0))

    def edit_data(layer: KernelLayer) -> None:
        layer.weight.data[0] = -layer.weight.data[0]

    def replace(layer: KernelLayer) -> None:
        layer.weight = nn.Parameter(layer.weight.detach().flip(0).clone())

    def load(layer: KernelLayer) -> None:
        layer.load_state_dict({k: v.flip(0) if k == "weight" else v for k, v in layer.state_dict().items()})

    def bandwidth(layer: KernelLayer) -> None:
        layer.kernel.sigma.data.fill_(0.4)  # type: ignore[union-attr]

    def other_kernel(layer: KernelLayer) -> None:
        layer.kernel = kernels.ArcCosine(1)

    return {
        "in-place edit": edit,
        "edit through .data": edit_data,
        "new parameter": replace,
        "load_state_dict": load,
        "dtype": lambda layer: layer.double(),
        "eps": lambda layer: setattr(layer, "eps", 0.1),
        "bandwidth": bandwidth,
        "kernel": other_kernel,
    }


@pytest.mark.parametrize("change", changes())
@pytest.mark.parametrize("gradients", [True, False], ids=["grad", "no_grad"])
def test_eval_mode_computes_the_root_once_and_again_after_a_change(
    change: str, gradients: bool, counted: list[int], generator: torch.Generator
) -> None:
    layer = KernelConv2d(2, 4, 3, kernel=kernels.RBFSphere(0.6, trainable=True), generator=generator).eval()
    x = torch.randn(3, 2, 5, 5, generator=generator)
    with torch.set_grad_enabled(gradients):
        for _ in range(3):
            layer(x)
        assert len(counted) == 1
        changes()[change](layer)
        x = x.to(layer.weight.dtype)
        for _ in range(3):
            after = layer(x)
        assert len(counted) == 2
        torch.testing.assert_close(after, copy.deepcopy(layer).train()(x))


def test_training_mode_computes_the_root_in_every_call(counted: list[int], generator: torch.Generator) -> None:
    layer = KernelConv2d(2, 4, 3, generator=generator)
    x = torch.randn(3, 2, 5, 5, generator=generator)
    layer(x), layer(x)
    assert len(counted) == 2


@pytest.mark.parametrize("case", KERNELS, ids=str)
def test_gradients_in_eval_mode_are_those_of_training_mode(case: Case, generator: torch.Generator) -> None:
    layer = KernelConv2d(2, 4, 3, kernel=case.build(), generator=generator).double()
    x = torch.randn(3, 2, 5, 5, generator=generator, dtype=torch.float64)
    gradients = []
    for training in (True, False):
        layer.train(training).zero_grad()
        layer(x).square().sum().backward()
        gradients.append([p.grad.clone() for p in layer.parameters() if p.grad is not None])
    torch.testing.assert_close(gradients[0], gradients[1])


def test_a_root_cached_in_inference_mode_can_be_used_in_training(generator: torch.Generator) -> None:
    layer = KernelConv2d(2, 4, 3, generator=generator).eval()
    x = torch.randn(3, 2, 5, 5, generator=generator)
    with torch.inference_mode():
        before = layer(x)
    y = layer(x)
    y.sum().backward()
    torch.testing.assert_close(y, before)


@pytest.mark.parametrize("block", [None, 2])
def test_a_root_decomposed_in_inference_mode_is_decomposed_again_for_training(
    block: int | None, generator: torch.Generator
) -> None:
    layer = KernelConv2d(2, 4, 3, root_block=block, generator=generator).train()
    x = torch.randn(3, 2, 5, 5, generator=generator)
    with torch.inference_mode():
        before = layer(x)
    for _ in range(2):
        y = layer(x)
        y.sum().backward()
        torch.testing.assert_close(y, before)


# Ordinary PyTorch.


def test_filters_are_unit_norm_parameters_from_construction_on() -> None:
    for layer in (KernelConv2d(3, 8, 5), KernelLinear(7, 8), KernelLocal2d(3, 8, 3, 5)):
        assert isinstance(layer.weight, nn.Parameter)
        norms = layer.filter_matrix().norm(dim=-1)
        torch.testing.assert_close(norms, torch.ones_like(norms))
        assert layer.filters == 8


def test_a_generator_decides_the_filters_in_every_dtype() -> None:
    seeded = [KernelConv2d(1, 4, 3, generator=torch.Generator().manual_seed(s)).weight for s in (5, 5, 6)]
    double = KernelConv2d(1, 4, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64).weight
    assert torch.equal(seeded[0], seeded[1])
    assert not torch.equal(seeded[0], seeded[2])
    torch.testing.assert_close(double.float(), seeded[0])


def test_a_layer_is_copied_pickled_and_loaded_like_any_module(generator: torch.Generator) -> None:
    layer = KernelConv2d(2, 4, 3, kernel=kernels.RBFSphere(0.5, trainable=True), generator=generator).eval()
    x = torch.randn(1, 2, 5, 5, generator=generator)
    expected = layer(x)
    assert torch.equal(copy.deepcopy(layer)(x), expected)
    buffer = io.BytesIO()
    torch.save(layer.state_dict(), buffer)
    buffer.seek(0)
    other = KernelConv2d(2, 4, 3, kernel=kernels.RBFSphere(0.9, trainable=True)).eval()
    other.load_state_dict(torch.load(buffer, weights_only=True))
    assert torch.equal(other(x), expected)
    assert set(layer.state_dict()) == {"weight", "kernel.sigma"}


def test_an_empty_batch_gives_empty_features() -> None:
    assert KernelConv2d(2, 4, 3)(torch.zeros(0, 2, 5, 5)).shape == (0, 4, 3, 3)
    assert KernelLinear(6, 4)(torch.zeros(0, 2, 3)).shape == (0, 4)


def test_the_memory_layout_of_the_input_does_not_matter(generator: torch.Generator) -> None:
    layer = KernelConv2d(3, 4, 3, generator=generator)
    x = torch.randn(2, 3, 6, 6, generator=generator)
    torch.testing.assert_close(layer(x.contiguous(memory_format=torch.channels_last)), layer(x))
    torch.testing.assert_close(layer(x.transpose(2, 3).contiguous().transpose(2, 3)), layer(x))


def test_normalize_brings_filters_back_to_the_sphere() -> None:
    layer = KernelConv2d(2, 3, 3)
    directions = layer.weight.detach().clone()
    layer.weight.data *= torch.tensor([0.1, 7.0, 1.0])[:, None, None, None]
    torch.testing.assert_close(layer.normalize_().weight.detach(), directions)


# Bad input.


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: KernelConv2d(3, 4, 3)(torch.zeros(2, 1, 8, 8)), DataError, r"\(N, 3, H, W\), got \(2, 1, 8, 8\)"),
        (
            lambda: KernelConv2d(3, 4, 3)(torch.zeros(3, 8, 8)),
            DataError,
            r"got \(3, 8, 8\); a single image needs x\[None\]",
        ),
        (lambda: KernelConv2d(1, 4, 5)(torch.zeros(1, 1, 3, 9)), DataError, "at least 5x5 pixels .* got 3x9"),
        (
            lambda: KernelConv2d(1, 4, 3)(torch.zeros(1, 1, 5, 5).double()),
            DataError,
            "float32 filters .* got torch.float64",
        ),
        (lambda: KernelLinear(4, 2)(torch.zeros(3, 5)), DataError, r"4 numbers each, got \(3, 5\)"),
        (lambda: KernelLocal2d(1, 2, 3, 5)(torch.zeros(1, 1, 6, 6)), DataError, r"images of \(5, 5\) pixels, got \(6, 6\)"),
        (lambda: KernelLocal2d(1, 2, 7, 5), ConfigError, r"at least one 7x7 patch, got \(5, 5\)"),
        (lambda: KernelLocal2d(1, 2, 3, 5, regions=4), ConfigError, r"regions as output positions, \(3, 3\), got \(4, 4\)"),
        (lambda: KernelLocal2d(1, 2, 3, 5, init="identity"), ConfigError, "KernelLocal2d has no init='identity'"),
        (lambda: KernelLinear(4, 2, init="identity"), ConfigError, "as many filters as in_features, got 2 and 4"),
        (lambda: KernelConv2d(4, 6, 3, groups=4), ConfigError, r"divides in_channels \(4\) and filters \(6\), got 4"),
        (lambda: KernelConv2d(1, 2, 3, kernel="rbf"), ConfigError, "RBFSphere.0.6., got 'rbf'"),
        (lambda: KernelConv2d(1, 2, 3, eps=-1), ConfigError, "eps expected a number >= 0, got -1"),
        (lambda: KernelConv2d(1, 2, 3, init="kmean"), ConfigError, "unknown init 'kmean'.*Did you mean 'kmeans'"),
        (lambda: KernelConv2d(1, 2, 3, inverse_sqrt="newtn"), ConfigError, "unknown .* 'newtn'.*Did you mean 'newton'"),
        (lambda: KernelConv2d(1, 0, 3), ConfigError, "integer sizes >= 1"),
        (lambda: KernelConv2d(1, 2, 0), ConfigError, "kernel_size expected an integer >= 1 or a pair of them, got 0"),
        (lambda: KernelConv2d(1, 2, 3, stride=1.5), ConfigError, "stride expected an integer .* got 1.5"),
        (lambda: KernelConv2d(1, 2, 3, padding=-1), ConfigError, "padding expected an integer >= 0 .* got -1"),
        (lambda: KernelConv2d(1, 2, 3, pool=nn.MaxPool2d(2)), ConfigError, "linear pooling .* got MaxPool2d; put it after"),
        (
            lambda: KernelConv2d(1, 2, 3, pool=2),
            ConfigError,
            "pool expected a module such as nn.AvgPool2d.2., or None, got 2",
        ),
        (lambda: KernelConv2d(3, 2, 1, init="identity"), ConfigError, "as many filters as input channels"),
        (
            lambda: KernelConv2d(1, 2, 3, pool=nn.Sequential(nn.ReLU())),
            ConfigError,
            "linear pooling .* got ReLU; put it after",
        ),
        (lambda: GaussianPool2d((2, 3)), ConfigError, r"one integer as stride, .* got \(2, 3\)"),
        (lambda: GaussianPool2d(2)(torch.ones(1, 1, 4, 4).long()), DataError, "floating-point input, got torch.int64"),
        (lambda: KernelConv2d(1, 2, 3, eps="x"), ConfigError, "eps expected a number >= 0, got 'x'"),
        (lambda: KernelConv2d(1, "8", 3), ConfigError, "integer sizes >= 1, got 1 channels, '8' filters"),
        (lambda: KernelLinear(4, 2.0), ConfigError, "integer sizes >= 1"),
        (lambda: GaussianPool2d(2, sigma=0.0), ConfigError, "positive sigma, got 0.0"),
        (
            lambda: GaussianPool2d(1, kernel_size=5, padding=0)(torch.zeros(1, 1, 3, 3)),
            DataError,
            "at least 5 pixels, got 3",
        ),
        (lambda: KernelSum()(torch.zeros(1, 2, 3, 3), torch.zeros(1, 2, 4, 4)), DataError, "differ in their channels only"),
    ],
)
def test_bad_input_is_refused_with_a_reason(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("training", [True, False])
def test_filters_that_left_the_sphere_are_refused_with_the_remedy(training: bool) -> None:
    layer = KernelConv2d(1, 2, 3).train(training)
    layer.weight.data *= 2
    with pytest.raises(
        NumericalError, match=r"norm 1, got norms from 2 to 2; train with .*SphereSGD, or call network.normalize_\(\)"
    ):
        layer(torch.zeros(1, 1, 5, 5))


def test_an_all_zero_filter_cannot_be_normalized() -> None:
    layer = KernelConv2d(1, 2, 3)
    layer.weight.data[0] = 0
    with pytest.raises(NumericalError, match="got a filter that is all zero or not finite"):
        layer.normalize_()


def test_the_filters_of_an_identity_layer_are_fixed() -> None:
    layer = KernelConv2d(2, 2, 1, init="identity")
    layer.weight.data = layer.weight.data.flip(0)
    with pytest.raises(NumericalError, match="expected the fixed filters of an identity layer, got changed ones"):
        layer(torch.zeros(1, 2, 5, 5))


def test_every_error_is_a_ckn_error() -> None:
    with pytest.raises(torchckn.CKNError):
        KernelConv2d(1, 2, 0)
