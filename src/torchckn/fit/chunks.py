"""The gradient of an objective of a whole batch, chunk by chunk: any batch size in bounded memory, exactly.

The objective couples the images of a batch only through their features. So: the features of the batch in chunks; the objective
and its gradient in those features; then backward chunk by chunk, with that gradient as the cotangent. Chunks that stay in the
cache are faster than one large piece, too. Filters' inverse roots are computed once for all chunks. Gradients are added up in
double precision and rounded once (:mod:`torchckn.nn.sums`), so it does not matter which process computes which part of a batch.

Read first: :mod:`torchckn.fit.ulr`. Read next: :mod:`torchckn.fit.sphere`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from torch import Tensor, nn

from ..choices import Chunk, Precision
from ..distributed import share, totals
from ..errors import ConfigError, NumericalError
from ..network import Classifier
from ..nn.base import KernelLayer
from ..nn.checks import require
from ..nn.devices import autocast, is_mixed, sums_in_units, wide_dtype
from ..nn.shared_roots import shared_projections
from ..nn.sums import GradientSums, in_units
from ..nn.walk import modules_of, parameters_of
from .defaults import GRAPH_MEMORY
from .features import CHUNK

T = TypeVar("T")


def batch_gradient(
    net: Classifier,
    images: Tensor,
    objective: Callable[[Tensor], tuple[Tensor, T]],
    chunk: Chunk = "auto",
    precision: Precision = "float32",
    batch_size: float | None = None,
    graph_memory: float = GRAPH_MEMORY,
) -> tuple[Tensor, T]:
    """Add the gradient of ``objective(features)`` to the parameters' ``grad``; its value, and what it returns beside it.

    Args:
        objective: of the features (n, d) of all images, before scaling. Gradients of its own parameters count as well. Its value
            may be a vector that begins with it.
        chunk: images at a time; ``"all"``: the whole batch at once.
        precision: of convolutions and kernel maps; features are in the network's own.
        batch_size: the number of images of all processes; by default there are no others.
        graph_memory: megabytes (2^20 bytes) of graphs that are kept from the first pass; images beyond go through the network
            twice. It does not change the result.

    With several processes, each has its share of the images, and value and gradient are those of the sum of their objectives.
    """
    unit = _unit_of_layers(net, batch_size or len(images), chunk, precision)
    pieces = _pieces(net, images, chunk, unit if graph_memory else None)
    with shared_projections(net) as roots:
        leaves = [*(parameter for parameter in parameters_of(net) if parameter.requires_grad), *roots]
        sums = GradientSums(leaves, unit)
        with sums.active():
            first, size = _measured(lambda: _features(net, pieces[0], precision))
            fitting = max(1, int(graph_memory * 2**20) // max(1, size))
            graphs = [first, *(_features(net, piece, precision) for piece in pieces[1:fitting])]
        random_state = torch.get_rng_state()  # so that dropout is the same in the second pass
        rest = pieces[fitting:]
        with in_units(sums.unit):
            parts = [*(part.detach() for part in graphs), *features_in_chunks(net, rest, precision)]
        features = torch.cat(parts).requires_grad_()
        if precision == "float16":
            require(features.detach().isfinite(), lambda: _overflow("features"))
        value, other = objective(features)
        value.flatten()[0].backward()
        assert features.grad is not None
        cotangents = list(features.grad.split([len(piece) for piece in pieces]))
        for part, cotangent in zip(graphs, cotangents, strict=False):
            sums.backward(part, cotangent)
        torch.set_rng_state(random_state)
        for piece, cotangent in zip(rest, cotangents[len(graphs) :], strict=True):
            with sums.active():
                part = _features(net, piece, precision)
            sums.backward(part, cotangent)
        value = _finish(sums, value.detach())
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


def _finish(sums: GradientSums, value: Tensor) -> Tensor:
    """Add the sums over all processes to the leaves' ``grad``; the sum of the processes' values, which travels with them."""
    numbers = sorted(sums.sums)  # the order in which layers added them may differ between processes
    summed, *gradients = totals(value.to(wide_dtype(value.device)), *(sums.sums[i] for i in numbers))
    for i, whole in zip(numbers, gradients, strict=True):
        leaf = sums.leaves[i]
        own = torch.empty_like(leaf).copy_(whole)  # in its dtype and memory layout
        leaf.grad = own if leaf.grad is None else leaf.grad + own
    return summed.to(value.dtype)


def share_of_batch(net: Classifier, batch_size: int, chunk: Chunk = "auto", precision: Precision = "float32") -> slice:
    """This process's part of a batch: whole units, see :func:`unit_of_sums`, unless shares were too unequal then."""
    unit = _unit_of_layers(net, batch_size, chunk, precision)
    if unit is None:
        return share(batch_size, unit_of_sums(net, batch_size, chunk, precision))
    return share(batch_size, unit, most=5 / 3)  # which up to four processes never exceed, with batches of 14 images or more


def unit_of_sums(net: Classifier, batch_size: float, chunk: Chunk = "auto", precision: Precision = "float32") -> int:
    """Images in a row that one process should have: between such units, a batch can be divided with the same result bit for bit.

    They are whole chunks where a layer leaves its sums over images to autograd.
    """
    return _unit_of_layers(net, batch_size, chunk, precision) or (chunk if isinstance(chunk, int) else CHUNK)


def _unit_of_layers(net: Classifier, batch_size: float, chunk: Chunk, precision: Precision) -> int | None:
    """Images whose gradients layers add up in their own precision: a quarter of a batch, within limits; None: all of a chunk."""
    device = net.head.weight.device
    if precision != "float32" or not sums_in_units(device) or is_mixed(device):
        return None
    layers = [module for module in modules_of(net) if isinstance(module, KernelLayer)]
    own = {*net.head.parameters(), *(weight for layer in layers for weight in layer.sphere_parameters())}
    rest = any(parameter.requires_grad and parameter not in own for parameter in parameters_of(net))
    if rest or not layers or not all(layer.sums_in_units for layer in layers):
        return None
    smallest, largest = UNITS
    unit = largest
    while unit > smallest and 4 * unit > batch_size:
        unit //= 2
    return unit if not isinstance(chunk, int) or chunk % unit == 0 else None


#: LARGE_CHUNK images in a chunk, for images of at most SMALL numbers, where that does not change the result: with CHUNK images in
#: each, a step on 256 takes 4 to 8 % longer
LARGE_CHUNK, SMALL = 2 * CHUNK, 4096
#: the smallest and the largest unit; the former is that of native/common.h. They take 1 to 9 % of a step, more if smaller.
UNITS = 4, 32


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
def batch_features(
    net: Classifier,
    images: Tensor,
    chunk: Chunk = "auto",
    precision: Precision = "float32",
    batch_size: float | None = None,
) -> Tensor:
    """Features (n, d) of a batch, without a graph, as :func:`batch_gradient` computes them."""
    unit = _unit_of_layers(net, batch_size or len(images), chunk, precision)
    with shared_projections(net), in_units(unit):
        return torch.cat(features_in_chunks(net, _pieces(net, images, chunk, unit), precision))


def _features(net: Classifier, images: Tensor, precision: Precision) -> Tensor:
    own = net.head.weight
    with autocast(own.device, precision):
        return net.features(net.pixels(images)).to(own.dtype)


def _pieces(net: Classifier, images: Tensor, chunk: Chunk, unit: int | None) -> list[Tensor]:
    """A batch in chunks; they may be large if layers add up images in units (``unit``, see :func:`_unit_of_layers`)."""
    coupled = [m for m in modules_of(net) if m.training and isinstance(m, _COUPLED)]
    check_chunk(coupled, chunk)
    if chunk == "auto":
        chunk = "all" if coupled else LARGE_CHUNK if unit and images[0].numel() <= SMALL else CHUNK
    if chunk == "all":
        return [images]
    if not isinstance(chunk, int) or chunk < 1:
        raise ConfigError(f"chunk: expected a number of images, 'auto' or 'all', got {chunk!r}")
    pieces = list(images.split(chunk))
    if (
        chunk > 1 and len(pieces) > 1 and len(pieces[-1]) == 1
    ):  # for one image alone, convolutions of torch have other last bits
        pieces[-2:] = [images[-len(pieces[-2]) - 1 :]]
    return pieces


def check_chunk(modules: Iterable[nn.Module], chunk: Chunk) -> None:
    """An error if batches are to be cut into chunks for modules, in training mode, that need all of a batch."""
    coupled = next((type(module).__name__ for module in modules if isinstance(module, _COUPLED)), None)
    if coupled and chunk not in ("auto", "all"):
        raise ConfigError(
            f"a batch cannot be cut into chunks for a network with {coupled}, whose output for an image depends on the whole "
            "batch or on random numbers; use chunk='all' (--chunk all)"
        )


#: modules whose output for an image depends on the other images of the batch
BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)
#: those, and modules whose output depends on random numbers
_COUPLED = (*BATCH_NORMS, nn.modules.dropout._DropoutNd)
