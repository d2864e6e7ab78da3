"""What each operation becomes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchckn
from torchckn import translate, zoo
from torchckn.errors import ConfigError, TranslationError
from torchckn.graph import Conv, KernelNode
from torchckn.kernels import ArcCosine, Dual, Linear, RBFSphere

from .networks import Lambda, PreActivation, Written, conv, end, rows_of, run
from .test_translation_exported import of_export


def test_a_residual_sum_is_a_direct_sum() -> None:
    ckn = translate(PreActivation(), (1, 12, 12))
    row = rows_of(ckn)["add"]
    assert row.correspondence == "exact"
    assert ckn.graph.shapes[row.layer] == (8, 12, 12)


def test_what_two_operations_read_is_a_layer_of_its_own() -> None:
    ckn = translate(PreActivation(), (1, 12, 12))
    stem = next(node for node in ckn.graph.nodes if node.name == "stem")
    assert isinstance(stem, Conv)
    assert stem.kernel == Linear().spec()
    assert {node.name for node in ckn.graph.consumers("stem")} == {"relu", "add"}


@pytest.mark.parametrize(
    ("activation", "kernel", "correspondence"),
    [
        (nn.Identity(), Linear(), "kept"),
        (nn.ReLU(), ArcCosine(1), "exact"),
        (nn.Tanh(), Dual("tanh"), "exact"),
        (nn.Sigmoid(), Dual("sigmoid"), "exact"),
        (zoo.ScaledTanh(), ArcCosine(0), "inexact"),
        (nn.GELU(), Dual("gelu"), "exact"),
        (nn.GELU("tanh"), Dual("gelu_tanh"), "exact"),
        (nn.SiLU(), Dual("silu"), "exact"),
        (nn.LeakyReLU(), Dual("leaky_relu"), "exact"),
        (nn.LeakyReLU(0.0), ArcCosine(1), "exact"),
        (nn.ELU(0.5), Dual(nn.ELU(0.5), name="ELU(alpha=0.5)"), "exact"),
        (nn.PReLU(), Dual(nn.LeakyReLU(0.25), name="PReLU(0.25)"), "exact"),
        (Lambda(lambda x: F.softplus(x)), Dual("softplus"), "exact"),
        (Lambda(lambda x: F.leaky_relu(x, 0.2)), Dual(nn.LeakyReLU(0.2), name="F.leaky_relu"), "exact"),
        (Lambda(lambda x: x.clamp(0, 6)), Dual("relu6"), "exact"),
        (Lambda(lambda x: x.clamp(min=0)), ArcCosine(1), "exact"),
        (Lambda(lambda x: x.clamp(-1, 1)), Dual("hardtanh"), "exact"),
        (Lambda(lambda x: x**2), Dual("square"), "exact"),
        (Lambda(lambda x: torch.sin(x)), Dual("sine"), "exact"),
        (Lambda(lambda x: torch.tanh(x * 2)), Dual("tanh", 2), "exact"),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, nn.Module) else None,
)
def test_every_activation_has_its_kernel(activation: nn.Module, kernel: Any, correspondence: str) -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), activation, nn.Flatten(), nn.Linear(200, 3))
    ckn = translate(net, (1, 12, 12))
    assert isinstance(ckn.graph.nodes[0], Conv)
    assert ckn.graph.nodes[0].kernel == kernel.spec()
    others = ("Conv2d", "operator.mul", "Flatten", "Linear")
    assert [row.correspondence for row in ckn.report.rows if row.operation not in others] == [correspondence]


def test_the_report_says_for_which_scale_a_kernel_is_the_activation_s_own() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.GELU(), nn.Flatten(), nn.Linear(200, 3))
    for scale in (1.0, 0.5):
        (row,) = [row for row in translate(net, (1, 12, 12), scale=scale).report.rows if row.operation == "GELU"]
        assert f"the kernel of gelu itself, for pre-activations of scale {scale:g}, with an error of at most" in row.why
        assert row.parts[0].note.startswith("scale inexact: gelu has another shape at another scale")
    with pytest.raises(TranslationError, match="its scale: inexact, gelu has another shape"):
        translate(net, (1, 12, 12), strict=True)
    net[1] = nn.LeakyReLU(0.1)  # homogeneous: exact at every scale
    assert translate(net, (1, 12, 12), strict=True).report.rows[1].parts == ()
    (row,) = [row for row in translate(net, (1, 12, 12), kernel=RBFSphere(0.6)).report.rows if row.operation == "LeakyReLU"]
    assert "RBFSphere(0.6) replaces Dual(LeakyReLU(negative_slope=0.1), 1, 1), which would match" in row.why
    with pytest.raises(
        ConfigError, match="scale expected a positive number, the standard deviation of pre-activations, got 0"
    ):
        translate(net, (1, 12, 12), scale=0)


def test_a_nonlinearity_after_pooling_is_an_identity_layer_and_exact_for_linear_units() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.AvgPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(50, 3))
    ckn = translate(net, (1, 12, 12))
    assert [getattr(n, "init", None) for n in ckn.graph.nodes] == ["kmeans", None, "identity"]
    assert rows_of(ckn)["2"].correspondence == "exact"
    twice = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.AvgPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(50, 3))
    assert rows_of(translate(twice, (1, 12, 12)))["3"].correspondence == "inexact"


def test_a_nonlinearity_after_flattening_acts_before_it() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.AvgPool2d(2), nn.Flatten(), nn.ReLU(), nn.Linear(50, 3))
    nodes = translate(net, (1, 12, 12)).graph.nodes
    assert isinstance(nodes[-1], Conv)
    assert nodes[-1].filters == 2


def test_a_rule_of_one_s_own_works_in_ten_lines() -> None:
    class Blur(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.lp_pool2d(x, 1, 2)

    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), Blur(), nn.Flatten(), nn.Linear(100, 3))
    with pytest.raises(TranslationError, match="there is no rule for it"):
        translate(net, (1, 12, 12))

    @translate.rule(Blur)
    def blur(step: Any) -> Any:
        return step.emit(torchckn.graph.GaussianPool(step.name, stride=2), "inexact", "a Gaussian blurs as well")

    ckn = translate(net, (1, 12, 12))
    assert rows_of(ckn)["2"].label == "_2: Gaussian pooling, stride 2"
    run(ckn, 1, 12, 12)


@pytest.mark.parametrize(
    ("forward", "inexact"),
    [
        (lambda s, x: F.relu(s.a(x)) + F.relu(s.b(x)), "add"),
        (lambda s, x: F.relu(torch.cat([s.a(x), s.b(x)], 1)), "relu"),
        (lambda s, x: s.a(x) + s.a(F.avg_pool2d(x, 3, 1, 1)), "add"),
        (lambda s, x: F.relu(F.conv2d(x, s.a.weight * 2, padding=1)), "conv2d"),
    ],
    ids=["two nonlinear branches", "nonlinearity on a concatenation", "shared weights", "computed weights"],
)
def test_what_only_looks_exact_is_reported_as_inexact(forward: Any, inexact: str) -> None:
    net = Written(lambda s, x: end(forward(s, x)), a=conv(), b=conv())
    ckn = translate(net, (1, 8, 8))
    assert rows_of(ckn)[inexact].correspondence == "inexact"
    with pytest.raises(TranslationError, match="no exact counterpart"):
        translate(net, (1, 8, 8), strict=True)


def test_relu_on_a_sum_of_linear_branches_is_exact_and_fitted() -> None:
    net = Written(lambda s, x: end(F.relu(s.a(x) + s.b(x))), a=conv(), b=conv(k=5))
    ckn = translate(net, (1, 8, 8), strict=True)
    last = [node for node in ckn.graph.nodes if isinstance(node, KernelNode)][-1]
    assert (last.filters, last.init, last.trainable) == (4, "kmeans", True)  # as wide as the ConvNet, not the identity


@pytest.mark.parametrize(
    ("forward", "weights"),
    [
        (lambda s, x: s.a(x) + 0.1 * s.b(x), (1.0, 0.1)),
        (lambda s, x: torch.add(s.a(x), s.b(x), alpha=0.5), (1.0, 0.5)),
        (lambda s, x: s.a(x) - s.b(x) / 4, (1.0, 0.25)),
        (lambda s, x: s.a(3 * x) + F.relu(s.b(x) * 2), (3.0, 2.0)),
    ],
)
def test_constant_factors_count_where_branches_meet(forward: Any, weights: tuple[float, ...]) -> None:
    net = Written(lambda s, x: end(forward(s, x)), a=conv(), b=conv())
    ckn = translate(net, (1, 8, 8))
    (node,) = [n for n in ckn.graph.nodes if type(n).__name__ == "DirectSum"]
    assert node.weights == pytest.approx(weights)  # type: ignore[attr-defined]
    run(ckn, 1, 8, 8)


def test_normalization_undoes_constant_factors() -> None:
    branches = {"a": conv(), "b": conv(), "norm": nn.BatchNorm2d(4)}
    ckn = translate(Written(lambda s, x: end(s.norm(s.a(5 * x)) + torch.tanh(s.norm(s.b(x) / 1e3))), **branches), (1, 8, 8))
    assert "for pre-activations of scale 1," in rows_of(ckn)["tanh"].why
    (node,) = [n for n in ckn.graph.nodes if type(n).__name__ == "DirectSum"]
    assert node.weights is None  # type: ignore[attr-defined]


def test_trainable_factors_are_reported_as_lost() -> None:
    net = Written(lambda s, x: end(s.gamma * F.relu(s.a(x))), a=conv(), gamma=nn.Parameter(torch.ones(4, 1, 1)))
    row = rows_of(translate(net, (1, 8, 8)))["mul"]
    assert (row.correspondence, row.faithful) == ("dropped", False)


@pytest.mark.parametrize(
    ("forward", "correspondence", "reason"),
    [
        (lambda s, x, y: torch.addcmul(x, s.gamma, y), "inexact", "a trainable factor of a branch has no counterpart"),
        (lambda s, x, y: torch.addcmul(s.gamma, s.gamma, x) + y, "dropped", "trainable factors have no counterpart"),
        (lambda s, x, y: x.addcmul(s.gamma, s.gamma) + y, "dropped", "kernel layers have no biases"),
    ],
)
def test_a_sum_and_a_product_in_one_operation(forward: Any, correspondence: str, reason: str) -> None:
    net = Written(lambda s, x: end(forward(s, F.relu(s.a(x)), F.relu(s.b(x)))), a=conv(), b=conv())
    net.gamma = nn.Parameter(torch.ones(4, 1, 1))
    ckn = translate(net, (1, 8, 8))
    run(ckn, 1, 8, 8)
    row = rows_of(ckn)["addcmul"]
    assert (row.correspondence, row.faithful) == (correspondence, False)
    assert reason in row.why
    assert ckn.graph.features == 8


def test_a_border_that_no_maximum_picks_is_that_of_max_pooling() -> None:
    def net(pool: Any) -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.GELU(), *pool, nn.Flatten(), nn.Linear(36, 3))

    padded = [nn.ConstantPad2d((1, 1, 1, 1), -math.inf), nn.MaxPool2d(3, 2)]
    first, second = (
        translate(net(pool), (1, 7, 7), generator=torch.Generator().manual_seed(0))
        for pool in ([nn.MaxPool2d(3, 2, padding=1)], padded)
    )
    x = torch.randn(2, 1, 7, 7)
    assert torch.equal(first.features(x), second.features(x))
    with pytest.raises(TranslationError, match="not a border of zeros"):
        translate(net([nn.ConstantPad2d(1, 0.5), nn.MaxPool2d(3, 2)]), (1, 7, 7))


def test_a_layer_used_twice_is_two_layers_and_the_report_says_so() -> None:
    net = Written(lambda s, x: end(F.relu(s.a(F.relu(s.a(x))))), a=conv(1, 1))
    ckn = translate(net, (1, 8, 8), centering="none")
    assert ckn.report is not None
    rows = [row for row in ckn.report.rows if row.source == "a"]
    assert [row.correspondence for row in rows] == ["exact", "inexact"]
    assert "uses these weights twice" in rows[1].why
    assert ckn.report.to_svg().count("a · Conv2d") >= 2


def tied() -> nn.Module:
    net = Written(lambda s, x: end(F.relu(s.b(F.relu(s.a(x))))), a=conv(1, 1), b=conv(1, 1))
    net.b.weight = net.a.weight
    return net


@pytest.mark.parametrize(
    "build",
    [
        tied,
        lambda: Written(
            lambda s, x: end(F.relu(F.conv2d(F.relu(F.conv2d(x, s.w)), s.w))), w=nn.Parameter(torch.rand(1, 1, 1, 1))
        ),
        lambda: Written(lambda s, x: end(F.relu(F.conv2d(F.relu(s.a(x)), s.a.weight * 2, padding=1))), a=conv(1, 1)),
        lambda: Written(
            lambda s, x: F.linear(F.linear(F.relu(s.a(end(x))), s.a.weight).relu(), s.a.weight), a=nn.Linear(1, 1)
        ),
    ],
    ids=["tied modules", "functions", "a module and a function", "linear"],
)
@pytest.mark.parametrize("tracer", ["symbolic", "export"])
def test_weights_used_twice_are_found_however_they_are_used(
    build: Any, tracer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments: Any = {"centering": "none", "classes": 2}
    if tracer == "symbolic":
        ckn = translate(build(), (1, 8, 8), **arguments)
    else:
        ckn = of_export(monkeypatch, build(), 1, 8, 8, **arguments)
    assert ckn.report is not None
    rows = [row for row in ckn.report.rows if "projection onto" in row.why]
    assert "uses these weights twice" not in rows[0].why
    assert "uses these weights twice" in rows[1].why


def test_a_sum_of_a_layer_with_itself_and_of_nothing() -> None:
    net = Written(lambda s, x: end(sum([s.a(x), s.b(x)])), a=conv(), b=conv())  # type: ignore[arg-type]
    assert translate(net, (1, 8, 8), strict=True).graph.features == 8
    twice = Written(lambda s, x: end(twice_of(s.a(x))), a=conv())
    assert rows_of(translate(twice, (1, 8, 8), strict=True))["add"].why == "a multiple of one feature map"


def twice_of(x: Tensor) -> Tensor:
    return x + x


def test_the_usual_shortcut_of_small_resnets_is_exact() -> None:
    net = Written(
        lambda s, x: end(s.a(x)[:, :, ::2, ::2] + F.pad(x[..., ::2, ::2], (0, 0, 0, 0, 1, 2))),
        a=nn.Conv2d(1, 4, 1, bias=False),
    )
    rows = rows_of(translate(net, (1, 8, 8), strict=True))
    assert rows["pad"].correspondence == "kept"


def test_groups_behind_a_sum_become_one_subspace() -> None:
    net = Written(
        lambda s, x: end(F.relu(s.d(s.a(x) + s.b(x)))),
        a=conv(),
        b=conv(),
        d=nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False),
    )
    row = rows_of(translate(net, (1, 8, 8)))["d"]
    assert row.correspondence == "inexact"
    assert "one subspace for all channels" in row.why


def test_a_sigmoid_at_the_end_is_part_of_the_loss() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 1), nn.Sigmoid())
    ckn = translate(net, (1, 8, 8))
    assert ckn.head.out_features == 1
    assert ckn.graph.features == 144


@pytest.mark.parametrize("larger", [torch.maximum, torch.minimum])
def test_maxout_units_with_gaussian_weights_have_the_kernel_of_their_counterpart(larger: Any) -> None:
    """Monte Carlo: 20,000 units are off by about 1 %."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 1, 8, 8, generator=generator, dtype=torch.float64)
    net = Written(lambda s, x: end(larger(s.a(x), 0.5 * s.b(x))), a=conv(), b=conv())
    ckn = translate(net, (1, 8, 8), classes=3, strict=True).double()
    a, b = (F.conv2d(x, torch.randn(20_000, 1, 3, 3, generator=generator, dtype=x.dtype), padding=1) for _ in range(2))
    units = larger(a, 0.5 * b).mean((2, 3))
    torch.testing.assert_close(units @ units.T / 20_000, torchckn.exact_kernel(ckn, x), rtol=0.05, atol=0.01)


def test_a_maximum_of_what_is_not_linear_is_reported_as_inexact_and_a_chosen_kernel_is_meant() -> None:
    net = Written(lambda s, x: end(torch.maximum(F.relu(s.a(x)), s.b(x))), a=conv(), b=conv())
    assert "exact for linear units only" in rows_of(translate(net, (1, 8, 8)))["maximum"].why
    linear = Written(lambda s, x: end(torch.maximum(s.a(x), s.b(x))), a=conv(), b=conv())
    row = rows_of(translate(linear, (1, 8, 8), RBFSphere(0.6), strict=True))["maximum"]
    assert row.correspondence == "inexact"
    assert "RBFSphere(0.6) replaces Dual(abs" in row.why
    vectors = Written(
        lambda s, x: torch.maximum(s.d(x.flatten(1)), s.e(x.flatten(1))), d=nn.Linear(64, 5), e=nn.Linear(64, 5)
    )
    assert run(translate(vectors, (1, 8, 8)), 1, 8, 8).shape == (3, 5)


def test_a_constant_that_is_the_larger_one_is_an_activation() -> None:
    net = Written(lambda s, x: end(torch.maximum(s.a(x), torch.tensor(0.0))), a=conv())
    assert str(translate(net, (1, 8, 8)).graph.nodes[0].kernel) == "ArcCosine(1)"  # type: ignore[attr-defined]


def test_a_difference_of_trained_multiples_is_no_zero() -> None:
    def forward(s: Any, x: Tensor) -> Tensor:
        y = s.a(x)
        return end(s.p * y - s.q * y)

    net = Written(forward, a=conv(), p=nn.Parameter(torch.ones(1, 4, 1, 1)), q=nn.Parameter(torch.ones(1, 4, 1, 1)))
    row = rows_of(translate(net, (1, 8, 8)))["sub"]
    assert (row.correspondence, row.faithful) == ("dropped", False)
    assert "multiples of one feature map" in row.why


def test_the_parts_of_a_gated_linear_unit_are_named_after_it() -> None:
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.GLU(1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    names = [row.source for row in translate(net, (1, 8, 8)).report.rows]  # type: ignore[union-attr]
    assert names == ["0", "1_value", "1_gate", "1_sigmoid", "1", "2", "3", "4"]


@pytest.mark.parametrize(
    "forward",
    [
        lambda s, x, **along: end(torch.cat([F.relu(s.a(x)), F.relu(s.b(x))], **along)),
        lambda s, x, **along: end(torch.stack([F.relu(s.a(x)), F.relu(s.b(x))], **along).sum(**along)),
        lambda s, x, **along: torch.cat([end(F.relu(s.a(x))), end(F.relu(s.b(x)))], **along),
    ],
)
def test_axis_is_another_name_of_dim(forward: Any) -> None:
    graphs = [
        translate(
            Written(lambda s, x, name=name: forward(s, x, **{name: 1}), a=conv(), b=conv()), (1, 8, 8), classes=2
        ).graph
        for name in ("dim", "axis")
    ]
    assert graphs[0] == graphs[1]


def test_modules_may_have_the_names_of_preprocessing() -> None:
    net = Written(lambda s, x: end(F.relu(s.standardize(F.relu(s.whiten(x))))), whiten=conv(9), standardize=conv(4))
    images = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    pixels = torchckn.data.Preprocessing.fit(images, whiten=True)
    ckn = translate(net, (1, 8, 8), preprocessing=pixels, classes=2)
    assert [node.name for node in ckn.graph.nodes][:4] == ["standardize", "whiten", "whiten_", "standardize_"]
    assert ckn(images).shape == (4, 2)
