"""The second tracer, ``torch.export``: networks that symbolic images cannot pass, and the same result for all others."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchckn
from torchckn import translate, zoo
from torchckn.errors import TranslationError
from torchckn.translation import symbolic

from .networks import conv, end, rows_of, run
from .public_networks import PUBLIC


class OwnGradient(torch.autograd.Function):
    """SiLU that saves its input only, as efficient networks write it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return F.silu(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * torch.sigmoid(x) * (1 + x * (1 - torch.sigmoid(x)))


class Checked(nn.Module):
    """A network that looks at the type of its input; ``divides`` adds what has no counterpart."""

    def __init__(self, divides: bool = False) -> None:
        super().__init__()
        self.a, self.norm, self.divides = conv(1, 4), nn.BatchNorm2d(4), divides

    def forward(self, x: Tensor) -> Tensor:
        if not isinstance(x, Tensor):
            raise TypeError("expected a tensor")
        x = self.norm(self.a(x))
        x = torch.cat([OwnGradient.apply(x[:, :2]), F.relu(x[:, 2:])], 1)
        if self.divides:
            x = 1 / x
        return end(x)


def of_export(monkeypatch: pytest.MonkeyPatch, net: nn.Module, *shape: int, **options: Any) -> torchckn.CKN:
    """The translation with the second tracer only."""

    def fails(*args: Any) -> Any:
        raise NotImplementedError

    with monkeypatch.context() as patch:
        patch.setattr(symbolic, "record", fails)
        return translate(net, shape or None, **options)


def unnamed(ckn: torchckn.CKN) -> list[Any]:
    """The nodes of a network with numbers as names."""
    numbers = {"input": "input"} | {node.name: str(i) for i, node in enumerate(ckn.graph.nodes)}
    return [
        dataclasses.replace(node, name=numbers[node.name], inputs=tuple(numbers[i] for i in node.inputs))
        for node in ckn.graph.nodes
    ]


def test_what_symbolic_images_cannot_pass_is_exported() -> None:
    """Names of modules, and lines of the source in messages, are those of the network."""
    net = Checked()
    with pytest.raises(TypeError, match="expected a tensor"):
        symbolic.record(net, torch.zeros(2, 1, 8, 8), lambda module: False)
    ckn = translate(net, (1, 8, 8), classes=3)
    assert run(ckn, 1, 8, 8).shape == (3, 3)
    rows = rows_of(ckn)
    assert [rows[name].operation for name in ("a", "norm", "silu")] == ["Conv2d", "BatchNorm2d", "F.silu"]
    assert rows["silu"].label.endswith("Dual(silu, 1, 1)")
    with pytest.raises(
        TranslationError, match=r"at test_translation_exported.py:\d+, `x = 1 / x`.*divides by a feature map"
    ):
        translate(Checked(divides=True), (1, 8, 8))


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.names())
def test_both_tracers_agree_on_the_zoo(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = zoo.build(name, filters=8)
    size = min(64, *net.input_shape[1:]) if name not in ("alexnet",) else net.input_shape[1]
    net = zoo.build(name, filters=8, **type(net).options_for((net.input_shape[0], size, size)))
    shape = (net.input_shape[0], size, size)
    first, second = translate(net, shape), of_export(monkeypatch, net, *shape)
    assert unnamed(first) == unnamed(second)
    assert first.report is not None
    assert second.report is not None
    # A module that changes nothing, such as nn.Identity, leaves no trace in ATen operations.
    ours, theirs = (
        [(row.correspondence, row.reasons, row.output_shape) for row in report.rows if row.correspondence != "kept"]
        for report in (first.report, second.report)
    )
    assert ours == theirs


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLIC)
def test_both_tracers_agree_on_blocks_of_public_collections(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = PUBLIC[name]()
    assert unnamed(translate(net, (2, 8, 8))) == unnamed(of_export(monkeypatch, net, 2, 8, 8))
