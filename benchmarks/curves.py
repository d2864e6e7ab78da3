"""Ultimate layer reversal against stochastic gradients, over steps and over seconds, from the histories in ``results/``.

    python -m benchmarks.curves

Each history is the ``metrics.jsonl`` of a run that ``benchmarks.supervised`` made; ``results/README.md`` has the commands.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from torchckn.plots import COLOURS

RESULTS = Path(__file__).parent / "results"
PICTURE = Path(__file__).parent.parent / "docs" / "images" / "ulr-sgo.png"
NETWORKS = {"lenet5": "LeNet-5 CKN, 8 filters, MNIST"}
METHODS = {"ulr": "ULR", "sgo": "SGO"}


def histories(network: str, method: str) -> list[list[dict[str, Any]]]:
    """The records with a validation accuracy, seed by seed."""
    files = sorted(RESULTS.glob(f"{network}-8-{method}-*.jsonl"))
    every = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    return [[record for record in records if "valid_accuracy" in record] for records in every]


def final(network: str, method: str) -> list[float]:
    return [records[-1]["valid_accuracy"] for records in histories(network, method)]


def draw() -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), dpi=110, layout="constrained")
    grid = figure.subplots(len(NETWORKS), 2, sharey="row", squeeze=False)
    for row, (network, title) in zip(grid, NETWORKS.items(), strict=True):
        for axes, key, label in zip(row, ("step", "seconds"), ("steps", "seconds of training"), strict=True):
            for colour, (method, name) in zip(COLOURS, METHODS.items(), strict=False):
                for i, records in enumerate(histories(network, method)):
                    heights = [100 * record["valid_accuracy"] for record in records]
                    axes.plot(
                        [record[key] for record in records],
                        heights,
                        color=colour,
                        alpha=0.8,
                        linestyle=("-", "--", ":")[i % 3],
                        label=name if i == 0 else None,
                    )
            axes.set_xlabel(label)
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
        row[0].set_title(title, loc="left", fontsize=10)
        row[0].set_ylabel("validation accuracy (%)")
        row[0].legend(frameon=False, loc="lower right")
    figure.savefig(PICTURE)


def main() -> None:
    for network, title in NETWORKS.items():
        for method, name in METHODS.items():
            found = final(network, method)
            if found:
                values = ", ".join(f"{100 * value:.1f}" for value in found)
                print(f"{title}, {name}: {values} % ({100 * np.mean(found):.1f} on average of {len(found)} seeds)")
    draw()
    print(f"drew {PICTURE.name}")


if __name__ == "__main__":
    main()
