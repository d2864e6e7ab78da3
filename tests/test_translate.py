from __future__ import annotations

import copy
import json
import time
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchckn
from torchckn import translate, zoo
from torchckn.correspondence.report import Report
from torchckn.errors import ConfigError, TranslationError
from torchckn.graph import Conv, Dense, KernelNode
from torchckn.kernels import ArcCosine, Linear, RBFSphere


def rows_of(ckn: torchckn.CKN) -> dict[str, Any]:
    assert ckn.report is not None
    return {row.source: row for row in ckn.report.rows}


def run(ckn: torchckn.CKN, *shape: int) -> Tensor:
    """Forward and backward; every filter that can be trained gets a gradient."""
    torch.manual_seed(0)
    scores = ckn(torch.randn(3, *shape, dtype=ckn.head.weight.dtype))
    scores.square().sum().backward()
    for name, parameter in ckn.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert torch.isfinite(parameter.grad).all(), name
    return scores


# The paper's networks: appendix "CKN counterparts to ConvNets".


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "lenet1",
            [  # filters' shape, kernel, trained?, output
                ((4, 1, 5, 5), Linear(), True, (4, 24, 24)),
                (None, None, None, (4, 12, 12)),
                ((4, 4, 1, 1), ArcCosine(0), False, (4, 12, 12)),
                ((12, 4, 5, 5), Linear(), True, (12, 8, 8)),
                (None, None, None, (12, 4, 4)),
                ((12, 12, 1, 1), ArcCosine(0), False, (12, 4, 4)),
            ],
        ),
        (
            "lenet5",
            [
                ((6, 1, 5, 5), Linear(), True, (6, 28, 28)),
                (None, None, None, (6, 14, 14)),
                ((6, 6, 1, 1), ArcCosine(0), False, (6, 14, 14)),
                ((16, 6, 5, 5), Linear(), True, (16, 10, 10)),
                (None, None, None, (16, 5, 5)),
                ((16, 16, 1, 1), ArcCosine(0), False, (16, 5, 5)),
                ((120, 400), ArcCosine(0), True, (120,)),
                ((84, 120), ArcCosine(0), True, (84,)),
            ],
        ),
        (
            "allcnn",
            [
                ((96, 3, 3, 3), ArcCosine(1), True, (96, 32, 32)),
                ((96, 96, 3, 3), ArcCosine(1), True, (96, 32, 32)),
                ((96, 96, 3, 3), ArcCosine(1), True, (96, 15, 15)),
                ((192, 96, 3, 3), ArcCosine(1), True, (192, 15, 15)),
                ((192, 192, 3, 3), ArcCosine(1), True, (192, 15, 15)),
                ((192, 192, 3, 3), ArcCosine(1), True, (192, 7, 7)),
                ((192, 192, 3, 3), ArcCosine(1), True, (192, 7, 7)),
                ((192, 192, 1, 1), ArcCosine(1), True, (192, 7, 7)),
                ((10, 192, 1, 1), ArcCosine(1), True, (10, 7, 7)),
                (None, None, None, (10, 1, 1)),
            ],
        ),
    ],
)
def test_the_paper_s_networks_become_what_its_appendix_says(name: str, expected: list[Any]) -> None:
    ckn = translate(zoo.build(name))
    found = []
    for node in ckn.graph.nodes:
        shape = ckn.graph.shapes[node.name]
        if isinstance(node, KernelNode):
            weight = ckn.layers[node.name].weight
            found.append((tuple(weight.shape), node.kernel, weight.requires_grad, shape))
        else:
            found.append((None, None, None, shape))
    assert found == [(w, k and k.spec(), t, s) for w, k, t, s in expected]
    assert ckn.head.out_features == 10


@pytest.mark.parametrize("name", ["lenet1", "lenet5", "allcnn"])
def test_an_rbf_kernel_for_all_takes_the_place_of_nonlinear_kernels_only(name: str) -> None:
    matched = translate(zoo.build(name, filters=4))
    chosen = translate(zoo.build(name, filters=4), kernel=RBFSphere(0.6))
    for a, b in zip(matched.graph.nodes, chosen.graph.nodes, strict=True):
        if isinstance(a, KernelNode):
            assert isinstance(b, KernelNode)
            assert b.kernel == (a.kernel if a.kernel == Linear().spec() else RBFSphere(0.6).spec())


# Every network of the zoo, and networks as people write them.


@pytest.mark.parametrize("name", zoo.names())
def test_every_network_of_the_zoo_is_translated_trained_and_saved(name: str, tmp_path: Any) -> None:
    net = zoo.build(name, filters=4, classes=7)
    ckn = translate(net)
    if name == "alexnet":  # large images: forward only
        with torch.no_grad():
            assert ckn(torch.randn(2, *net.input_shape)).shape == (2, 7)
    else:
        assert run(ckn, *net.input_shape).shape == (3, 7)
    again = torchckn.load(torchckn.save(ckn.eval(), tmp_path / "model"))
    x = torch.randn(2, *net.input_shape)
    with torch.no_grad():
        assert torch.equal(again(x), ckn(x))
    assert again.report == ckn.report


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 6, 3, padding="same")
        self.dense, self.out = nn.Linear(6 * 5 * 5, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool2d(F.relu(self.conv1(x)), 2)
        x = torch.relu(self.conv2(x))
        x = x.view(x.size(0), -1)
        x = F.dropout(self.dense(x).relu(), 0.5, self.training)
        return F.log_softmax(self.out(x), dim=1)


class Nested(nn.Module):
    class Block(nn.Module):
        def __init__(self, i: int, o: int) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x)

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([self.Block(1, 4), self.Block(4, 4), self.Block(4, 6)])
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        for i, block in enumerate(self.blocks):
            x = block(x)
            if i < 2:
                x = F.max_pool2d(x, 2)
        return self.out(x.mean([-2, -1]))


class MultiBranch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 3, 1), nn.Conv2d(1, 4, 5, padding=2)
        self.c = nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(), nn.Conv2d(2, 4, 3, padding=1))
        self.out = nn.Linear(11, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.a(x), self.b(x), self.c(x)], dim=1).relu()
        return self.out(F.adaptive_avg_pool2d(x, (1, 1)).flatten(1))


class PreActivation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv1, self.conv2 = (nn.Conv2d(i, 4, 3, padding=1) for i in (1, 4, 4))
        self.norm1, self.norm2, self.out = nn.BatchNorm2d(4), nn.BatchNorm2d(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.conv2(F.relu(self.norm2(self.conv1(F.relu(self.norm1(x))))))
        return self.out(F.relu(x).mean((2, 3)))


class Depthwise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.depth, self.point = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 6, 1)
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu6(self.stem(x))
        x = F.silu(self.point(F.hardswish(self.depth(x))))
        return self.out(x.mean((2, 3)))


class Concatenating(nn.Module):
    """Features of two depths, flattened and put side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.out = nn.Conv2d(1, 3, 3), nn.Conv2d(3, 2, 3, dilation=2), nn.Linear(3 * 100 + 2 * 36, 3)

    def forward(self, x: Tensor) -> Tensor:
        one = torch.tanh(self.one(x))
        two = torch.sigmoid(self.two(one))
        return self.out(torch.cat((one.flatten(1), two.reshape(two.shape[0], -1)), 1))


class Locally(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.local = zoo.LocallyConnected2d(1, 3, 3, 12, stride=3)
        self.out = nn.Linear(3 * 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.local(x)).flatten(1))


class Subclassed(nn.Conv2d):
    """A convolution by another name, which keeps its forward."""


class WeightScaled(nn.Conv2d):
    """A convolution with a forward of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight * 2, self.bias, self.stride, self.padding, self.dilation, self.groups)


class DenselyConnected(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(1 + 2 * i, 2, 3, padding=1) for i in range(3))
        self.out = nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = torch.cat([x, F.relu(conv(x))], 1)
        return self.out(x[:, :, ::2, ::2].mean(dim=(2, 3)))


def lambda_network() -> nn.Module:
    class Lambda(nn.Module):
        def __init__(self, function: Any) -> None:
            super().__init__()
            self.function = function

        def forward(self, x: Tensor) -> Tensor:
            return self.function(x)

    return nn.Sequential(
        Lambda(lambda x: x * 2 - 1),
        nn.Conv2d(1, 4, 3),
        Lambda(lambda x: 1.7159 * torch.tanh(x * 2 / 3)),
        Lambda(lambda x: x.flatten(1)),
        nn.Linear(400, 3),
    )


NETWORKS: dict[str, Any] = {
    "functional": Functional,
    "nested modules": Nested,
    "branches": MultiBranch,
    "pre-activation residual": PreActivation,
    "depthwise": Depthwise,
    "concatenated vectors": Concatenating,
    "locally connected": Locally,
    "densely connected": DenselyConnected,
    "lambdas": lambda_network,
    "sequential": lambda: nn.Sequential(
        nn.ZeroPad2d(1), nn.Conv2d(1, 4, 3), nn.GELU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(144, 3), nn.Softmax(1)
    ),
    "even window, same padding": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 4, padding="same"), nn.LeakyReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3)
    ),
    "all convolutional": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ),
    "local response": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.LocalResponseNorm(4), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(100, 3)
    ),
    "subclassed convolution": lambda: nn.Sequential(
        Subclassed(1, 4, 3), nn.ReLU(), WeightScaled(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(256, 3)
    ),
    "activation after a vector": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 12), nn.Flatten(), nn.ReLU(), nn.Linear(4, 5), nn.Dropout(0.1), nn.ReLU(), nn.ReLU(), nn.Linear(5, 3)
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_as_people_write_them_run_backpropagate_and_save(name: str, tmp_path: Any) -> None:
    ckn = translate(NETWORKS[name](), (1, 12, 12))
    assert run(ckn, 1, 12, 12).shape == (3, 3)
    again = torchckn.load(torchckn.save(ckn.eval(), tmp_path / "model"))
    x = torch.rand(2, 1, 12, 12)
    assert torch.equal(again(x), ckn(x))


@pytest.mark.parametrize("name", NETWORKS)
def test_shapes_follow_the_convnet_s(name: str) -> None:
    """Every layer's height and width are those of the ConvNet; its channels as well, but behind sums."""
    net = NETWORKS[name]()
    ckn = translate(net, (1, 12, 12))
    seen: dict[str, tuple[int, ...]] = {}
    for path, module in net.named_modules():
        module.register_forward_hook(lambda _m, _i, out, path=path: seen.__setitem__(path, tuple(out.shape[1:])))
    net.eval()(torch.zeros(2, 1, 12, 12))
    checked = 0
    for source, row in rows_of(ckn).items():
        if row.layer in ckn.graph.shapes and source in seen and len(seen[source]) == 3:
            assert ckn.graph.shapes[row.layer][1:] == seen[source][1:]
            checked += 1
    assert checked or name == "lambdas"


# What each operation becomes.


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


def test_the_report_says_what_was_lost_and_why() -> None:
    rows = rows_of(translate(Nested(), (1, 12, 12)))
    assert rows["blocks.0.body.1"].correspondence == "dropped"
    assert "normalise" in rows["blocks.0.body.1"].why
    assert rows["max_pool2d"].correspondence == "kept"
    assert "inexact" in rows["max_pool2d"].why
    assert rows["blocks.0.body.2"].label == "blocks_0_body_0: ArcCosine(1)"
    assert rows["out"].layer == "head"


def test_biases_are_reported_but_the_head_keeps_its_own() -> None:
    rows = rows_of(translate(Functional(), (1, 12, 12)))
    assert rows["conv1.bias"].correspondence == "dropped"
    assert "out.bias" not in rows


def test_a_network_without_a_last_linear_layer_gets_a_head_and_the_report_says_so() -> None:
    ckn = translate(NETWORKS["all convolutional"](), (1, 12, 12))
    assert ckn.report is not None
    assert (ckn.head.in_features, ckn.head.out_features) == (3, 3)
    assert "one is added" in ckn.report.rows[-1].why


@pytest.mark.parametrize(
    ("activation", "kernel", "correspondence"),
    [
        (nn.Identity(), Linear(), "kept"),
        (nn.ReLU(), ArcCosine(1), "exact"),
        (nn.Tanh(), ArcCosine(0), "inexact"),
        (nn.Sigmoid(), ArcCosine(0), "inexact"),
        (zoo.ScaledTanh(), ArcCosine(0), "inexact"),
        (nn.GELU(), ArcCosine(1), "inexact"),
        (nn.SiLU(), ArcCosine(1), "inexact"),
        (nn.LeakyReLU(), ArcCosine(1), "inexact"),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, nn.Module) else None,
)
def test_every_activation_has_its_kernel(activation: nn.Module, kernel: Any, correspondence: str) -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), activation, nn.Flatten(), nn.Linear(200, 3))
    ckn = translate(net, (1, 12, 12))
    assert isinstance(ckn.graph.nodes[0], Conv)
    assert ckn.graph.nodes[0].kernel == kernel.spec()
    assert rows_of(ckn)["1"].correspondence == correspondence


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


def test_layer_options_reach_every_layer() -> None:
    ckn = translate(zoo.build("lenet5", filters=4), eps=0.01, inverse_sqrt="newton", init="sample")
    for node in ckn.graph.nodes:
        if isinstance(node, KernelNode):
            assert (node.eps, node.inverse_sqrt) == (0.01, "newton")
            assert node.init in ("sample", "identity")


def test_a_trainable_bandwidth_is_each_layer_s_own() -> None:
    ckn = translate(zoo.build("allcnn", filters=4), kernel=RBFSphere(0.6, trainable=True))
    sigmas = [p for n, p in ckn.named_parameters() if n.endswith("sigma")]
    assert len(sigmas) == 9
    assert len({id(p) for p in sigmas}) == 9


# Policy.


def test_strict_lists_everything_that_is_not_exact() -> None:
    with pytest.raises(TranslationError) as caught:
        translate(Nested(), (1, 12, 12), strict=True)
    message = str(caught.value)
    for name in ("blocks.0.body.1 (BatchNorm2d)", "blocks.2.body.1 (BatchNorm2d)", "max_pool2d (F.max_pool2d)"):
        assert name in message
    assert "5 operations" in message


def test_strict_lets_exact_networks_and_a_chosen_kernel_pass() -> None:
    net = zoo.build("allcnn", filters=4, bias=False, dropout=True)
    translate(net, strict=True)
    translate(net, strict=True, kernel=RBFSphere(0.6))


class DataDependent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = -x
        return self.conv(x).mean((2, 3))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(12, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.lstm(x.squeeze(1))
        return out[:, -1]


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.conv(x).flatten(2).transpose(1, 2)
        return self.attention(tokens, tokens, tokens)[0].mean(1)


class HandMadeAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return (x * torch.sigmoid(x.mean((2, 3), keepdim=True))).mean((2, 3))


class TwoInputs(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


class TwoOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.conv(x)
        return x, F.relu(x)


def chain(*modules: nn.Module) -> nn.Module:
    return nn.Sequential(*modules)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            DataDependent,
            r"DataDependent cannot be traced beyond test_translate.py:\d+, `if x.sum\(\) > 0:`.*no `if` or loop",
        ),
        (Recurrent, "reshape|'squeeze' .*cannot be translated|'lstm' .*recurrent"),
        (lambda: chain(nn.Conv2d(1, 4, 3), nn.LSTM(10, 3)), "does not run on images"),
        (Attentive, "cannot be translated: it makes .4, 10, 10. into .4, 100."),
        (HandMadeAttention, r"'mul' \(operator.mul, at test_translate.py:\d+, .*a product of two feature maps"),
        (TwoInputs, "network of one input, a batch of images; TwoInputs.forward takes 2"),
        (TwoOutputs, "gives one tensor of scores, got tuple"),
        (
            lambda: chain(nn.Conv2d(1, 4, 3), nn.Upsample(scale_factor=2)),
            "'1' .Upsample.* upsampling layers have no patches",
        ),
        (lambda: chain(nn.ConvTranspose2d(1, 4, 3)), "'0' .ConvTranspose2d.*upsampling"),
        (lambda: chain(nn.Conv2d(1, 4, 3), nn.Linear(10, 3)), "a linear layer on inputs of shape .4, 10, 10."),
        (lambda: chain(nn.Conv2d(1, 4, 3), nn.ReLU()), "how many classes there are cannot be seen; pass classes="),
        (lambda: chain(nn.Flatten(), nn.Linear(144, 3)), "no layer before its classifier"),
        (lambda: chain(nn.Conv2d(1, 4, 3), nn.PixelShuffle(2), nn.Flatten(), nn.Linear(400, 2)), "'1' .PixelShuffle"),
        (
            lambda: chain(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(400, 2)),
            r"does not run on images of shape \(1, 12, 12\)",
        ),
        (
            lambda: chain(nn.Conv2d(1, 4, 3), nn.Softmax2d(), nn.Flatten(), nn.Linear(400, 2)),
            "there is no rule for it.*register",
        ),
        (lambda: chain(nn.Conv2d(1, 4, 3), nn.Softmax(1), nn.Flatten(), nn.Linear(400, 2)), "softmax within the network"),
        (
            lambda: chain(nn.Conv2d(1, 4, 3), nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(16, 2)),
            "more than one position",
        ),
        (
            lambda: chain(nn.ReflectionPad2d(1), nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(576, 2)),
            "'0' .ReflectionPad2d.*there is no rule for it",
        ),
    ],
)
def test_what_has_no_counterpart_is_refused_by_name_with_a_reason(build: Any, message: str) -> None:
    with pytest.raises(TranslationError, match=message) as caught:
        translate(build(), (1, 12, 12))
    assert caught.value.__cause__ is None  # nothing from inside fx follows the message


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: translate("lenet5"), "translate expected a torch.nn.Module, got str; zoo.build"),
        (lambda: translate(nn.Conv2d(1, 2, 3)), "translate expected input_shape="),
        (lambda: translate(nn.Conv2d(1, 2, 3), (28, 28)), r"one image, without the batch, got \(28, 28\)"),
        (lambda: translate(zoo.build("lenet1"), kernel="rbf"), "unknown kernel 'rbf': expected one of match"),
        (lambda: translate(zoo.build("lenet1"), kernel=0.6), "kernel expected 'match' or a kernel .* got 0.6"),
        (lambda: translate(zoo.build("lenet1"), weights="trained"), "unknown weights 'trained'"),
        (lambda: translate(zoo.build("lenet1"), init="identity"), "init='identity' is for single layers"),
        (lambda: translate.rule(3), "rule expected module classes, functions or names"),
    ],
)
def test_bad_arguments_are_refused_with_a_reason(call: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()


# Trust.


def test_the_input_network_is_left_untouched() -> None:
    net = zoo.build("resnet20", filters=4).train()
    before = copy.deepcopy(net.state_dict())
    hooks = [len(m._forward_hooks) for m in net.modules()]
    translate(net)
    assert net.training
    assert hooks == [len(m._forward_hooks) for m in net.modules()]
    after = net.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_device_and_mode_carry_over(dtype: torch.dtype) -> None:
    net = zoo.build("lenet5", filters=4).to(dtype).eval()
    ckn = translate(net)
    assert {p.dtype for p in ckn.parameters()} == {dtype}
    assert not ckn.training
    assert ckn(torch.rand(1, 1, 32, 32, dtype=dtype)).dtype == dtype


def test_a_generator_decides_the_filters() -> None:
    net = zoo.build("lenet1")
    one, same = (translate(net, generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))


@pytest.mark.parametrize("name", ["resnet20", "vgg11"])
def test_translation_takes_less_than_two_seconds(name: str) -> None:
    net = zoo.build(name)
    start = time.perf_counter()
    translate(net)
    assert time.perf_counter() - start < 2


def test_a_rule_of_one_s_own_works_in_ten_lines() -> None:
    class Blur(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.interpolate(x, scale_factor=0.5)

    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), Blur(), nn.Flatten(), nn.Linear(100, 3))
    with pytest.raises(TranslationError, match="F.interpolate.*there is no rule for it"):
        translate(net, (1, 12, 12))

    @translate.rule(Blur)
    def blur(step: Any) -> Any:
        return step.emit(torchckn.graph.GaussianPool(step.name, stride=2), "inexact", "a Gaussian blurs as well")

    ckn = translate(net, (1, 12, 12))
    assert rows_of(ckn)["2"].label == "_2: Gaussian pooling, stride 2"
    run(ckn, 1, 12, 12)


# The report.


def test_the_report_is_a_table_json_html_and_a_drawing() -> None:
    report = translate(zoo.build("lenet5", filters=8)).report
    assert report is not None
    assert Report.from_json(json.loads(json.dumps(report.to_json()))) == report
    text = str(report)
    assert "layers.conv1" in text
    assert "ArcCosine(0), fixed" in " ".join(text.split())
    page, drawing = report.to_html(), report.to_svg()
    for row in report.rows:
        assert row.source in page
        assert row.operation == "bias" or row.source in drawing
    assert drawing.startswith("<svg")
    import xml.etree.ElementTree as ElementTree

    ElementTree.fromstring(drawing)
    ElementTree.fromstring(page)


def test_names_in_the_drawing_and_the_page_are_escaped() -> None:
    from torchckn.correspondence.report import Row

    report = Report("<b>", (Row("<i>", "a&b", "l", "l: <u>", (1,), "exact", "<s>", True),))
    for text in (report.to_html(), report.to_svg()):
        assert "<b>" not in text
        assert "<i>" not in text
        assert "<u>" not in text


def test_a_foreign_report_is_refused() -> None:
    with pytest.raises(ConfigError, match="not a report that Report.to_json wrote"):
        Report.from_json({"rows": [{}]})


# Random features.


@pytest.mark.parametrize("name", ["lenet1", "allcnn"])
def test_random_features_give_the_finite_network_that_the_ckn_stands_for(name: str) -> None:
    net = zoo.build(name, filters=6)
    finite = translate(net, weights="random-features", generator=torch.Generator().manual_seed(0))
    assert finite(torch.rand(2, *net.input_shape)).shape == (2, 10)
    trained = [n for n, _ in finite.named_parameters()]
    assert trained == ["head.weight", "head.bias"]


def small_net() -> nn.Module:
    first = nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AvgPool2d(2)
    return nn.Sequential(*first, nn.Conv2d(4, 4, 2), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 3))


def test_features_of_both_kinds_approach_the_exact_kernel(tmp_path: Any) -> None:
    images = F.avg_pool2d(torch.rand(60, 1, 14, 14, generator=torch.Generator().manual_seed(0)), 3, 1)
    comparison = torchckn.compare_kernels(translate(small_net(), (1, 12, 12)), images, (4, 64), held_out=4, patches=500)
    errors = {(row.filters, row.method): row.median for row in comparison.rows}
    assert errors[64, "random-features"] < errors[4, "random-features"]
    assert errors[64, "nystrom"] < errors[64, "random-features"]
    assert "4 images, median of 3 seeds" in str(comparison)
    assert json.loads(json.dumps(comparison.to_json()))["images"] == 4
    comparison.plot(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 5000


def test_random_features_of_one_layer_have_the_exact_kernel_as_their_mean() -> None:
    for kernel in (Linear(), ArcCosine(0), ArcCosine(1), ArcCosine(2), RBFSphere(0.6)):
        nodes = [
            Conv("conv", filters=40_000, kernel_size=(2, 2), kernel=kernel),
            Dense("dense", filters=40_000, kernel=kernel),
        ]
        for node in nodes:
            graph = torchckn.Graph((2, 3, 3), [node])
            g = torch.Generator().manual_seed(0)
            images = torch.randn(3, 2, 3, 3, generator=g, dtype=torch.float64)
            features = torchckn.CKN(graph, weights="random-features", generator=g, dtype=torch.float64).features(images)
            exact = torchckn.exact_kernel(graph, images)
            assert (features @ features.T - exact).norm() < 0.05 * exact.norm()


def test_a_nonlinearity_after_pooling_is_itself_in_the_random_network() -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 20_000, 3, bias=False), nn.AvgPool2d(2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    finite = translate(
        net, (1, 6, 6), weights="random-features", generator=torch.Generator().manual_seed(0), classes=2
    ).double()
    images = torch.randn(3, 1, 6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weights = finite.layers["_0"].weight  # the ConvNet that it is, by hand: Gaussian weights, pooling, ReLU
    by_hand = F.relu(F.avg_pool2d(F.conv2d(images, weights), 2)).mean((2, 3)) * (2 / 20_000) ** 0.5
    torch.testing.assert_close(finite.features(images), by_hand)
    exact = torchckn.exact_kernel(finite.graph, images)
    features = finite.features(images)
    assert (features @ features.T - exact).norm() < 0.05 * exact.norm()


def test_compare_kernels_wants_images_to_spare() -> None:
    with pytest.raises(torchckn.DataError, match="more than 8 images"):
        torchckn.compare_kernels(translate(small_net(), (1, 12, 12)), torch.rand(8, 1, 12, 12))
    with pytest.raises(ConfigError, match="Polynomial has no random features"):
        translate(small_net(), (1, 12, 12), torchckn.kernels.Polynomial(2), weights="random-features")(
            torch.rand(1, 1, 12, 12)
        )


# What must not be translated silently.


class Written(nn.Module):
    """A network given by a function of its layers and the image."""

    def __init__(self, forward: Any, **layers: Any) -> None:
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.written = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.written(self, x)


def conv(i: int = 1, o: int = 4, k: int = 3) -> nn.Conv2d:
    return nn.Conv2d(i, o, k, padding=k // 2, bias=False)


def end(x: Tensor) -> Tensor:
    return x.mean((2, 3))


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


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (lambda s, x: s.a(x.transpose(2, 3)), "'transpose' .*mixes channels and positions"),
        (lambda s, x: 1 / F.relu(s.a(x)), "divides by a feature map"),
        (lambda s, x: F.conv2d(x, s.a(x)[:1, :1, :3, :3]), "'getitem' .*|weights depend on the image"),
        (lambda s, x: torch.cat([s.a(x), s.p.expand(x.shape[0], -1, -1, -1)], 1), "puts constants beside the feature maps"),
        (lambda s, x: s.a(x) - s.a(x).mean((2, 3), keepdim=True), "adds feature maps of different sizes"),
        (lambda s, x: s.a(x).clamp(-1, 1), r"clamping to \[-1, 1\]"),
        (lambda s, x: s.a(x) * 0, "multiplies by zero"),
    ],
)
def test_what_would_be_translated_wrongly_is_refused(forward: Any, message: str) -> None:
    net = Written(lambda s, x: end(forward(s, x)), a=conv(), p=nn.Parameter(torch.rand(1, 2, 8, 8)))
    with pytest.raises(TranslationError, match=message):
        translate(net, (1, 8, 8))


def test_trainable_factors_are_reported_as_lost() -> None:
    net = Written(lambda s, x: end(s.gamma * F.relu(s.a(x))), a=conv(), gamma=nn.Parameter(torch.ones(4, 1, 1)))
    row = rows_of(translate(net, (1, 8, 8)))["mul"]
    assert (row.correspondence, row.faithful) == ("dropped", False)


def test_operations_in_place_change_what_is_read_later() -> None:
    def statement(s: Any, x: Tensor) -> Tensor:
        x = s.a(x)
        x.relu_()
        return end(x)

    def residual(s: Any, x: Tensor) -> Tensor:
        x = s.a(x)
        y = s.b(s.relu(x))
        return end(x + y)

    ckn = translate(Written(statement, a=conv()), (1, 8, 8))
    assert isinstance(ckn.graph.nodes[0], Conv)
    assert ckn.graph.nodes[0].kernel == ArcCosine(1).spec()
    ckn = translate(Written(residual, a=conv(), b=conv(4), relu=nn.ReLU(inplace=True)), (1, 8, 8))
    assert [n.inputs for n in ckn.graph.nodes if n.name == "add"] == [("a", "b")]
    assert ckn.graph.nodes[0].kernel == ArcCosine(1).spec()  # type: ignore[attr-defined]


def test_dead_code_leaves_no_trace() -> None:
    def forward(s: Any, x: Tensor) -> Tensor:
        x = F.relu(s.a(x))
        F.relu(s.b(x))
        return s.head(end(x))

    ckn = translate(Written(forward, a=conv(), b=conv(4, 9), head=nn.Linear(4, 3)), (1, 8, 8))
    assert [n.name for n in ckn.graph.nodes] == ["a", "mean"]


def test_arguments_with_defaults_keep_them() -> None:
    class Optional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = conv()

        def forward(self, x: Tensor, pool: Any = None, *rest: Any, **more: Any) -> Tensor:
            x = F.relu(self.conv(x))
            if pool is None:
                x = F.avg_pool2d(x, kernel_size=x.shape[-1])
            return x[:, :, 0, 0]

    ckn = translate(Optional(), (1, 8, 8))
    assert ckn.graph.shapes[ckn.graph.output] == (4, 1, 1)


def test_a_layer_used_twice_is_two_layers_and_the_report_says_so() -> None:
    net = Written(lambda s, x: end(F.relu(s.a(F.relu(s.a(x))))), a=conv(1, 1))
    ckn = translate(net, (1, 8, 8), centering="none")
    assert ckn.report is not None
    rows = [row for row in ckn.report.rows if row.source == "a"]
    assert [row.correspondence for row in rows] == ["exact", "inexact"]
    assert "uses these weights twice" in rows[1].why
    assert ckn.report.to_svg().count("a · Conv2d") >= 2


def test_a_sum_of_a_layer_with_itself_and_of_nothing() -> None:
    net = Written(lambda s, x: end(sum([s.a(x), s.b(x)])), a=conv(), b=conv())  # type: ignore[arg-type]
    assert translate(net, (1, 8, 8), strict=True).graph.features == 8
    twice = Written(lambda s, x: end(twice_of(s.a(x))), a=conv())
    assert rows_of(translate(twice, (1, 8, 8)))["add"].correspondence == "inexact"


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


def test_one_feature_cannot_be_centred_by_itself() -> None:
    with pytest.raises(ConfigError, match="one feature, centred by its own mean, is zero"):
        translate(nn.Sequential(nn.Conv2d(1, 1, 8), nn.Flatten()), (1, 8, 8))


def test_a_rule_that_goes_wrong_is_told_with_its_operation() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 1

    net = nn.Sequential(nn.Conv2d(1, 4, 3), Odd(), nn.Flatten(), nn.Linear(144, 2))
    results: dict[str, Any] = {
        "returned NoneType": lambda step: None,
        "its rule failed: division by zero": lambda step: 1 / 0,
        r"its rule gives \(1, 1\) positions": lambda step: step.emit(torchckn.graph.AdaptiveAveragePool(step.name)),
    }
    for message, written in results.items():
        translate.rule(Odd)(written)
        with pytest.raises(TranslationError, match=f"'1' .Odd.*{message}"):
            translate(net, (1, 8, 8))


def test_a_network_that_cannot_be_copied_says_so() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 2))
    net.cached = net[0](torch.zeros(1, 1, 8, 8))  # type: ignore[assignment]
    with pytest.raises(TranslationError, match="Sequential cannot be copied.*Detach tensors"):
        translate(net, (1, 8, 8))


def test_pooling_windows_may_be_sizes_of_the_image() -> None:
    net = Written(lambda s, x: F.avg_pool2d(F.relu(s.a(x)), x.size()[2:]).flatten(1), a=conv())
    assert translate(net, (1, 8, 8)).graph.features == 4


def test_a_module_called_head_in_the_middle_is_a_layer() -> None:
    net = Written(lambda s, x: s.out(end(F.relu(s.head(x)))), head=conv(), out=nn.Linear(4, 3))
    ckn = translate(net, (1, 8, 8))
    assert [row.layer for row in ckn.report.rows if row.source == "head"] == ["head_"]  # type: ignore[union-attr]
    assert rows_of(ckn)["out"].layer == "head"
