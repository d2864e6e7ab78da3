"""One cell of an experiment, from nothing to a JSON file.

Cells that begin alike (the same network without labels, the same seed) share that beginning: it is computed once and kept in
``work/starts``. A cell that is interrupted goes on where it was. Read next: :mod:`torchckn.experiments.runner`.

    python -m torchckn.experiments.cell FOLDER THREADS CELL
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from safetensors import safe_open
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes

from .. import runs
from ..building import Images, build_network, load_images
from ..errors import CKNError, NumericalError
from ..fit import evaluate, fit_filters, fit_head
from ..fit import train as fit
from ..fit.methods import MethodName
from ..nn.network import CKN, Classifier
from ..settings import Settings
from ..storage import write_atomically
from .gradient import gradient_errors
from .slips import with_slip
from .spec import Cell

#: settings that do not change what a network is before its first step
_LATER = {
    *("method", "steps", "batch_size", "lr", "momentum", "tau", "lam", "hessian", "head_update", "bandwidths", "rollback"),
    *("evaluate_every", "checkpoint_every", "inverse_sqrt"),
}
#: settings that are arguments of training, as they are
_OF_TRAINING = {*_LATER} - {"method", "lr", "inverse_sqrt"} | {"loss", "patches"}


def result_file(folder: Path, cell: Cell) -> Path:
    return folder / "results" / cell.scale / f"{cell.name}.json"


def run_cell(cell: Cell, folder: Path, data_dir: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Measure a cell and write what came out; nothing is done if it is there already."""
    file = result_file(folder, cell)
    if file.exists():
        return json.loads(file.read_text(encoding="utf-8"))
    same = _same_elsewhere(cell, folder)
    if same:
        own = {"experiment": cell.experiment, "variables": cell.variables, "extras": cell.extras}
        write_atomically(file, _as_json(same | own))
        return same | own
    work = folder / "work" / cell.scale / cell.name
    work.mkdir(parents=True, exist_ok=True)
    clock = time.perf_counter()
    with FileLock(work / ".lock"), with_slip(cell.extras.get("slip")):
        bench = _Bench(cell, work, folder / "work" / "starts", load_images(cell.settings, data_dir))
        measured, history = _MEASURES[cell.measure](bench)
        content = {
            "experiment": cell.experiment,
            "scale": cell.scale,
            "measure": cell.measure,
            "variables": cell.variables,
            "seed": cell.seed,
            "measured": measured,
            "history": history,
            "settings": cell.settings.model_dump(exclude_none=True),
            "extras": cell.extras,
            "seconds": round(time.perf_counter() - clock, 1),
            "environment": runs.environment(),
        }
        write_atomically(file, _as_json(content))
    shutil.rmtree(work, ignore_errors=True)
    return content


def _as_json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=1) + "\n").encode()


def _same_elsewhere(cell: Cell, folder: Path) -> dict[str, Any] | None:
    """The result of a cell of another experiment that measures the very same."""
    for file in sorted((folder / "results" / cell.scale).glob("*/*.json")):
        content = json.loads(file.read_text(encoding="utf-8"))
        theirs = Settings(**content["settings"]), content["extras"]
        if content["measure"] == cell.measure and _essence(*theirs) == _essence(cell.settings, cell.extras):
            return content
    return None


def _essence(settings: Settings, extras: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a result depends on."""
    plain = {key: value for key, value in extras.items() if key != "budget" and value != "none"}
    if settings.lr is not None:
        plain = {key: value for key, value in plain.items() if key not in ("lrs", "trial_steps")}
    return settings.model_dump() | {"method": _method(settings)}, plain


def _method(settings: Settings) -> MethodName:
    return settings.method or ("ulr" if settings.kind == "ckn" else "sgd")


@dataclass(frozen=True)
class _Bench:
    """What a measure works with."""

    cell: Cell
    work: Path
    starts: Path
    images: Images

    @property
    def settings(self) -> Settings:
        return self.cell.settings

    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.settings.seed)

    def started(self) -> tuple[Classifier, dict[str, Any]]:
        """The network before its first step, filters and classifier fitted, and what is known of that."""
        settings, extras = self.settings, self.cell.extras
        what = settings.model_dump(exclude=_LATER) | {"slip": extras.get("slip"), "head": self.cell.measure != "gradient"}
        digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]
        file = self.starts / f"{digest}.safetensors"
        net = build_network(settings, self.images, self.generator())
        self.starts.mkdir(parents=True, exist_ok=True)
        with FileLock(self.starts / f".{digest}.lock"):
            if not file.exists():
                known = self._start(net, what["head"])
                tensors = {name: tensor.contiguous() for name, tensor in net.state_dict().items()}
                write_atomically(file, to_bytes(tensors, {"known": json.dumps(known)}))
        with safe_open(file, "pt") as opened:
            known = json.loads(opened.metadata()["known"])
        net.load_state_dict(from_bytes(file.read_bytes()))
        return net, known

    def _start(self, net: Classifier, head: bool) -> dict[str, Any]:
        clock, known = time.perf_counter(), {}
        if isinstance(net, CKN):
            fit_filters(net, self.images.train, self.settings.patches, generator=self.generator())
        if head:
            found = fit_head(net, self.images.train, self.images.valid, loss=self.settings.loss)
            known = {"start_valid_accuracy": found.accuracy, "start_lam": found.lam}
        return known | {"start_seconds": round(time.perf_counter() - clock, 2)}

    def trained(self, net: Classifier, lr: Any, run_dir: Path | None, **others: Any) -> Any:
        settings = self.settings
        arguments = settings.model_dump(include=_OF_TRAINING) | others
        return fit(
            net,
            self.images.train,
            self.images.valid,
            method=_method(settings),
            lr=lr,
            generator=self.generator(),
            run_dir=run_dir,
            resume=run_dir is not None,
            **arguments,
        )

    def tested(self, net: Classifier) -> float:
        assert self.images.test is not None
        return evaluate(net, self.images.test).accuracy


def _measure_training(bench: _Bench) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Train, on the best of the step sizes if there are several; then read the test set, once."""
    lr, trials = _tuned(bench)
    net, known = bench.started()
    result = bench.trained(net, lr, bench.work / "run", final_head=bench.cell.extras.get("final_head", True))
    kept = [record for record in result.history if "valid_accuracy" in record]
    history = [{key: _short(value) for key, value in record.items()} for record in kept]
    measured = known | {
        "valid_accuracy": kept[-1]["valid_accuracy"] if result.head is None else result.head.accuracy,
        "test_accuracy": bench.tested(net),
        "lam": result.lam if result.head is None else result.head.lam,
        "lr": lr,
        "trials": trials,
        "step_seconds": _short((kept[-1]["seconds"] - kept[0]["seconds"]) / result.steps),
    }
    return measured, history


def _tuned(bench: _Bench) -> tuple[Any, dict[str, float]]:
    """The step size whose short trial has the best validation accuracy, and the accuracies of all of them."""
    extras = bench.cell.extras
    if bench.settings.lr is not None or "lrs" not in extras:
        return bench.settings.lr, {}
    file = bench.work / "trials.json"
    trials: dict[str, float] = json.loads(file.read_text()) if file.exists() else {}
    for number in extras["lrs"]:
        lr = f"falling:{number}"
        if lr not in trials:
            net, _ = bench.started()
            steps = extras["trial_steps"]
            try:
                result = bench.trained(net, lr, None, steps=steps, evaluate_every=steps, final_head=False)
                trials[lr] = result.history[-1]["valid_accuracy"]
            except NumericalError:
                trials[lr] = 0.0
            write_atomically(file, json.dumps(trials).encode())
    return max(trials, key=lambda lr: trials[lr]), trials


def _measure_without_labels(bench: _Bench) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    net, known = bench.started()
    return known | {"valid_accuracy": known["start_valid_accuracy"], "test_accuracy": bench.tested(net)}, []


def _measure_gradient(bench: _Bench) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    net, known = bench.started()
    assert isinstance(net, CKN)
    return known | gradient_errors(net, bench.images.train, bench.generator(), **bench.cell.extras["gradient"]), []


_MEASURES: dict[str, Callable[[_Bench], tuple[dict[str, Any], list[dict[str, Any]]]]] = {
    "train": _measure_training,
    "unsupervised": _measure_without_labels,
    "gradient": _measure_gradient,
}


def _short(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _not_outliving_parent() -> None:
    """If the process that started this one is killed, this one ends as well: its work is kept, and can be taken up."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main(arguments: list[str]) -> int:
    folder, threads, described = arguments
    torch.set_num_threads(int(threads))
    _not_outliving_parent()
    try:
        run_cell(Cell(**json.loads(described)), Path(folder))
    except (CKNError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
