"""Relative error of a network's gradient in float32 against float64, for each method of the inverse square root.

Paper: section 5.2, "Accuracy of the gradient computation": relative errors against finite differences. Here the exact gradient is
that of the closed form in float64, which is checked against finite differences in float64 along random directions.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data import Part
from ..network import CKN
from ..nn.functional import filter_gram
from ..nn.invsqrt import inverse_sqrt
from ..nn.shared_roots import sharing


def gradient_errors(
    net: CKN, data: Part, generator: torch.Generator, *, images: int, methods: list[str], directions: int
) -> dict[str, Any]:
    """Relative errors of the gradient with respect to all filters, by method (``"eigh"``, ``"svd"``, ``"newton-20"``).

    ``errors``: of a network in float32 against float64. ``root_errors``: with only the inverse root in float32, everything
    else in float64. ``finite_differences``: relative difference between the float64 gradient and finite differences of the
    loss in float64, along ``directions`` random tangents.
    """
    indices = torch.randperm(len(data.images), generator=generator)[:images]
    pixels, labels = data.images[indices], data.labels[indices]
    wide = copy.deepcopy(net).double().train()
    with torch.no_grad():  # a random classifier, so that the loss depends on the filters
        drawn = torch.randn(wide.head.weight.shape, generator=generator, dtype=torch.float64)
        wide.head.weight.copy_(10 * drawn / drawn.norm(dim=1, keepdim=True))
    narrow = copy.deepcopy(wide).float()
    with torch.no_grad():  # the same filters in both precisions
        for weight, single in zip(_weights(wide), _weights(narrow), strict=True):
            weight.copy_(single)
    exact = _gradient(wide, pixels, labels)
    tangents = [_tangent(wide, generator) for _ in range(directions)]
    slopes = [_finite_difference(wide, pixels, labels, tangent) for tangent in tangents]
    return {
        "errors": {method: _relative_error(_gradient(narrow, pixels, labels, method), exact) for method in methods},
        "root_errors": {method: _relative_error(_gradient(wide, pixels, labels, method), exact) for method in methods},
        "finite_differences": _relative_distance(_inner_products(exact, tangents), slopes),
    }


def _loss(net: CKN, pixels: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(net(net.pixels(pixels)), labels)


def _gradient(net: CKN, pixels: Tensor, labels: Tensor, method: str | None = None) -> list[Tensor]:
    """The gradient with respect to the filters of each layer, in float64, projected onto the tangent spaces of their spheres.

    The Gram matrix is in float32 for Newton and SVD, and in float64 for the closed form, as in the library, and for the exact
    gradient (``method=None``).
    """
    name, _, iterations = (method or "eigh").partition("-")
    net.zero_grad()
    roots = {}
    for layer in net.kernel_layers().values():
        weight = layer.filter_matrix()
        rows = weight if method is None else weight.float()
        gram = filter_gram(rows.double() if name == "eigh" else rows, layer.kernel, layer.eps)
        root = inverse_sqrt(gram, name, iters=int(iterations or 20)).to(rows.dtype)
        roots[layer] = root.to(weight.dtype)
    with sharing(roots):
        _loss(net, pixels, labels).backward()
    return [_project_to_tangent(weight, weight.grad.double()) for weight in _weights(net) if weight.grad is not None]


def _weights(net: CKN) -> list[Tensor]:
    return [layer.weight for layer in net.kernel_layers().values() if layer.weight.requires_grad]


def _project_to_tangent(weight: Tensor, gradient: Tensor) -> Tensor:
    rows, flat = weight.detach().double().flatten(1), gradient.flatten(1)
    return flat - (flat * rows).sum(1, keepdim=True) / (rows * rows).sum(1, keepdim=True) * rows


def _tangent(net: CKN, generator: torch.Generator) -> list[Tensor]:
    drawn = [torch.randn(w.shape, generator=generator, dtype=torch.float64) for w in _weights(net)]
    return [_project_to_tangent(weight, part) for weight, part in zip(_weights(net), drawn, strict=True)]


@torch.no_grad()
def _finite_difference(net: CKN, pixels: Tensor, labels: Tensor, tangent: list[Tensor], step: float = 1e-5) -> float:
    """The slope of the loss along a tangent, by a central difference on the spheres."""
    initial = [weight.clone() for weight in _weights(net)]
    values = []
    for sign in (1, -1):
        for weight, start, part in zip(_weights(net), initial, tangent, strict=True):
            weight.copy_(start + sign * step * part.view_as(weight))
        net.normalize_()
        values.append(float(_loss(net, pixels, labels)))
    for weight, start in zip(_weights(net), initial, strict=True):
        weight.copy_(start)
    return (values[0] - values[1]) / (2 * step)


def _inner_products(gradient: list[Tensor], tangents: list[list[Tensor]]) -> list[float]:
    return [sum(float((g * t).sum()) for g, t in zip(gradient, tangent, strict=True)) for tangent in tangents]


def _relative_error(gradient: list[Tensor], exact: list[Tensor]) -> float:
    error = sum(float((g - e).square().sum()) for g, e in zip(gradient, exact, strict=True))
    return float((error / sum(float(e.square().sum()) for e in exact)) ** 0.5)


def _relative_distance(values: list[float], reference: list[float]) -> float:
    a, b = torch.tensor(values, dtype=torch.float64), torch.tensor(reference, dtype=torch.float64)
    return float((a - b).norm() / b.norm())
