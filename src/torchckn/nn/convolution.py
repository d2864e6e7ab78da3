r"""Convolutions of the compiled layer that are not in its own passes, and their gradients, each in the way that is fastest.

.. math:: R = W E, \qquad \frac{\partial L}{\partial W} = G E^T, \qquad \frac{\partial L}{\partial E} = W^T G

Where each image is one patch, as in the last layers of a LeNet, these are products of matrices, for which libraries of
convolutions take several times as long. All images and responses are channels last; G is the gradient of R.

With a ``precision`` (mixed precision, :func:`torchckn.nn.devices.autocast`), what a library of convolutions computes is computed
in that dtype, and rounded to it; products of matrices and our own code stay in float32, as fast as there. Responses and their
gradient stay in bfloat16, which the compiled layer can read and write: converting them would take longer than computing them.

Read first: :mod:`torchckn.nn.direct`, :mod:`torchckn.nn.sums`. Read next: :mod:`torchckn.nn.fused`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import native
from .devices import own_precision
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

#: None: the dtype of the images
Precision = torch.dtype | None


def convolution(x: Tensor, weight: Tensor, patches: Patches, precision: Precision = None) -> Tensor:
    """Responses to filters (f, C, kh, kw), in one of ``native.RESPONSES``: (N, f, H', W')"""
    if patches.are_images:
        return products_in_units(_rows(x), _rows(weight).T, current_unit() or len(x))[:, :, None, None]
    images, filters = _cast(precision, x, weight)
    responses = convolve(images, filters, *patches.geometry)
    return dense(responses if responses.dtype in native.RESPONSES else responses.to(x.dtype))


def gradient_of_images(
    of_responses: Tensor, x: Tensor, weight: Tensor, patches: Patches, unit: int | None, precision: Precision = None
) -> Tensor:
    """From that of the responses; ``unit``: that of the forward pass, see :func:`torchckn.nn.sums.in_units`."""
    if patches.are_images:
        return _images(products_in_units(_rows(of_responses), _rows(weight), unit or len(x)), x.shape)
    if images_are_direct(weight, patches):
        return direct_gradient_of_images(of_responses.to(x.dtype), x, weight, patches)
    g, filters = _cast(precision, of_responses, weight)
    images = x if precision is None else torch.empty_like(x, dtype=precision)  # only their shape matters
    return dense(convolution_gradients(g, images, filters, patches.geometry, (True, False))[0].to(x.dtype))


def gradient_of_filters(
    of_responses: Tensor, x: Tensor, weight: Tensor, patches: Patches, unit: int | None, precision: Precision = None
) -> Tensor:
    """The sum over all images; those over a unit of them in single precision, all others in double precision."""
    unit = unit or len(x)
    if filters_are_direct(weight, patches):
        return direct_gradient_of_filters(of_responses.to(x.dtype), x, weight, patches)
    if not patches.are_images:
        g, images, filters = _cast(precision, of_responses, x, weight)
        return filter_gradient(g, images, filters, patches.geometry, unit)
    pairs = zip(_rows(of_responses).split(unit), _rows(x).split(unit), strict=True)
    with own_precision(x.device):  # a backward pass may be within autocast, too
        return _images(sum_in_double(of_some.T @ some for of_some, some in pairs), weight.shape)


def _cast(precision: Precision, *tensors: Tensor) -> tuple[Tensor, ...]:
    return tensors if precision is None else tuple(tensor.to(precision) for tensor in tensors)


def _rows(images: Tensor) -> Tensor:
    """Images, or filters, as rows: (N, C, H, W) -> (N, H W C), without a copy if they are channels last."""
    return images.detach().permute(0, 2, 3, 1).flatten(1)


def _images(rows: Tensor, shape: torch.Size) -> Tensor:
    """Rows as images of this shape, channels last: (N, H W C) -> (N, C, H, W)"""
    return rows.view(shape[0], *shape[2:], shape[1]).permute(0, 3, 1, 2)
