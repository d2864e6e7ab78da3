"""How a network is traced: what counts is what it computes, and it is left as it was."""

from __future__ import annotations

import copy
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
