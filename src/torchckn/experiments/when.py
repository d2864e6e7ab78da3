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
from .figures import DATA_NAMES, LEARNER_NAMES, grouped, joined_label
from .results import Result, accuracies_by_labels, read_results
from .tables import markdown_table, mean_and_range


def when_text(folder: Path, scale: ScaleName, images: str) -> str:
    """The page as Markdown, of ``when.md`` in this folder; ``images`` is the folder of figures, relative to the page."""
    results = read_results(folder, scale)
    tables = "\n\n".join(few_labels_tables(results.of("few-labels"))) or "Not run yet."
    text = resources.files(__package__).joinpath("when.md").read_text(encoding="utf-8")
    return Template(text).substitute(images=images, few_labels=tables, equal_time=equal_time_table(results.of("equal-time")))


def few_labels_tables(results: Sequence[Result]) -> list[str]:
    """For each data set, a table of learners and numbers of labels, the best of each number in bold."""
    tables = []
    for (name,), runs in grouped(results, ["data"]).items():
        by_learner = {learner: accuracies_by_labels(some) for (learner,), some in grouped(runs, ["learner"]).items()}
        counts = sorted({count for accuracies in by_learner.values() for count in accuracies})
        best = {
            count: max(statistics.mean(learned[count]) for learned in by_learner.values() if count in learned)
            for count in counts
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


#: what distinguishes the networks that are compared in equal time
_TRAINED_BY = ("kind", "method", "optimizer")


def equal_time_table(results: Sequence[Result]) -> str:
    """All-CNN-C and its ConvNets in equal total time, by the number of filters and the time, the best of each in bold."""
    if not results:
        return "Not run yet."
    columns = list(grouped(results, _TRAINED_BY))
    rows = []
    for (filters, _), runs in sorted(grouped(results, ["filters", "total_seconds"]).items()):
        accuracies = {
            line: [100 * run["test_accuracy"] for run in some] for line, some in grouped(runs, _TRAINED_BY).items()
        }
        best = max(map(statistics.mean, accuracies.values()))
        cells = []
        for line in columns:
            text = mean_and_range(accuracies[line], 1) if line in accuracies else "-"
            cells.append(f"**{text}**" if line in accuracies and statistics.mean(accuracies[line]) == best else text)
        minutes = [run.seconds_at(run.history[-1]) / 60 for run in runs]
        time = f"{min(minutes):.1f} to {max(minutes):.1f}"
        rows.append([str(filters), *cells, time, str(max(map(len, accuracies.values())))])
    heads = ["filters", *(joined_label(_TRAINED_BY, line) for line in columns), "total time (minutes)", "seeds"]
    return markdown_table(heads, rows)
