"""The patches that filters are chosen from: those of the forward pass, varied ones, from as many images as there are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import torchckn
from torchckn.errors import DataError
from torchckn.fit import fit_filters
from torchckn.fit.patches import sample_patches, windows
from torchckn.graph import AveragePool, Conv, Dense, Graph, Local
from torchckn.nn import KernelConv2d, KernelLocal2d

from .training import IMAGES, seeded


@pytest.mark.parametrize(
    "layer",
    [
        KernelConv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2)),
        KernelLocal2d(2, 4, 3, (7, 6), padding=1),
    ],
    ids=["convolution", "local"],
)
def test_sampled_patches_are_those_that_the_forward_pass_sees(layer: Any) -> None:
    x = torch.randn(3, 2, 7, 6, generator=seeded())
    view = windows(layer, x)
    unfolded = F.unfold(x, layer.kernel_size, layer.dilation, layer.padding, layer.stride)  # (N, s, L)
    assert torch.equal(view.flatten(3).flatten(1, 2), unfolded.transpose(1, 2))
    assert view.untyped_storage().nbytes() < 4 * x.numel() * 4  # a view: nothing is copied but the padding


def test_a_patch_comes_from_another_image_each_and_is_not_constant() -> None:
    images = torch.zeros(40, 1, 6, 6)
    images[:, :, 3:, 3:] = (1 + torch.arange(40.0))[:, None, None, None]  # most patches are constant: zero, or one value
    ckn = torchckn.CKN(Graph((1, 6, 6), [Conv("conv", filters=4, kernel_size=3)]))
    picked = sample_patches(ckn, "conv", images, 25, generator=seeded())[0]
    assert ((picked.amax(1) - picked.amin(1)) > 0).all()
    assert len(set(picked.amax(1).tolist())) == len(picked)  # each image at most once
    assert len(picked) == 25


def test_patches_of_every_layer_come_from_different_images() -> None:
    marks = (1 + torch.arange(120.0)) / 120
    images = torch.rand(120, 1, 12, 12, generator=seeded()).clamp(min=0.1) * marks[:, None, None, None]
    ckn = torchckn.CKN(Graph((1, 12, 12), [Conv("a", filters=1, kernel_size=1), Conv("b", filters=2, kernel_size=2)]))
    images[:, :, ::2] = marks[:, None, None, None]  # every patch of the second layer has its image's mark in it
    layer = ckn.eval().kernel_layers()["a"]
    sample = sample_patches(ckn, "b", images, 120, generator=seeded())[0]
    largest = sample.amax(1) / layer(torch.ones(1, 1, 1, 1)).item() * 120
    assert sorted(largest.round().int().tolist()) == list(range(1, 121))


def test_fewer_images_than_patches_give_several_patches_each() -> None:
    ckn = torchckn.CKN(Graph((1, 12, 12), [Conv("conv", filters=4, kernel_size=3)]))
    assert sample_patches(ckn, "conv", IMAGES[:5], 40, generator=seeded())[0].shape == (40, 9)


def test_a_fully_connected_layer_sees_whole_images() -> None:
    ckn = torchckn.CKN(Graph((1, 12, 12), [Dense("dense", filters=3)]))
    (sample,) = sample_patches(ckn, "dense", IMAGES[:5], 5, generator=seeded())
    assert sorted(sample.tolist()) == sorted(IMAGES[:5].flatten(1).tolist())


# Parts without enough varied patches


def local(regions: int | None = 2) -> torchckn.CKN:
    return torchckn.CKN(Graph((1, 8, 8), [Local("local", filters=3, kernel_size=3, regions=regions)]), generator=seeded())


def dark_corner(n: int = 50) -> torch.Tensor:
    images = torch.rand(n, 1, 8, 8, generator=seeded())
    images[:, :, :5, :5] = 0  # all that the first of 2 x 2 regions sees
    return images


@pytest.mark.parametrize("init", ["kmeans", "sample"])
def test_a_region_that_is_always_dark_keeps_its_filters_and_others_get_theirs(init: str) -> None:
    ckn, before = local(), local().kernel_layers()["local"].filter_matrix().detach()
    fit_filters(ckn, dark_corner(), 200, init=init, generator=seeded())  # type: ignore[arg-type]
    after = ckn.kernel_layers()["local"].filter_matrix().detach()
    torch.testing.assert_close(after[0], before[0])
    for region in (1, 2, 3):
        assert (after[region] @ before[region].T).max() < 0.99
        assert (after[region] > -1e-6).all()  # patches of these images have no negative entries
    assert ckn(dark_corner()).isfinite().all()


def test_a_network_with_a_region_that_is_always_dark_can_be_trained() -> None:
    nodes = [Local("local", filters=3, kernel_size=3), AveragePool("pool", kernel_size=2)]
    ckn = torchckn.CKN(Graph((1, 8, 8), nodes), classes=2)
    data = dark_corner(), torch.arange(50) % 2
    result = torchckn.train(ckn, data, data, lam=0.1, steps=2, lr=2**-6, batch_size=25, patches=40, generator=seeded())
    assert all(torch.isfinite(torch.tensor(record["loss"])) for record in result.history[1:])


@pytest.mark.parametrize("regions", [2, 4, None])
def test_every_region_has_as_many_patches_as_asked_for_or_all_it_has(regions: int | None) -> None:
    images = dark_corner(30)
    images[:4, :, 2, 2] = 1  # a few patches in the corner
    ckn, count = local(regions), 25
    layer = ckn.kernel_layers()["local"]
    sample = sample_patches(ckn, "local", images, count, generator=seeded())
    patches = F.unfold(images, 3).mT  # (n, positions, s)
    varied = patches.amax(2) > patches.amin(2)
    assert isinstance(layer, KernelLocal2d)
    for region, picked in enumerate(sample):
        there = patches[:, layer.region_of == region][varied[:, layer.region_of == region]]
        assert len(picked) == min(count, len(there))
        assert {tuple(row) for row in picked.tolist()} <= {tuple(row) for row in there.tolist()}


@pytest.mark.parametrize("init", ["kmeans", "sample"])
def test_a_group_is_not_given_patches_in_which_its_own_channels_are_constant(init: str) -> None:
    ckn = torchckn.CKN(Graph((3, 8, 8), [Conv("grouped", filters=6, kernel_size=3, groups=3)]))
    images = torch.rand(60, 3, 8, 8, generator=seeded())
    images[:30, 1] = 0
    images[30:, 2] = 0.5
    for patches in sample_patches(ckn, "grouped", images, 90, generator=seeded()):
        assert patches.shape == (90, 9)
        assert (patches.amax(1) > patches.amin(1)).all()
    fit_filters(ckn, images, 90, init=init, generator=seeded())  # type: ignore[arg-type]
    assert ckn(images).isfinite().all()


def test_a_group_whose_channels_are_always_constant_keeps_its_filters() -> None:
    ckn = torchckn.CKN(Graph((2, 8, 8), [Conv("grouped", filters=4, kernel_size=3, groups=2)]), generator=seeded())
    images = torch.rand(20, 2, 8, 8, generator=seeded())
    images[:, 0] = 1
    before = ckn.kernel_layers()["grouped"].filter_matrix().detach().clone()
    after = fit_filters(ckn, images, 30, generator=seeded()).kernel_layers()["grouped"].filter_matrix().detach()
    torch.testing.assert_close(after[0], before[0])
    assert (after[1] > 0).all()


def test_an_error_is_raised_if_no_region_and_no_group_has_a_varied_patch() -> None:
    grouped = torchckn.CKN(Graph((2, 8, 8), [Conv("grouped", filters=4, kernel_size=3, groups=2)]))
    with pytest.raises(DataError, match="all patches that layer 'local' sees are constant"):
        fit_filters(local(), torch.zeros(9, 1, 8, 8))
    with pytest.raises(DataError, match="all patches that layer 'grouped' sees are constant"):
        fit_filters(grouped, torch.tensor([1.0, 2]).view(1, 2, 1, 1).expand(9, 2, 8, 8))  # whole patches are not constant


@pytest.mark.parametrize("as_what", ["images", "shuffling loader"])
@pytest.mark.parametrize(("name", "most"), [("conv", 20 * 36), ("dense", 20)])
def test_all_patches_there_are_come_once_each_if_they_are_fewer_than_asked_for(name: str, most: int, as_what: str) -> None:
    node = Conv(name, filters=4, kernel_size=3) if name == "conv" else Dense(name, filters=4)
    images = torch.rand(20, 1, 8, 8, generator=seeded())
    data = images if as_what == "images" else torch.utils.data.DataLoader(images, 6, shuffle=True)  # type: ignore[arg-type]
    (sample,) = sample_patches(torchckn.CKN(Graph((1, 8, 8), [node])), name, data, 10_000, generator=seeded())
    assert len(sample) == len(sample.unique(dim=0)) == most


@pytest.mark.parametrize("seed", range(5))
def test_no_patch_comes_twice_if_the_images_are_gone_through_again(seed: int) -> None:
    images = torch.zeros(40, 1, 12, 12)
    images[:, :, 4:9, 4:9] = torch.rand(40, 1, 5, 5, generator=seeded(seed))  # half of the patches are constant
    ckn = torchckn.CKN(Graph((1, 12, 12), [Conv("conv", filters=4, kernel_size=3, stride=2)]))
    (sample,) = sample_patches(ckn, "conv", images, 320, batch_size=16, generator=seeded(seed))
    patches = F.unfold(images, 3, stride=2).mT.flatten(0, 1)
    there = patches[patches.amax(1) > patches.amin(1)]
    assert len(sample) == len(sample.unique(dim=0)) == min(320, len(there))
