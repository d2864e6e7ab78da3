r"""The exact kernel of a network, which its features approximate better the more filters they have.

.. math:: K(x, y) = \sum_p \langle \phi(x)_p, \phi(y)_p \rangle

Paper: section 3.1, "Network construction" and "Approximating the kernels": a layer's kernel depends on the features of the
previous layer only through their inner products, so these are computed layer by layer. For two images they are a tensor G with
``G[p, q] = <F(x)_p, F(y)_q>`` for all positions p and q, and every layer maps G to the next G. The cost is quadratic in the
number of positions: fine for images up to about 16x16, and the reason why the paper approximates the kernel.
Read next: :mod:`torchckn.translation`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .errors import ConfigError, DataError, NumericalError
from .graph import Graph
from .graph.grams import PairGrams
from .kernels.base import require_tensor
from .network import CKN
from .nn.checks import check_finite
from .nn.normalize import wide_pixels

#: maximum size of one block of image pairs, in numbers (512 MB of float64)
_BLOCK = 2**26


def exact_kernel(network: CKN | Graph, x: Tensor, y: Tensor | None = None) -> Tensor:
    """K(x, y) for all images of ``x`` (n, C, H, W) against all of ``y`` (m, C, H, W): (n, m), in float64.

    ``y=None`` means ``x``. This is the limit of ``ckn.features(x) @ ckn.features(y).T`` as the number of filters per layer grows.
    It depends on a network's current bandwidths, and not on its filters. Not differentiable.
    """
    graph = network.current_graph() if isinstance(network, CKN) else network
    if not isinstance(graph, Graph):
        raise ConfigError(f"exact_kernel expected a torchckn.CKN or a torchckn.Graph, got {type(network).__name__}")
    for images in (x, x if y is None else y):
        require_tensor("exact_kernel", images)
        if images.ndim != 4 or tuple(images.shape[1:]) != graph.input_shape:
            raise DataError(f"exact_kernel expected images (n, *{graph.input_shape}), got {tuple(images.shape)}")
        check_finite(images)
    positions = max(shape[1] * shape[2] for shape in graph.shapes.values() if len(shape) == 3)
    side = int((_BLOCK / positions**2) ** 0.5) - 1  # a block of side x side pairs, and each image with itself
    if side < 1:
        raise DataError(
            f"exact_kernel needs {positions}^2 numbers for each pair of images, more than fits into memory; "
            "use smaller images, up to about 32x32"
        )
    with torch.no_grad():
        left = wide_pixels(x)
        right = left if y is None else wide_pixels(y)
        rows = [torch.cat([_block(graph, a, b) for b in right.split(side)], 1) for a in left.split(side)]
    result = torch.cat(rows) if rows else left.new_zeros(0, len(right))
    if not torch.isfinite(result).all():
        raise NumericalError(
            "this network has no exact kernel, because a KernelLocal2d layer is followed by an operation that mixes its regions, "
            "whose features have no common coordinates; flatten after the local layer, or pool within its regions"
        )
    return result


def _block(graph: Graph, x: Tensor, y: Tensor) -> Tensor:
    n, m = len(x), len(y)
    images = torch.cat([x, y])
    indices = torch.arange(n + m, device=x.device)
    left = torch.cat([indices, indices[:n].repeat_interleave(m)])
    right = torch.cat([indices, indices[n:].repeat(n)])
    pixels: dict[str, Tensor] = {graph.input: images}
    grams: dict[str, PairGrams] = {}

    def gram_of(name: str) -> PairGrams:
        if name not in grams:
            first, second = pixels[name][left], pixels[name][right]
            grams[name] = PairGrams(torch.einsum("bchw,bcij->bhwij", first, second), left, right)
        return grams[name]

    for node in graph.nodes:
        shapes = [graph.shapes[i] for i in node.inputs]
        if node.acts_on_pixels:
            pixels[node.name] = node.module(*shapes)(*(pixels[i] for i in node.inputs))
        else:
            grams[node.name] = node.exact([gram_of(i) for i in node.inputs], shapes)
    return gram_of(graph.output).whole().values[n + m :].view(n, m)
