"""Filters that are fitted without labels, and the features that they give."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import torchckn
from torchckn.errors import ConfigError, DataError
from torchckn.fit import extract_features, fit_filters
from torchckn.fit.activations import Activations
from torchckn.fit.patches import sample_patches
from torchckn.graph import AveragePool, Conv, Dense, DirectSum, Graph, Local

from .training import IMAGES, seeded, two_layers


@pytest.mark.parametrize("init", ["kmeans", "sample", "random"])
def test_filters_are_fitted_layer_by_layer_on_the_sphere(init: str) -> None:
    ckn = two_layers()
    before = {name: layer.weight.detach().clone() for name, layer in ckn.kernel_layers().items()}
    assert fit_filters(ckn, IMAGES, 100, init=init, generator=seeded()) is ckn  # type: ignore[arg-type]
    for name, layer in ckn.kernel_layers().items():
        assert torch.equal(layer.weight, before[name]) == (name == "same")
        norms = layer.filter_matrix().norm(dim=-1)
        torch.testing.assert_close(norms, torch.ones_like(norms))
    assert ckn.training


def test_the_same_seed_gives_the_same_filters_bit_for_bit() -> None:
    fitted = [fit_filters(two_layers(), IMAGES, 80, generator=seeded(s)).state_dict() for s in (1, 1, 2)]
    names = [name for name in fitted[0] if name.endswith("weight") and "head" not in name and "same" not in name]
    assert all(torch.equal(fitted[0][n], fitted[1][n]) for n in names)
    assert not any(torch.equal(fitted[0][n], fitted[2][n]) for n in names)


def test_filters_are_directions_of_patches_for_init_sample() -> None:
    ckn = fit_filters(two_layers(), IMAGES, 50, init="sample", generator=seeded())
    patches = F.normalize(F.unfold(IMAGES, 3).transpose(1, 2).flatten(0, 1))
    nearest = (ckn.kernel_layers()["conv1"].filter_matrix() @ patches.T).max(1).values
    torch.testing.assert_close(nearest, torch.ones_like(nearest))


def test_fitted_filters_approximate_the_kernel_better_than_random_ones() -> None:
    ckn = torchckn.CKN(Graph((1, 12, 12), [Conv("conv1", filters=6, kernel_size=3)])).double()
    layer = ckn.kernel_layers()["conv1"]
    patches = F.unfold(IMAGES[:20].double(), 3).transpose(1, 2).flatten(0, 1)[::7]

    def error() -> float:
        images = patches.reshape(-1, 1, 3, 3)
        features = layer.eval()(images).flatten(1).detach()
        exact = layer.kernel.gram(patches)
        return float((features @ features.T - exact).norm() / exact.norm())

    before = error()
    fit_filters(ckn, IMAGES[20:], 100, generator=seeded())
    assert error() < before / 2


def test_groups_and_regions_get_filters_of_their_own() -> None:
    nodes = [Conv("grouped", filters=4, kernel_size=3, groups=2), Local("local", filters=3, kernel_size=2, regions=2)]
    ckn = torchckn.CKN(Graph((2, 8, 8), nodes))
    images = torch.rand(30, 2, 8, 8, generator=seeded())
    images[:, 1] = images[:, 1].sort(2).values  # the second channel looks different
    fit_filters(ckn, images, 30, generator=seeded())
    grouped = ckn.kernel_layers()["grouped"].filter_matrix()
    assert grouped.shape == (2, 2, 9)
    sample = sample_patches(ckn, "grouped", images, 20, generator=seeded())
    assert [patches.shape for patches in sample] == [(20, 9), (20, 9)]
    assert (sample[1].unflatten(1, (3, 3)).diff(dim=2) >= 0).all()
    assert ckn.kernel_layers()["local"].filter_matrix().shape == (4, 3, 16)


def test_data_are_streamed_and_enough_is_enough() -> None:
    seen: list[int] = []

    class Counting(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 120

        def __getitem__(self, i: int) -> torch.Tensor:
            seen.append(i)
            return IMAGES[i]

    ckn = torchckn.CKN(Graph((1, 12, 12), [Conv("conv", filters=4, kernel_size=3)]))
    fit_filters(ckn, Counting(), 30, batch_size=10, generator=seeded())
    assert len(seen) <= 40
    assert len(set(seen)) == len(seen)


def branches() -> torchckn.CKN:
    """A sum of the input of a layer and of what two layers make of it, so that a value is needed by several later nodes."""
    nodes = [
        Conv("conv1", filters=6, kernel_size=3, padding=1),
        Conv("conv2", filters=5, kernel_size=3, padding=1),
        Conv("conv3", filters=4, kernel_size=1),
        DirectSum("sum", inputs=("conv1", "conv3")),
        AveragePool("pool", kernel_size=2),
        Conv("conv4", filters=5, kernel_size=3),
        Dense("dense", filters=7),
    ]
    return torchckn.CKN(Graph((1, 12, 12), nodes), classes=3)


#: bytes of the activations of some of the batches that patches are sampled from
SOME = 2 * 16 * 11 * 12 * 12 * 4


@pytest.mark.parametrize("memory", [0, SOME])
@pytest.mark.parametrize("network", [two_layers, branches])
def test_filters_do_not_depend_on_the_memory_for_activations(network: Any, memory: int) -> None:
    enough, little = (
        fit_filters(network(), IMAGES, 100, batch_size=16, generator=seeded(), **options).kernel_layers()
        for options in ({}, {"memory": memory})
    )
    for name, layer in enough.items():
        assert torch.equal(layer.weight, little[name].weight)


def test_every_layer_sees_a_sampled_image_once() -> None:
    ckn = branches()
    seen = dict.fromkeys(ckn.kernel_layers(), 0)
    for name, layer in ckn.kernel_layers().items():
        layer.register_forward_pre_hook(lambda _, x, name=name: seen.update({name: seen[name] + len(x[0])}))
    fit_filters(ckn, IMAGES, 96, batch_size=16, generator=seeded())
    assert seen == {"conv1": 96, "conv2": 96, "conv3": 96, "conv4": 96, "dense": 0}
    fit_filters(ckn, IMAGES, 96, batch_size=16, memory=0, generator=seeded())
    assert seen["conv1"] == 96 + 4 * 96


@pytest.mark.parametrize("memory", [0, SOME])
def test_activations_stay_within_their_memory_and_are_those_of_the_network(memory: int) -> None:
    ckn = branches().eval()
    activations = Activations(ckn, IMAGES, 16, seeded(), memory)
    sizes = []
    for name in ckn.kernel_layers():
        inputs = []
        for (x,) in activations.inputs_of(name):
            sizes.append(sum(batch.bytes for batch in activations._kept))
            inputs.append(x)
        order = torch.cat(list(activations._images(0)))
        torch.testing.assert_close(torch.cat(inputs), ckn.inputs_of(name, order)[0])
    assert max(sizes) <= memory
    assert (max(sizes) > 0) == (memory > 0)


def test_bytes_are_taken_as_pixels_between_0_and_1() -> None:
    as_bytes = (IMAGES * 255).round().to(torch.uint8)
    fitted = [
        fit_filters(two_layers(), images, 60, generator=seeded()).kernel_layers()["conv1"].weight
        for images in (as_bytes, as_bytes.float() / 255)
    ]
    assert torch.equal(fitted[0], fitted[1])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: fit_filters(two_layers(), IMAGES, init="kmean"), ConfigError, "unknown init 'kmean'"),  # type: ignore[arg-type]
        (lambda: fit_filters(two_layers(), IMAGES, 0), ConfigError, "patches expected an integer"),
        (lambda: fit_filters(two_layers(), IMAGES[:0]), DataError, "there are no images to sample patches from"),
        (
            lambda: fit_filters(two_layers(), torch.ones(9, 1, 12, 12)),
            DataError,
            "layer .conv1. sees are constant",
        ),
        (lambda: fit_filters(two_layers(), torch.ones(9, 3, 12, 12)), DataError, r"images \(N, 1, 12, 12\), got"),
        (lambda: two_layers().inputs_of("conv3", IMAGES), ConfigError, "unknown layer 'conv3'"),
    ],
)
def test_what_cannot_be_fitted_is_refused_with_a_reason(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_features_are_those_of_the_network_in_any_batches() -> None:
    ckn = two_layers().eval()
    got, labels = extract_features(ckn, (IMAGES, torch.zeros(120, dtype=torch.long)), batch_size=7)
    torch.testing.assert_close(got, ckn.features(IMAGES))
    assert labels is not None
    assert extract_features(ckn, IMAGES)[1] is None


def test_filters_are_different_patches_for_init_sample_if_there_are_as_many() -> None:
    nodes = [Conv("conv", filters=64, kernel_size=3, init="sample"), Dense("dense", filters=2, init="sample")]
    ckn = torchckn.CKN(Graph((1, 8, 8), nodes))
    fit_filters(ckn, torch.rand(2, 1, 8, 8, generator=seeded()), generator=seeded())
    for layer in ckn.kernel_layers().values():
        cosines = layer.filter_matrix() @ layer.filter_matrix().T
        assert (cosines - 2 * torch.eye(len(cosines))).max() < 1 - 1e-6
