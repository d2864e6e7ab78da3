"""What cannot be translated is refused with its name, the reason and a remedy."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchckn
from torchckn import translate, zoo
from torchckn.errors import ConfigError, TranslationError
from torchckn.kernels import RBFSphere

from .networks import Nested, Written, conv, end


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
        return (x / torch.sigmoid(x.mean((2, 3), keepdim=True))).mean((2, 3))


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
            r"DataDependent cannot be traced beyond test_translation_errors.py:\d+, `if x.sum\(\) > 0:`.*no `if` or loop",
        ),
        (Recurrent, "reshape|'squeeze' .*cannot be translated|'lstm' .*recurrent"),
        (lambda: chain(nn.Conv2d(1, 4, 3), nn.LSTM(10, 3)), "does not run on images"),
        (Attentive, "'attention' .MultiheadAttention.*attention multiplies feature maps"),
        (HandMadeAttention, r"'truediv' \(operator.truediv, at test_translation_errors.py:\d+, .*divides by a feature map"),
        (TwoInputs, "network of one input, a batch of images; TwoInputs.forward takes 2"),
        (TwoOutputs, "gives one tensor of scores, got tuple"),
        (lambda: chain(nn.ConvTranspose2d(1, 4, 3)), "'0' .ConvTranspose2d.*upsampling"),
        (lambda: chain(nn.Conv2d(1, 4, 3), nn.Linear(10, 3)), "a linear layer on inputs of shape .4, 10, 10."),
        (lambda: chain(nn.Conv2d(1, 4, 3), nn.ReLU()), "the number of classes is unknown; pass classes="),
        (lambda: chain(nn.Flatten(), nn.Linear(144, 3)), "no layer before its classifier"),
        (lambda: chain(nn.Conv2d(1, 4, 3), nn.PixelShuffle(2), nn.Flatten(), nn.Linear(400, 2)), "'1' .PixelShuffle"),
        (
            lambda: chain(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(100, 2)),
            r"does not run on images of shape \(1, 12, 12\): 2 .* raises: .*Check that input_shape, without the batch",
        ),
        (
            lambda: chain(nn.Conv2d(1, 4, 3), nn.Softmax2d(), nn.Flatten(), nn.Linear(400, 2)),
            "there is no rule for it.*register",
        ),
        (lambda: chain(nn.Conv2d(1, 4, 3), nn.Softmax(1), nn.Flatten(), nn.Linear(400, 2)), "softmax within the network"),
        (
            lambda: chain(nn.Conv2d(1, 4, 3), nn.AdaptiveMaxPool2d(3), nn.Flatten(), nn.Linear(36, 2)),
            "adaptive max pooling of 10x10 to 3x3 positions has windows of several sizes",
        ),
        (
            lambda: chain(nn.ConstantPad2d(1, 3.0), nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(576, 2)),
            "'0' .ConstantPad2d.*is not a border of zeros or of pixels of the image",
        ),
    ],
)
def test_what_has_no_counterpart_is_refused_by_name_with_a_reason(build: Any, message: str) -> None:
    with pytest.raises(TranslationError, match=message) as caught:
        translate(build(), (1, 12, 12))
    assert caught.value.__cause__ is None  # nothing from inside fx follows the message


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (lambda s, x: s.a(x.transpose(2, 3)), "'transpose' .*swaps the rows and columns of an image"),
        (lambda s, x: s.a(x).transpose(1, 2), "'transpose' .*mixes channels and positions"),
        (lambda s, x: s.a(x).unsqueeze_(1).sum(1), r"'unsqueeze_' .*in place. Use Tensor.unsqueeze instead"),
        (lambda s, x: 1 / F.relu(s.a(x)), "divides by a feature map"),
        (lambda s, x: F.conv2d(x, s.a(x)[:1, :1, :3, :3]), "'getitem' .*|weights depend on the image"),
        (
            lambda s, x: torch.cat([s.a(x), s.p.expand(x.shape[0], -1, -1, -1)], 1),
            "concatenates constants with feature maps",
        ),
        (lambda s, x: s.a(x) - s.a(x).mean((2, 3), keepdim=True), "its feature maps have different sizes"),
        (lambda s, x: s.a(x).clamp(s.a(x).min(), 1), "its arguments are computed from the image"),
        (lambda s, x: s.a(x) ** 0.5, "a power of 0.5 is not an activation"),
        (lambda s, x: s.a(x) ** s.a(x), "a power of .* is not an activation"),
        (lambda s, x: s.a(x) * 0, "multiplies by zero"),
        (lambda s, x: torch.minimum(s.a(x), x), "'minimum' .*its feature maps have different sizes"),
        (lambda s, x: torch.maximum(s.a(x), s.p[:, :1]), "'maximum' .*trainable or several constants"),
        (lambda s, x: s.a(x).view(-1, 2, 2, 8, 8).relu().sum(1), r"'view' .*other axes than channels, rows and columns"),
        (lambda s, x: s.a(x).softmax(1), "'softmax' .*softmax within the network is attention"),
        (lambda s, x: s.a(x).flatten(2).softmax(2).view(-1, 4, 8, 8), "'softmax' .*softmax within the network is attention"),
        (
            lambda s, x: F.relu(s.a(x)).view(-1, 2, 2, 8, 8).softmax(1)[:, 0],
            "'softmax' .*its input is not a linear layer's",
        ),
        (lambda s, x: s.a(x).mean(1).mean(1, keepdim=True)[:, :, None], "mixes|mean is not over height or width"),
    ],
)
def test_what_would_be_translated_wrongly_is_refused(forward: Any, message: str) -> None:
    net = Written(lambda s, x: end(forward(s, x)), a=conv(), p=nn.Parameter(torch.rand(1, 2, 8, 8)))
    with pytest.raises(TranslationError, match=message):
        translate(net, (1, 8, 8))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: translate("lenet5"), "translate expected a torch.nn.Module, got str; zoo.build"),
        (lambda: translate(nn.Conv2d(1, 2, 3)), "translate expected input_shape="),
        (lambda: translate(nn.Conv2d(1, 2, 3), (28, 28)), r"one image, without the batch, got \(28, 28\)"),
        (lambda: translate(zoo.build("lenet1"), kernel="rbf"), "unknown kernel 'rbf': expected one of match"),
        (lambda: translate(zoo.build("lenet1"), kernel=0.6), "kernel expected 'match' or a kernel .* got 0.6"),
        (lambda: translate(zoo.build("lenet1"), linear_kernel="match"), "linear_kernel expected a kernel .* got 'match'"),
        (lambda: translate(zoo.build("lenet1"), weights="trained"), "unknown weights 'trained'"),
        (lambda: translate(zoo.build("lenet1"), init="identity"), "init='identity' is for single layers"),
        (lambda: translate(zoo.build("lenet1"), init="bad"), "unknown init 'bad': expected one of kmeans, random, sample"),
        (lambda: translate(zoo.build("lenet1"), eps="a"), "eps expected a number >= 0, got 'a'"),
        (lambda: translate(zoo.build("lenet1"), inverse_sqrt="bad"), "unknown inverse square root method 'bad'"),
        (lambda: translate(zoo.build("lenet1"), scale="2"), "scale expected a positive number, .* got '2'"),
        (lambda: translate(zoo.build("lenet1"), width="2"), "width expected a positive factor .* got '2'"),
        (lambda: translate(zoo.build("lenet1"), classes=0), "classes expected an integer >= 1, or None for .* got 0"),
        (lambda: translate(zoo.build("lenet1"), 28), r"input_shape expected \(channels, height, width\) .* got 28"),
        (
            lambda: translate(zoo.build("lenet1"), (1, 28, 28), preprocessing="x"),
            "preprocessing expected a torchckn.data.Preprocessing, got 'x'",
        ),
        (lambda: translate.rule(3), "rule expected module classes, functions or names"),
    ],
)
def test_bad_arguments_are_refused_with_a_reason(call: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()


def test_sizes_may_be_integers_of_numpy() -> None:
    ckn = translate(
        zoo.build("lenet1"), np.array([1, 28, 28]), filters=np.int64(4), classes=np.int32(3), root_block=np.int64(2)
    )
    assert ckn(torch.rand(2, 1, 28, 28)).shape == (2, 3)
    assert json.dumps(ckn.description())


def test_strict_lists_everything_that_is_not_exact() -> None:
    with pytest.raises(TranslationError) as caught:
        translate(Nested(), (1, 12, 12), strict=True)
    message = str(caught.value)
    for name in ("blocks.0.body.1 (BatchNorm2d)", "blocks.2.body.1 (BatchNorm2d)", "max_pool2d (F.max_pool2d)"):
        assert name in message
    assert "Nested has 5 operations or parts of operations with no exact counterpart" in message
    with pytest.raises(TranslationError, match=r"\n  0 \(Conv2d\), its bias: dropped, kernel layers have no biases\n"):
        translate(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(400, 3)), (1, 12, 12), strict=True)


def test_strict_lets_exact_networks_and_a_chosen_kernel_pass() -> None:
    net = zoo.build("allcnn", filters=4, bias=False, dropout=True)
    translate(net, strict=True)
    translate(net, strict=True, kernel=RBFSphere(0.6))


def test_one_feature_cannot_be_centered_by_itself() -> None:
    with pytest.raises(ConfigError, match="one feature, centered by its own mean, is zero"):
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


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize("first", [lambda: [nn.LazyConv2d(4, 3)], lambda: [nn.Conv2d(1, 4, 3), nn.LazyBatchNorm2d()]])
def test_lazy_networks_are_to_be_run_once_first(first: Any) -> None:
    net = nn.Sequential(*first(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
    with pytest.raises(TranslationError, match=r"lazy ones, such as '.*'. Run .* net\(torch.zeros\(1, 1, 8, 8\)\)"):
        translate(net, (1, 8, 8))
    net(torch.zeros(2, 1, 8, 8))
    assert translate(net, (1, 8, 8))(torch.rand(2, 1, 8, 8)).shape == (2, 2)


@pytest.mark.parametrize("crop", [-1, -6, -40])
def test_vectors_are_not_cropped(crop: int) -> None:
    net = Written(lambda s, x: F.pad(F.relu(s.a(x)).flatten(1), (0, crop)), a=conv())
    with pytest.raises(TranslationError, match="it crops vectors. Select channels before they are flattened"):
        translate(net, (1, 8, 8), classes=2)
