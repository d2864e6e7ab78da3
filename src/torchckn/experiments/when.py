"""The page "When to use a kernel network": who is most accurate with few labels, and in equal time, from the results alone.

Read first: :mod:`torchckn.experiments.page`, the page of all results.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from importlib import resources
from string import Template

from .labels import DATA_NAMES, LEARNER_NAMES, grouped, joined_label, value_label
from .results import Result, Results, accuracies_by_labels
from .summary import summary_table
from .tables import markdown_table, mean_and_range


def when_text(results: Results, page: str, images: str) -> str:
    """The page as Markdown, of ``when.md`` in this folder, next to the ``page`` of all results with its folder of ``images``."""
    tables = "\n\n".join(few_labels_tables(results.of("few-labels"))) or "Not run yet."
    text = resources.files(__package__).joinpath("when.md").read_text(encoding="utf-8")
    return Template(text).substitute(
        page=page,
        images=images,
        summary=summary_table(results),
        few_labels=tables,
        equal_time=equal_time_table(results.of("equal-time")),
    )


def few_labels_tables(results: Sequence[Result]) -> list[str]:
    """For each data set, a table of learners and numbers of labels, the best of each number in bold."""
    tables = []
    for (name,), runs in grouped(results, ["data"]).items():
        by_learner = {learner: accuracies_by_labels(some) for (learner,), some in grouped(runs, ["learner"]).items()}
        counts = sorted({count for accuracies in by_learner.values() for count in accuracies})
        columns = [_bold_best([accuracies.get(count, []) for accuracies in by_learner.values()]) for count in counts]
        rows = []
        for learner, *cells in zip(by_learner, *columns, strict=True):
            draws = max(map(len, by_learner[learner].values()))
            rows.append([LEARNER_NAMES[learner], *cells, str(draws)])
        heads = [DATA_NAMES.get(name, name), *(f"{count:,} labels" for count in counts), "draws"]
        tables.append(markdown_table(heads, rows))
    return tables


#: what distinguishes the networks that are compared in equal time
_TRAINED_BY = ("kind", "method", "optimizer", "bandwidths", "weight_decay")


def equal_time_table(results: Sequence[Result]) -> str:
    """All-CNN-C and its ConvNets in equal total time, the best of each row in bold; features centered per feature, or not.

    Each cell has the test accuracy, the minutes that were needed, and the number of seeds. A row has the runs of one kind of
    machine: on another, there is time for more steps, or for fewer.
    """
    results = [result for result in results if result["centering"] != "image"]
    if not results:
        return "Not run yet."
    columns = list(grouped(results, _TRAINED_BY))
    numbers: dict[tuple[str, ...], int] = {}  # of the machines, as they come
    rows = []
    groups = grouped(results, ["augment", "filters", "total_seconds"])
    for augment, filters, seconds in sorted(groups, key=lambda values: (values[0] != "none", values)):
        for machine, runs in _by_machine(groups[augment, filters, seconds]).items():
            by_line = grouped(runs, _TRAINED_BY)
            accuracies = _bold_best([[100 * run["test_accuracy"] for run in by_line.get(line, [])] for line in columns])
            cells = [
                f"{accuracy}<br>{_minutes(by_line[line])} min, n = {len(by_line[line])}" if line in by_line else accuracy
                for line, accuracy in zip(columns, accuracies, strict=True)
            ]
            augmentation = "none" if augment == "none" else value_label("augment", augment)
            where = f"{numbers.setdefault(machine, len(numbers) + 1)}: {machine[0]}"
            rows.append([str(filters), f"{seconds / 60:g}", augmentation, where, *cells])
    heads = ["filters", "time budget (minutes)", "augmentation", "machine"]
    return markdown_table([*heads, *(joined_label(_TRAINED_BY, line) for line in columns)], rows)


def _by_machine(results: Sequence[Result]) -> dict[tuple[str, ...], list[Result]]:
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        groups.setdefault(result.machine, []).append(result)
    return groups


def _bold_best(groups: Sequence[Sequence[float]]) -> list[str]:
    """Mean and range of each group, the highest mean in bold; a dash for an empty one."""
    best = max(statistics.mean(group) for group in groups if group)
    texts = []
    for group in groups:
        text = mean_and_range(group, 1) if group else "-"
        texts.append(f"**{text}**" if group and statistics.mean(group) == best else text)
    return texts


def _minutes(runs: Sequence[Result]) -> str:
    return f"{statistics.mean(run.total_seconds for run in runs) / 60:.1f}"
