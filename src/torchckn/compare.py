"""How close are a ConvNet's random features, a CKN's features, and the kernel that both approximate?

Paper: section 3.2 ("the downside to using such a random feature approximation is that it produces less concise approximations
of kernels than e.g., the Nystrom method"): here it can be measured, on one's own network and images.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from .choices import Weights
from .errors import ConfigError, DataError
from .exact import exact_kernel
from .fit.filters import fit_filters
from .graph import Graph
from .network import CKN
from .tables import render

METHODS: tuple[Weights, ...] = ("nystrom", "random-features")


@dataclass(frozen=True)
class ComparisonRow:
    filters: int
    method: Weights
    errors: tuple[float, ...]
    """relative error of the Gram matrix in the Frobenius norm, one a seed"""

    @property
    def median(self) -> float:
        return statistics.median(self.errors)


@dataclass(frozen=True)
class KernelComparison:
    """Prints as a table; ``plot`` draws it, ``to_json`` gives it as data."""

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
        """A figure of the errors over the number of filters; written to ``path`` if one is given."""
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise ConfigError("plot needs matplotlib; install it with: pip install 'torchckn[plot]'") from error
        figure = Figure(figsize=(6, 4), layout="constrained")
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
        axes.set_title("Distance to the exact kernel")
        axes.grid(alpha=0.3, which="both")
        axes.legend()
        if path is not None:
            figure.savefig(Path(path), dpi=150)
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
    """Relative errors of two approximations of a network's exact kernel, over the number of filters in each layer.

    Args:
        network: a translated network, or a graph; of layers with random features (linear, arc-cosine, RBF kernels), without
            max pooling, on images of up to about 16x16 pixels.
        images: (n, C, H, W). The first ``held_out`` are compared; the others are where the CKN's filters come from
            (k-means on ``patches`` patches of each layer).
    """
    graph = network.current_graph() if isinstance(network, CKN) else network
    if not filters or seeds < 1 or held_out < 1:
        raise ConfigError(f"compare_kernels expected filters, seeds and held_out, got {filters!r}, {seeds!r}, {held_out!r}")
    if images.ndim != 4 or len(images) <= held_out:
        raise DataError(f"compare_kernels expected more than {held_out} images (n, C, H, W), got {tuple(images.shape)}")
    images = images.double()
    compared, others = images[:held_out], images[held_out:]
    exact = exact_kernel(graph, compared)
    rows = []
    for count in filters:
        sized = graph.with_filters(count)
        for method in METHODS:
            errors = []
            for seed in range(seeds):
                generator = torch.Generator().manual_seed(seed)
                ckn = CKN(sized, weights=method, generator=generator, device=images.device, dtype=images.dtype).eval()
                fit_filters(ckn, others, patches, restarts=1, batch_size=batch_size, generator=generator)
                with torch.no_grad():
                    features = ckn.features(compared)
                errors.append(float((features @ features.T - exact).norm() / exact.norm()))
            rows.append(ComparisonRow(count, method, tuple(errors)))
    return KernelComparison(tuple(rows), held_out)
