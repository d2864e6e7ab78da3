"""The numbers of the layers: those of the loop oracles, finite on degenerate input, with the gradients of float64."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchckn import kernels
from torchckn.nn import GaussianPool2d, KernelConv2d, KernelLayer, KernelLinear, KernelLocal2d, KernelSum, layers

from . import oracles
from .contracts import EXACT, Case, every_kernel, is_rough

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
    for layout in (torch.contiguous_format, torch.channels_last):
        np.testing.assert_allclose(pool(x.contiguous(memory_format=layout)), expected, atol=1e-12)
        np.testing.assert_allclose(pool(x.float().contiguous(memory_format=layout)), expected, atol=1e-5)  # another way
    np.testing.assert_allclose(pool(x[0]), expected[0], atol=1e-12)


def test_gradients_of_gaussian_pooling_in_float32_are_those_in_float64(generator: torch.Generator) -> None:
    x, pool = torch.randn(2, 3, 9, 7, generator=generator), GaussianPool2d(2)
    weights = torch.randn(pool(x).shape, generator=generator)
    gradients = []
    for dtype in (torch.float32, torch.float64):
        image = x.to(dtype).requires_grad_()
        gradients += torch.autograd.grad((pool(image) * weights).sum(), image)
    torch.testing.assert_close(gradients[0].double(), gradients[1], rtol=1e-5, atol=1e-6)


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


@pytest.mark.parametrize("filters", [8, 10, 33])
@pytest.mark.parametrize("kernel", [kernels.RBFSphere(0.6), kernels.Linear()], ids=["rbf", "linear"])
def test_images_of_one_channel_whose_maps_have_one_column_have_the_numbers_of_float64(
    kernel: kernels.Kernel, filters: int, generator: torch.Generator
) -> None:
    x = torch.rand(4, 1, 12, 3, generator=generator)
    layer = KernelConv2d(1, filters, 3, stride=(1, 2), kernel=kernel, generator=generator)
    with torch.no_grad():
        torch.testing.assert_close(layer(x).double(), copy.deepcopy(layer).double()(x.double()), rtol=1e-3, atol=1e-4)
    pool = GaussianPool2d(4)
    last = x.clone(memory_format=torch.channels_last)
    torch.testing.assert_close(pool(last), pool(last.double()).float())


@pytest.mark.parametrize("base", [kernels.RBFSphere, kernels.Linear])
def test_a_kernel_derived_from_ours_may_have_another_degree(
    base: type[kernels.Kernel], monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    monkeypatch.setattr(kernels.Kernel, "_registry", dict(kernels.Kernel._registry))

    class Squared(base):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            self.degree = 2

    kernel, x = Squared(), torch.rand(5, 6, generator=generator)
    layer = KernelConv2d(
        6, 5, 1, kernel=kernel, eps=1e-6
    )  # the images are its filters, so that it has the kernel's own Gram
    with torch.no_grad():
        layer.weight.copy_(nn.functional.normalize(x)[:, :, None, None])
        features = layer(x[:, :, None, None]).flatten(1)
    torch.testing.assert_close(features @ features.T, kernel.gram(x), rtol=1e-2, atol=1e-3)


def test_a_kernel_that_gets_its_kappa_from_another_base_class_has_no_map_of_ours(
    monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    monkeypatch.setattr(kernels.Kernel, "_registry", dict(kernels.Kernel._registry))

    class Even:
        def kappa(self, t: torch.Tensor) -> torch.Tensor:
            return t.square()

    class EvenSphere(Even, kernels.RBFSphere):
        pass

    kernel, x = EvenSphere(0.6), torch.rand(5, 6, generator=generator)
    layer = KernelConv2d(6, 5, 1, kernel=kernel, eps=1e-6)  # the images are its filters
    with torch.no_grad():
        layer.weight.copy_(nn.functional.normalize(x)[:, :, None, None])
        features = layer(x[:, :, None, None]).flatten(1)
    torch.testing.assert_close(features @ features.T, kernel.gram(x), rtol=1e-2, atol=1e-3)


def test_a_map_written_for_another_degree_is_not_inherited(
    monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    monkeypatch.setattr(kernels.Kernel, "_registry", dict(kernels.Kernel._registry))

    class Square(kernels.Kernel):
        def kappa(self, t: torch.Tensor) -> torch.Tensor:
            return t.square()

        def map(self, responses: torch.Tensor, squared_norms: torch.Tensor, inplace: bool = False) -> torch.Tensor:
            return responses.square() / squared_norms.sqrt()

    class OnTheSphere(kernels.Kernel):
        degree = 0

    class SquareOnTheSphere(Square, OnTheSphere):
        pass

    class Doubled:
        def map(self, *given: object, **options: object) -> torch.Tensor:
            return 2 * super().map(*given, **options)  # type: ignore[misc]

    class DoubledSquare(Doubled, Square):
        pass

    responses = torch.rand(5, 6, generator=generator)
    squares = 9 * torch.ones(5, 1)
    torch.testing.assert_close(SquareOnTheSphere().map(responses, squares), responses.square() / 9)
    torch.testing.assert_close(DoubledSquare().map(responses, squares), 2 * Square().map(responses, squares))
