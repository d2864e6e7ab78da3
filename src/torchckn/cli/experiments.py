"""The paper's experiments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer
from rich.console import Console
from rich.table import Table

from ..choices import ScaleName
from ..errors import CKNError, ConfigError
from .options import AsJSON, DataDir, Quiet, completion, print_json, show

if TYPE_CHECKING:
    from ..experiments.spec import Experiment


def _complete_experiments(incomplete: str) -> list[str]:
    from ..experiments.spec import experiments

    return completion(list(experiments()))(incomplete)


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            help="An experiment, or your own .toml file; without a name or --all, the command lists them.",
            autocompletion=_complete_experiments,
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Run all experiments.")] = False,
    scale: Annotated[
        str,
        typer.Option(
            help="cpu: hours on two cores; long: fully trained, in days; paper: the full protocol.",
            autocompletion=completion(get_args(ScaleName)),
        ),
    ] = "cpu",
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds per cell; by default those of the experiment.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Cells that run in parallel, sharing the cores.")] = 1,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads per cell; by default the cores are shared among the jobs.")
    ] = None,
    draw: Annotated[bool, typer.Option("--draw", help="Run nothing; write the page from the existing results.")] = False,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of results.")] = Path("experiments"),
    page: Annotated[
        Path | None,
        typer.Option(help="The page to write; by default results-SCALE.md in that folder, or results-NAME-SCALE.md."),
    ] = None,
    when: Annotated[
        Path | None,
        typer.Option(help='Also write the page "When to use a kernel network" to this file, in the folder of the page.'),
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJSON = False,
    quiet: Quiet = False,
) -> None:
    """Run the paper's experiments and compare the results with its claims. Rerun the command to continue after an interruption.

    Example: [bold]torchckn reproduce connections --seeds 1 --jobs 2[/bold]
    """
    from ..experiments.page import write_page
    from ..experiments.runner import run_cells
    from ..experiments.spec import SCALES, experiment, experiments
    from ..plots import new_figure
    from ..runs import output_file

    if scale not in SCALES:
        raise ConfigError(f"--scale expected {' or '.join(SCALES)}, got {scale!r}")
    if name is not None and everything:
        raise ConfigError("expected the name of an experiment or --all, got both")
    packaged = experiments()
    at_scale = [one for one in packaged.values() if scale in one.scale]
    selected = [experiment(name)] if name is not None else at_scale
    if name is None and not everything and not draw:
        _list(selected, scale, seeds, output, as_json)
        return
    cells = [cell for one in selected for cell in one.cells(scale, seeds)]
    for cell in cells:
        cell.check()  # mistakes in a spec are found before anything is run
    if draw and not (output / "results" / scale).is_dir():
        raise ConfigError(
            f"{output} has no results of scale {scale}; run an experiment first, or name the folder with --output"
        )
    is_own = name is not None and name not in packaged
    named = f"{selected[0].name}-{scale}" if is_own else scale
    page = output / f"results-{named}.md" if page is None else output_file(page)
    if when is not None and is_own:
        raise ConfigError(f"--when is for the experiments of the package, got {name}; leave it out")
    if when is not None and output_file(when).resolve().parent != page.resolve().parent:
        raise ConfigError(f"--when expected a file in the folder of the page, {page.parent}, got {when}")
    new_figure(1, 1)  # pictures need matplotlib: an error now rather than after hours
    failed = {} if draw else run_cells(cells, output, jobs, data_dir, quiet or as_json, threads).failed
    written = write_page(output, scale, page, selected if is_own else at_scale, when)
    if as_json:
        print_json({"page": str(written), "cells": len(cells), "failed": failed})
    else:
        show(quiet, f"wrote {written}")
    if failed:
        first = next(iter(failed))
        raise CKNError(
            f"{len(failed)} of {len(cells)} cells failed, the first is {first}: {failed[first]}; rerun the command"
        )


def _list(selected: list[Experiment], scale: ScaleName, seeds: int | None, output: Path, as_json: bool) -> None:
    from ..experiments.results import is_finished

    rows = []
    for one in selected:
        cells = one.cells(scale, seeds)
        done = sum(is_finished(output, cell) for cell in cells)
        rows.append({"name": one.name, "title": one.title, "cells": len(cells), "done": done})
    if as_json:
        print_json(rows)
        return
    table = Table("name", "what it is", "cells", "done", title=f"scale {scale}, results in {output}")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console().print(table)
