"""The results page: the claims, then the figures and table of each experiment, made from the results."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..choices import ScaleName
from ..files import write_atomically
from ..plots import save_figure
from .claims import judge_claims
from .figures import draw, figure_names
from .judging import VERDICT_RULES, estimate
from .labels import grouped, in_grid_order, method_label, value_label
from .notes import filled
from .results import Result, Results, read_results
from .spec import Experiment, preset
from .spec import experiments as packaged
from .summary import summary_figure
from .tables import markdown_table
from .when import few_labels_tables, when_text


def write_page(
    folder: Path, scale: ScaleName, page: Path, experiments: Sequence[Experiment], when: Path | None = None
) -> Path:
    """Write the page (Markdown), its figures to ``images/<name of the page>/`` next to it; and, next to it as well, ``when``,
    the page "When to use a kernel network"."""
    results = current_results(folder, scale, experiments)
    for experiment in experiments:
        draw(experiment, results, page.parent / _images(page))
    if when is not None:
        save_figure(summary_figure(results), page.parent / _images(page) / "summary.png")
        write_atomically(when, when_text(results, page.name, _images(page)).encode())
    write_atomically(page, page_text(folder, scale, page, experiments, results).encode())
    return page


def current_results(folder: Path, scale: ScaleName, experiments: Sequence[Experiment]) -> Results:
    """The results of experiments at a scale, without those of experiments that have been changed since."""
    names = {experiment.name for experiment in experiments}
    found = read_results(folder, scale, [cell for one in experiments if scale in one.scale for cell in one.cells(scale)])
    return replace(found, all=[result for result in found.all if result.experiment in names])


def page_text(folder: Path, scale: ScaleName, page: Path, experiments: Sequence[Experiment], results: Results) -> str:
    """The page as Markdown. The text of ``notes.md`` in the folder of the results follows the claims."""
    notes = folder / "results" / scale / "notes.md"
    experiments = [experiment for experiment in experiments if scale in experiment.scale]
    parts = [f"# Results of the experiments, scale `{scale}`", _introduction(results, scale), *_presets(scale, experiments)]
    if any(experiment.name in packaged() for experiment in experiments):  # claims are about these
        parts += ["## Claims", VERDICT_RULES, claims_table(results)]
        parts += [filled(notes.read_text(encoding="utf-8").strip(), results)] if notes.exists() else []
    for experiment in experiments:
        own = results.of(experiment.name)
        parts += [f"## {experiment.title}", f"{experiment.about} Source: {experiment.paper}."]
        parts += [f"![{experiment.title}]({_images(page)}/{name})" for name in (figure_names(experiment) if own else [])]
        parts.append(experiment_table(experiment, own) if own else "Not run yet.")
        parts.append(f"`torchckn reproduce {experiment.name} --scale {scale}`")
    return "\n\n".join(parts) + "\n"


def _images(page: Path) -> str:
    return f"images/{page.stem}"


def _introduction(results: Results, scale: str) -> str:
    if not results.all:
        return f"There are no results yet. Run `torchckn reproduce --all --scale {scale}`."
    own = [result for result in results.all if result.copied_from is None]
    hours = sum(result.seconds for result in own) / 3600  # for an interrupted and resumed run, only its last part
    machines = sorted({str(result.environment.get("processor")) for result in results.all})
    versions = sorted({f"torch {result.environment['versions']['torch']}" for result in results.all})
    threads = sorted({str(result.environment["threads"]) for result in results.all})
    changed = sum(bool(result.environment.get("git_changes")) for result in own)
    uncommitted = f" (in {changed} of them, some files, such as other results, were not committed)" if changed else ""
    parts = [
        f"{len(own)} runs, {hours:.1f} hours or more in total, on {', '.join(machines)} (threads per run: {', '.join(threads)}; "
        f"{', '.join(versions)}).",
        "No hyperparameter was chosen on test images, which were used once per run, at its end.",
        "Curves show validation accuracies with the classifier of each step, or a refitted one where an experiment says so; "
        "tables have the accuracies at the end of a run, where the classifier is refitted as a rule.",
        _clocks(own),
        f"Each run is a file in `results/{scale}` with its settings, history, machine and commit{uncommitted}.",
        f"`torchckn reproduce --all --scale {scale}` runs what is missing and writes this page; with `--draw` it writes the page "
        "from the existing results.",
    ]
    if results.outdated:
        parts.append(f"Results left out, because their experiments have been changed since: {results.outdated}.")
    return " ".join(parts)


def _clocks(results: Sequence[Result]) -> str:
    by_cpu = sum(result.clock == "cpu" for result in results)
    if by_cpu in (0, len(results)):
        return f"Times are {'CPU' if by_cpu else 'wall-clock'} times."
    return (
        f"Times are CPU times of the process in {by_cpu} runs, which other programs on the machine affect less, and wall-clock "
        f"times in the other {len(results) - by_cpu}."
    )


def _presets(scale: ScaleName, experiments: Sequence[Experiment]) -> list[str]:
    """The settings that the scale's runs have in common, and where they differ from the paper's."""
    names = dict.fromkeys(one.scale[scale].preset for one in experiments)
    return ["\n".join(f"- Preset `{name}`: {preset(name).about}" for name in names if name)]


def claims_table(results: Results) -> str:
    """The claims, measurements and verdicts as a Markdown table."""
    judged = sorted(judge_claims(results), key=lambda claim: not claim.cases)  # what was not run comes last
    rows = [(j.claim, j.source, j.measured or "-", str(j.runs), f"**{j.verdict}**") for j in judged]
    return markdown_table(("claim", "source", "measured", "runs", "verdict"), rows)


def experiment_table(experiment: Experiment, results: Sequence[Result]) -> str:
    """The results of an experiment, mean and confidence interval over seeds, as a Markdown table."""
    if experiment.measure == "gradient":
        return _gradient_table(results)
    if experiment.measure == "few-labels":
        return "\n\n".join(few_labels_tables(in_grid_order(experiment, results)))
    names = [*experiment.figure.panels, *experiment.figure.lines]
    names += [name for name in experiment.grid if name not in names and len({str(r[name]) for r in results}) > 1]
    groups = grouped(in_grid_order(experiment, results), names)
    rows = []
    for values, runs in groups.items():
        labels = [value_label(name, value) for name, value in zip(names, values, strict=True) if name != "steps"]
        accuracies = [_mean_and_interval(runs, key) for key in ("valid_accuracy", "test_accuracy")]
        training = [result.training_seconds for result in runs]
        seconds = f"{statistics.mean(training):.0f}" if any(training) else "-"
        ends = sorted({run.history[-1]["step"] for run in runs if run.history})
        steps = " to ".join(f"{end:,}" for end in dict.fromkeys((ends[0], ends[-1]))) if ends else "-"
        rows.append((*labels, *accuracies, steps, seconds, str(len(runs))))
    heads = [_COLUMN_NAMES.get(name, name.removeprefix("options.")) for name in names if name != "steps"]  # a column anyway
    return markdown_table(
        (*heads, "validation accuracy (%)", "test accuracy (%)", "steps", "training time (s)", "seeds"), rows
    )


_COLUMN_NAMES = {
    "options.bias": "biases",
    "inverse_sqrt": "inverse square root",
    "hessian": "Hessian",
    "total_seconds": "given time",
    "weight_decay": "weight decay",
    "batch_size": "batch size",
    "lr": "learning rate",
}


def _gradient_table(results: Sequence[Result]) -> str:
    methods = list(results[0]["errors"])
    rows = []
    for (filters,), runs in sorted(grouped(results, ["filters"]).items()):
        for key, what in (("root_errors", "inverse root"), ("errors", "whole network")):
            errors = [f"{statistics.mean(r[key][method] for r in runs):.1e}" for method in methods]
            differences = f"{statistics.mean(r['finite_differences'] for r in runs):.0e}"
            rows.append((str(filters), what, *errors, differences, str(len(runs))))
    heads = ("filters", "in float32", *map(method_label, methods), "float64 against finite differences", "seeds")
    return markdown_table(heads, rows)


def _mean_and_interval(results: Sequence[Result], key: str) -> str:
    interval = estimate([100 * result[key] for result in results])
    return f"{interval.mean:.2f} ± {interval.high - interval.mean:.2f}" if interval.n > 1 else f"{interval.mean:.2f}"
