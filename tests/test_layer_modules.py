"""Layers as modules of PyTorch: the projection that is kept in eval mode, copies, files, and bad input."""

from __future__ import annotations

import copy
import io
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torchckn
from torchckn import kernels
from torchckn.errors import ConfigError, DataError, DerivativeError, NumericalError
from torchckn.nn import GaussianPool2d, KernelConv2d, KernelLayer, KernelLinear, KernelLocal2d, KernelSum, base

from .contracts import KERNELS, Case

# The cache of the projection in eval mode.


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    calls: list[int] = []
    original = base.inverse_root

    def counting(*args: Any, **kwargs: Any) -> torch.Tensor:
        calls.append(1)
        return original(*args, **kwargs)

    monkeypatch.setattr(base, "inverse_root", counting)
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


class Mixture(kernels.Kernel):
    """Of powers and of another kernel, by weights that are kept in containers of any kind."""

    def __init__(self, weights: Any, other: kernels.Kernel) -> None:
        super().__init__()
        self.weights, self.other = weights, other

    def kappa(self, t: torch.Tensor) -> torch.Tensor:
        first, second = self.weights.values() if isinstance(self.weights, dict) else self.weights
        return first * t + second * self.other.kappa(t)


def in_place_changes() -> dict[str, tuple[Any, Any]]:
    def sigma(kernel: Mixture) -> None:
        kernel.other.sigma = 2.0

    return {
        "a kernel within": ((0.5, 0.5), sigma),
        "list": ([0.5, 0.5], lambda kernel: kernel.weights.__setitem__(slice(None), [0.1, 0.9])),
        "dict": ({"t": 0.5, "k": 0.5}, lambda kernel: kernel.weights.update(t=0.1, k=0.9)),
        "tensor": (torch.tensor([0.5, 0.5]), lambda kernel: kernel.weights.copy_(torch.tensor([0.1, 0.9]))),
        "tensors": ([torch.tensor(0.5), torch.tensor(0.5)], lambda kernel: kernel.weights[0].fill_(0.1)),
        "array": (np.array([0.5, 0.5]), lambda kernel: kernel.weights.__setitem__(0, 0.1)),
        "another list": ([0.5, 0.5], lambda kernel: setattr(kernel, "weights", [0.1, 0.9])),
    }


@pytest.mark.parametrize("change", in_place_changes())
def test_a_change_anywhere_in_a_kernel_is_seen_in_eval_mode(
    change: str, counted: list[int], generator: torch.Generator
) -> None:
    weights, edit = in_place_changes()[change]
    layer = KernelConv2d(2, 4, 3, kernel=Mixture(weights, kernels.RBFSphere(0.6)), generator=generator).eval()
    x = torch.randn(3, 2, 5, 5, generator=generator)
    for _ in range(3):
        layer(x)
    assert len(counted) == 1
    edit(layer.kernel)
    for _ in range(3):
        after = layer(x)
    assert len(counted) == 2
    copied = copy.deepcopy(layer)
    torch.testing.assert_close(copied(x), after)
    assert len(counted) == 2  # the copy has the root of the original
    torch.testing.assert_close(after, copied.train()(x))


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


def test_sizes_may_be_integers_of_numpy() -> None:
    layer = KernelConv2d(np.int64(2), np.int32(4), np.array(3), stride=(np.int64(2), 2), groups=np.int64(2))
    sizes = layer.in_channels, *layer.kernel_size, *layer.stride, layer.groups
    assert [type(size) for size in sizes] == [int] * 6
    assert layer(torch.rand(1, 2, 7, 7)).shape == (1, 4, 3, 3)
    assert type(GaussianPool2d(np.int64(2)).kernel_size) is int
    with pytest.raises(ConfigError, match="expected integer sizes"):
        KernelConv2d(2, np.bool_(True), 3)


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


def test_in_eval_mode_another_kernel_of_the_same_class_has_a_root_of_its_own(generator: torch.Generator) -> None:
    x = torch.rand(2, 1, 8, 8, generator=generator)
    layer = KernelConv2d(1, 8, 3, kernel=kernels.Dual("mine", degree=1, coefficients=[0.5, 0.5]), generator=generator).eval()
    with torch.no_grad():
        layer(x)
        layer.kernel = kernels.Dual("mine", degree=1, coefficients=[0.1, 0.9])
        torch.testing.assert_close(layer(x), copy.deepcopy(layer).train()(x))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # which torch calls itself
@pytest.mark.parametrize("training", [False, True])
def test_derivatives_in_forward_mode_and_of_torch_func_are_refused_with_the_remedy(
    training: bool, generator: torch.Generator
) -> None:
    x, layer = torch.rand(2, 1, 8, 8, generator=generator), KernelConv2d(1, 8, 3, generator=generator).train(training)
    message = "KernelConv2d expected backward.* or torch.autograd.grad, got a transformation of torch.func"
    for transformed in (
        torch.func.grad(lambda images: layer(images).sum()),
        torch.func.vmap(lambda image: layer(image[None])),
        lambda images: torch.func.jvp(layer, (images,), (images,)),
    ):
        with pytest.raises(DerivativeError, match=message):
            transformed(x)
    with torch.no_grad(), torch.autograd.forward_ad.dual_level(), pytest.raises(DerivativeError, match=message):
        layer(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)))
    torch.testing.assert_close(torch.func.functional_call(layer, dict(layer.named_parameters()), (x,)), layer(x))


def test_a_window_may_be_a_list(generator: torch.Generator) -> None:
    x = torch.rand(2, 1, 8, 8, generator=generator)
    pairs = [
        KernelConv2d(1, 8, 3, pool=nn.AvgPool2d(size), generator=torch.Generator().manual_seed(0)) for size in ([2, 2], 2)
    ]
    torch.testing.assert_close(pairs[0](x), pairs[1](x))


def test_a_direct_sum_has_a_weight_for_each_branch() -> None:
    with pytest.raises(DataError, match="KernelSum expected 2 branches, one for each weight, got 3"):
        KernelSum([1.0, 2.0])(*torch.ones(3, 1, 1, 2, 2))
