r"""How well the layers of a network are conditioned, and how well they approximate their kernels.

.. math:: G = \kappa(W W^T) + \epsilon I, \qquad
          r(x) = 1 - \frac{\|\psi(x)\|^2}{k(x, x)}, \quad \psi(x) = G^{-1/2} k(W, x)

G is the matrix whose inverse square root a layer computes. r is the part of a patch that lies outside the subspace of the
filters: 0 if the Nystrom approximation is exact, 1 if the patch is orthogonal to all filters.

Read first: :mod:`torchckn.nn.functional`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..network import CKN
from ..nn.base import KernelLayer
from ..nn.functional import filter_blocks, filter_gram, projection
from ..nn.product import KernelProduct, tensor_products
from .patches import sample_patches

#: number of patches that the error of a layer is averaged over
PATCHES = 1000


@dataclass(frozen=True)
class LayerFacts:
    """One layer: extreme eigenvalues of its Gram matrix, over all its groups, regions or blocks, and its error."""

    name: str
    kernel: str
    filters: int
    eps: float
    smallest: float
    largest: float
    condition: float
    """the worst of its groups, regions or blocks"""
    error: float | None
    """mean of r over patches, if there were images"""


@torch.no_grad()
def layer_facts(ckn: CKN, images: Tensor | None) -> list[LayerFacts]:
    """Facts about every kernel layer; without images, no errors."""
    layers = []
    for name, layer in ckn.kernel_layers().items():
        blocks = filter_blocks(layer.filter_matrix().double(), layer.root_block)
        spectra = [torch.linalg.eigvalsh(filter_gram(block, layer.kernel, layer.eps)) for block in blocks]
        low, high = (torch.stack([eigenvalues[..., i] for eigenvalues in spectra]) for i in (0, -1))
        # Rounding may leave the smallest eigenvalue of a singular matrix below zero.
        condition = (high / low.clamp(min=0)).max()
        kernel = str(layer.kernel.spec())
        error = None if images is None else nystrom_error(ckn, name, layer, images)
        facts = float(low.min()), float(high.max()), float(condition), error
        layers.append(LayerFacts(name, kernel, layer.filters, layer.eps, *facts))
    return layers


@torch.no_grad()
def nystrom_error(ckn: CKN, name: str, layer: KernelLayer, images: Tensor) -> float:
    """The mean of r over patches of the layer's input."""
    generator = torch.Generator().manual_seed(0)
    sample = sample_patches(ckn, name, images, min(PATCHES, 4 * len(images)), generator=generator)  # (n, s) of each part
    weight = layer.filter_matrix().double()
    weight = weight.reshape(len(sample), -1, weight.shape[-1])  # (parts, f, s)
    root = projection(weight, layer.kernel, layer.eps, block=layer.root_block)
    errors = []
    for part, own_weight, own_root in zip(sample, weight, root, strict=True):
        patches = part.double()
        if isinstance(layer, KernelProduct):
            patches = tensor_products(*patches.split(layer.in_channels, -1))
        squares = patches.square().sum(-1, keepdim=True)
        coordinates = layer.kernel.map(patches @ own_weight.mT, squares) @ own_root  # (n, f)
        own = squares[..., 0] ** layer.kernel.degree  # k(x, x), as kappa(1) = 1
        errors.append(1 - coordinates.square().sum(-1) / own)
    return float(torch.cat(errors).mean())
