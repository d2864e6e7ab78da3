"""How a network is traced: what counts is what it computes, and it is left as it was."""

from __future__ import annotations

import copy
import time
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchckn import translate, zoo
from torchckn.errors import TranslationError
from torchckn.graph import Conv
from torchckn.kernels import ArcCosine

from .networks import Written, conv, end, rows_of


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


def test_pooling_windows_may_be_sizes_of_the_image() -> None:
    net = Written(lambda s, x: F.avg_pool2d(F.relu(s.a(x)), x.size()[2:]).flatten(1), a=conv())
    assert translate(net, (1, 8, 8)).graph.features == 4


def test_a_module_called_head_in_the_middle_is_a_layer() -> None:
    net = Written(lambda s, x: s.out(end(F.relu(s.head(x)))), head=conv(), out=nn.Linear(4, 3))
    ckn = translate(net, (1, 8, 8))
    assert [row.layer for row in ckn.report.rows if row.source == "head"] == ["head_"]  # type: ignore[union-attr]
    assert rows_of(ckn)["out"].layer == "head"


def test_a_network_that_cannot_be_copied_says_so() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 2))
    net.cached = net[0](torch.zeros(1, 1, 8, 8))  # type: ignore[assignment]
    with pytest.raises(TranslationError, match="Sequential cannot be copied.*Detach tensors"):
        translate(net, (1, 8, 8))


def test_control_flow_on_sizes_and_parameters_is_followed() -> None:
    class Sizes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.gate = conv(1, 4), conv(4, 4), nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor, **options: Any) -> Tensor:
            x = self.a(x)
            torch._assert(x.ndim == 4, "an image")
            assert len(x) == 2
            if x.shape[-1] > 7 and self.gate.sum() > 0 and x.is_floating_point():
                x = F.relu(x)
            for _ in range(x.size(2) // 8):
                x = F.relu(self.b(x))
            n, c, h, w = x.shape
            small = F.interpolate(x, size=(int(h * 0.5), int(w * 0.5)))
            x = torch.cat([x, F.interpolate(small, size=x.shape[-2:])], 1)
            return sum(part.mT.mT for part in x.reshape(n, 2, c, h, w).unbind(1)).mean((2, 3))

    ckn = translate(Sizes(), (1, 8, 8))
    names = [node.name for node in ckn.graph.nodes]
    assert names == ["a", "b", "interpolate", "interpolate_1", "add_1", "mean"]
    assert len(translate(Sizes(), (1, 16, 16)).graph.nodes) == len(names) + 1


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (lambda s, x: end(s.a(x) * s.a(x).max().item()), "'item' .*converts a feature map to Python numbers"),
        (lambda s, x: end(s.a(x) * float(x.mean())), r"test_translation_tracing.py:\d+, .*depends on pixel values"),
        (lambda s, x: end(x if (x > 0).all() else s.a(x)), r"test_translation_tracing.py:\d+, .*depends on pixel values"),
        (lambda s, x: end(s.a(x)[: int(x.sum())]), r"test_translation_tracing.py:\d+, .*depends on pixel values"),
    ],
)
def test_what_depends_on_pixels_is_refused_with_its_line(forward: Any, message: str) -> None:
    with pytest.raises(TranslationError, match=message):
        translate(Written(forward, a=conv()), (1, 8, 8))


def test_an_error_of_the_network_s_own_is_reported_with_its_line() -> None:
    def forward(s: Any, x: Tensor) -> Tensor:
        if x.shape[-1] % 32:
            raise ValueError("sides must be multiples of 32")
        return end(s.a(x))

    with pytest.raises(
        TranslationError, match=r"shape \(1, 8, 8\): .*tracing.py:\d+, `raise .*multiples of 32.*input_shape"
    ):
        translate(Written(forward, a=conv()), (1, 8, 8))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = conv(16, 16), conv(16, 16)
        self.norm1, self.norm2 = nn.BatchNorm2d(16), nn.BatchNorm2d(16)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.norm2(self.b(F.relu(self.norm1(self.a(x))))))


@pytest.mark.slow
def test_a_network_of_500_operations_is_translated_in_3_seconds_of_cpu_time() -> None:
    net = nn.Sequential(conv(3, 16), nn.ReLU(), *(Residual() for _ in range(71)), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    translate(net[:3], (3, 8, 8), classes=3)  # what torch loads at its first use
    before = time.process_time()
    report = translate(net, (3, 32, 32), classes=3).report
    seconds = time.process_time() - before
    assert report is not None
    assert len(report.rows) >= 500
    assert seconds < 3


def hooked() -> nn.Sequential:
    block = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU())
    return nn.Sequential(block, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3))


def doubled(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return output * 2


def halved(module: nn.Module, inputs: Any) -> Tensor:
    return inputs[0] / 2


def doubled_in_place(module: nn.Module, inputs: Any, output: Tensor) -> None:
    output.mul_(2)


@pytest.mark.parametrize(
    ("register", "message"),
    [
        (
            lambda net: net[0][0].register_forward_hook(doubled),
            r"'doubled' \(.*py:\d+\), a forward hook of '0.0' \(Conv2d\)",
        ),
        (lambda net: net[0][0].register_forward_hook(doubled_in_place), "'doubled_in_place' .*a forward hook of '0.0'"),
        (
            lambda net: net[0][0].register_forward_pre_hook(halved),
            "'halved' .*a forward pre-hook of '0.0'.*changes the input",
        ),
        (
            lambda net: net.register_forward_hook(doubled),
            "'doubled' .*a forward hook of the network itself.*remove the hook",
        ),
        (lambda net: net[0][0].register_forward_hook(lambda *_: 1 / 0), "does not run on images.*division by zero"),
    ],
)
def test_a_hook_that_changes_what_is_not_traced_is_refused_by_name(register: Any, message: str) -> None:
    net = hooked()
    register(net)
    with pytest.raises(TranslationError, match=message):
        translate(net, (1, 8, 8))


def test_hooks_that_only_look_on_are_left_out_and_those_of_blocks_are_traced() -> None:
    net, seen = hooked(), []
    for module in (net, net[0], net[0][0]):  # type: ignore[index]
        module.register_forward_hook(lambda _m, _i, output: seen.append(float(output.mean())))
    net[0].register_forward_hook(lambda _m, _i, output: torch.tanh(output))
    ckn = translate(net, (1, 8, 8))
    assert "ReLU-tanh" in str(ckn.graph.nodes[0].kernel)  # type: ignore[attr-defined]
    assert len(seen) == 3  # with numbers, once each
    assert [len(module._forward_hooks) for module in (net, net[0], net[0][0])] == [1, 2, 1]  # type: ignore[index]


@pytest.mark.parametrize(
    ("prepare", "named"),
    [
        (nn.utils.parametrizations.weight_norm, "WeightNorm"),
        (nn.utils.parametrizations.spectral_norm, "SpectralNorm"),
        (nn.utils.spectral_norm, "weight_orig"),
    ],
)
def test_weights_with_a_parametrization_are_reported_as_free_filters(prepare: Any, named: str) -> None:
    net = hooked()
    prepare(net[0][0])  # type: ignore[index]
    row = rows_of(translate(net, (1, 8, 8)))["0.0"]
    assert row.correspondence == "inexact"
    assert f"computed from other parameters become free filters ({named})" in row.why


@pytest.mark.filterwarnings("ignore")
def test_weights_that_cannot_be_copied_are_to_be_made_permanent() -> None:
    net = hooked()
    nn.utils.weight_norm(net[0][0])  # type: ignore[index]
    with pytest.raises(TranslationError, match="cannot be copied.*make weight norm or pruning permanent"):
        translate(net, (1, 8, 8))
