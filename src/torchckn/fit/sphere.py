r"""Stochastic gradient steps for filters that live on spheres.

.. math:: w \leftarrow \operatorname{Proj}_{S} (w - \gamma\, g), \qquad g = \nabla_w f / \|\nabla_w f\| \text{ if normalized}

Paper: section 4.3 "Stochastic gradient optimization on manifolds", Algorithm 3 (step 3: every filter's gradient is scaled to unit
norm, so that one learning rate serves all layers) and appendix "Stochastic gradient optimization on manifolds". Read next:
:mod:`torchckn.fit.schedules`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..errors import ConfigError, NumericalError
from ..nn.checks import require


class SphereSGD(Optimizer):
    """SGD on products of unit spheres, with the interface of ``torch.optim``.

    Args:
        params: parameters or groups of them. A group may have a key ``dims``: how many trailing dimensions of its parameters
            make up one point on the sphere (by default all but the first); 0 for positive numbers such as bandwidths, which
            take their steps in the logarithm. :func:`torchckn.nn.sphere_groups` makes such groups for a network.
        lr: learning rate.
        normalize: scale the gradient of every filter to unit norm, as the paper does. A filter with zero gradient stays
            (with momentum, it keeps its velocity).
        momentum: of the steps; the velocity is tangent to the sphere, made of the gradient's tangent part, and moved along by
            parallel transport.

    Example:
        >>> from torchckn.nn import KernelConv2d, sphere_groups
        >>> layer = KernelConv2d(1, 8, 5)
        >>> optimizer = SphereSGD(sphere_groups(layer), lr=2**-6)
        >>> layer(torch.rand(4, 1, 28, 28)).square().mean().backward()
        >>> optimizer.step()
        >>> torch.allclose(layer.filter_matrix().norm(dim=1), torch.ones(8))
        True
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float,
        normalize: bool = True,
        momentum: float = 0.0,
    ) -> None:
        if not 0 <= lr < float("inf"):
            raise ConfigError(f"lr expected a number >= 0, got {lr!r}")
        if not 0 <= momentum < 1:
            raise ConfigError(f"momentum expected a number from 0 to 1 (without 1), got {momentum!r}")
        super().__init__(params, {"lr": lr, "normalize": normalize, "momentum": momentum, "dims": None})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        if group["dims"] is None and any(parameter.ndim < 2 for parameter in group["params"]):
            del self.param_groups[-1]
            raise ConfigError(
                "SphereSGD expected filters, got a parameter of one dimension or none, such as a bias or a bandwidth; pass "
                "torchckn.nn.sphere_groups(network), which has filters and bandwidths, and train others by another optimizer"
            )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step; ``closure``, if given, computes the gradients first."""
        value = None
        if closure is not None:
            with torch.enable_grad():
                value = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, parameter.grad, group)
        return value

    def _move(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        dims = parameter.ndim - 1 if group["dims"] is None else group["dims"]
        points, directions = _rows(parameter, dims), _rows(gradient, dims)
        momentum, state = group["momentum"], self.state[parameter]
        if not dims:
            directions = points * directions  # the gradient in the logarithm
        elif momentum:
            directions = tangent(points, directions)
        if group["normalize"]:
            directions = unit_or_zero(directions)
        if momentum:
            velocity = state.get("velocity")
            directions = directions if velocity is None else _rows(velocity, dims) * momentum + directions
        step = -group["lr"] * directions
        moved = project_to_sphere(points + step) if dims else points * step.exp()
        if momentum:
            carried = transport(points, moved, directions) if dims else directions
            state["velocity"] = carried.reshape(parameter.shape)
        parameter.copy_(moved.reshape(parameter.shape))


def _rows(tensor: Tensor, dims: int) -> Tensor:
    """One row a point: (points, coordinates); all coordinates in one row if the tensor is not on a sphere."""
    return tensor.flatten(-dims).flatten(0, -2) if dims else tensor.reshape(1, -1)


def unit_or_zero(rows: Tensor) -> Tensor:
    """Rows of unit norm; rows that are zero stay zero."""
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / norms.where(norms > 0, 1.0)


def project_to_sphere(rows: Tensor) -> Tensor:
    """The nearest points of the unit sphere."""
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    require(
        (norms > 0) & norms.isfinite(),
        lambda: NumericalError("a step made a filter zero or not finite; use a smaller learning rate"),
    )
    return rows / norms


def project_to_ball(vector: Tensor, radius: float) -> Tensor:
    """The nearest point of the ball of this radius around zero, in the Euclidean norm of all entries together."""
    norm = torch.linalg.vector_norm(vector)
    return torch.where(norm > radius, vector * (radius / norm), vector)


def tangent(points: Tensor, vectors: Tensor) -> Tensor:
    """The part of each vector that is tangent to the sphere at its point: rows of unit norm, and rows."""
    return vectors - (points * vectors).sum(1, keepdim=True) * points


def transport(start: Tensor, end: Tensor, vectors: Tensor) -> Tensor:
    """Tangent vectors at ``start`` moved along the geodesics to ``end``: lengths and angles stay as they are."""
    middle = start + end
    return vectors - ((vectors * end).sum(1, keepdim=True) / (1 + (start * end).sum(1, keepdim=True))) * middle
