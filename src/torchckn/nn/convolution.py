r"""Convolutions of the compiled layer that are not in its own passes, and their gradients, each in the way that is fastest.

.. math:: R = W E, \qquad \frac{\partial L}{\partial W} = G E^T, \qquad \frac{\partial L}{\partial E} = W^T G

Where each image is one patch, as in the last layers of a LeNet, these are products of matrices, for which libraries of
convolutions take several times as long. All images and responses are channels last; G is the gradient of R.

Read first: :mod:`torchckn.nn.direct`, :mod:`torchckn.nn.sums`. Read next: :mod:`torchckn.nn.fused`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .direct import (
    Patches,
    convolution_gradients,
    dense,
    direct_gradient_of_filters,
    direct_gradient_of_images,
    filters_are_direct,
    images_are_direct,
)
from .geometry import convolve
from .sums import current_unit, filter_gradient, products_in_units, sum_in_double


def convolution(x: Tensor, weight: Tensor, patches: Patches) -> Tensor:
    """Responses to filters (f, C, kh, kw): (N, f, H', W')"""
    if patches.are_images:
        return products_in_units(_rows(x), _rows(weight).T, current_unit() or len(x))[:, :, None, None]
    return dense(convolve(x, weight, *patches.geometry))


def gradient_of_images(of_responses: Tensor, x: Tensor, weight: Tensor, patches: Patches, unit: int | None) -> Tensor:
    """From that of the responses; ``unit``: that of the forward pass, see :func:`torchckn.nn.sums.in_units`."""
    if patches.are_images:
        return _images(products_in_units(_rows(of_responses), _rows(weight), unit or len(x)), x.shape)
    if images_are_direct(weight, patches):
        return direct_gradient_of_images(of_responses, x, weight, patches)
    return dense(convolution_gradients(of_responses, x, weight, patches.geometry, (True, False))[0])


def gradient_of_filters(of_responses: Tensor, x: Tensor, weight: Tensor, patches: Patches, unit: int | None) -> Tensor:
    """The sum over all images; those over a unit of them in single precision, all others in double precision."""
    unit = unit or len(x)
    if filters_are_direct(weight, patches):
        return direct_gradient_of_filters(of_responses, x, weight, patches)
    if not patches.are_images:
        return filter_gradient(of_responses, x, weight, patches.geometry, unit)
    pairs = zip(_rows(of_responses).split(unit), _rows(x).split(unit), strict=True)
    return _images(sum_in_double(of_some.T @ some for of_some, some in pairs), weight.shape)


def _rows(images: Tensor) -> Tensor:
    """Images, or filters, as rows: (N, C, H, W) -> (N, H W C), without a copy if they are channels last."""
    return images.detach().permute(0, 2, 3, 1).flatten(1)


def _images(rows: Tensor, shape: torch.Size) -> Tensor:
    """Rows as images of this shape, channels last: (N, H W C) -> (N, C, H, W)"""
    return rows.view(shape[0], *shape[2:], shape[1]).permute(0, 3, 1, 2)
