"""The results page: the claims, then the figures and table of each experiment, made from the results."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..choices import ScaleName
from ..files import write_atomically
from ..plots import save_figure
from .claims import judge_claims
from .figures import draw, figure_names
from .judging import EXTENSION, RELEASED, VERDICT_RULES, estimate
from .labels import grouped, in_grid_order, learning_rate_label, method_label, value_label
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
    """The page as Markdown. Of ``notes.md`` in the folder of the results, what comes before its discussion is at the top, and the
    discussion follows the claims."""
    notes = folder / "results" / scale / "notes.md"
    experiments = [experiment for experiment in experiments if scale in experiment.scale]
    claimed = any(experiment.name in packaged() for experiment in experiments)  # claims are about these
    text = filled(notes.read_text(encoding="utf-8").strip(), results) if claimed and notes.exists() else ""
    short, _, discussion = text.partition(_DISCUSSION)
    parts = [f"# Results of the experiments, scale `{scale}`", *([short.strip(), "## How it was measured"] if short else [])]
    parts += [_introduction(results, scale), *_presets(scale, experiments)]
    parts += ["## Claims", VERDICT_RULES, *claims_sections(results)] if claimed else []
    parts += [_DISCUSSION + discussion] if discussion else []
    for experiment in experiments:
        own = results.of(experiment.name)
        parts += [f"## {experiment.title}", f"{experiment.about} Source: {experiment.paper}."]
        parts += [f"![{experiment.title}]({_images(page)}/{name})" for name in (figure_names(experiment) if own else [])]
        beside = (
            results.of(**experiment.figure.beside) if experiment.measure == "few-labels" and experiment.figure.beside else []
        )
        parts.append(experiment_table(experiment, [*own, *beside]) if own else "Not run yet.")
        parts += approximation_table(experiment, own)
        parts.append(f"`torchckn reproduce {experiment.name} --scale {scale}`")
    return "\n\n".join(parts) + "\n"


#: the heading in ``notes.md`` that the claims stand before
_DISCUSSION = "## Discussion"


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
        "No hyperparameter was chosen on test images, which were used once per run, at its end; some experiments and seeds were "
        "added when results of others were known.",
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
        f"times in the other {len(results) - by_cpu} (in tables with a w; without a time, there are both among the seeds)."
    )


def _presets(scale: ScaleName, experiments: Sequence[Experiment]) -> list[str]:
    """The settings that the scale's runs have in common, and where they differ from the paper's."""
    names = dict.fromkeys(one.scale[scale].preset for one in experiments)
    return ["\n".join(f"- Preset `{name}`: {preset(name).about}" for name in names if name)]


def claims_sections(results: Results) -> list[str]:
    """The claims with measurements and verdicts, in tables by their source, and a list of those that were not run."""
    judged = judge_claims(results)
    run = [claim for claim in judged if claim.cases]
    of_paper = [claim for claim in run if claim.source not in (RELEASED, EXTENSION)]
    rows = [(j.claim, j.source, j.measured, str(j.runs), f"**{j.verdict}**") for j in of_paper]
    parts = ["### The paper", markdown_table(("claim", "section", "measured", "runs", "verdict"), rows)] if rows else []
    for source, section in ((RELEASED, "The runs that the authors released"), (EXTENSION, "Not in the paper")):
        others = [(j.claim, j.measured, str(j.runs), f"**{j.verdict}**") for j in run if j.source == source]
        parts += [f"### {section}", markdown_table(("claim", "measured", "runs", "verdict"), others)] if others else []
    not_run = [f"- {j.claim}{f': {j.remark}' if j.remark else ''}" for j in judged if not j.cases]
    return [*parts, *(["### Not run at this scale", "\n".join(not_run)] if not_run else [])]


def experiment_table(experiment: Experiment, results: Sequence[Result]) -> str:
    """The results of an experiment, mean and confidence interval over seeds, as a Markdown table."""
    if experiment.measure == "gradient":
        return _gradient_table(results)
    if experiment.measure == "few-labels":
        return "\n\n".join(few_labels_tables(in_grid_order(experiment, results)))
    names = _distinguishing(experiment, results)
    groups = grouped(in_grid_order(experiment, results), names)
    has_trials = any(result["trials"] for result in results)
    rows = []
    for values, runs in groups.items():
        labels = _labels(names, values, runs[0])
        rates = [learning_rate_label(runs[0])] if has_trials else []
        accuracies = [_mean_and_interval(runs, key) for key in ("valid_accuracy", "test_accuracy")]
        ends = sorted({run.history[-1]["step"] for run in runs if run.history})
        steps = " to ".join(f"{end:,}" for end in dict.fromkeys((ends[0], ends[-1]))) if ends else "-"
        rows.append((*labels, *rates, *accuracies, steps, _seconds(runs), str(len(runs))))
    heads = [*_heads(names), *(["learning rate"] if has_trials else [])]
    return markdown_table(
        (*heads, "validation accuracy (%)", "test accuracy (%)", "steps", "training time (s)", "seeds"), rows
    )


def approximation_table(experiment: Experiment, results: Sequence[Result]) -> list[str]:
    """How far the layers of trained kernel networks are from their kernels, where results say it; nothing where none does."""
    measured = [result for result in results if result["layers"]]
    if not measured:
        return []
    names, rows = _distinguishing(experiment, results), []
    for values, runs in grouped(in_grid_order(experiment, measured), names).items():
        layers = [layer for run in runs for layer in run["layers"]]
        errors = [100 * layer["error"] for layer in layers]
        bandwidths = [layer["bandwidth"] for layer in layers if layer["bandwidth"] is not None]
        widths = f"{min(bandwidths):.2f} to {max(bandwidths):.2f}" if bandwidths else "-"
        rows.append((*_labels(names, values, runs[0]), f"{min(errors):.0f} to {max(errors):.0f}", widths, f"{len(runs)}"))
    heads = (*_heads(names), "error of the approximation (%)", "bandwidths", "seeds")
    about = (
        "How far the trained layers are from their kernels, from the best to the worst layer: the part of patches (of validation "
        "images) that lies outside the subspace of the filters. Runs from before this was measured are left out."
    )
    return [about, markdown_table(heads, rows)]


def _distinguishing(experiment: Experiment, results: Sequence[Result]) -> list[str]:
    """The variables that a table of these results needs columns for."""
    names = [*experiment.figure.panels, *experiment.figure.lines]
    return [*names, *(name for name in experiment.grid if name not in names and len({str(r[name]) for r in results}) > 1)]


def _heads(names: Sequence[str]) -> list[str]:
    return [_COLUMN_NAMES.get(name, name.removeprefix("options.")) for name in names if name != "steps"]  # a column anyway


def _labels(names: Sequence[str], values: Sequence[Any], run: Result) -> list[str]:
    named = [(name, value) for name, value in zip(names, values, strict=True) if name != "steps"]
    return ["-" if _is_without(name, run) else value_label(name, value) for name, value in named]


def _is_without(name: str, run: Result) -> bool:
    """Whether a network does not have what a variable is about: ConvNets have neither bandwidths nor a first classifier."""
    return name in ("bandwidths", "penalty") and run.variables.get("kind") == "convnet"


def _seconds(runs: Sequence[Result]) -> str:
    """The mean training time; none where times by different clocks would be averaged."""
    training, clocks = [run.training_seconds for run in runs], {run.clock for run in runs}
    if not any(training) or len(clocks) > 1:
        return "-"
    return f"{statistics.mean(training):.0f}{'' if clocks == {'cpu'} else ' w'}"


_COLUMN_NAMES = {
    "options.bias": "biases",
    "inverse_sqrt": "inverse square root",
    "hessian": "Hessian",
    "total_seconds": "time budget",
    "slip": "bug",
    "bandwidths": "trained bandwidths",
    "weight_decay": "weight decay",
    "penalty": "L2 penalty",
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
