"""Products of feature maps: the layer, its node, and gates in translation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import scipy.linalg
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import torchckn
from torchckn import fit, translate
from torchckn.errors import ConfigError, DataError
from torchckn.graph import Broadcast, Conv, Dense, Graph, Normalize, Product
from torchckn.kernels import ArcCosine, Dual, Kernel, Polynomial, RBFSphere
from torchckn.nn import KernelProduct, sphere_groups


def product_graph(filters: int, gate: bool, eps: float = 1e-3) -> Graph:
    second = (
        Dense("second", inputs=("input",), filters=filters, kernel=RBFSphere(0.8))
        if gate
        else Conv("second", inputs=("input",), filters=filters, kernel_size=(1, 2), kernel=ArcCosine(1))
    )
    first = Conv("first", filters=filters, kernel_size=(1, 2), kernel=RBFSphere(0.6), init="sample", eps=eps)
    last = Product("product", inputs=("first", "second"), filters=4 * filters, init="sample", eps=eps)
    return Graph((1, 2, 2), [first, second, last])


def test_the_layer_computes_its_equation(generator: torch.Generator) -> None:
    layer = KernelProduct((3, 2), 5, eps=0.1, generator=generator, dtype=torch.float64)
    u, v = (torch.randn(2, c, 2, 2, generator=generator, dtype=torch.float64) for c in (3, 2))
    w, z = (p.detach().numpy() for p in layer.sphere_parameters())
    gram = [[(w[i] @ w[j]) * (z[i] @ z[j]) + 0.1 * (i == j) for j in range(5)] for i in range(5)]
    root = torch.from_numpy(scipy.linalg.inv(scipy.linalg.sqrtm(gram).real))
    for n, i, j in [(0, 0, 0), (1, 1, 0)]:
        values = [(w[f] @ u[n, :, i, j].numpy()) * (z[f] @ v[n, :, i, j].numpy()) for f in range(5)]
        expected = root @ torch.tensor(values, dtype=torch.float64)
        torch.testing.assert_close(layer(u, v)[n, :, i, j], expected)
        torch.testing.assert_close(layer.eval()(u, v)[n, :, i, j].detach(), expected)
    vector = v.mean((2, 3))
    torch.testing.assert_close(layer(u, vector), layer(u, vector[:, :, None, None].expand_as(v)))
    assert layer(u.mean((2, 3)), vector).shape == (2, 5)


def test_the_layer_has_the_gradient_of_finite_differences(generator: torch.Generator) -> None:
    layer = KernelProduct((3, 2), 4, generator=generator, dtype=torch.float64)
    u = torch.randn(2, 3, 2, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    v = torch.randn(2, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    for training in (True, False):
        layer.train(training)
        assert torch.autograd.gradcheck(lambda u, v, *_: layer(u, v), (u, v, *layer.parameters()))


def test_both_filters_are_trained_on_their_spheres(generator: torch.Generator) -> None:
    layer = KernelProduct((3, 2), 4, generator=generator)
    before = [p.clone() for p in layer.sphere_parameters()]
    optimizer = fit.SphereSGD(sphere_groups(layer), lr=0.1)
    layer(torch.rand(5, 3, 2, 2, generator=generator), torch.rand(5, 2, generator=generator)).square().sum().backward()
    optimizer.step()
    for old, new in zip(before, layer.sphere_parameters(), strict=True):
        assert not torch.allclose(old, new)
        torch.testing.assert_close(new.norm(dim=1), torch.ones(4))


@pytest.mark.parametrize("gate", [False, True])
def test_features_of_both_kinds_approach_the_product_of_kernels(gate: bool, generator: torch.Generator) -> None:
    images = torch.randn(200, 1, 2, 2, generator=generator, dtype=torch.float64)
    exact = torchckn.exact_kernel(product_graph(4, gate), images[:6])
    errors = []
    for filters in (2, 40):
        ckn = torchckn.CKN(product_graph(filters, gate, 1e-6), generator=generator, dtype=torch.float64)
        torchckn.fit_filters(ckn, images, patches=400, generator=generator)
        features = ckn.features(images[:6]).detach()
        errors.append(float((features @ features.T - exact).norm() / exact.norm()))
    assert errors[1] < errors[0] / 2, errors
    wide = torchckn.CKN(product_graph(800, gate), weights="random-features", generator=generator, dtype=torch.float64)
    features = wide.features(images[:6])
    assert (features @ features.T - exact).norm() < 0.2 * exact.norm()


def test_a_product_of_one_input_with_itself_is_the_polynomial_kernel_of_degree_2(generator: torch.Generator) -> None:
    images = torch.randn(3, 2, 3, 3, generator=generator)
    product = Graph((2, 3, 3), [Product("product", inputs=("input", "input"), filters=4)])
    polynomial = Graph((2, 3, 3), [Conv("conv", filters=4, kernel=Polynomial(2))])
    torch.testing.assert_close(torchckn.exact_kernel(product, images), torchckn.exact_kernel(polynomial, images))


KERNELS = [RBFSphere(0.6), ArcCosine(0), ArcCosine(1), Polynomial(2), Dual("tanh"), Dual("gelu")]


@given(seed=st.integers(0, 1000), kernels=st.tuples(st.sampled_from(KERNELS), st.sampled_from(KERNELS)), gate=st.booleans())
def test_the_gram_of_a_product_is_positive_semidefinite_and_of_cosines_if_its_factors_are(
    seed: int, kernels: tuple[Kernel, Kernel], gate: bool
) -> None:
    size = (2, 1, 1) if gate else (2, 1, 3)
    x = torch.randn(7, *size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x[1] = 2 * x[0]  # patches of one direction
    branches = [
        node
        for name, kernel in zip(("first", "second"), kernels, strict=True)
        for node in (
            Conv(name, filters=3, kernel_size=(1, size[2]), kernel=kernel, inputs=("input",)),
            Normalize(f"{name} normal", inputs=(name,)),
        )
    ]
    product = Product("product", filters=3, inputs=("first normal", "second normal"))
    gram = torchckn.exact_kernel(Graph(size, [*branches, product]), x)
    torch.testing.assert_close(gram.diagonal(), torch.ones(7, dtype=torch.float64))
    assert gram.abs().max() <= 1 + 1e-9
    assert torch.linalg.eigvalsh(gram).min() > -1e-9


class Block(nn.Module):
    def __init__(self, function: Any, squeezed: int = 4) -> None:
        super().__init__()
        self.function = function
        self.a, self.b, self.one = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 1, 3, padding=1)
        self.fc = nn.Sequential(nn.Linear(8, squeezed), nn.ReLU(), nn.Linear(squeezed, 8), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def excite(s: Block, x: Tensor) -> Tensor:
    gate = s.fc(F.adaptive_avg_pool2d(x, 1).view(x.size(0), -1))
    return x * gate.view(x.size(0), -1, 1, 1).expand_as(x)


GATES: dict[str, tuple[Any, str, str]] = {
    "SE": (excite, "inexact", "the gate is computed from what it multiplies"),
    "SE with convolutions": (
        lambda s, x: x * torch.sigmoid(s.b(F.relu(s.a(x.mean((2, 3), keepdim=True))))),
        "inexact",
        "computed from what",
    ),
    "spatial gate": (lambda s, x: x * torch.sigmoid(s.one(x)), "inexact", "the gate is one unit"),
    "star": (lambda s, x: F.relu(s.a(x)) * s.b(x), "exact", "the kernels of independent branches multiply"),
    "bilinear": (lambda s, x: s.a(x) * s.b(x), "exact", "polynomial kernel of degree 2"),
    "gated": (
        lambda s, x: F.avg_pool2d(x, 3, 1, 1) * torch.sigmoid(F.avg_pool2d(x, 5, 1, 2)),
        "inexact",
        "both branches have the same units",
    ),
}


def gated(name: str) -> nn.Module:
    block = Block(GATES[name][0])
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), block, nn.AvgPool2d(2), nn.Flatten(), nn.Linear(32, 4))


@pytest.mark.parametrize("name", GATES)
def test_gates_are_translated_run_trained_saved_and_made_plain(
    name: str, tmp_path: Path, generator: torch.Generator
) -> None:
    _, correspondence, reason = GATES[name]
    net = gated(name)
    ckn = translate(net, (3, 6, 6), generator=generator)
    (row,) = [row for row in ckn.report.rows if row.operation == "operator.mul"]
    assert row.correspondence == correspondence
    assert reason in row.why
    images = torch.rand(30, 3, 6, 6, generator=generator)
    torchckn.fit_filters(ckn, images, patches=100, generator=generator)
    ckn(images).square().sum().backward()
    assert all(p.grad is not None for p in ckn.parameters() if p.requires_grad)
    torchckn.save(ckn, tmp_path / "net.ckn")
    assert torch.equal(torchckn.load(tmp_path / "net.ckn").eval()(images), ckn.eval()(images))
    assert torchckn.exact_kernel(ckn, images[:2]).shape == (2, 2)
    with torch.no_grad():
        torch.testing.assert_close(torchckn.export.plain(ckn)(images), ckn(images).softmax(1), rtol=1e-4, atol=1e-5)
    assert translate(net, (3, 6, 6), weights="random-features")(images).shape == (30, 4)


@pytest.mark.parametrize("name", ["SE", *(pytest.param(name, marks=pytest.mark.slow) for name in GATES if name != "SE")])
def test_gates_are_exported(name: str, tmp_path: Path, generator: torch.Generator) -> None:
    torchckn.export.to_torch(translate(gated(name), (3, 6, 6), generator=generator), tmp_path / "net.pt2")


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: KernelProduct((3, 2), 4, init="identity"), ConfigError, "KernelProduct has no init='identity'"),
        (lambda: KernelProduct(3, 4), ConfigError, r"the channels of two inputs, such as \(64, 64\), got 3"),
        (
            lambda: KernelProduct((3, 2), 4)(torch.rand(1, 3), torch.rand(1, 3)),
            DataError,
            r"two inputs of \(3, 2\) channels",
        ),
        (
            lambda: KernelProduct((3, 2), 4)(torch.rand(1, 3, 5, 5), torch.rand(1, 2, 4, 5)),
            DataError,
            r"images of the same size, or of one row or column, got \(1, 3, 5, 5\)",
        ),
        (
            lambda: KernelProduct((3, 2), 4)([1.0], torch.rand(1, 2)),
            DataError,
            "KernelProduct expected a torch.Tensor, got list",
        ),
        (
            lambda: Product("p", filters=2).output_shape((3, 2, 2)),
            ConfigError,
            "expected two inputs with the same positions",
        ),
        (
            lambda: Product("p", filters=2).output_shape((3, 2, 2), (3, 3, 3)),
            ConfigError,
            "expected two inputs with the same",
        ),
        (lambda: Product("p", filters=2, init="identity").output_shape((3,), (3,)), ConfigError, "expected init 'kmeans'"),
        (lambda: Product("p", filters=2, kernel=ArcCosine(1)).output_shape((3,), (3,)), ConfigError, "is a product, whose"),
        (
            lambda: Broadcast("b", size=2).output_shape((3, 3, 3)),
            ConfigError,
            "expected a vector or an image of one position",
        ),
    ],
)
def test_what_is_no_product_is_refused_with_a_reason(build: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build()


@pytest.mark.parametrize("frozen", ["weight", "second_weight"])
def test_in_eval_mode_either_filters_have_the_gradient_of_finite_differences(
    frozen: str, generator: torch.Generator
) -> None:
    layer = KernelProduct((3, 2), 4, generator=generator, dtype=torch.float64).eval()
    getattr(layer, frozen).requires_grad_(False)
    u, v = (torch.randn(5, n, generator=generator, dtype=torch.float64) for n in (3, 2))
    name = {"weight": "second_weight", "second_weight": "weight"}[frozen]

    def output(direction: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {name: F.normalize(direction)}, (u, v))

    direction = getattr(layer, name).detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(output, direction)
    layer(u, v).square().sum().backward()
    assert getattr(layer, frozen).grad is None
    assert bool((getattr(layer, name).grad != 0).any())
