"""Convolutions beside the compiled layer, and their gradients: compared with those of torch in double precision."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from torchckn.nn import native
from torchckn.nn.convolution import convolution, gradient_of_filters, gradient_of_images
from torchckn.nn.direct import Geometry, convolution_gradients, direct_gradient_of_filters, patches_of
from torchckn.nn.sums import in_units

needs_library = pytest.mark.skipif(native.library() is None, reason="needs the compiled code")


def channels_last(*shape: int, generator: torch.Generator) -> Tensor:
    return torch.randn(*shape, generator=generator).contiguous(memory_format=torch.channels_last)


def exact_gradients(of_responses: Tensor, x: Tensor, weight: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor]:
    return convolution_gradients(of_responses.double(), x.double(), weight.double(), geometry, (True, True))


def assert_close(found: Tensor, expected: Tensor) -> None:
    assert found.shape == expected.shape
    error = (found.double() - expected).abs().max() / expected.abs().max()
    assert error < 2e-6, float(error)


@needs_library
@given(
    images=st.integers(1, 9),
    filters=st.integers(1, 20),
    blocks=st.integers(1, 3),
    size=st.tuples(st.integers(1, 3), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 2)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 3)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    pixels=st.tuples(st.integers(5, 9), st.integers(7, 12)),
    threads=st.integers(1, 3),
)
def test_the_gradient_of_wide_filters_is_that_of_torch(
    images: int,
    filters: int,
    blocks: int,
    size: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    pixels: tuple[int, int],
    threads: int,
) -> None:
    generator, geometry = torch.Generator().manual_seed(0), Geometry(stride, padding, dilation)
    channels = blocks * (16 if native.register_width() <= 8 else 32)
    x = channels_last(images, channels, *pixels, generator=generator)
    weight = torch.randn(filters, channels, *size, generator=generator)
    patches = patches_of(x.shape, size, geometry)
    of_responses = channels_last(images, filters, *patches.output, generator=generator)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = direct_gradient_of_filters(of_responses, x, weight, patches)
    finally:
        torch.set_num_threads(before)
    assert found.dtype == torch.float64
    assert_close(found, exact_gradients(of_responses, x, weight, geometry)[1])


@needs_library
def test_the_gradient_of_wide_filters_is_the_same_bit_for_bit_if_units_are_divided(generator: torch.Generator) -> None:
    geometry = Geometry((1, 1), (1, 1), (1, 1))
    x, weight = channels_last(22, 32, 6, 6, generator=generator), torch.randn(40, 32, 3, 3, generator=generator)
    of_responses = channels_last(22, 40, 6, 6, generator=generator)

    def of_some(first: int, end: int) -> Tensor:
        some = x[first:end]
        return direct_gradient_of_filters(of_responses[first:end], some, weight, patches_of(some.shape, (3, 3), geometry))

    assert torch.equal(of_some(0, 22), of_some(0, 8) + of_some(8, 12) + of_some(12, 22))


@pytest.mark.parametrize(("channels", "filters", "size"), [(1, 3, (4, 5)), (16, 24, (5, 5)), (48, 7, (1, 1))])
@pytest.mark.parametrize("unit", [None, 4])
def test_images_that_are_one_patch_are_multiplied_as_matrices(
    channels: int, filters: int, size: tuple[int, int], unit: int | None, generator: torch.Generator
) -> None:
    geometry = Geometry((2, 1), (0, 0), (1, 1))
    x, weight = (
        channels_last(10, channels, *size, generator=generator),
        torch.randn(filters, channels, *size, generator=generator),
    )
    patches = patches_of(x.shape, size, geometry)
    assert patches.are_images
    with in_units(unit):
        responses = convolution(x, weight, patches)
    assert_close(responses, torch.nn.functional.conv2d(x.double(), weight.double()))
    of_responses = torch.randn(responses.shape, generator=generator)
    of_x, of_weight = exact_gradients(of_responses, x, weight, geometry)
    assert_close(gradient_of_images(of_responses, x, weight, patches, unit), of_x)
    found = gradient_of_filters(of_responses, x, weight, patches, unit)
    assert found.dtype == torch.float64
    assert_close(found, of_weight)


@pytest.mark.parametrize("geometry", [Geometry((1, 1), (1, 1), (1, 1)), Geometry((1, 1), (0, 0), (2, 2))])
def test_other_images_are_not_taken_for_one_patch(geometry: Geometry, generator: torch.Generator) -> None:
    assert not patches_of(torch.Size((2, 3, 3, 3)), (2, 2), geometry).are_images
    assert not patches_of(torch.Size((2, 3, 1, 1)), (3, 3), Geometry((1, 1), (1, 1), (1, 1))).are_images
