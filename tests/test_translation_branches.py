"""Branches of a ConvNet: which of them the scores depend on, which are independent, and parts of what stands side by side."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchckn
from torchckn import exact_kernel, translate
from torchckn.errors import TranslationError
from torchckn.graph import Conv, DirectSum

from .networks import Written, conv, end, rows_of

Forward = Callable[[Any, Tensor], Tensor]


def translated(forward: Forward, classes: int | None = None, **options: Any) -> torchckn.CKN:
    """Of a function of two convolutions without biases, a linear layer on 8 features, and the image."""
    convolutions = [nn.Conv2d(2, 8, 3, bias=False) for _ in range(2)]
    return translate(
        Written(forward, a=convolutions[0], b=convolutions[1], fc=nn.Linear(8, 5)), (2, 7, 7), classes=classes, **options
    )


def layers_of(ckn: torchckn.CKN) -> list[str]:
    return [node.name for node in ckn.graph.nodes if isinstance(node, Conv)]


def copied(s: Any, x: Tensor) -> Tensor:
    first, second = end(F.relu(s.a(x))), end(F.relu(s.b(x)))
    second.copy_(first)
    return s.fc(second)


@pytest.mark.parametrize(
    "forward",
    [
        lambda s, x: s.fc(torch.stack([end(F.relu(s.a(x))), end(F.relu(s.b(x)))], 1)[:, 0]),
        lambda s, x: s.fc(end(F.relu(s.a(x))) / F.relu(s.b(x)).std((2, 3))),
        lambda s, x: s.fc(torch.cat([end(F.relu(s.a(x))), end(F.relu(s.b(x)))], 1)[:, :8]),
        copied,
    ],
)
def test_the_network_ends_with_what_the_scores_are_computed_from(forward: Forward) -> None:
    ckn = translated(forward)
    assert layers_of(ckn) == ["a"]
    assert ckn.head.in_features == 8


def test_parts_of_vectors_side_by_side_are_those_of_their_layers() -> None:
    ckn = translated(lambda s, x: s.fc(torch.cat([end(F.relu(s.a(x))), end(s.b(x))], 1)[:, 4:12]))
    images = torch.rand(3, 2, 7, 7)
    alone = [
        translated(lambda s, x: end(F.relu(s.a(x))), classes=2),
        translated(lambda s, x: end(s.b(x)), classes=2),
    ]
    torch.testing.assert_close(exact_kernel(ckn, images), sum(exact_kernel(one, images) for one in alone))
    assert sorted(node.filters for node in ckn.graph.nodes if isinstance(node, Conv)) == [4, 4]


def test_a_whole_flattened_map_can_be_taken_from_a_concatenation_and_a_part_of_it_cannot() -> None:
    def flat(s: Any, x: Tensor) -> Tensor:
        return torch.cat([s.a(x).flatten(1), end(s.b(x))], 1)

    assert layers_of(translated(lambda s, x: flat(s, x)[:, :200], classes=2)) == ["a"]
    assert layers_of(translated(lambda s, x: flat(s, x)[:, 200:], classes=2)) == ["b"]
    with pytest.raises(TranslationError, match="select channels or positions before flattening"):
        translated(lambda s, x: flat(s, x)[:, 3:205], classes=2)


def pooled(x: Tensor) -> Tensor:
    return F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)


@pytest.mark.parametrize(
    ("forward", "exact"),
    [
        (lambda h: h + F.conv2d(h, torch.nn.Parameter(torch.rand(8, 8, 1, 1))), True),
        (lambda h: pooled(h) - h, False),
        (lambda h: pooled(pooled(h)) + pooled(h), False),
        (lambda h: F.avg_pool2d(F.relu(h), 2) + F.avg_pool2d(h, 2), False),
        (lambda h: torch.maximum(h, pooled(h)), False),
    ],
)
def test_branches_of_the_same_units_are_not_independent(forward: Callable[[Tensor], Tensor], exact: bool) -> None:
    ckn = translated(lambda s, x: forward(s.a(x)), classes=2)
    row = next(row for row in ckn.report.rows if re.match("add|sub|max", row.name))
    assert (row.correspondence == "exact") == exact
    assert ("the branches are not independent" in row.reasons) == (not exact)


@pytest.mark.parametrize("function", [torch.mul, torch.div])
def test_a_constant_factor_may_be_passed_by_name(function: Any) -> None:
    number = 0.25 if function is torch.mul else 4.0
    ckn = translated(lambda s, x: function(s.a(x), other=number) + s.b(x), classes=2)
    (node,) = (node for node in ckn.graph.nodes if isinstance(node, DirectSum))
    assert node.weights == (0.25, 1.0)


def test_a_branch_that_is_written_into_a_buffer_is_not_taken_for_a_bias() -> None:
    def added(s: Any, x: Tensor) -> Tensor:
        buffer = torch.zeros(x.shape[0], 8, 5, 5)
        buffer.add_(F.relu(s.a(x)))
        return s.b(x) + buffer

    assert layers_of(translated(added, classes=2)) == ["a", "b"]

    def assigned(s: Any, x: Tensor) -> Tensor:
        buffer = torch.zeros(x.shape[0], 8, 5, 5)
        buffer[:, :4] = F.relu(s.a(x))[:, :4]
        return s.b(x) + buffer

    with pytest.raises(TranslationError, match=r"Tensor.__setitem__.*cannot be translated"):
        translated(assigned, classes=2)

    def returned(s: Any, x: Tensor) -> Tensor:
        buffer = torch.zeros(x.shape[0], 8, 5, 5)
        buffer[:, :4] = F.relu(s.a(x))[:, :4]
        return buffer.mean((2, 3))

    with pytest.raises(TranslationError, match="put results together with torch.cat or torch.stack"):
        translated(returned, classes=2)


def parts_of(forward: Forward, **layers: Any) -> dict[str, str]:
    """What the report says about parts of operations that have no counterpart."""
    ckn = translate(Written(forward, a=conv(1, 32), **layers), (1, 8, 8), classes=2)
    return {part.name: part.correspondence for row in ckn.report.rows for part in row.parts if row.name != "a"}


class Affine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = (nn.Parameter(torch.rand(32)) for _ in range(2))


def test_factors_and_shifts_of_functional_normalization_are_reported_as_those_of_modules() -> None:
    lost = {"weight": "dropped", "bias": "dropped"}
    assert parts_of(lambda s, x: F.group_norm(s.a(x), 2, s.p.weight, s.p.bias), p=Affine()) == lost
    assert parts_of(lambda s, x: F.group_norm(s.a(x), 2)) == {}
    assert parts_of(lambda s, x: F.layer_norm(s.a(x).permute(0, 2, 3, 1), (32,), s.p.weight, s.p.bias), p=Affine()) == lost
    assert parts_of(lambda s, x: s.norm(s.a(x)), norm=nn.GroupNorm(2, 32)) == lost
    blur = torch.ones(32, 1, 3, 3) / 9
    assert parts_of(lambda s, x: F.conv2d(s.a(x), blur, s.p.bias, groups=32), p=Affine()) == {"bias": "dropped"}


@pytest.mark.parametrize(("groups", "correspondence"), [(1, "exact"), (2, "exact"), (8, "inexact"), (32, "dropped")])
def test_groups_of_few_channels_have_norms_of_their_own(groups: int, correspondence: str) -> None:
    ckn = translate(Written(lambda s, x: s.norm(s.a(x)), a=conv(1, 32), norm=nn.GroupNorm(groups, 32)), (1, 8, 8), classes=2)
    assert rows_of(ckn)["norm"].correspondence == correspondence


def test_interpolation_by_a_factor_that_does_not_divide_the_size_is_inexact() -> None:
    for mode in ("nearest", "bilinear"):
        for factor, lost in ((2.0, {}), (0.35, {"scale_factor": "inexact"})):
            found = parts_of(lambda s, x, mode=mode, factor=factor: F.interpolate(s.a(x), scale_factor=factor, mode=mode))
            assert found == lost, (mode, factor)
    smooth = parts_of(lambda s, x: F.interpolate(s.a(x), size=(3, 3), mode="bilinear", antialias=True))
    assert smooth == {"antialias": "inexact"}


def test_the_exact_kernel_of_bytes_is_that_of_numbers_between_0_and_1() -> None:
    ckn = translated(lambda s, x: F.relu(s.a(x)), classes=2)
    images = torch.randint(0, 256, (2, 2, 7, 7), dtype=torch.uint8)
    torch.testing.assert_close(exact_kernel(ckn, images), exact_kernel(ckn, images / 255.0), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(exact_kernel(ckn, images, images), exact_kernel(ckn, images))
