"""Spherical k-means compared with faiss: objective and time on the same patches, with the same number of restarts.

python -m benchmarks.clusters            # needs faiss: pip install "torchckn[bench]"
"""

from __future__ import annotations

import time

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from torchckn import CKN, data
from torchckn.fit import spherical_kmeans
from torchckn.fit.patches import sample_patches
from torchckn.graph import Conv, Graph

RESTARTS, SEEDS = 3, 5


def patches(name: str) -> Tensor:
    """10,000 non-constant 5x5 patches of unit norm, from different images if there are enough."""
    images = data.load(name).train.images
    ckn = CKN(Graph(tuple(images.shape[1:]), [Conv("conv", filters=8, kernel_size=(5, 5))]))
    vectors = sample_patches(ckn, "conv", images, 10_000, generator=torch.Generator().manual_seed(0))[0]
    return vectors / vectors.norm(dim=1, keepdim=True)


def cluster_torchckn(points: Tensor, k: int, seed: int) -> Tensor:
    return spherical_kmeans(points, k, restarts=RESTARTS, generator=torch.Generator().manual_seed(seed)).centroids


def cluster_faiss(points: Tensor, k: int, seed: int) -> Tensor:
    import faiss

    clustering = faiss.Kmeans(
        points.shape[1], k, niter=100, nredo=RESTARTS, spherical=True, seed=seed, max_points_per_centroid=10**9
    )
    clustering.train(points.numpy())
    return torch.from_numpy(clustering.centroids)


def clusters_table(name: str) -> Table:
    points = patches(name)
    table = Table(title=f"Spherical k-means, 10,000 patches of {name}, {RESTARTS} restarts, mean of {SEEDS} seeds")
    for column in ("centroids", "objective", "objective (faiss)", "seconds", "seconds (faiss)", "time relative to faiss"):
        table.add_column(column, justify="right")
    for k in (32, 128):
        scores: dict[str, list[float]] = {"torchckn": [], "faiss": []}
        times = {"torchckn": 0.0, "faiss": 0.0}
        for seed in range(SEEDS):
            for library, cluster in (("torchckn", cluster_torchckn), ("faiss", cluster_faiss)):
                start = time.perf_counter()
                centroids = cluster(points, k, seed)
                times[library] += (time.perf_counter() - start) / SEEDS
                scores[library].append(float((points @ centroids.T).amax(1).mean()))
        cells = [f"{sum(values) / SEEDS:.5f}" for values in scores.values()] + [f"{value:.2f}" for value in times.values()]
        table.add_row(str(k), *cells, f"{100 * times['torchckn'] / times['faiss']:.0f} %")
    return table


if __name__ == "__main__":
    for data_set in ("mnist-mini", "cifar10"):
        Console(width=120).print(clusters_table(data_set))
