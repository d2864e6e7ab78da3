"""Operations in place change every tensor that shares their memory, whichever tracer records them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchckn
from torchckn import translate
from torchckn.errors import TranslationError
from torchckn.graph import Conv

from .networks import Written, conv, end, rows_of
from .test_translation_exported import of_export, unnamed

#: torch.export knows the lines of functions that are called forward
PLACE = r"at (test_translation_in_place|networks).py:\d+, `.*`\)"
Forward = Callable[[Any, Tensor], Tensor]


@pytest.fixture(params=["symbolic", "export"])
def translated(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., torchckn.CKN]:
    """Translation of a function of the layers and the image, by either tracer."""

    def result(forward: Forward, **options: Any) -> torchckn.CKN:
        net = Written(lambda s, x: end(forward(s, s.a(x))), a=conv(1, 8), b=conv(4, 4), c=conv(8, 8))
        if request.param == "symbolic":
            return translate(net, (1, 6, 6), **options)
        return of_export(monkeypatch, net, 1, 6, 6, **options)

    return result


IN_PLACE: dict[str, tuple[Forward, Forward]] = {
    "F.leaky_relu_": (lambda s, x: F.leaky_relu_(x, 0.2), lambda s, x: F.leaky_relu(x, 0.2)),
    "F.elu_": (lambda s, x: F.elu_(x), lambda s, x: F.elu(x)),
    "F.hardtanh_": (lambda s, x: F.hardtanh_(x), lambda s, x: F.hardtanh(x)),
    "F.threshold_": (lambda s, x: F.threshold_(x, 0.1, 0.0), lambda s, x: F.threshold(x, 0.1, 0.0)),
    "torch.tanh_": (lambda s, x: torch.tanh_(x), lambda s, x: torch.tanh(x)),
    "torch.sigmoid_": (lambda s, x: s.c(torch.sigmoid_(x)), lambda s, x: s.c(torch.sigmoid(x))),
    "torch.sin_": (lambda s, x: torch.sin_(x), lambda s, x: torch.sin(x)),
    "square_": (lambda s, x: x.square_(), lambda s, x: x.square()),
    "erf_": (lambda s, x: x.erf_(), lambda s, x: x.erf()),
    "abs_": (lambda s, x: x.abs_(), lambda s, x: x.abs()),
    "neg_": (lambda s, x: s.c(x).neg_() + x, lambda s, x: x - s.c(x)),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_an_activation_in_place_has_the_kernel_of_the_same_one(name: str, translated: Any) -> None:
    ckn, other = (translated(forward) for forward in IN_PLACE[name])
    assert kernels_of(ckn) == kernels_of(other)


def kernels_of(ckn: torchckn.CKN) -> list[Any]:
    """The kernels, without the names of activations."""
    specs = [node.kernel for node in ckn.graph.nodes if isinstance(node, Conv)]
    return [(spec.name, dict(spec.arguments) | {"activation": ""}) for spec in specs]  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["exp_", "sqrt_", "sign_", "zero_", "reciprocal_"])
def test_an_operation_in_place_without_a_rule_is_refused_with_its_line(name: str, translated: Any) -> None:
    with pytest.raises(TranslationError, match=rf"{name}.* {PLACE} cannot be translated"):
        translated(lambda s, x: getattr(x, name)())
    with pytest.raises(TranslationError, match=rf"torch.exp_.* {PLACE} cannot be"):
        translated(lambda s, x: torch.exp_(x))
    with pytest.raises(TranslationError, match=rf"fill_.* {PLACE} cannot be"):
        translated(lambda s, x: x.fill_(1.0))


def statement(change: Callable[[Any, Tensor], Any]) -> Forward:
    """A function that changes a tensor by a statement, and returns it."""

    def forward(s: Any, x: Tensor) -> Tensor:
        x = F.relu(x)
        change(s, x)
        return s.c(x)

    return forward


def assign(s: Any, x: Tensor) -> None:
    x[:, :4] = F.relu(s.b(x[:, :4]))


def increase(s: Any, x: Tensor) -> None:
    x[:, :4] += s.b(x[:, :4])


def increase_a_view(s: Any, x: Tensor) -> None:
    y = x[:, :4]
    y += s.b(x[:, :4])


def halves(part: Callable[[Any, Tensor], Tensor]) -> Forward:
    """The same, written as a split and a concatenation."""

    def forward(s: Any, x: Tensor) -> Tensor:
        x = F.relu(x)
        return s.c(torch.cat([part(s, x[:, :4]), x[:, 4:]], 1))

    return forward


def in_the_middle(s: Any, x: Tensor) -> Tensor:
    return torch.cat([x[:, :2], s.b(x[:, 2:6]), x[:, 6:]], 1)


WRITES: dict[str, tuple[Forward, Forward]] = {
    "assigned": (statement(assign), halves(lambda s, x: F.relu(s.b(x)))),
    "increased": (statement(increase), halves(lambda s, x: x + s.b(x))),
    "a view increased": (statement(increase_a_view), halves(lambda s, x: x + s.b(x))),
    "multiplied": (statement(lambda s, x: x[:, :4].mul_(2)), halves(lambda s, x: x * 2)),
    "in the middle": (
        statement(lambda s, x: x[:, 2:6].copy_(s.b(x[:, 2:6]))),
        lambda s, x: s.c(in_the_middle(s, F.relu(x))),
    ),
    "two halves": (
        lambda s, x: s.c(torch.cat([F.relu_(part) for part in x.chunk(2, 1)], 1)),
        lambda s, x: s.c(torch.cat([F.relu(part) for part in x.chunk(2, 1)], 1)),
    ),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_write_to_some_channels_is_a_split_and_a_concatenation(name: str, translated: Any) -> None:
    written, split = (translated(forward) for forward in WRITES[name])
    ours, theirs = ([described(node) for node in unnamed(ckn)] for ckn in (written, split))
    assert sorted(ours) == sorted(theirs)


def described(node: Any) -> str:
    kind = type(node).__name__
    return f"{kind} {[getattr(node, field, None) for field in ('filters', 'kernel', 'kernel_size', 'weights')]}"


def read_before(s: Any, x: Tensor) -> Tensor:
    part = x[:, :4]
    x.relu_()
    return s.b(part)


def aliases(s: Any, x: Tensor) -> Tensor:
    y = x.contiguous()
    y.relu_()
    return s.c(x)


def shortcut(s: Any, x: Tensor) -> Tensor:
    before = x
    x += s.c(x)
    return s.c(before)


def test_what_shares_memory_with_a_changed_tensor_is_changed(translated: Any) -> None:
    assert first_kernel(translated(read_before)) == first_kernel(translated(lambda s, x: s.b(F.relu(x)[:, :4])))
    assert first_kernel(translated(aliases)) == first_kernel(translated(lambda s, x: s.c(F.relu(x))))
    assert "direct sum" in str(translated(shortcut).report)


def first_kernel(ckn: torchckn.CKN) -> Any:
    node = ckn.graph.nodes[0]
    assert isinstance(node, Conv)
    return node.kernel


def write_rows(s: Any, x: Tensor) -> None:
    x[:, :, :2] = s.c(x)[:, :, :2]


def write_one_channel(s: Any, x: Tensor) -> None:
    x[:, 0] = x[:, 1]


def write_by_index(s: Any, x: Tensor) -> None:
    x[:, [0, 2]] = x[:, [1, 3]]


@pytest.mark.parametrize("change", [write_rows, write_one_channel, write_by_index])
@pytest.mark.parametrize("strict", [False, True])
def test_other_writes_to_a_part_are_refused_with_their_line(change: Any, strict: bool, translated: Any) -> None:
    with pytest.raises(TranslationError, match=rf"{PLACE} cannot be translated"):
        translated(statement(change), strict=strict)


def test_a_part_that_is_changed_and_never_read_as_a_whole_is_no_obstacle(translated: Any) -> None:
    assert translated(lambda s, x: F.relu_(x.flatten(2)).view(-1, 8, 6, 6)).graph.features == 8
    ckn = translated(lambda s, x: s.b(F.relu_(x[:, 0::2])))
    assert "a" in rows_of(ckn)


def test_a_change_of_an_expanded_tensor_is_refused(translated: Any) -> None:
    def forward(s: Any, x: Tensor) -> Tensor:
        one = x[:, :1]
        wide = one.expand(-1, 8, -1, -1)
        F.relu_(one)
        return s.c(wide)

    with pytest.raises(TranslationError, match="cannot be translated"):
        translated(forward)


def test_what_gives_back_its_input_unchanged_changes_nothing() -> None:
    net = nn.Sequential(conv(1, 4), nn.Dropout(0.5, inplace=True), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    assert rows_of(translate(net, (1, 6, 6), classes=2))["1"].correspondence == "dropped"
