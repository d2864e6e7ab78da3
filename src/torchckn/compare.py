"""How well a ConvNet's random features and a CKN's features approximate the exact kernel.

Paper: section 3.2 ("the downside to using such a random feature approximation is that it produces less concise approximations
of kernels than e.g., the Nystrom method"): here it can be measured, for any network and images.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from .choices import Weights
from .errors import ConfigError, DataError
from .exact import exact_kernel
from .fit.filters import fit_filters
from .graph import Graph
from .kernels.base import require_tensor
from .network import CKN
from .nn.normalize import wide_pixels
from .plots import new_figure, save_figure
from .tables import render

METHODS: tuple[Weights, ...] = ("nystrom", "random-features")


@dataclass(frozen=True)
class ComparisonRow:
    filters: int
    method: Weights
    errors: tuple[float, ...]
    """relative error of the Gram matrix in the Frobenius norm, one per seed"""

    @property
    def median(self) -> float:
        return statistics.median(self.errors)


@dataclass(frozen=True)
class KernelComparison:
    """The errors, which print as a table; ``plot`` draws a figure, ``to_json`` returns plain data."""

    rows: tuple[ComparisonRow, ...]
    images: int

    def __str__(self) -> str:
        table = Table(caption=f"{self.images} images, median of {len(self.rows[0].errors)} seeds (lowest to highest)")
        table.caption_justify = "left"
        table.add_column("filters", justify="right")
        for title in ("CKN (Nystrom)", "random features"):
            table.add_column(f"error of {title}", justify="right")
        for filters in sorted({row.filters for row in self.rows}):
            cells = [row for method in METHODS for row in self.rows if (row.filters, row.method) == (filters, method)]
            table.add_row(
                str(filters),
                *(f"{_percent(row.median)} ({_percent(min(row.errors))} to {_percent(max(row.errors))})" for row in cells),
            )
        return render(table)

    def to_json(self) -> dict[str, Any]:
        return {"images": self.images, "rows": [asdict(row) for row in self.rows]}

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """A figure of the errors over the number of filters; saved to ``path`` if it is given. Needs matplotlib."""
        figure = new_figure(6, 4, dpi=150)
        axes = figure.subplots()
        for method, label, marker in zip(METHODS, ("CKN (Nyström)", "random features"), "os", strict=True):
            rows = sorted((row for row in self.rows if row.method == method), key=lambda row: row.filters)
            x = [row.filters for row in rows]
            axes.plot(x, [row.median for row in rows], marker=marker, label=label)
            axes.fill_between(x, [min(row.errors) for row in rows], [max(row.errors) for row in rows], alpha=0.2)
        axes.set(xscale="log", yscale="log", xlabel="filters per layer", ylabel="relative error of the Gram matrix")
        counts = sorted({row.filters for row in self.rows})
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.set_xticks([], minor=True)
        axes.set_title("Error against the exact kernel")
        axes.grid(alpha=0.3, which="both")
        axes.legend()
        if path is not None:
            save_figure(figure, path)
        return figure


def _percent(value: float) -> str:
    return f"{100 * value:.2g} %" if value < 0.095 else f"{100 * value:.0f} %"


def compare_kernels(
    network: CKN | Graph,
    images: Tensor,
    filters: Sequence[int] = (8, 32, 128),
    *,
    held_out: int = 8,
    seeds: int = 3,
    patches: int = 2_000,
    batch_size: int = 256,
) -> KernelComparison:
    """Relative errors of two approximations of a network's exact kernel, for several numbers of filters per layer.

    Args:
        network: a translated network, or a graph, with linear, arc-cosine or RBF kernels (which have random features),
            without max pooling, for images of up to about 16x16 pixels.
        images: (n, C, H, W). The kernel is compared on the first ``held_out`` images; the CKN's filters are computed from
            the others (k-means on ``patches`` patches per layer).
        filters: numbers of filters per layer.
        seeds: number of repetitions.
    """
    graph = network.current_graph() if isinstance(network, CKN) else network
    if not filters or seeds < 1 or held_out < 1:
        raise ConfigError(
            "compare_kernels expected at least one number of filters, and seeds and held_out of at least 1, got "
            f"filters={filters!r}, seeds={seeds!r}, held_out={held_out!r}"
        )
    require_tensor("compare_kernels", images)
    if images.ndim != 4 or len(images) <= held_out:
        raise DataError(f"compare_kernels expected more than {held_out} images (n, C, H, W), got {tuple(images.shape)}")
    images = wide_pixels(images)
    test_images, train_images = images[:held_out], images[held_out:]
    exact = exact_kernel(graph, test_images)
    rows = []
    for count in filters:
        wider = graph.with_filters(count)
        for method in METHODS:
            errors = []
            for seed in range(seeds):
                generator = torch.Generator().manual_seed(seed)
                ckn = CKN(wider, weights=method, generator=generator, device=images.device, dtype=images.dtype).eval()
                fit_filters(ckn, train_images, patches, restarts=1, batch_size=batch_size, generator=generator)
                with torch.no_grad():
                    features = ckn.features(test_images)
                errors.append(float((features @ features.T - exact).norm() / exact.norm()))
            rows.append(ComparisonRow(count, method, tuple(errors)))
    return KernelComparison(tuple(rows), held_out)
