"""One page of all experiments: the claims, then each experiment's figure and table. Made from the results alone."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from ..choices import ScaleName
from ..files import write_atomically
from .claims import RULES, judge
from .figures import draw, figure_names, grouped, in_order, say, say_method
from .results import Result, Results, read_results
from .spec import Experiment, preset


def write_page(folder: Path, scale: ScaleName, page: Path, shown: Sequence[Experiment]) -> Path:
    """Write the page (Markdown), and its figures beside it in ``images/<name of the page>/``."""
    results = read_results(folder, scale)
    for experiment in shown:
        draw(experiment, results, page.parent / _images(page))
    write_atomically(page, page_text(folder, scale, page, shown).encode())
    return page


def page_text(folder: Path, scale: ScaleName, page: Path, shown: Sequence[Experiment]) -> str:
    """The page as Markdown. What ``notes.md`` beside the results has to say is put behind the claims."""
    results, notes = read_results(folder, scale), folder / "results" / scale / "notes.md"
    parts = [f"# The paper's experiments, at the scale `{scale}`", _introduction(results, scale), *_presets(scale, shown)]
    parts += ["## Claims", RULES, claims_table(results)]
    parts += [notes.read_text(encoding="utf-8").strip()] if notes.exists() else []
    for experiment in shown:
        found = results.of(experiment.name)
        parts += [f"## {experiment.title}", f"{experiment.about} Paper: {experiment.paper}."]
        parts += [f"![{experiment.title}]({_images(page)}/{name})" for name in (figure_names(experiment) if found else [])]
        parts.append(experiment_table(experiment, found) if found else "Not run yet.")
        parts.append(f"`torchckn reproduce {experiment.name} --scale {scale}`")
    return "\n\n".join(parts) + "\n"


def _images(page: Path) -> str:
    return f"images/{page.stem}"


def _introduction(results: Results, scale: str) -> str:
    if not results.all:
        return f"Nothing has been run yet: `torchckn reproduce --all --scale {scale}`"
    own = [result for result in results.all if result.copied_from is None]
    hours = sum(result.seconds for result in own) / 3600  # of a run that was interrupted, those of its last part
    machines = sorted({str(result.environment.get("processor")) for result in results.all})
    versions = sorted({f"torch {result.environment['versions']['torch']}" for result in results.all})
    threads = sorted({str(result.environment["threads"]) for result in results.all})
    return (
        f"{len(own)} runs, at least {hours:.1f} hours in all on {', '.join(machines)} (threads a run: {', '.join(threads)}; "
        f"{', '.join(versions)}). Every choice was made on validation images; the test images were read once a run, at its end. "
        f"Each run is a file in `results/{scale}`, with its settings, history, machine and commit. "
        f"`torchckn reproduce --all --scale {scale}` runs everything that is missing and writes such a page; with `--draw`, from "
        "the results that there are."
    )


def _presets(scale: ScaleName, shown: Sequence[Experiment]) -> list[str]:
    """What the scale's runs have in common, and thus where they differ from the paper's."""
    names = dict.fromkeys(one.scale[scale].preset for one in shown if scale in one.scale)
    return ["\n".join(f"- Preset `{name}`: {preset(name).about}" for name in names if name)]


def claims_table(results: Results) -> str:
    """The paper's claims with what was measured: a Markdown table."""
    rows = [(j.claim, j.where, j.measured or "-", str(j.runs), f"**{j.verdict}**") for j in judge(results)]
    return _table(("claim", "paper", "measured", "runs", "verdict"), rows)


def experiment_table(experiment: Experiment, found: Sequence[Result]) -> str:
    """All that an experiment measured, mean and spread over seeds: a Markdown table."""
    if experiment.measure == "gradient":
        return _gradient_table(found)
    names = [*experiment.figure.panels, *experiment.figure.lines]
    names += [name for name in experiment.grid if name not in names and len({str(r[name]) for r in found}) > 1]
    groups = grouped(in_order(experiment, found), names)
    rows = []
    for values, results in groups.items():
        numbers = [_with_spread(results, key) for key in ("valid_accuracy", "test_accuracy")]
        training = [result.training_seconds for result in results]
        seconds = f"{statistics.mean(training):.0f}" if any(training) else "-"
        steps = str(results[0].history[-1]["step"]) if results[0].history else "-"
        rows.append((*(say(n, v) for n, v in zip(names, values, strict=True)), *numbers, steps, seconds, str(len(results))))
    heads = [name.removeprefix("options.") for name in names]
    return _table((*heads, "validation (%)", "test (%)", "steps", "seconds of steps", "seeds"), rows)


def _gradient_table(found: Sequence[Result]) -> str:
    methods = list(found[0]["errors"])
    rows = []
    for (filters,), results in sorted(grouped(found, ["filters"]).items()):
        for key, what in (("root_errors", "the root"), ("errors", "all")):
            errors = [f"{statistics.mean(r[key][method] for r in results):.1e}" for method in methods]
            differences = f"{statistics.mean(r['finite_differences'] for r in results):.0e}"
            rows.append((str(filters), what, *errors, differences, str(len(results))))
    return _table(("filters", "in float32", *map(say_method, methods), "float64 against differences", "seeds"), rows)


def _with_spread(results: Sequence[Result], key: str) -> str:
    values = [100 * result[key] for result in results]
    spread = f" ({min(values):.2f} to {max(values):.2f})" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
