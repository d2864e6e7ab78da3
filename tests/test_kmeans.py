"""Spherical k-means."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from torchckn.errors import ConfigError, DataError
from torchckn.fit import spherical_kmeans

from .training import seeded


def clusters(n: int = 600, k: int = 6, s: int = 20, spread: float = 0.1) -> tuple[torch.Tensor, torch.Tensor]:
    g = seeded()
    centres = F.normalize(torch.randn(k, s, generator=g))
    which = torch.randint(k, (n,), generator=g)
    return centres[which] + spread * torch.randn(n, s, generator=g), centres


def test_kmeans_finds_clusters_that_are_there() -> None:
    points, centres = clusters()
    found = spherical_kmeans(points, 6, restarts=3, generator=seeded())
    cosines = found.centroids @ centres.T
    assert sorted(cosines.argmax(1).tolist()) == list(range(6))
    assert cosines.max(1).values.min() > 0.98
    torch.testing.assert_close(found.centroids.norm(dim=1), torch.ones(6))


def test_the_objective_is_the_mean_cosine_and_never_falls() -> None:
    points, _ = clusters(spread=0.5)
    objectives = [spherical_kmeans(points, 8, iterations=i, tol=0, generator=seeded()).objective for i in (1, 2, 4, 8, 32)]
    assert objectives == sorted(objectives)
    best = spherical_kmeans(points, 8, generator=seeded())
    by_hand = (F.normalize(points) @ best.centroids.T).max(1).values.mean().item()
    assert best.objective == pytest.approx(by_hand, abs=1e-6)


def test_more_restarts_are_no_worse() -> None:
    points, _ = clusters(spread=1.0)
    one, many = (spherical_kmeans(points, 10, restarts=r, generator=seeded()).objective for r in (1, 5))
    assert many >= one


def test_the_same_seed_gives_the_same_centroids_bit_for_bit() -> None:
    points, _ = clusters(spread=0.7)
    one, same, other = (spherical_kmeans(points, 7, generator=seeded(s)).centroids for s in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_chunks_bound_the_memory_and_change_nothing() -> None:
    points, _ = clusters()
    whole, parts = (spherical_kmeans(points.double(), 6, generator=seeded(), chunk=c) for c in (2**22, 60))
    torch.testing.assert_close(whole.centroids, parts.centroids)


@pytest.mark.parametrize("k", [1, 5, 40])
def test_fewer_directions_than_centroids_and_empty_clusters_are_repaired(k: int) -> None:
    points = torch.eye(4).repeat(10, 1)
    found = spherical_kmeans(points, k, generator=seeded())
    assert torch.isfinite(found.centroids).all()
    torch.testing.assert_close(found.centroids.norm(dim=1), torch.ones(k))
    if k >= 4:
        assert found.objective == pytest.approx(1)


@pytest.mark.parametrize(
    ("points", "k", "error", "message"),
    [
        (torch.ones(3), 1, DataError, r"points \(n, s\) of real numbers, got \(3,\)"),
        (torch.ones(3, 2), 4, ConfigError, "between 1 and 3 centroids"),
        (torch.zeros(3, 2), 1, DataError, "finite nonzero points"),
        (torch.full((3, 2), torch.nan), 1, DataError, "finite nonzero points"),
    ],
)
def test_points_that_will_not_do_are_refused(points: torch.Tensor, k: int, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        spherical_kmeans(points, k)
