"""Mixed precision: convolutions and kernel maps in bfloat16 or float16, everything else in the network's own precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import torchckn
from torchckn import ConfigError, NumericalError, TrainConfig
from torchckn.fit.chunks import batch_features, batch_gradient
from torchckn.fit.methods import METHODS, Method, MethodOptions
from torchckn.kernels import ArcCosine, Kernel, Linear, Matern, RBFSphere
from torchckn.nn import GaussianPool2d, KernelConv2d, KernelLinear, KernelLocal2d, convolution, native
from torchckn.nn.functional import kernel_conv2d, patch_squares
from torchckn.nn.resampling import FixedWindow

from .contracts import KERNELS, Case, is_rough
from .fake_cuda.steps import small
from .training import StopAfter, StopHereError, convnet, digits, network, trained


def batch() -> tuple[Tensor, Tensor]:
    (images, labels), _ = digits(32)
    return images, labels


def method_in(precision: Any, name: str = "ulr") -> Method:
    net = convnet() if name == "sgd" else network()
    return METHODS[name](net, MethodOptions(lam=2**-8, precision=precision))


class Types(TorchDispatchMode):
    """The dtypes of the first tensor of each operation, by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, set[torch.dtype]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if args and isinstance(args[0], Tensor):
            self.seen.setdefault(func.overloadpacket.__name__, set()).add(args[0].dtype)
        return func(*args, **(kwargs or {}))


def test_convolutions_and_maps_are_in_bfloat16_roots_solve_and_classifier_are_not() -> None:
    method = method_in("bfloat16")
    with Types() as types:
        method.step(*batch(), lr=0.01)
    assert torch.bfloat16 in types.seen["convolution"]
    assert types.seen["exp"] == {torch.bfloat16, torch.float64}  # maps; the solve, and the filters' Gram matrices
    assert types.seen["_linalg_eigh"] == {torch.float64}
    assert types.seen["linalg_cholesky_ex"] == {torch.float64}
    assert types.seen["_log_softmax"] == {torch.float64}
    assert {parameter.dtype for parameter in method.net.parameters()} == {torch.float32}


@pytest.mark.parametrize("inverse_sqrt", ["eigh", "newton"])
def test_roots_are_those_of_float32(inverse_sqrt: str) -> None:
    layer = KernelConv2d(2, 6, 3, inverse_sqrt=inverse_sqrt, generator=torch.Generator().manual_seed(0))
    expected = layer.projection()
    with torch.autocast("cpu", torch.bfloat16):
        root = layer.projection()
    assert root.dtype == torch.float32
    assert torch.equal(root, expected)


@pytest.mark.parametrize("name", ["ulr", "sgo", "sgd"])
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_step_is_close_to_that_in_float32(name: str, precision: str) -> None:
    methods = [method_in(which, name) for which in ("float32", precision)]
    results = [method.step(*batch(), lr=0.01) for method in methods]
    assert results[1].loss == pytest.approx(results[0].loss, rel=0.02)
    assert results[1].loss != results[0].loss
    gradients = [torch.cat([p.grad.flatten() for p in method.net.parameters() if p.grad is not None]) for method in methods]
    assert gradients[1].isfinite().all()
    assert torch.nn.functional.cosine_similarity(*gradients, dim=0) > 0.98


#: kernels whose kappa' is bounded, so that they do not amplify the rounding of a cosine, and whose features are not all zero
#: here, as those of a bandwidth of 0.1 are
SMOOTH = [case for case in KERNELS if not is_rough(case) and case.arguments.get("sigma") != 0.1]


@pytest.mark.parametrize("case", SMOOTH, ids=str)
def test_features_of_every_kernel_are_close_to_those_in_float32(case: Case) -> None:
    net, images = small(case.build()), torch.rand(8, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    exact, rounded = (batch_features(net, images, precision=precision) for precision in ("float32", "bfloat16"))  # type: ignore[arg-type]
    assert rounded.dtype == torch.float32
    assert torch.linalg.vector_norm(rounded - exact) < 0.1 * torch.linalg.vector_norm(exact)


def test_a_resumed_run_in_bfloat16_gives_exactly_what_the_uninterrupted_one_gives(tmp_path: Any) -> None:
    options: dict[str, Any] = {"steps": 4, "precision": "bfloat16", "run_dir": tmp_path / "run"}
    expected = trained(**options | {"run_dir": None})[0].state_dict()
    with pytest.raises(StopHereError):
        trained(**options, checkpoint_every=1, callbacks=[StopAfter(2)])
    assert 'precision = "bfloat16"' in (tmp_path / "run" / "config.toml").read_text()
    with pytest.raises(ConfigError, match="precision"):
        trained(**options | {"precision": "float32"}, resume=True)
    found = trained(**options, resume=True)[0].state_dict()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_an_overflow_of_float16_says_what_it_is() -> None:
    images, labels = batch()
    with pytest.raises(NumericalError, match="float16 overflowed: expected finite features of a batch"):
        method_in("float16").step(images * 1e5, labels, lr=0.01)
    with pytest.raises(NumericalError, match="float16 overflowed: expected finite gradients of a batch"):
        batch_gradient(network(), images, lambda x: (x.square().sum() * 1e9, None), precision="float16")
    assert method_in("bfloat16").step(images * 1e5, labels, lr=0.01).loss > 0  # it has the range of float32


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ConfigError, match="precision: expected 'float32', 'bfloat16' or 'float16', got 'float8'"):
        TrainConfig(precision="float8")  # type: ignore[arg-type]
    assert torchckn.TrainConfig().precision == "float32"


compiled = pytest.mark.skipif(native.library() is None, reason="no C++ compiler: the plain layer is used and tested")


@compiled
@pytest.mark.parametrize("kernel", [RBFSphere(0.6), RBFSphere(0.6, trainable=True), ArcCosine(1), ArcCosine(2)], ids=str)
@pytest.mark.parametrize("pool", [None, nn.AvgPool2d(2), GaussianPool2d(2)], ids=str)
def test_on_a_cpu_the_layer_stays_compiled_and_its_convolutions_alone_are_rounded(
    kernel: Kernel, pool: nn.Module | None, monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    layer = KernelConv2d(
        33, 40, 3, padding=1, kernel=kernel, pool=pool, generator=generator
    )  # too wide for convolutions of our own
    x, weight = torch.randn(4, 33, 6, 6, generator=generator), layer.weight.detach()
    seen: list[torch.dtype] = []
    for name in ("convolve", "convolution_gradients", "filter_gradient"):
        original = getattr(convolution, name)
        monkeypatch.setattr(convolution, name, lambda a, *rest, of=original: (seen.append(a.dtype), of(a, *rest))[1])

    def results(precision: torch.dtype | None) -> list[Tensor]:
        leaf = x.clone().requires_grad_()
        layer.zero_grad()
        with torch.autocast("cpu", precision, enabled=precision is not None):
            y = layer(leaf)
        y.square().sum().backward()
        assert leaf.grad is not None
        return [y.detach(), leaf.grad, *(p.grad.clone() for p in layer.parameters() if p.grad is not None)]

    exact, rounded = results(None), results(torch.bfloat16)
    assert seen == [torch.float32] * 3 + [torch.bfloat16] * 3  # responses, and gradients of filters and images
    with torch.no_grad():
        responses = F.conv2d(x.bfloat16(), weight.bfloat16(), padding=1).float()
        squares = patch_squares(x, (3, 3), (1, 1), (1, 1), (1, 1))
        values = kernel.map(responses, squares)
        expected = torch.einsum("fg,nghw->nfhw", layer.projection(), pool(values) if pool else values)
    torch.testing.assert_close(rounded[0], expected, rtol=1e-4, atol=1e-4)
    assert len(exact) == len(rounded)
    for own, other in zip(exact, rounded, strict=True):
        assert other.dtype == own.dtype
        assert 0 < (other - own).norm() < 0.02 * own.norm()


@pytest.mark.parametrize("setting", ["auto", "off"])
@pytest.mark.parametrize("trainable", [False, True])
def test_a_kernel_value_is_at_most_the_norm_of_its_patch_where_products_are_rounded(
    trainable: bool, setting: native.Native, generator: torch.Generator
) -> None:
    """Patches that are filters: a rounded cosine may be 1.004, whose value would be 1.5 times the norm at this bandwidth."""
    weight = F.normalize(torch.randn(60, 33 * 9, generator=generator)).view(60, 33, 3, 3)
    norms = torch.linspace(1, 2, 60)
    x = F.pad(norms[:, None, None, None] * weight, (0, 1)).requires_grad_()  # beside each filter, another position
    with native.use(setting), torch.autocast("cpu", torch.bfloat16):
        values = kernel_conv2d(x, weight, torch.eye(60), RBFSphere(0.1, trainable=trainable))
        own = values[..., 0, 0].diagonal().float()
        (gradient,) = torch.autograd.grad(own.sum(), x)
    relative = own.detach() / norms
    assert relative.max() < 1.01
    assert relative.min() > 0.6
    assert (gradient.flatten(1).norm(dim=1) > 0).all()


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kernel", [ArcCosine(0), Matern(0.5, 0.6)], ids=str)
def test_the_slope_of_steep_kernels_is_finite_for_patches_that_are_filters(
    kernel: Kernel, precision: torch.dtype, generator: torch.Generator
) -> None:
    weight = F.normalize(torch.randn(60, 33 * 9, generator=generator)).view(60, 33, 3, 3)
    x = (torch.linspace(1, 2, 60)[:, None, None, None] * weight).requires_grad_()
    with torch.autocast("cpu", precision):
        kernel_conv2d(x, weight, torch.eye(60), kernel).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


@compiled
@pytest.mark.parametrize("pool", [None, nn.AvgPool2d(2)], ids=str)
def test_a_wide_linear_layer_is_rounded_by_its_convolution_alone(pool: nn.Module | None, generator: torch.Generator) -> None:
    """Where nothing is pooled, the convolution is torch's own, and the projection a product of matrices."""
    layer = KernelConv2d(33, 40, 3, kernel=Linear(), pool=pool, generator=generator)
    x = torch.randn(4, 33, 6, 6, generator=generator)
    leaf = x.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(leaf)
    y.square().sum().backward()
    with torch.no_grad():
        values = F.conv2d(x.bfloat16(), layer.weight.bfloat16()).float()
        expected = torch.einsum("fg,nghw->nfhw", layer.projection(), values if pool is None else pool(values))
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
    own = x.clone().requires_grad_()
    layer(own).square().sum().backward()
    assert leaf.grad is not None
    assert own.grad is not None
    assert y.dtype == leaf.grad.dtype == torch.float32
    assert 0 < (leaf.grad - own.grad).norm() < 0.02 * own.grad.norm()


@compiled
@pytest.mark.parametrize(("channels", "filters", "size"), [(16, 8, 6), (3, 8, 3), (33, 24, 3)])
def test_a_compiled_layer_has_the_same_gradient_if_backward_is_within_autocast(
    channels: int, filters: int, size: int, generator: torch.Generator
) -> None:
    layer = KernelConv2d(channels, filters, size, kernel=RBFSphere(0.6), generator=generator).eval()
    x = torch.randn(4, channels, 6, 6, generator=generator, requires_grad=True)
    gradients = []
    for is_within in (False, True):
        with torch.autocast("cpu", torch.bfloat16):
            y = layer(x).square().sum()
        with torch.autocast("cpu", torch.bfloat16, enabled=is_within):
            gradients.append(torch.autograd.grad(y, [x, layer.weight]))
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)


@compiled
def test_chains_of_layers_are_for_full_precision(generator: torch.Generator) -> None:
    net = network().eval()
    (chain,) = net._chains.values()
    x = torch.rand(2, *net.input_shape, generator=generator)
    with torch.no_grad():
        assert chain.takes(x, net.layers)
        with torch.autocast("cpu", torch.bfloat16):
            assert not chain.takes(x, net.layers)


@pytest.mark.parametrize("setting", ["auto", "off"])
def test_a_patch_and_its_norm_are_of_the_same_numbers(setting: Any, generator: torch.Generator) -> None:
    """Also if a module before a layer has rounded its images."""
    x = torch.randn(4, 3, 6, 6, generator=generator)
    layers = KernelConv2d(3, 8, 3), KernelLinear(108, 8), KernelLocal2d(3, 8, 3, 6, regions=2)
    with native.use(setting), torch.autocast("cpu", torch.bfloat16):
        for layer in layers:
            rounded = x.bfloat16()
            torch.testing.assert_close(layer(rounded), layer(rounded.float()), rtol=0, atol=0)


def test_pooled_values_have_the_precision_that_they_had(generator: torch.Generator) -> None:
    x = torch.randn(4, 3, 6, 6, generator=generator)
    for pool in (GaussianPool2d(2), FixedWindow([[0.25, 0.5], [0.5, 0.25]])):
        with torch.autocast("cpu", torch.bfloat16):
            pooled = pool(x)
            assert pool(x.bfloat16()).dtype == torch.bfloat16
        assert torch.equal(pooled, pool(x))
