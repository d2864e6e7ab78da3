r"""The Hermite expansion of an activation, from which its dual kernel is made.

.. math:: a(s z) = \sum_k a_k h_k(z), \qquad a_k = E_{z \sim \mathcal N(0, 1)}[a(s z)\, h_k(z)]

with the normalized Hermite polynomials :math:`h_k` (Daniely, Frostig and Singer, 2016, section 4). The means are computed by
Gauss quadrature. One Gauss-Hermite rule for the whole line is exact for smooth functions but converges slowly where there is a
kink (0.1% at 100 nodes for ReLU), so the line is divided into cells with a Gauss-Legendre rule each, and cells are halved until
halving them changes nothing. Read next: :mod:`torchckn.kernels.dual`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import ConfigError

Function = Callable[[Tensor], Tensor]

#: beyond it, the Gaussian density is below 1e-55; sqrt(density) times any Hermite polynomial is below 1e-27
_EDGE = 16.0
#: nodes per cell, halvings of a cell, and the most cells
_NODES, _HALVINGS, _MOST_CELLS = 16, 45, 2**15
#: absolute error of one cell's mean, in units of the largest mean square
_CELL_ERROR = 1e-14


class Expansion(NamedTuple):
    """The expansion of an activation up to a power, as parts of its mean square."""

    parts: list[float]
    """a_k^2 / E[a^2] for each power k"""
    even: float
    """the sum of all of them, to infinity, with even k"""
    odd: float
    """and with odd k"""
    mean_square: float
    """E[a^2]"""


def expand(function: Function, scale: float, highest: int) -> Expansion:
    """The expansion of ``function(scale * z)`` up to h_k with k = ``highest``."""
    z, weights = _quadrature(function, scale)  # on z > 0, where the even and the odd part of the function are all of it
    even, odd = _parts(function, scale * z)
    squares = [float(2 * (weights * part.square()).sum()) for part in (even, odd)]
    mean_square = sum(squares)
    if not 0 < mean_square < math.inf:
        raise ConfigError("expected an activation that is not zero everywhere, got one whose mean square is zero")
    # sqrt(density) is divided between the two factors, so that neither overflows.
    root = _density(z).sqrt()
    weighted = [weights / root * part for part in (even, odd)]
    before, current = torch.zeros_like(z), root
    parts = []
    for k in range(highest + 1):
        parts.append(float(2 * (weighted[k % 2] * current).sum()) ** 2 / mean_square)
        before, current = current, (z * current - math.sqrt(k) * before) / math.sqrt(k + 1)
    return Expansion(parts, squares[0] / mean_square, squares[1] / mean_square, mean_square)


def growth(function: Function, scale: float) -> float:
    """d such that E[a(s z)^2]^(1/2) grows like s^d around s = ``scale``: 1 for ReLU, 0 for a step function."""
    step = 1e-3
    low, high = (expand(function, scale * math.exp(sign * step), 0).mean_square for sign in (-1, 1))
    return math.log(high / low) / (4 * step)


def _density(z: Tensor) -> Tensor:
    return torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)


def _parts(function: Function, u: Tensor) -> tuple[Tensor, Tensor]:
    """The even and the odd part of the function at u."""
    plus, minus = _evaluate(function, u), _evaluate(function, -u)
    return (plus + minus) / 2, (plus - minus) / 2


def _evaluate(function: Function, u: Tensor) -> Tensor:
    with torch.no_grad():
        values = function(u.clone())
        alone = function(u[::2].clone())
    are_tensors = isinstance(values, Tensor) and values.shape == u.shape and isinstance(alone, Tensor)
    if not are_tensors or not _are_close(values[::2], alone):
        raise ConfigError(
            "expected an activation that acts on each number separately and is not random, got a function that does not; "
            "write a subclass of Kernel instead"
        )
    if not bool(torch.isfinite(values).all()):
        raise ConfigError(f"expected an activation that is finite up to {float(u.abs().max()):g}, got NaN or infinity")
    return values.to(torch.float64)


def _are_close(values: Tensor, others: Tensor) -> bool:
    """Not equal bit for bit: vectorized code rounds differently at the end of a tensor."""
    values, others = values.to(torch.float64), others.to(torch.float64)
    return values.shape == others.shape and torch.allclose(values, others, rtol=1e-6, atol=1e-6 * float(others.abs().max()))


def _quadrature(function: Function, scale: float) -> tuple[Tensor, Tensor]:
    """Nodes on z > 0 and their weights, the density included: sum(weights * f(nodes)) is the integral of f times the density."""
    nodes, weights = _legendre(_NODES)
    left = torch.arange(0, _EDGE, 0.5, dtype=torch.float64)
    right = left + 0.5
    finished: list[tuple[Tensor, Tensor]] = []
    largest = 0.0
    for _ in range(_HALVINGS):
        middle = (left + right) / 2
        halves = [_integrals(function, scale, a, b, nodes, weights) for a, b in ((left, middle), (middle, right))]
        whole = _integrals(function, scale, left, right, nodes, weights)
        largest = max(largest, float(whole.abs().max()))
        settled = ((halves[0] + halves[1] - whole).abs() <= _CELL_ERROR * largest).all(1)
        finished.append((left[settled], right[settled]))
        left, right = (torch.cat([a[~settled], b[~settled]]) for a, b in ((left, middle), (middle, right)))
        if not len(left) or len(left) > _MOST_CELLS:
            break
    if len(left) > _MOST_CELLS:
        raise ConfigError(
            f"the activation changes too quickly to be integrated at scale {scale:g}; use a smaller scale or a smoother function"
        )
    finished.append((left, right))  # around jumps: narrower than any digit that counts
    starts, ends = (torch.cat([cell[i] for cell in finished]) for i in (0, 1))
    z = _nodes(starts, ends, nodes).flatten()
    return z, ((ends - starts)[:, None] / 2 * weights).flatten() * _density(z)


def _integrals(function: Function, scale: float, left: Tensor, right: Tensor, nodes: Tensor, weights: Tensor) -> Tensor:
    """For each cell, the integrals of the two parts and of their squares, times the density: (cells, 4)"""
    z = _nodes(left, right, nodes)
    even, odd = (part.view_as(z) for part in _parts(function, (scale * z).flatten()))
    values = torch.stack([even, odd, even.square(), odd.square()], 1) * _density(z)[:, None]
    return (values * weights).sum(2) * ((right - left)[:, None] / 2)


def _nodes(left: Tensor, right: Tensor, nodes: Tensor) -> Tensor:
    return (left + right)[:, None] / 2 + (right - left)[:, None] / 2 * nodes


def _legendre(count: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights of the Gauss-Legendre rule on [-1, 1] (Golub and Welsch, 1969)."""
    k = torch.arange(1, count, dtype=torch.float64)
    off_diagonal = k / (4 * k * k - 1).sqrt()
    nodes, vectors = torch.linalg.eigh(torch.diag(off_diagonal, 1) + torch.diag(off_diagonal, -1))
    return nodes, 2 * vectors[0].square()
