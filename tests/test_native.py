"""The compiled layer: the numbers of the plain one, whatever the geometry."""

from __future__ import annotations

import copy
import ctypes
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from torchckn import CKN
from torchckn.errors import DataError
from torchckn.graph import Conv, Graph
from torchckn.kernels import ArcCosine, Kernel, Linear, RBFSphere
from torchckn.nn import GaussianPool2d, KernelConv2d, native
from torchckn.nn.direct import Geometry
from torchckn.nn.functional import kernel_conv2d
from torchckn.nn.fused import applies, fused_conv2d

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C++ compiler: the plain layer is used and tested")

COMPILED = [RBFSphere(0.6), RBFSphere(0.1), ArcCosine(1), ArcCosine(2), Linear()]


def layer_and_gradients(
    dtype: torch.dtype, kernel: Kernel, x: Tensor, filters: Tensor | None, root: Tensor, **geometry: object
):
    """The output of the layer and its gradients, in float64."""
    leaves = [None if t is None else t.detach().to(dtype, copy=True).requires_grad_() for t in (x, filters, root)]
    out = kernel_conv2d(*leaves, kernel, **geometry)  # type: ignore[arg-type]
    weights = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).reshape(out.shape)
    (out * weights.to(dtype)).sum().backward()
    return [out.detach().double(), *(leaf.grad.double() for leaf in leaves if leaf is not None)]


def assert_same(left: list[Tensor], right: list[Tensor], tolerance: float = 2e-5) -> None:
    for a, b in zip(left, right, strict=True):
        assert a.shape == b.shape
        assert (a - b).norm() <= tolerance * b.norm() + 1e-12


@settings(max_examples=30, deadline=None)
@given(
    kernel=st.sampled_from(COMPILED),
    images=st.integers(1, 5),
    size=st.tuples(st.integers(5, 9), st.integers(5, 9)),
    channels=st.integers(1, 9),
    filters=st.sampled_from([1, 3, 8, 10, 16, 17, 32, 33, 40]),
    kernel_size=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    pool=st.sampled_from([None, 2, 3, "overlapping", "global", "Gaussian", "wide Gaussian"]),
    blank=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_the_compiled_layer_equals_the_plain_one_in_double_precision(
    kernel, images, size, channels, filters, kernel_size, stride, padding, dilation, pool, blank, seed
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(images, channels, *size, generator=generator, dtype=torch.float64)
    if blank:
        x[0] = 0
    weight = torch.randn(filters, channels, *kernel_size, generator=generator, dtype=torch.float64)
    weight = weight / weight.flatten(1).norm(dim=1).reshape(-1, 1, 1, 1)
    root = torch.randn(filters, filters, generator=generator, dtype=torch.float64)
    pools = {
        "overlapping": nn.AvgPool2d(2, 1),
        "global": nn.AdaptiveAvgPool2d(1),
        "Gaussian": GaussianPool2d(2),
        "wide Gaussian": GaussianPool2d(1, 3.0, 8, 5),  # some windows have no position of a small map
    }
    spread = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, p, d, k, s in zip(size, padding, dilation, kernel_size, stride, strict=True)
    ]
    if (isinstance(pool, int) and min(spread) < pool) or (pool == "overlapping" and min(spread) < 2):
        pool = None
    module = pools.get(pool, nn.AvgPool2d(pool) if isinstance(pool, int) else None)
    geometry = {"stride": stride, "padding": padding, "dilation": dilation, "pool": module}
    with native.use("require"):
        compiled = layer_and_gradients(torch.float32, kernel, x, weight, root, **geometry)
    plain = layer_and_gradients(torch.float64, kernel, x, weight, root, **geometry)
    # The slope of order 1 changes like a square root near t = 1, which makes the square root of float32's rounding error visible.
    assert_same(compiled, plain, 1e-3 if kernel is COMPILED[2] else 5e-5)


@pytest.mark.parametrize("kernel", COMPILED, ids=str)
@pytest.mark.parametrize("channels", [5, 32, 48])
def test_the_compiled_identity_layer_equals_the_plain_one(kernel: Kernel, channels: int, generator: torch.Generator) -> None:
    x = torch.randn(3, channels, 6, 7, generator=generator, dtype=torch.float64)
    root = torch.randn(channels, channels, generator=generator, dtype=torch.float64)
    compiled = layer_and_gradients(torch.float32, kernel, x, None, root, pool=nn.AvgPool2d(2))
    assert_same(compiled, layer_and_gradients(torch.float64, kernel, x, None, root, pool=nn.AvgPool2d(2)))


@pytest.mark.parametrize("filters", [8, 17])
def test_gradients_are_the_same_where_the_root_needs_none(filters: int, generator: torch.Generator) -> None:
    x = torch.randn(3, filters, 6, 7, generator=generator)
    root = torch.randn(filters, filters, generator=generator)
    gradients = []
    for of_root in (True, False):
        leaf = x.clone().requires_grad_()
        out = kernel_conv2d(leaf, None, root.clone().requires_grad_(of_root), RBFSphere(0.6))
        out.square().sum().backward()
        gradients.append(leaf.grad)
    assert torch.equal(*gradients)


def test_any_memory_layout_gives_the_same_numbers(generator: torch.Generator) -> None:
    layer = KernelConv2d(4, 8, 3, padding=1, generator=generator)
    x = torch.randn(2, 4, 12, 12, generator=generator)
    sliced = x.repeat_interleave(2, 3)[:, :, :, ::2]
    expanded = x[:, :1].expand(-1, 4, -1, -1)
    results = [layer(x), layer(x.contiguous(memory_format=torch.channels_last)), layer(sliced)]
    assert all(torch.equal(results[0], other) for other in results[1:])
    torch.testing.assert_close(layer(expanded), layer(expanded.clone()))


@pytest.mark.parametrize("filters", [8, 40])
@pytest.mark.parametrize("pool", [nn.AvgPool2d(2), GaussianPool2d(2)], ids=str)
@pytest.mark.parametrize("way", ["forward hook", "backward hook", "hook of all modules", "forward"])
def test_a_pooling_that_somebody_watches_or_replaces_is_called(
    way: str, pool: nn.Module, filters: int, generator: torch.Generator
) -> None:
    layer, calls = KernelConv2d(3, filters, 3, pool=copy.deepcopy(pool), generator=generator), []
    assert layer.pool is not None
    watch = {
        "forward hook": layer.pool.register_forward_hook,
        "backward hook": layer.pool.register_full_backward_hook,
        "hook of all modules": nn.modules.module.register_module_forward_hook,
    }
    x = torch.randn(2, 3, 9, 9, generator=generator, requires_grad=True)
    expected = layer(x).detach()
    if way == "forward":
        layer.pool.forward = lambda values: 2 * type(pool).forward(layer.pool, values)  # type: ignore[method-assign]
        torch.testing.assert_close(layer(x), 2 * expected, rtol=1e-4, atol=1e-5)
        return
    handle = watch[way](lambda module, *_: calls.append(module))
    try:
        layer(x).sum().backward()
    finally:
        handle.remove()
    assert layer.pool in calls


def on_one_to_three_threads(compute: Callable[[], list[Tensor]]) -> list[list[Tensor]]:
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(compute())
    finally:
        torch.set_num_threads(before)
    return results


def test_results_do_not_depend_on_the_number_of_threads(generator: torch.Generator) -> None:
    layer = KernelConv2d(3, 16, 3, pool=nn.AvgPool2d(2), generator=generator)
    x = torch.randn(9, 3, 20, 20, generator=generator, requires_grad=True)
    weight, root = layer.weight.detach().requires_grad_(), layer.projection().detach().requires_grad_()

    def compute() -> list[Tensor]:
        out = kernel_conv2d(x, None, root[:3, :3], layer.kernel)
        out = kernel_conv2d(out, weight, root, layer.kernel, pool=layer.pool)
        return [out.detach(), *torch.autograd.grad(out.square().sum(), (root,))]  # of the filters: by a library

    first, *others = on_one_to_three_threads(compute)
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("images", [1, 9])  # a single one is cut into bands
def test_results_of_gaussian_pooling_do_not_depend_on_the_number_of_threads(images: int, generator: torch.Generator) -> None:
    x = torch.randn(images, 40, 20, 17, generator=generator, requires_grad=True)

    def compute() -> list[Tensor]:
        out = fused_conv2d(x, None, None, RBFSphere(0.6), Geometry((1, 1), (0, 0), (1, 1)), GaussianPool2d(2))
        return [out.detach(), *torch.autograd.grad(out.square().sum(), (x,))]

    first, *others = on_one_to_three_threads(compute)
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("filters", [8, 40])
@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_a_linear_layer_takes_patches_whose_squared_norms_are_no_numbers(
    filters: int, scale: float, generator: torch.Generator
) -> None:
    x = torch.randn(2, 1, 9, 8, generator=generator)
    layer = KernelConv2d(1, filters, 3, kernel=Linear(), pool=nn.AvgPool2d(2), generator=generator)
    leaf = (scale * x).requires_grad_()
    out = layer(leaf)
    torch.testing.assert_close(out / scale, layer(x), rtol=1e-4, atol=1e-5)
    (of_x,) = torch.autograd.grad(out.sum(), leaf)
    expected = torch.autograd.grad(layer(x.requires_grad_()).sum(), x)
    torch.testing.assert_close(of_x, *expected)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_stays_not_finite(value: float) -> None:
    x = torch.ones(2, 1, 8, 8)
    x[1, 0, 4, 4] = value
    for setting in ("off", "require"):
        with native.use(setting):  # type: ignore[arg-type]
            out = KernelConv2d(1, 8, 3)(x)
        assert torch.isfinite(out[0]).all()
        assert not torch.isfinite(out[1]).all()


def test_a_second_backward_pass_gives_the_same_gradient(generator: torch.Generator) -> None:
    layer = KernelConv2d(2, 8, 3, generator=generator)
    out = layer(torch.randn(2, 2, 6, 6, generator=generator)).sum()
    (first,) = torch.autograd.grad(out, layer.weight, retain_graph=True)
    (second,) = torch.autograd.grad(out, layer.weight)
    assert torch.equal(first, second)


def test_kernels_without_compiled_code_are_computed_in_plain_torch() -> None:
    class Wider(RBFSphere):
        def kappa(self, t: Tensor) -> Tensor:
            return super().kappa(t) ** 2

    assert Wider(0.6).native() is None

    class Louder(RBFSphere):
        def map(self, responses: Tensor, squared_norms: Tensor, inplace: bool = False) -> Tensor:
            return 10 * super().map(responses, squared_norms)

    class Compiled(Wider):
        def native(self) -> tuple[str, tuple[float, ...]]:
            return "rbf", (2 * self.bandwidth**-2,)

    trained = Compiled(0.6, trainable=True)
    assert trained.trained_number() is None
    assert not applies(torch.zeros(2, 1, 5, 5), trained, groups=1), "compiled code has no gradient of its bandwidth"
    assert applies(torch.zeros(2, 1, 5, 5), Compiled(0.6), groups=1)
    assert Louder(0.6).native() is None
    assert RBFSphere(1e-4).native() is None
    assert RBFSphere(0.6, trainable=True).to("meta").native() is None
    assert ArcCosine(0).native() is None


def test_windows_that_are_larger_than_the_map_are_an_error_and_nothing_worse() -> None:
    with pytest.raises(DataError, match="at least 4x4 positions for one of its windows, got 3x3"):
        KernelConv2d(1, 8, 3, pool=nn.AvgPool2d(4))(torch.ones(1, 1, 5, 5))


@pytest.mark.parametrize(
    ("images", "filters", "root", "message"),
    [
        (
            (2, 1, 8, 8),
            torch.ones(8, 1, 3, 3, dtype=torch.float64),
            torch.eye(8),
            r"of torch.float32 .*, got .* of torch.float64",
        ),
        ((2, 1, 8, 8), torch.ones(8, 4, 3, 3), torch.eye(8), r"expected filters \(f, 1, kh, kw\) .*, got \(8, 4, 3, 3\)"),
        ((2, 1, 8, 8), torch.ones(8, 1, 3, 3), torch.eye(4), r"expected a root \(8, 8\) of torch.float32, got \(4, 4\)"),
        ((2, 8, 8, 8), None, torch.eye(16), r"expected a root \(8, 8\) of torch.float32, got \(16, 16\)"),
    ],
)
@pytest.mark.parametrize("gradients", [False, True])
def test_filters_and_roots_that_do_not_fit_are_an_error(
    images: tuple[int, ...], filters: Tensor | None, root: Tensor, message: str, gradients: bool
) -> None:
    with torch.set_grad_enabled(gradients), pytest.raises(DataError, match=message):
        kernel_conv2d(torch.ones(images), filters, root, RBFSphere(0.6))


def test_an_identity_with_a_stride_or_padding_is_an_error() -> None:
    for geometry in ({"stride": (2, 2)}, {"padding": (1, 1)}):
        with pytest.raises(DataError, match="the identity expected no stride and no padding"):
            kernel_conv2d(torch.ones(2, 8, 6, 6), None, torch.eye(8), RBFSphere(0.6), **geometry)


def test_a_root_in_double_precision_is_applied_in_double_precision(generator: torch.Generator) -> None:
    x, filters = torch.randn(2, 1, 8, 8, generator=generator), torch.randn(8, 1, 3, 3, generator=generator)
    filters = filters / filters.flatten(1).norm(dim=1).reshape(-1, 1, 1, 1)
    root = torch.randn(8, 8, generator=generator, dtype=torch.float64)
    found = kernel_conv2d(x, filters, root, RBFSphere(0.6))
    assert found.dtype == torch.float64
    with native.use("off"):
        torch.testing.assert_close(found, kernel_conv2d(x, filters, root, RBFSphere(0.6)), rtol=1e-4, atol=1e-5)


@pytest.mark.slow  # it compiles
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="only x86 processors have AVX-512")
@pytest.mark.parametrize("filters", [3, 8, 16, 24, 32, 40])
def test_code_for_processors_without_avx_512_gives_the_same_numbers(
    filters: int, narrow: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    monkeypatch.setattr(native, "_library", lambda: narrow)
    for channels, size, kernel in ((1, 5, COMPILED[0]), (8, 3, COMPILED[2]), (3, 1, COMPILED[3])):
        x = torch.randn(3, channels, 9, 8, generator=generator, dtype=torch.float64)
        weight = torch.randn(filters, channels, size, size, generator=generator, dtype=torch.float64)
        weight = weight / weight.flatten(1).norm(dim=1).reshape(-1, 1, 1, 1)
        root = torch.randn(filters, filters, generator=generator, dtype=torch.float64)
        arguments: Any = (kernel, x, weight, root)
        geometry: Any = {"padding": (size // 2, size // 2), "pool": nn.AvgPool2d(2)}
        found = layer_and_gradients(torch.float32, *arguments, **geometry)
        assert_same(found, layer_and_gradients(torch.float64, *arguments, **geometry), 1e-3)
    nodes = [Conv("a", filters=filters, kernel_size=(3, 3)), Conv("b", filters=filters)]
    net, x = CKN(Graph((2, 9, 9), nodes), generator=generator).eval(), torch.randn(2, 2, 9, 9, generator=generator)
    with torch.no_grad():
        assert_same([net.features(x).double()], [net.double().features(x.double())], 1e-4)


@pytest.fixture(scope="session")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The library without AVX-512."""
    folder = tmp_path_factory.mktemp("narrow")
    compiler = folder / "compiler"
    compiler.write_text(f'#!/bin/sh\nexec {native._compiler()} "$@" -mno-avx512f\n')
    compiler.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", str(compiler))
        patch.setenv("XDG_CACHE_HOME", str(folder))
        library = native._library.__wrapped__()
    assert library is not None
    assert Path(library._name).is_relative_to(folder)
    return library


@pytest.mark.parametrize(("stride", "padding", "dilation"), [(1, 0, 1), (1, 1, 1), (2, 1, 1), (2, 0, 2), (1, 3, 1)])
@pytest.mark.parametrize(
    ("channels", "filters", "size"), [(1, 8, 5), (1, 24, 3), (8, 8, 3), (3, 16, 1), (5, 6, 3), (32, 32, 3)]
)
def test_layers_with_few_channels_equal_the_plain_ones(
    channels: int, filters: int, size: int, stride: int, padding: int, dilation: int, generator: torch.Generator
) -> None:
    geometry = {"stride": (stride, stride), "padding": (padding, padding), "dilation": (dilation, dilation)}
    x = torch.randn(9, channels, 17, 14, generator=generator, dtype=torch.float64)  # images enough for parts of one each
    weight = torch.randn(filters, channels, size, size, generator=generator, dtype=torch.float64)
    weight = weight / weight.flatten(1).norm(dim=1).reshape(-1, 1, 1, 1)
    root = torch.randn(filters, filters, generator=generator, dtype=torch.float64)
    for pool in (None, nn.AvgPool2d((3, 2))):
        both = [
            layer_and_gradients(dtype, RBFSphere(0.6), x, weight, root, pool=pool, **geometry)
            for dtype in (torch.float32, torch.float64)
        ]
        assert_same(*both)


@pytest.mark.parametrize("filters", [8, 16, 24, 32, 40])
def test_rows_of_any_length_are_cut_into_pieces_without_a_gap(filters: int, generator: torch.Generator) -> None:
    for width in range(4, 30):
        x = torch.randn(2, 3, 5, width, generator=generator, dtype=torch.float64)
        weight = torch.nn.functional.normalize(torch.randn(filters, 3 * 2, generator=generator, dtype=torch.float64))
        root = torch.randn(filters, filters, generator=generator, dtype=torch.float64)
        arguments = RBFSphere(0.6), x, weight.reshape(filters, 3, 1, 2), root
        assert_same(layer_and_gradients(torch.float32, *arguments), layer_and_gradients(torch.float64, *arguments))


def test_filters_of_few_channels_get_the_same_gradient_whatever_else_needs_one(generator: torch.Generator) -> None:
    x = torch.randn(5, 2, 13, 13, generator=generator)
    weight = torch.nn.functional.normalize(torch.randn(8, 2, 3, 3, generator=generator).flatten(1)).reshape(8, 2, 3, 3)
    root = torch.randn(8, 8, generator=generator)
    gradients = []
    for needed in ((True, True, True), (False, True, True), (True, True, False), (False, True, False), (True, False, False)):
        leaves = [part.clone().requires_grad_(need) for part, need in zip((x, weight, root), needed, strict=True)]
        kernel_conv2d(*leaves, RBFSphere(0.6), pool=nn.AvgPool2d(2)).square().sum().backward()
        gradients.append([leaf.grad for leaf in leaves])
    for some in gradients[1:]:
        assert any(gradient is not None for gradient in some)
        for gradient, whole in zip(some, gradients[0], strict=True):
            assert gradient is None or torch.equal(gradient, whole)


@pytest.mark.parametrize("kernel", COMPILED, ids=str)
@pytest.mark.parametrize("channels", [1, 5, 32, 48])
def test_the_root_of_an_identity_layer_is_multiplied_by_without_a_matrix(
    kernel: Kernel, channels: int, generator: torch.Generator
) -> None:
    layer = KernelConv2d(channels, channels, 1, kernel=kernel, pool=nn.AvgPool2d(2), init="identity")
    assert layer.has_uniform_root
    assert not KernelConv2d(32, 32, 1, init="identity", root_block=16).has_uniform_root
    x = torch.randn(3, channels, 6, 7, generator=generator, dtype=torch.float64)
    plain = copy.deepcopy(layer).double()
    results = []
    for module, images in ((layer, x.float()), (plain, x)):
        leaf = images.requires_grad_()
        out = module(leaf)
        (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)).sum().backward()
        results.append([out.detach().double(), leaf.grad.double()])
    assert_same(*results, 1e-3 if kernel is COMPILED[2] else 2e-5)
