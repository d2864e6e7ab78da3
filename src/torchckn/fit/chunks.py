"""The gradient of an objective of a whole batch, chunk by chunk: any batch size in bounded memory, exactly.

The objective couples the images of a batch only through their features. So: the features of the batch in chunks; the objective
and its gradient in those features; then backward chunk by chunk, with that gradient as the cotangent. Chunks that stay in the
cache are faster than one large piece, too. Filters' inverse roots are computed once for all chunks. The gradients of chunks are
added up in double precision and rounded once, so it does not matter which process computes which chunk.

Read first: :mod:`torchckn.fit.ulr`. Read next: :mod:`torchckn.fit.sphere`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from ..choices import Chunk, Precision
from ..distributed import totals
from ..errors import ConfigError, NumericalError
from ..network import Classifier
from ..nn.base import shared_projections
from ..nn.checks import require
from ..nn.devices import autocast, wide_dtype
from .features import CHUNK

T = TypeVar("T")

#: bytes of graphs that are kept from the first pass; images beyond go through the network twice
KEPT = 5 * 2**28


def batch_gradient(
    net: Classifier,
    images: Tensor,
    objective: Callable[[Tensor], tuple[Tensor, T]],
    chunk: Chunk = "auto",
    precision: Precision = "float32",
) -> tuple[Tensor, T]:
    """Add the gradient of ``objective(features)`` to the parameters' ``grad``; its value, and what it returns beside it.

    Args:
        objective: of the features (n, d) of all images, before scaling. Gradients of its own parameters count as well. Its value
            may be a vector that begins with it.
        chunk: images at a time; ``"all"``: the whole batch at once.
        precision: of convolutions and kernel maps; features are in the network's own.

    With several processes, each has its share of the images, and value and gradient are those of the sum of their objectives.
    """
    pieces = _pieces(net, images, chunk)
    with shared_projections(net) as roots:
        sums = _Sums([*(parameter for parameter in net.parameters() if parameter.requires_grad), *roots])
        first, size = _measured(lambda: _features(net, pieces[0], precision))
        fitting = max(1, KEPT // max(1, size))
        graphs = [first, *(_features(net, piece, precision) for piece in pieces[1:fitting])]
        random_state = torch.get_rng_state()  # so that dropout is the same in the second pass
        rest = pieces[fitting:]
        parts = [*(part.detach() for part in graphs), *features_in_chunks(net, rest, precision)]
        features = torch.cat(parts).requires_grad_()
        if precision == "float16":
            require(features.detach().isfinite(), lambda: _overflow("features"))
        value, other = objective(features)
        value.flatten()[0].backward()
        assert features.grad is not None
        cotangents = list(features.grad.split([len(piece) for piece in pieces]))
        for part, cotangent in zip(graphs, cotangents, strict=False):
            sums.add(part, cotangent)
        torch.set_rng_state(random_state)
        for piece, cotangent in zip(rest, cotangents[len(graphs) :], strict=True):
            sums.add(_features(net, piece, precision), cotangent)
        value = sums.finish(value.detach())
    if precision == "float16":
        for parameter in net.parameters():
            if parameter.grad is not None:
                require(parameter.grad.isfinite(), lambda: _overflow("gradients"))
    return value, other


def _overflow(what: str) -> NumericalError:
    return NumericalError(
        f"float16 overflowed: expected finite {what} of a batch, got infinity or NaN, because the largest number of float16 is "
        "65504; use precision='bfloat16', which has the range of float32, or precision='float32'"
    )


class _Sums:
    """Gradients of leaves, added up over chunks and processes in double precision and rounded once: in any order the same."""

    def __init__(self, leaves: list[Tensor]) -> None:
        self.leaves = leaves
        self.sums: dict[int, Tensor] = {}

    def add(self, features: Tensor, cotangent: Tensor) -> None:
        if not features.requires_grad:
            return
        for i, gradient in enumerate(torch.autograd.grad(features, self.leaves, cotangent, allow_unused=True)):
            if gradient is not None:
                if i not in self.sums:
                    self.sums[i] = torch.zeros_like(self.leaves[i], dtype=wide_dtype(gradient.device))
                self.sums[i] += gradient

    def finish(self, value: Tensor) -> Tensor:
        """Add the sums to the leaves' ``grad``; the sum of the processes' values, which travels with them."""
        summed, *gradients = totals(value.to(wide_dtype(value.device)), *self.sums.values())
        for i, whole in zip(self.sums, gradients, strict=True):
            leaf = self.leaves[i]
            leaf.grad = whole.to(leaf.dtype) if leaf.grad is None else leaf.grad + whole.to(leaf.dtype)
        return summed.to(value.dtype)


def _measured(forward: Callable[[], Tensor]) -> tuple[Tensor, int]:
    """What ``forward`` gives, and the bytes that its graph holds."""
    held: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        held[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        return forward(), sum(held.values())


@torch.no_grad()
def features_in_chunks(net: Classifier, pieces: list[Tensor], precision: Precision = "float32") -> list[Tensor]:
    """Features (n, d) of each piece, without a graph."""
    return [_features(net, piece, precision) for piece in pieces]


@torch.no_grad()
def batch_features(net: Classifier, images: Tensor, chunk: Chunk = "auto", precision: Precision = "float32") -> Tensor:
    """Features (n, d) of a batch, without a graph, as :func:`batch_gradient` computes them."""
    with shared_projections(net):
        return torch.cat(features_in_chunks(net, _pieces(net, images, chunk), precision))


def _features(net: Classifier, images: Tensor, precision: Precision) -> Tensor:
    own = net.head.weight
    with autocast(own.device, precision):
        return net.features(net.pixels(images)).to(own.dtype)


def _pieces(net: Classifier, images: Tensor, chunk: Chunk) -> list[Tensor]:
    coupled = [m for m in net.modules() if m.training and isinstance(m, _COUPLED)]
    if chunk == "auto":
        chunk = "all" if coupled else CHUNK
    if chunk == "all":
        return [images]
    if not isinstance(chunk, int) or chunk < 1:
        raise ConfigError(f"chunk: expected a number of images, 'auto' or 'all', got {chunk!r}")
    if coupled:
        raise ConfigError(
            f"a batch cannot be cut into chunks for a network with {type(coupled[0]).__name__}, whose output for an "
            "image depends on the whole batch; use chunk='all'"
        )
    return list(images.split(chunk))


#: modules whose output for an image depends on the other images of the batch
BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)
#: those, and modules whose output depends on random numbers
_COUPLED = (*BATCH_NORMS, nn.modules.dropout._DropoutNd)
