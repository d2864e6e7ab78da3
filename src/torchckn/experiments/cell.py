"""One cell of an experiment, from its settings to a JSON file.

A cell that is interrupted continues from its last checkpoint. Read first: :mod:`torchckn.experiments.shared`. Read next:
:mod:`torchckn.experiments.runner`.

    python -m torchckn.experiments.cell FOLDER THREADS PARENT CELL
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from .. import runs
from ..errors import CKNError
from ..files import write_atomically
from ..fit.conditioning import layer_facts
from ..network import CKN
from .few_labels import accuracy_by_labels
from .gradient import gradient_errors
from .refitting import Refitting
from .results import identity, is_finished, read_results, result_file, with_fewer_labels
from .shared import Bench, clock, code, digest, timed, tuned
from .spec import Cell

#: validation images whose patches the errors of the layers are averaged over
_IMAGES_OF_FACTS = 500


def run_cell(cell: Cell, folder: Path) -> None:
    """Measure a cell and write its result; nothing is done if there is one already."""
    whole = identity(cell.settings, cell.extras, cell.measure) | code(cell)
    work = folder / "work" / cell.scale / f"{cell.name}-{digest(whole)}"
    work.mkdir(parents=True, exist_ok=True)
    began = clock()
    with FileLock(work.parent / f".{work.name}.lock"):
        if not is_finished(folder, cell):
            content = _copied(cell, folder)
            if content is None:
                bench = Bench(cell, work, folder)
                measured, history = _MEASURES[cell.measure](bench)
                content = {"measured": measured, "history": history, "seconds": round(clock() - began, 1)}
                content |= {"clock": "cpu" if torch.get_num_threads() == 1 else "wall", "environment": runs.environment()}
            own = {
                "experiment": cell.experiment,
                "scale": cell.scale,
                "measure": cell.measure,
                "variables": cell.variables,
                "seed": cell.seed,
                "settings": cell.settings.to_flat(),
                "extras": cell.extras,
                **code(cell),
            }
            write_atomically(result_file(folder, cell), (json.dumps(own | content, indent=1) + "\n").encode())
        shutil.rmtree(work, ignore_errors=True)


def _copied(cell: Cell, folder: Path) -> dict[str, Any] | None:
    """The result of a cell of another experiment that has the same identity."""
    for result in read_results(folder, cell.scale).all:
        if result.is_of(cell) and result.copied_from is None:
            values = "-".join(str(value) for value in result.variables.values())
            copied = {name: getattr(result, name) for name in ("measured", "history", "seconds", "clock", "environment")}
            return copied | {"copied_from": f"{result.experiment}: {values}"}
    return None


def _measure_training(bench: Bench) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Train, with the best of the learning rates if there are several; then read the test set, once."""
    bench = timed(bench)
    lr, trials = tuned(bench)
    net, facts = bench.started()
    images = bench.cell.extras.get("refit_images")
    refitting = [Refitting(bench.images.train[:images], bench.images.valid)] if images else []
    result = bench.trained(net, bench.work / "run", lr=lr, callbacks=refitting)
    kept = [record for record in result.history if "valid_accuracy" in record]
    history = [{key: _rounded(value) for key, value in record.items()} for record in kept]
    measured = facts | {
        "valid_accuracy": kept[-1]["valid_accuracy"] if result.head is None else result.head.accuracy,
        "test_accuracy": bench.tested(net),
        "lam": result.lam if result.head is None else result.head.lam,
        "lr": lr,
        "trials": trials,
        "step_seconds": _rounded((kept[-1]["seconds"] - kept[0]["seconds"]) / result.steps),
    }
    if isinstance(net, CKN):
        measured["layers"] = _layers(net, bench)
    return measured, history


def _layers(net: CKN, bench: Bench) -> list[dict[str, Any]]:
    """How far each layer of a trained network is from its kernel."""
    assert bench.images.valid is not None
    kept = ("name", "kernel", "condition", "error")
    layers = []
    for facts in layer_facts(net, bench.images.valid.images[:_IMAGES_OF_FACTS]):
        bandwidth = getattr(net.kernel_layers()[facts.name].kernel, "bandwidth", None)
        layers.append({key: _rounded(getattr(facts, key)) for key in kept} | {"bandwidth": _rounded(bandwidth)})
    return layers


def _measure_unsupervised(bench: Bench) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    net, facts = bench.started()
    return facts | {"valid_accuracy": facts["start_valid_accuracy"], "test_accuracy": bench.tested(net)}, []


def _measure_gradient(bench: Bench) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    net, facts = bench.started()
    assert isinstance(net, CKN)
    return facts | gradient_errors(net, bench.images.train, bench.generator(), **bench.cell.extras["gradient"]), []


def _measure_few_labels(bench: Bench) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    learner, counts = (bench.cell.extras[name] for name in ("learner", "label_counts"))
    earlier = with_fewer_labels(bench.folder, bench.cell)
    measured = {} if earlier is None else {"earlier_seconds": earlier.seconds, "earlier_environment": earlier.environment}
    known = () if earlier is None else earlier.history
    return measured, accuracy_by_labels(
        bench.settings, learner, counts, bench.folder / "work" / "few-labels", bench.work, known
    )


_MEASURES: dict[str, Callable[[Bench], tuple[dict[str, Any], list[dict[str, Any]]]]] = {
    "train": _measure_training,
    "unsupervised": _measure_unsupervised,
    "gradient": _measure_gradient,
    "few-labels": _measure_few_labels,
}


def _rounded(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value


#: seconds that a cell has for its current step and a checkpoint
_PATIENCE = 60


def _not_outliving(parent: int) -> None:
    """If the process that started this one is killed, this one ends as well, after its current step: it can be resumed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)  # training saves a checkpoint
        time.sleep(_PATIENCE)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main(arguments: list[str]) -> int:
    folder, threads, parent, described = arguments
    _not_outliving(int(parent))
    torch.set_num_threads(int(threads))
    try:
        run_cell(Cell(**json.loads(described)), Path(folder))
    except (CKNError, OSError, KeyboardInterrupt) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
