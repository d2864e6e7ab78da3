from __future__ import annotations

import numpy as np
import pytest
import torch

from torchckn.errors import ConfigError, DataError
from torchckn.nn import Whitening, whiten

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
