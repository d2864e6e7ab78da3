"""Kernels of activations: the Hermite expansion, its laws, and what is saved of it."""

from __future__ import annotations

import copy
import json
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import torchckn
from torchckn import kernels
from torchckn.errors import CKNError, ConfigError
from torchckn.graph import Conv, Dense, Graph
from torchckn.kernels import ACTIVATIONS, ArcCosine, Dual, KernelSpec, parse
from torchckn.kernels.hermite import expand, growth

from . import oracles

every_activation = pytest.mark.parametrize("name", ACTIVATIONS)


def cosines(count: int = 401) -> Tensor:
    return torch.linspace(-1, 1, count, dtype=torch.float64)


def cosines_of(u: Tensor) -> Tensor:
    return torch.cos(u)


@every_activation
@settings(deadline=None, max_examples=10)
@given(scale=st.floats(0.05, 5), seed=st.integers(0, 100))
def test_the_laws_of_a_kernel_hold_for_every_activation_and_scale(name: str, scale: float, seed: int) -> None:
    kernel = Dual(name, scale)
    values = kernel.kappa(cosines())
    assert values[-1].item() == pytest.approx(1, abs=1e-14)
    assert values.abs().max() <= 1 + 1e-14
    assert min(kernel.coefficients) >= 0
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    gram = kernel.gram(x)
    assert torch.linalg.eigvalsh(gram).min() > -1e-9 * gram.diagonal().max()


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "gelu", "silu", "erf", "softplus", "sine", "mish"])
@pytest.mark.parametrize("scale", [0.5, 1.0])
def test_coefficients_of_smooth_activations_are_those_of_gauss_hermite_quadrature(name: str, scale: float) -> None:
    nodes, weights = np.polynomial.hermite_e.hermegauss(160)
    weights = weights / math.sqrt(2 * math.pi)
    values = ACTIVATIONS[name](torch.from_numpy(scale * nodes)).numpy()
    for k, part in enumerate(expand(ACTIVATIONS[name], scale, 20).parts):
        hermite = np.polynomial.hermite_e.HermiteE.basis(k)(nodes) / math.sqrt(math.factorial(k))
        expected = (weights * values * hermite).sum() ** 2 / (weights * values**2).sum()
        assert part == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_relu_and_the_step_function_agree_with_their_closed_forms() -> None:
    t = cosines()
    for name, order in (("relu", 1), ("step", 0), ("square", 2)):
        kernel = Dual(name, highest=512)
        assert kernel.degree == order
        if order < 2:
            assert (kernel.kappa(t) - ArcCosine(order).kappa(t)).abs().max() <= kernel.error + 1e-14
    assert (Dual("relu").kappa(t) - ArcCosine(1).kappa(t)).abs().max() < 1e-4
    inner = t.abs() < 0.9
    assert (Dual("step", highest=512).kappa(t) - ArcCosine(0).kappa(t))[inner].abs().max() < 1e-12
    torch.testing.assert_close(Dual("square").kappa(t), (1 + 2 * t * t) / 3)


@pytest.mark.parametrize("shift", [0.0, 0.3, 1 / 3])
def test_a_jump_or_a_kink_anywhere_is_integrated_to_the_last_digits(shift: float) -> None:
    def normal(u: float) -> float:
        return math.exp(-u * u / 2) / math.sqrt(2 * math.pi)

    above = math.erfc(shift / math.sqrt(2)) / 2  # of a Gaussian number
    jump = expand(lambda u: (u > shift).to(u.dtype), 1.0, 1)
    assert jump.mean_square == pytest.approx(above, rel=1e-11)
    assert jump.parts[0] == pytest.approx(above, rel=1e-11)
    kink = expand(lambda u: F.relu(u - shift), 1.0, 1)
    assert kink.mean_square == pytest.approx((1 + shift**2) * above - shift * normal(shift), rel=1e-11)
    assert kink.parts[1] * kink.mean_square == pytest.approx(above**2, rel=1e-11)


def test_the_error_bounds_what_is_left_out_and_decreases_with_more_powers() -> None:
    t = cosines(101)
    for name in ("hardswish", "elu", "hardtanh", "relu6"):
        best = Dual(name, highest=512, tolerance=1e-15)
        before = math.inf
        for highest in (4, 16, 64):
            kernel = Dual(name, highest=highest)
            assert kernel.error is not None
            assert best.error is not None
            assert (kernel.kappa(t) - best.kappa(t)).abs().max() <= kernel.error + best.error + 1e-14
            assert kernel.error < before
            before = kernel.error
    assert Dual("gelu").error < 1e-6
    assert Dual("gelu", tolerance=1e-3).error < 1e-3
    assert len(Dual("gelu", tolerance=1e-3).coefficients) < len(Dual("gelu").coefficients)


@pytest.mark.parametrize("name", ["tanh", "gelu", "silu"])
def test_the_default_tolerance_is_kept(name: str) -> None:
    kernel = Dual(name)
    one = oracles.dual(name, 1.0, 1.0)
    for t in (-1.0, -0.4, 0.3, 0.9):
        value = kernel.kappa(torch.tensor(t, dtype=torch.float64)).item()
        assert value == pytest.approx(oracles.dual(name, t, 1.0) / one, abs=1e-6)


@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_the_scale_of_a_homogeneous_activation_does_not_matter(scale: float) -> None:
    for name in ("relu", "leaky_relu", "step", "square"):
        a, b = Dual(name), Dual(name, scale)
        assert a.degree == b.degree
        torch.testing.assert_close(a.kappa(cosines()), b.kappa(cosines()), rtol=0, atol=1e-10)


def test_the_degree_is_the_growth_of_the_activation_at_its_scale() -> None:
    degrees = {name: Dual(name).degree for name in ("tanh", "sigmoid", "erf", "sine", "step")}
    assert set(degrees.values()) == {0}
    assert {Dual(name).degree for name in ("gelu", "silu", "hardswish", "elu", "relu", "leaky_relu", "relu6")} == {1}
    assert growth(torch.relu, 2.0) == pytest.approx(1, abs=1e-6)
    assert Dual("tanh", 0.1).degree == 1  # linear for small numbers
    assert Dual("tanh", degree=1).degree == 1


def test_any_elementwise_function_has_a_kernel_and_random_features(generator: torch.Generator) -> None:
    def bump(u: Tensor) -> Tensor:
        return torch.exp(-u.square())

    for activation in (bump, nn.ELU(0.3), lambda u: u * torch.sigmoid(1.7 * u)):
        kernel = Dual(activation, 0.7)
        graph = Graph((2, 3, 3), [Dense("dense", filters=40_000, kernel=kernel)])
        images = torch.randn(3, 2, 3, 3, generator=generator, dtype=torch.float64)
        exact = torchckn.exact_kernel(graph, images)
        layer = torchckn.nn.random_features.RandomFeatureLinear(18, 40_000, kernel, generator=generator, dtype=torch.float64)
        features = layer(images)
        assert (features @ features.T - exact).norm() < 0.05 * exact.norm()
    assert (Dual(bump).activation, Dual(nn.ELU(0.3)).activation, Dual(F.tanh).activation) == ("bump", "ELU", "tanh")
    assert not list(Dual(nn.PReLU().double()).parameters())


@every_activation
def test_random_features_have_the_exact_kernel_as_their_mean(name: str, generator: torch.Generator) -> None:
    for scale in (0.5, 2.0):
        graph = Graph((2, 3, 3), [Conv("conv", filters=40_000, kernel_size=(2, 2), kernel=Dual(name, scale))])
        images = torch.randn(3, 2, 3, 3, generator=generator, dtype=torch.float64)
        ckn = torchckn.CKN(graph, weights="random-features", generator=generator, dtype=torch.float64)
        features, exact = ckn.features(images), torchckn.exact_kernel(graph, images)
        assert (features @ features.T - exact).norm() < 0.05 * exact.norm()


def test_nystrom_features_approach_the_exact_kernel_with_more_filters(generator: torch.Generator) -> None:
    images = torch.randn(200, 1, 2, 2, generator=generator, dtype=torch.float64)
    for name in ("tanh", "gelu"):
        errors = []
        for filters in (4, 20, 100):
            graph = Graph((1, 2, 2), [Dense("dense", filters=filters, kernel=Dual(name), eps=1e-6, init="sample")])
            ckn = torchckn.CKN(graph, generator=generator, dtype=torch.float64)
            torchckn.fit_filters(ckn, images, generator=generator)
            features, exact = ckn.features(images[:20]).detach(), torchckn.exact_kernel(graph, images[:20])
            errors.append(float((features @ features.T - exact).norm() / exact.norm()))
        assert errors[0] > 2 * errors[1] > 4 * errors[2], errors
        assert errors[2] < 0.01, errors


@pytest.mark.parametrize("activation", [nn.Tanh(), pytest.param(nn.GELU(), marks=pytest.mark.slow)], ids=["tanh", "gelu"])
def test_the_matching_kernel_is_ten_times_closer_to_the_random_network_than_the_stand_in_was(activation: nn.Module) -> None:
    """A ConvNet with its own Gaussian weights, whose pre-activations have scale 1: pixels of norm 1, no padding."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(8, 3, 6, 6, generator=generator) + 2 * torch.randn(8, 3, 1, 1, generator=generator)
    images = F.normalize(images, dim=1)
    small = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, bias=False), activation, nn.Conv2d(8, 8, 2, stride=2, bias=False), activation),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)),
    )
    width, gram = 2000, torch.zeros(8, 8)
    for _ in range(20):
        first = activation(F.conv2d(images, torch.randn(width, 3, 3, 3, generator=generator) / 3))
        fan_in = 4 * first.square().sum(1).mean()
        second = torch.randn(width, width, 2, 2, generator=generator) / fan_in.sqrt()
        features = activation(F.conv2d(first, second, stride=2)).mean((2, 3))
        gram += features @ features.T

    def error(kernel: Any) -> float:
        exact = torchckn.exact_kernel(torchckn.translate(small, (3, 6, 6), kernel=kernel).graph, images)
        return float((exact / exact.norm() - gram / gram.norm()).norm())

    stand_in = ArcCosine(0) if isinstance(activation, nn.Tanh) else ArcCosine(1)
    assert error("match") < error(stand_in) / 10, (error("match"), error(stand_in))


def test_large_and_strided_tensors_give_what_small_ones_give(generator: torch.Generator) -> None:
    kernel = Dual("elu")
    t = torch.rand(9, 40, 30, 30, generator=generator, dtype=torch.float64) * 2 - 1
    expected = torch.stack([kernel.kappa(part) for part in t])
    assert torch.equal(kernel.kappa(t), expected)
    assert torch.equal(kernel.kappa(t.contiguous(memory_format=torch.channels_last)), expected)
    assert torch.equal(kernel.kappa(t[:, ::2, :, 3:]), expected[:, ::2, :, 3:])
    assert kernel.kappa(t[:0]).shape == (0, 40, 30, 30)
    assert torch.equal(kernel.kappa(t[0, 0, 0, 0]), expected[0, 0, 0, 0])


def test_a_compiled_kernel_has_the_same_values() -> None:
    kernel, t = Dual("gelu"), cosines(101)
    compiled = torch.compile(kernel.kappa, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(t), kernel.kappa(t))


def test_a_network_is_saved_with_names_and_coefficients_only(tmp_path: Any, generator: torch.Generator) -> None:
    def own(u: Tensor) -> Tensor:
        return torch.tanh(u) ** 3

    for activation in ("tanh", own):
        graph = Graph((1, 6, 6), [Conv("conv", filters=4, kernel_size=(3, 3), kernel=Dual(activation, 1.5))])
        ckn = torchckn.CKN(graph, generator=generator)
        torchckn.save(ckn, tmp_path / "net.ckn")
        again = torchckn.load(tmp_path / "net.ckn")
        images = torch.rand(2, 1, 6, 6, generator=generator)
        assert torch.equal(again(images), ckn(images))
        assert again.graph == ckn.graph
        assert hash(again.graph) == hash(ckn.graph)
        assert "Dual(" in str(again.summary())
        assert str(ckn.kernel_layers()["conv"].kernel.spec()) in ("Dual(tanh, 1.5, 0)", "Dual(own, 1.5, 1)")
    loaded = again.kernel_layers()["conv"].kernel
    assert isinstance(loaded, Dual)
    assert (loaded.function, loaded.activation) == (None, "own")
    with pytest.raises(
        ConfigError, match=r"Dual\('own'\) was loaded from a file or a pickle without its function; set kernel.function"
    ):
        loaded.random_features(torch.ones(1, 1), torch.ones(1, 1), torch.ones(1))


def test_a_pickle_leaves_out_a_function_that_cannot_be_pickled() -> None:
    kernel, t = Dual(lambda u: u * torch.sigmoid(1.7 * u)), cosines(11)
    again = pickle.loads(pickle.dumps(kernel))
    assert torch.equal(again.kappa(t), kernel.kappa(t))
    assert (again.function, again.spec()) == (None, kernel.spec())
    with pytest.raises(ConfigError, match="was loaded from a file or a pickle without its function"):
        again.random_features(torch.ones(1, 1), torch.ones(1, 1), torch.ones(1))
    copied = copy.deepcopy(kernel)
    assert copied.function is not None  # copies share it
    assert torch.equal(copied.function(t), kernel.function(t))
    assert pickle.loads(pickle.dumps(Dual(cosines_of))).function is cosines_of


def test_a_function_that_only_shares_a_name_with_an_activation_is_not_taken_for_it() -> None:
    def tanh(u: Tensor) -> Tensor:
        return torch.tanh(2 * u)

    assert Dual(tanh).activation == "own tanh"
    assert json.loads(json.dumps(Dual(tanh).spec().arguments))[0] == ["activation", "own tanh"]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Dual("tan"), "unknown activation 'tan'.*Did you mean 'tanh'"),
        (lambda: Dual(3), "Dual expected an activation, by name or as a function, got 3"),
        (lambda: Dual("tanh", 0), "Dual expected a positive, finite scale, got 0"),
        (lambda: Dual("tanh", degree=-1), "Dual expected a degree from 0 to 8, got -1"),
        (lambda: Dual("tanh", degree=0.5), "Dual expected a degree from 0 to 8, got 0.5"),
        (lambda: Dual("tanh", tolerance=0), "Dual expected a tolerance between 0 and 1, got 0"),
        (lambda: Dual("tanh", highest=0), "Dual expected a highest power from 1 to 1024, got 0"),
        (lambda: Dual(lambda u: 0 * u), "expected an activation that is not zero everywhere"),
        (lambda: Dual(lambda u: 1 / u.clamp(min=0)), "expected an activation that is finite up to"),
        (lambda: Dual(lambda u: torch.softmax(u, 0)), "acts on each number separately and is not random"),
        (lambda: Dual(lambda u: u + torch.rand_like(u)), "acts on each number separately and is not random"),
        (lambda: Dual(lambda u: u.sum()), "acts on each number separately and is not random"),
        (lambda: Dual("sine", 1e9), "the activation changes too quickly to be integrated at scale 1e\\+09"),
        (lambda: Dual("own", degree=0, coefficients=[0.5, -0.5, 1]), "not negative and sum to 1.*got 0.5, -0.5, 1"),
        (lambda: Dual("own", degree=0, coefficients=[0.5, 0.4]), "not negative and sum to 1"),
        (lambda: Dual("own", degree=0, coefficients=[math.nan]), "not negative and sum to 1"),
        (lambda: Dual("own", degree=0, coefficients=["1"] * 2000), "a list of 1 to 1025 coefficients, got list"),
        (lambda: Dual("own", degree=0, coefficients="1"), "a list of 1 to 1025 coefficients, got str"),
        (lambda: Dual("own", coefficients=[1.0]), "Dual expected a degree with the coefficients of 'own', got None"),
        (lambda: Dual("x" * 200, degree=0, coefficients=[1.0]), "Dual expected the name of an activation, got 'xxx"),
        (lambda: KernelSpec("Dual", (("activation", ["tanh"]),)).build(), r"by name or as a function, got \['tanh'\]"),
        (lambda: parse("dual"), r"expected dual:NAME\[:NUMBER\], got 'dual'"),
        (lambda: parse("dual:tanh:1:2"), r"expected dual:NAME\[:NUMBER\], got 'dual:tanh:1:2'"),
        (lambda: parse("dual:tanh:wide"), r"expected dual:NAME\[:NUMBER\], got 'dual:tanh:wide'"),
    ],
)
def test_what_is_no_activation_is_refused_with_a_reason(build: Any, message: str) -> None:
    with pytest.raises(CKNError, match=message):
        build()


def test_the_command_line_form_has_a_name_and_an_optional_scale() -> None:
    for text, scale in (("dual:tanh", 1.0), ("dual:tanh:2.5", 2.5)):
        kernel = parse(text)
        assert isinstance(kernel, kernels.Dual)
        assert (kernel.activation, kernel.scale) == ("tanh", scale)


def test_a_module_whose_settings_have_changed_has_another_kernel() -> None:
    module = nn.LeakyReLU(0.5)
    kernels.Dual(module)
    module.negative_slope = -0.9
    t = torch.linspace(-1, 1, 9, dtype=torch.float64)
    assert torch.equal(kernels.Dual(module).kappa(t), kernels.Dual(nn.LeakyReLU(-0.9)).kappa(t))
