from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import torchckn
from torchckn.errors import ConfigError, DataError
from torchckn.fit.methods import ULR, MethodOptions
from torchckn.graph import Conv, Dense, Graph, Whiten
from torchckn.nn import Whitening, whiten, whitening
from torchckn.nn.whitening import whiten_by, whitening_matrices

from . import oracles


@pytest.mark.parametrize("size", [1, 3, 5])
@pytest.mark.parametrize("eps", [1e-3, 0.1])
def test_whitening_equals_the_patch_by_patch_oracle(size: int, eps: float, generator: torch.Generator) -> None:
    images = torch.rand(3, 2, 7, 6, generator=generator, dtype=torch.float64)
    if size == 1:
        assert whiten(images, (1, 1), eps).abs().max() < 1e-6  # a pixel minus its own mean is zero
        return
    expected = np.stack([oracles.whiten(image, size, eps) for image in images.numpy()])
    np.testing.assert_allclose(whiten(images, (size, size), eps), expected, atol=1e-9)


def test_whitened_patches_are_uncorrelated_with_unit_variance_where_there_is_any(generator: torch.Generator) -> None:
    images = torch.rand(4, 3, 32, 32, generator=generator, dtype=torch.float64)
    patches = whiten(images, eps=1e-9).flatten(2)
    variances = torch.linalg.eigvalsh(patches @ patches.mT / patches.shape[2])
    one_direction_a_channel = torch.cat([torch.zeros(3), torch.ones(24)]).double()
    torch.testing.assert_close(variances, one_direction_a_channel.expand_as(variances), atol=1e-6, rtol=0)


def test_an_image_is_whitened_by_itself_whatever_its_batch(generator: torch.Generator) -> None:
    images = torch.rand(5, 3, 8, 8, generator=generator)
    torch.testing.assert_close(whiten(images)[2:3], whiten(images[2:3]))
    images = torch.rand(70, 3, 32, 32, generator=generator)
    whole = whitening_matrices(images)
    for size in (1, 2, 9, 69):  # bit for bit, so that a resumed run is exact
        assert torch.equal(torch.cat([whitening_matrices(some) for some in images.split(size)]), whole)


def test_contrast_does_not_matter(generator: torch.Generator) -> None:
    images = torch.rand(2, 3, 16, 16, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(whiten(7 * images), whiten(images))


def test_an_all_zero_image_stays_zero_and_has_a_finite_gradient() -> None:
    images = torch.zeros(1, 3, 6, 6, requires_grad=True)
    whitened = whiten(images)
    assert torch.equal(whitened, torch.zeros(1, 27, 6, 6))
    whitened.sum().backward()
    assert images.grad is not None
    assert torch.isfinite(images.grad).all()


def test_whitening_has_the_gradient_of_finite_differences(generator: torch.Generator) -> None:
    images = torch.rand(1, 1, 3, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: whiten(x, eps=0.1), images)


def test_a_small_eps_is_fine_in_float32_and_an_empty_batch_stays_empty(generator: torch.Generator) -> None:
    assert torch.isfinite(whiten(torch.rand(2, 3, 8, 8, generator=generator), eps=1e-8)).all()
    assert whiten(torch.zeros(0, 3, 8, 8)).shape == (0, 27, 8, 8)


def test_the_module_checks_its_input() -> None:
    with pytest.raises(DataError, match="floating-point images .* of torch.uint8"):
        whiten(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))
    assert Whitening(3)(torch.rand(2, 3, 8, 8)).shape == (2, 27, 8, 8)
    with pytest.raises(DataError, match=r"\(N, 3, H, W\), got \(2, 1, 8, 8\)"):
        Whitening(3)(torch.rand(2, 1, 8, 8))
    with pytest.raises(DataError, match="finite input"):
        Whitening(1)(torch.full((1, 1, 8, 8), torch.nan))
    with pytest.raises(ConfigError, match="an integer root >= 1, got 0; use 2 to whiten"):
        Whitening(3, root=0)
    with pytest.raises(ConfigError, match="eps > 0"):
        Whitening(3, eps=0)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_matrices_that_are_kept_give_the_same_patches(size: int, generator: torch.Generator) -> None:
    images = torch.rand(4, 3, 9, 8, generator=generator)
    matrices = whitening_matrices(images, size)
    assert matrices.shape == (4, 3 * size**2, 3 * size**2 + 1)
    assert torch.equal(whiten_by(images, matrices, size), whiten(images, size))


#: bytes of the whitening matrices of an image of three channels, in float32
EACH = 27 * 28 * 4


@pytest.mark.parametrize(("memory", "kept"), [(0, 0), (10 * EACH, 10), (11 * EACH - 1, 10), (100 * EACH, 30)])
def test_an_image_is_decomposed_once_as_long_as_there_is_memory(
    memory: int, kept: int, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = torch.rand(30, 3, 8, 8, generator=generator)
    layer, computed = Whitening(3), []
    monkeypatch.setattr(layer, "_matrices", lambda x: computed.append(len(x)) or whitening_matrices(x))
    expected = whiten(images)
    with layer.keeping(memory) as matrices:
        for batch in torch.arange(30).split(7):
            torch.testing.assert_close(layer(images[batch]), expected[batch])
        assert len(matrices) == kept
        computed.clear()
        order = torch.randperm(30, generator=generator)
        torch.testing.assert_close(layer(images[order]), expected[order])
        assert sum(computed) == 30 - kept
    computed.clear()
    layer(images)
    assert computed == [30], "after the context nothing is kept"


def test_a_copy_of_a_network_shares_what_is_kept(generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.rand(5, 3, 8, 8, generator=generator)
    layer = Whitening(3)
    with layer.keeping():
        expected = layer(images)
        copied = copy.deepcopy(layer)
        monkeypatch.setattr(copied, "_matrices", lambda _: pytest.fail("computed again"))
        assert torch.equal(copied(images), expected)


def test_kept_matrices_are_never_those_of_another_image(generator: torch.Generator) -> None:
    images = torch.rand(5, 3, 8, 8, generator=generator)
    layer = Whitening(3)
    with layer.keeping() as matrices:
        layer(images)
        changed = images.clone()
        changed[2, 0, 0, 0] = torch.nextafter(changed[2, 0, 0, 0], torch.tensor(2.0))  # the last bit of one pixel
        layer(changed)
        assert len(matrices) == 6
        images[0] += torch.rand(3, 8, 8, generator=generator)  # in place
        torch.testing.assert_close(layer(images), whiten(images))
        for other in (images.double(), images.reshape(5, 3, 4, 16), images[:0]):
            torch.testing.assert_close(layer(other), whiten(other))
        assert len(matrices) == 7


def test_kept_matrices_do_not_hide_the_gradient(generator: torch.Generator) -> None:
    images = torch.rand(1, 1, 3, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    layer = Whitening(1, eps=0.1)
    with layer.keeping():
        with torch.no_grad():
            layer(images)
        assert torch.autograd.gradcheck(layer, images)


#: bytes of a whitened image of 8x8 pixels and three channels, in float32
WHITENED = 27 * 8 * 8 * 4


@pytest.mark.parametrize(("memory", "again"), [(0, 3), (10 * WHITENED, 2), (100 * WHITENED, 0)])
def test_a_batch_that_a_step_sees_again_is_whitened_once_as_long_as_there_is_memory(
    memory: int, again: int, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = torch.rand(30, 3, 8, 8, generator=generator).split(10)
    layer, calls = Whitening(3), []
    monkeypatch.setattr(whitening, "KEPT_IMAGES", memory)
    monkeypatch.setattr(whitening, "whiten_by", lambda *arguments: calls.append(1) or whiten_by(*arguments))
    with layer.keeping():
        with layer.keeping_images():
            first = [layer(batch) for batch in batches]
            calls.clear()
            assert all(torch.equal(layer(batch), before) for batch, before in zip(batches, first, strict=True))
            assert len(calls) == again
        calls.clear()
        layer(batches[0])
        assert len(calls) == 1, "after the step nothing is kept"


def test_whitened_batches_are_never_those_of_other_images_and_are_not_rounded_in_mixed_precision(
    generator: torch.Generator,
) -> None:
    images = torch.rand(4, 3, 8, 8, generator=generator)
    layer = Whitening(3)
    with layer.keeping(), layer.keeping_images():
        layer(images)
        for other in (images.flip(0), images[:3], images + 1e-3, images.double()):
            torch.testing.assert_close(layer(other), whiten(other))
        with torch.autocast("cpu", torch.bfloat16):
            whitened = layer(images), whiten(images)
    assert all(torch.equal(each, whiten(images)) for each in whitened)


def test_a_step_with_the_exact_classifier_whitens_its_images_once_with_equal_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    images, labels = torch.rand(20, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 10
    calls: list[int] = []
    monkeypatch.setattr(whitening, "whiten_by", lambda *arguments: calls.append(1) or whiten_by(*arguments))
    states = []
    for memory, expected in ((2**27, 2 * 1), (0, 2 * 2)):
        monkeypatch.setattr(whitening, "KEPT_IMAGES", memory)
        nodes = [Whiten("whiten"), Conv("conv", filters=4), Dense("dense", filters=5)]
        net = torchckn.CKN(Graph((1, 8, 8), nodes), generator=torch.Generator().manual_seed(0))
        method = ULR(net, MethodOptions(lam=2**-8))
        calls.clear()
        with whitening.every_whitening(net, Whitening.keeping):
            for _ in range(2):
                method.step(images, labels, 2**-6)
        assert len(calls) == expected
        states.append(net.state_dict())
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
