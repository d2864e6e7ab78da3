"""The page "When to use a kernel network": who is most accurate with few labels, and in equal time, from the results alone.

Read first: :mod:`torchckn.experiments.page`, the page of all results.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from string import Template

from ..choices import ScaleName
from .figures import DATA_NAMES, LEARNER_NAMES, NETWORK_NAMES, grouped
from .results import Result, Results, accuracies_by_labels, read_results
from .tables import markdown_table, mean_and_range


def when_text(folder: Path, scale: ScaleName, images: str) -> str:
    """The page as Markdown, of ``when.md`` in this folder; ``images`` is the folder of figures, relative to the page."""
    results = read_results(folder, scale)
    tables = "\n\n".join(few_labels_tables(results.of("few-labels"))) or "Not run yet."
    text = resources.files(__package__).joinpath("when.md").read_text(encoding="utf-8")
    return Template(text).substitute(images=images, few_labels=tables, equal_time=equal_time_table(results))


def few_labels_tables(results: Sequence[Result]) -> list[str]:
    """For each data set, a table of learners and numbers of labels, the best of each number in bold."""
    tables = []
    for (name,), runs in grouped(results, ["data"]).items():
        by_learner = {learner: accuracies_by_labels(some) for (learner,), some in grouped(runs, ["learner"]).items()}
        counts = sorted({count for accuracies in by_learner.values() for count in accuracies})
        best = {
            count: max(statistics.mean(found[count]) for found in by_learner.values() if count in found) for count in counts
        }
        rows = []
        for learner, accuracies in by_learner.items():
            cells = []
            for count in counts:
                if count not in accuracies:
                    cells.append("-")
                    continue
                text = mean_and_range(accuracies[count], 1)
                cells.append(f"**{text}**" if statistics.mean(accuracies[count]) == best[count] else text)
            draws = max(len(values) for values in accuracies.values())
            rows.append([LEARNER_NAMES[learner], *cells, str(draws)])
        heads = [DATA_NAMES.get(name, name), *(f"{count:,} labels" for count in counts), "draws"]
        tables.append(markdown_table(heads, rows))
    return tables


def equal_time_table(results: Results) -> str:
    """All-CNN-C and its ConvNet in as much training time, by the number of filters."""
    common = {"network": "allcnn"}
    rows = []
    ckns = grouped(results.of("ckn-convnet", kind="ckn", **common), ["filters"])
    for (filters,), ckn in sorted(ckns.items()):
        row = [str(filters), mean_and_range([100 * run["test_accuracy"] for run in ckn], 1)]
        for bias in (False, True):
            wanted = common | {"kind": "convnet", "filters": filters, "options.bias": bias, "budget": "time"}
            runs = results.of("ckn-convnet", **wanted)
            row.append(mean_and_range([100 * run["test_accuracy"] for run in runs], 1) if runs else "-")
        rows.append([*row, str(len(ckn))])
    convnet = NETWORK_NAMES["convnet"]
    return markdown_table(["filters", NETWORK_NAMES["ckn"], f"{convnet}, no biases", f"{convnet}, biases", "seeds"], rows)
