"""Activations and normalizations that are written out by several operations are one operation."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchckn
from torchckn import translate
from torchckn.errors import TranslationError
from torchckn.graph import Conv, DirectSum, Normalize
from torchckn.kernels import ArcCosine, Dual

from .networks import Written, conv, end, rows_of, run_and_save
from .test_translation_exported import of_export


def network(function: Any) -> nn.Module:
    return Written(lambda s, x: end(s.b(function(s.a(x)))), a=conv(2, 8), b=conv(8, 8), p=nn.Parameter(torch.ones(1)))


#: as people write them, and their names
WRITTEN: dict[str, tuple[Any, str]] = {
    "x * sigmoid(x)": (lambda x: x * torch.sigmoid(x), "silu"),
    "x / (1 + exp(-x))": (lambda x: x / (1 + torch.exp(-x)), "silu"),
    "in place": (lambda x: x.mul_(x.sigmoid()), "silu"),
    "x * (relu6(x + 3) / 6)": (lambda x: x * (F.relu6(x + 3) / 6), "hardswish"),
    "relu6(x + 3) * (1 / 6)": (lambda x: F.relu6(x + 3.0) * (1.0 / 6.0), "add-relu6"),
    "x * tanh(softplus(x))": (lambda x: x * torch.tanh(F.softplus(x)), "mish"),
    "x * tanh(log(1 + exp(x)))": (lambda x: x * torch.tanh(torch.log(1 + torch.exp(x))), "mish"),
    "0.5 x (1 + erf(x / sqrt 2))": (lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))), "gelu"),
    "tanh GELU": (
        lambda x: 0.5 * x * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0)))),
        "gelu_tanh",
    ),
    "relu(x) ** 2": (lambda x: F.relu(x) ** 2, "relu-pow"),
    "relu(x).square()": (lambda x: F.relu(x).square(), "relu-square"),
}


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("tracer", ["symbolic", "export"])
def test_an_activation_that_is_written_out_is_the_kernel_of_its_layer(
    name: str, tracer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, activation = WRITTEN[name]
    net = network(function)
    ckn = translate(net, (2, 6, 6)) if tracer == "symbolic" else of_export(monkeypatch, net, 2, 6, 6)
    first = ckn.graph.nodes[0]
    assert isinstance(first, Conv)
    assert isinstance(first.kernel, torchckn.kernels.KernelSpec)
    own = dict(first.kernel.arguments)
    if tracer == "symbolic":
        assert own["activation"] == activation
    with torch.no_grad():
        expected = Dual(function, name="own")
    assert own["degree"] == expected.degree
    torch.testing.assert_close(own["coefficients"], expected.coefficients, rtol=1e-9, atol=1e-9)
    assert [type(node) for node in ckn.graph.nodes[1:2]] == [Conv]


def test_a_written_activation_runs_is_saved_and_approaches_its_kernel(tmp_path: Any) -> None:
    """Monte Carlo: the mean of 12 Gram matrices of 200 random features."""
    net = Written(lambda s, x: end(F.relu(s.a(x)) ** 2), a=conv(2, 8))
    x = run_and_save(translate(net, (2, 6, 6), classes=3), (2, 6, 6), 3, tmp_path)
    grams = []
    for seed in range(12):
        options: Any = {"filters": 200, "classes": 3, "generator": torch.Generator().manual_seed(seed)}
        ckn = translate(net, (2, 6, 6), weights="random-features", **options)
        (kernel,) = [module for module in ckn.modules() if isinstance(module, Dual)]
        kernel.function = lambda u: F.relu(u) ** 2
        features = ckn.features(x).double()
        grams.append(features @ features.T)
    exact = torchckn.exact_kernel(ckn, x)
    assert float((torch.stack(grams).mean(0) - exact).norm() / exact.norm()) < 0.1


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: F.relu(1 / x), "divides by a feature map"),
        (lambda x: F.relu(1 / (x - 0.3)), "divides by a feature map"),
        (lambda x: torch.tanh(x**0.5), "a power of 0.5 is not an activation"),
    ],
)
def test_a_function_with_a_pole_is_no_activation(function: Any, message: str) -> None:
    with pytest.raises(TranslationError, match=message):
        translate(network(function), (2, 6, 6))


def test_a_constant_may_stand_first_and_be_a_tensor() -> None:
    written = {
        "buffer": lambda x: x * torch.sigmoid(torch.tensor(1.0) * x),
        "divided": lambda x: x * (torch.tensor(1.0) / (1 + torch.exp(-x))),
    }
    for name, function in written.items():
        kernel = translate(network(function), (2, 6, 6)).graph.nodes[0].kernel  # type: ignore[attr-defined]
        (
            torch.testing.assert_close(
                dict(kernel.arguments)["coefficients"], Dual("silu").coefficients, rtol=1e-9, atol=1e-9
            ),
            name,
        )


def test_numbers_that_are_trained_are_no_constants() -> None:
    def forward(s: Any, x: Tensor) -> Tensor:
        h = s.a(x)
        return end(s.b(h + s.p.tanh() * F.relu(h)))

    net = Written(forward, a=conv(2, 8), b=conv(8, 8), p=nn.Parameter(torch.ones(1)))
    with pytest.raises(TranslationError, match="strict expected exact counterparts only"):
        translate(net, (2, 6, 6), strict=True)


def test_the_sign_of_the_input_is_no_activation_of_its_own() -> None:
    first = translate(network(lambda x: F.relu(-x)), (2, 6, 6)).graph.nodes[0]
    assert isinstance(first, Conv)
    assert first.kernel == ArcCosine(1).spec() or str(first.kernel) == "ArcCosine(1)"


def test_a_subtraction_with_a_factor_keeps_its_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.rsub(torch.tanh(x), x, alpha=3)

    kernel = of_export(monkeypatch, network(function), 2, 6, 6).graph.nodes[0].kernel  # type: ignore[attr-defined]
    expected = Dual(function, name="own").coefficients
    torch.testing.assert_close(dict(kernel.arguments)["coefficients"], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("function", [lambda x: x / x.norm(dim=1, keepdim=True), lambda x: F.normalize(x, dim=1)])
def test_a_flat_image_is_divided_by_its_norm_as_a_whole(function: Any) -> None:
    net = Written(lambda s, x: s.head(function(s.a(x).flatten(1))), a=conv(2, 8), head=nn.Linear(288, 2))
    norms = (
        translate(net, (2, 6, 6)).features(torch.rand(3, 2, 6, 6) * torch.tensor([1.0, 2, 5]).view(3, 1, 1, 1)).norm(dim=1)
    )
    torch.testing.assert_close(norms, norms[:1].expand(3))


def test_weights_that_are_computed_are_searched_once() -> None:
    def doubled(s: Any, x: Tensor) -> Tensor:
        w = s.w
        for _ in range(40):
            w = (w + w) / 2
        return end(F.relu(F.conv2d(s.a(x), w)))

    net = Written(doubled, a=conv(2, 8), w=nn.Parameter(torch.randn(8, 8, 3, 3)))
    assert translate(net, (2, 8, 8), classes=2).graph.features == 8


def test_a_division_that_rounds_is_refused() -> None:
    with pytest.raises(TranslationError, match="it rounds"):
        translate(network(lambda x: torch.div(x, 2, rounding_mode="floor")), (2, 6, 6))


def test_what_is_linear_is_no_activation() -> None:
    assert rows_of(translate(network(lambda x: 2 * x + x), (2, 6, 6)))["add"].why == "a multiple of one feature map"


def test_what_is_read_in_between_stays_as_it_is() -> None:
    def forward(s: Any, x: Tensor) -> Tensor:
        x = s.a(x)
        gate = torch.sigmoid(x)
        return end(s.b(x * gate) + s.b(gate))

    ckn = translate(Written(forward, a=conv(2, 8), b=conv(8, 8)), (2, 6, 6))
    assert "the gate is computed from what it multiplies" in rows_of(ckn)["mul"].why


def channels_first(x: Tensor) -> Tensor:
    u = x.mean(1, keepdim=True)
    s = (x - u).pow(2).mean(1, keepdim=True)
    return (x - u) / torch.sqrt(s + 1e-6)


def channels_last(x: Tensor) -> Tensor:
    x = x.permute(0, 2, 3, 1)
    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)).permute(0, 3, 1, 2)


def variance_and_mean(x: Tensor) -> Tensor:
    s, u = torch.var_mean(x, dim=1, unbiased=False, keepdim=True)
    return (x - u) * torch.rsqrt(s + 1e-6)


#: as people write them, and whether they subtract a mean
NORMS: dict[str, tuple[Any, bool]] = {
    "F.normalize": (lambda x: F.normalize(x, dim=1), False),
    "norm": (lambda x: x / x.norm(dim=1, keepdim=True), False),
    "norm and a small number": (lambda x: x / (torch.norm(x, p=2, dim=1, keepdim=True) + 1e-6), False),
    "norm, at least": (lambda x: x / x.norm(2, 1, True).clamp(min=1e-6), False),
    "norm, an axis less": (lambda x: x / x.norm(dim=1)[:, None], False),
    "vector norm, unsqueezed": (lambda x: x / torch.linalg.vector_norm(x, dim=1).unsqueeze(1), False),
    "root of the sum of squares": (lambda x: x / x.pow(2).sum(1).sqrt().view(x.size(0), 1, x.size(2), x.size(3)), False),
    "norm, expanded": (lambda x: x / (x.norm(p=2, dim=1, keepdim=True).expand_as(x) + 1e-10), False),
    "norm, the larger of two": (lambda x: x / torch.maximum(x.norm(dim=1, keepdim=True), torch.tensor(1e-6)), False),
    "layer norm": (channels_first, True),
    "layer norm, axes less": (lambda x: (x - x.mean(1)[:, None]) / x.std(1)[:, None], True),
    "variance and mean": (variance_and_mean, True),
    "standard deviation": (lambda x: (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5), True),
    "root mean square, channels last": (channels_last, False),
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("tracer", ["symbolic", "export"])
def test_a_written_normalization_over_channels_is_division_by_the_norm(
    name: str, tracer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, centered = NORMS[name]
    for source, inexact in ((lambda x: x, False), (F.relu, centered)):
        net = network(lambda x, source=source: F.relu(function(source(x))))
        ckn = translate(net, (2, 6, 6)) if tracer == "symbolic" else of_export(monkeypatch, net, 2, 6, 6)
        (node,) = [node for node in ckn.graph.nodes if isinstance(node, Normalize)]
        assert node.over == "position"
        (row,) = [row for row in ckn.report.rows if row.layer == node.name]  # type: ignore[union-attr]
        assert (row.correspondence == "inexact") is inexact
        assert row.reasons[0] == "division by the norm"
        assert not [row for row in ckn.report.rows if row.correspondence == "dropped"]  # type: ignore[union-attr]
        assert torch.isfinite(ckn(torch.rand(2, 2, 6, 6))).all()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x / x.norm(dim=2, keepdim=True), "it normalizes over positions"),
        (lambda x: F.normalize(x, dim=2), "does not divide by the Euclidean norm of the channels"),
        (lambda x: F.normalize(x, p=1.0), "does not divide by the Euclidean norm of the channels"),
        (lambda x: x / x.norm(p=1, dim=1, keepdim=True), "'norm' .*not followed by a division by the Euclidean norm"),
        (lambda x: x * x.var(1, keepdim=True), "'var' .*not followed by a division by the Euclidean norm"),
    ],
)
def test_a_normalization_over_something_else_is_refused(function: Any, message: str) -> None:
    with pytest.raises(TranslationError, match=message):
        translate(network(function), (2, 6, 6))


def test_division_of_an_image_by_its_norm_as_a_whole() -> None:
    net = network(lambda x: x / torch.linalg.vector_norm(x, dim=(1, 2, 3))[:, None, None, None])
    (node,) = [node for node in translate(net, (2, 6, 6)).graph.nodes if isinstance(node, Normalize)]
    assert node.over == "image"


def test_a_factor_after_a_written_normalization_counts_where_branches_meet() -> None:
    def forward(s: Any, x: Tensor) -> Tensor:
        y = s.b(x)
        return end(s.a(x) + y / y.norm(dim=1)[:, None] * 20)

    net = Written(forward, a=conv(2, 8), b=conv(2, 8))
    (node,) = [node for node in translate(net, (2, 6, 6)).graph.nodes if isinstance(node, DirectSum)]
    assert node.weights == (1.0, 20.0)


@pytest.mark.parametrize("larger", [torch.max, torch.maximum, Tensor.maximum])
def test_the_larger_of_two_multiples_is_leaky_relu(larger: Any) -> None:
    kernel = translate(network(lambda x: larger(x, 0.1 * x)), (2, 6, 6)).graph.nodes[0].kernel  # type: ignore[attr-defined]
    expected = Dual(lambda u: F.leaky_relu(u, 0.1), name="own").coefficients
    torch.testing.assert_close(dict(kernel.arguments)["coefficients"], expected, rtol=1e-9, atol=1e-9)
