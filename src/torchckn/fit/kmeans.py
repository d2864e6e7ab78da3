r"""Spherical k-means: directions that a set of unit vectors gathers around.

.. math:: \max_{c_1, \dots, c_k \in S} \; \frac1n \sum_{i=1}^n \max_j \langle x_i, c_j \rangle

Paper: section 3.1 ("Approximating the kernels") and Algorithm 2: how the filters of a layer are chosen, unsupervised. Lloyd's
algorithm with k-means++ seeding; the best of several restarts counts. Read next: :mod:`torchckn.fit.activations`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..distributed import gathered, share
from ..errors import ConfigError, DataError

#: points whose cosines are computed at a time, at most: they stay in the cache
BLOCK = 1024
#: multiplications beyond which several processes share the work of an iteration, instead of each doing all of it
MUCH = 2**26
#: restarts are compared when a round gains less than this many times the tolerance
SCREENING = 100


class KMeansResult(NamedTuple):
    centroids: Tensor
    """(k, s), unit rows"""
    objective: float
    """the mean cosine between points and their nearest centroids: larger is better"""
    iterations: int
    """of the restart that was best"""


@torch.no_grad()
def spherical_kmeans(
    points: Tensor,
    k: int,
    *,
    restarts: int = 1,
    iterations: int = 100,
    tol: float = 3e-7,
    generator: torch.Generator | None = None,
    chunk: int = 2**22,
) -> KMeansResult:
    """Cluster the directions of ``points`` (n, s); on the device and in the dtype of the points.

    Args:
        restarts: number of random starts; only the best one is continued until ``tol``.
        iterations: the most rounds of Lloyd's algorithm a restart.
        tol: stop when the objective gains less than this.
        generator: decides everything that is random.
        chunk: how many cosines to hold at a time, which bounds the memory.
    """
    if points.ndim != 2 or not points.is_floating_point():
        raise DataError(
            f"spherical_kmeans expected points (n, s) of real numbers, got {tuple(points.shape)} of {points.dtype}"
        )
    if not 1 <= k <= len(points):
        raise ConfigError(
            f"spherical_kmeans expected between 1 and {len(points)} centroids for {len(points)} points, got {k}"
        )
    if restarts < 1 or iterations < 1:
        raise ConfigError(
            f"spherical_kmeans expected restarts and iterations of at least 1, got {restarts} and {iterations}"
        )
    norms = torch.linalg.vector_norm(points, dim=1, keepdim=True)
    if not bool((norms > 0).all()) or not bool(torch.isfinite(norms).all()):
        raise DataError("spherical_kmeans expected finite nonzero points, got some that are zero, NaN or infinite")
    points = points / norms
    rows = max(1, min(chunk // k, BLOCK))
    runs = (_lloyd(points, _seed(points, k, generator), iterations, SCREENING * tol, rows) for _ in range(restarts))
    best = max(runs, key=lambda result: result.objective)
    finished = _lloyd(points, best.centroids, iterations - best.iterations, tol, rows)
    return finished._replace(iterations=best.iterations + finished.iterations)


def _seed(points: Tensor, k: int, generator: torch.Generator | None) -> Tensor:
    """k-means++: each next centroid is a point drawn with probability proportional to 1 - its nearest cosine.

    Of several candidates the one is taken that leaves the least: a greedy step that costs little and helps a lot.
    """
    candidates = 2 + int(torch.tensor(float(k)).log().item())
    first = int(torch.randint(len(points), (1,), generator=generator))
    centers = [first]
    nearest = points @ points[first]  # of each point, the cosine with the nearest centroid so far
    for _ in range(k - 1):
        weights = (1 - nearest).clamp_(min=0).double().cpu()
        if float(weights.sum()) <= 0:  # fewer different directions than centroids
            weights = torch.ones_like(weights)
        drawn = torch.multinomial(weights, candidates, replacement=True, generator=generator).to(points.device)
        after = torch.maximum(points[drawn] @ points.T, nearest)  # (candidates, n)
        best = int(after.sum(1).argmax())
        nearest = after[best]
        centers.append(int(drawn[best]))
    return points[centers].clone()


def _lloyd(points: Tensor, centroids: Tensor, iterations: int, tol: float, rows: int) -> KMeansResult:
    before, done = -2.0, 0
    while True:
        cosines, nearest = _assign(points, centroids, rows)
        objective = float(cosines.double().mean())
        if done == iterations or objective - before < tol:
            return KMeansResult(centroids, objective, done)
        before, done = objective, done + 1
        centroids = _update(points, centroids, cosines, nearest)


def _assign(points: Tensor, centroids: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """The cosine of each point with its nearest centroid, and which that is.

    Of several processes, each does some of the blocks if there is much to do; the numbers are the same.
    """
    shared = points.numel() * len(centroids) > MUCH
    blocks = points.split(rows)
    parts = [_row_maxima(some @ centroids.T) for some in (blocks[share(len(blocks))] if shared else blocks)]
    none = points.new_empty(0), torch.empty(0, dtype=torch.long, device=points.device)
    cosines, nearest = (torch.cat(part) for part in zip(none, *parts, strict=True))
    return (gathered(cosines), gathered(nearest)) if shared else (cosines, nearest)


def _row_maxima(cosines: Tensor) -> tuple[Tensor, Tensor]:
    if cosines.device.type == "cpu" and cosines.dtype in (torch.float32, torch.float64):
        # numpy's argmax is vectorised where torch's is not: up to three times faster
        return cosines.amax(1), torch.from_numpy(cosines.numpy().argmax(1))
    values, indices = cosines.max(1)
    return values, indices


def _update(points: Tensor, centroids: Tensor, cosines: Tensor, nearest: Tensor) -> Tensor:
    sums = torch.zeros_like(centroids).index_add_(0, nearest, points)
    counts = torch.bincount(nearest, minlength=len(centroids))
    norms = torch.linalg.vector_norm(sums, dim=1)
    empty = (counts == 0) | (norms <= torch.finfo(points.dtype).eps)
    if bool(empty.any()):  # an empty cluster goes to the points that are worst off
        worst = cosines.argsort()[: int(empty.sum())]
        sums[empty] = points[worst]
        norms[empty] = 1
    return sums / norms[:, None]
