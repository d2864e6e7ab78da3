"""A(W) of every layer computed once for many passes, such as the chunks of a step, and differentiated once, at their end.

Read first: :mod:`torchckn.nn.base`. Read next: :mod:`torchckn.fit.chunks`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .base import KernelLayer
from .devices import wide_dtype
from .functional import gram_of_cosines
from .invsqrt import closed_form
from .walk import is_trained, modules_of


def shared_projections(net: nn.Module) -> AbstractContextManager[list[Tensor]]:
    """Within this context every layer's root is computed once, whatever the number of forward and backward passes.

    Layers that differ in their filters only have their roots computed together: most operations on small matrices take as long
    for all of them as for one. Roots of layers that are not trained are kept from step to step. The context gives the roots that
    have gradients, as leaves of the passes' graphs.
    """
    groups: dict[object, list[KernelLayer]] = {}
    roots: dict[KernelLayer, Tensor] = {}
    for module in modules_of(net):
        if isinstance(module, KernelLayer):
            batch = module.batching_key()
            if batch is not None and not is_trained(module):
                roots[module] = module.cached_root().root  # of an identity layer, say: it is the same in every step
            else:
                groups.setdefault(batch or module, []).append(module)
    for key, layers in groups.items():
        together = [key.projection()] if isinstance(key, KernelLayer) else _roots_together(layers)
        roots.update(zip(layers, together, strict=True))
    return sharing(roots)


@contextmanager
def sharing(roots: dict[KernelLayer, Tensor]) -> Iterator[list[Tensor]]:
    """Within this context the layers have these roots; their gradients go back through the roots at the end."""
    try:
        for layer, root in roots.items():
            has_gradient = root.requires_grad and is_trained(layer)  # a root may be one of several together
            layer._shared = root.detach().requires_grad_(has_gradient)
        yield [layer._shared for layer in roots if layer._shared is not None and layer._shared.requires_grad]
        used = [(root, layer._shared.grad) for layer, root in roots.items() if layer._shared is not None]
        pairs = [(root, grad) for root, grad in used if grad is not None]
        if pairs:
            torch.autograd.backward([root for root, _ in pairs], [grad for _, grad in pairs])
    finally:
        for layer in roots:
            layer._shared = None


def _roots_together(layers: list[KernelLayer]) -> list[Tensor]:
    first = layers[0]
    wide = wide_dtype(first.weight.device)
    rows = [layer.filter_matrix().to(wide) for layer in layers]
    cosines = torch.stack([_Cosines.apply(row) for row in rows])  # (layers, f, f)
    norms = cosines.detach().diagonal(dim1=1, dim2=2)
    if not bool(((norms > 0.81) & (norms < 1.21)).all()):
        for layer in layers:
            layer.projection()  # which says whose filters are not of norm 1
    roots = closed_form(gram_of_cosines(cosines, first.kernel, first.eps), first._spectrum)
    return list(roots.to(first.weight.dtype).unbind())


class _Cosines(torch.autograd.Function):
    """W W^T of filters (f, s), whose gradient (G + G^T) W is one product, where automatic differentiation makes two."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        return rows @ rows.mT

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (rows,) = ctx.saved_tensors
        return (grad + grad.mT) @ rows
