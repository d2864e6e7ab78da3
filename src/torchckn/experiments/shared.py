"""What cells share: the network before its first step, the choice of a learning rate, and the speed of a step.

Cells that begin alike (the same unsupervised network, the same seed) share that beginning: it is computed once and kept in
``work/starts``. Cells that differ only in their seed, or in their number of steps, share the choice of a learning rate, made
with seed 0 and kept in ``work/trials`` and in every result. A cell with ``total_seconds`` is trained for as many steps as fit
into that time; how long a step takes is measured with seed 0 and kept in ``work/speeds``. Read next:
:mod:`torchckn.experiments.cell`.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import time
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from .. import runs
from ..building import Images, build_network, load_images
from ..data import Part
from ..errors import ConfigError, DataError, NumericalError, is_out_of_memory
from ..files import read_tensors, write_atomically, write_tensors
from ..fit import TrainResult, evaluate, fit_filters
from ..fit.head import fit_head_as
from ..network import CKN, Classifier
from ..settings import Settings, settings_from
from .results import Result, identity, read_results, start_settings
from .spec import Cell
from .variants import method_class, preprocessing

#: Settings that do not change which learning rate is chosen.
_UNTRIED = {"seed", "steps", "evaluate_every"}
#: Training images that the classifier of a trial is fitted to.
_TRIAL_IMAGES = 10_000


def clock() -> float:
    """CPU time where there is one thread, which other programs on the machine change less; else wall-clock time."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def shared_files(folder: Path, cell: Cell) -> list[Path]:
    """What the first of some cells computes for all of them: a cell that needs one waits until it is there."""
    if cell.measure == "few-labels":  # short enough to wait for
        return []
    timed = [speed_file(folder, cell)] if "total_seconds" in cell.extras else []
    return [start_file(folder, cell), *timed, *([trials_file(folder, cell)] if is_to_be_tuned(cell) else [])]


def start_file(folder: Path, cell: Cell) -> Path:
    """The network before its first step: the same for cells that differ in later settings alone.

    The inverse root might change it, by its rounding: a shared beginning is that of whichever method was first, so that methods
    are compared from one and the same.
    """
    slip = cell.extras.get("slip")
    settings = {name: value for name, value in start_settings(cell.settings).items() if name != "inverse_sqrt"}
    others = {"head": cell.measure != "gradient", "slip": slip if slip == "half-whitening" else None}
    key = digest(settings | others | code(cell))
    return folder / "work" / "starts" / f"{key}.safetensors"


def trials_file(folder: Path, cell: Cell) -> Path:
    """Accuracies of the learning rates: the same for cells that differ in their seed or their number of steps alone."""
    return folder / "work" / "trials" / f"{_key_of_all_seeds(cell)}.json"


def speed_file(folder: Path, cell: Cell) -> Path:
    """The time before the first step, and that of a step."""
    return folder / "work" / "speeds" / f"{_key_of_all_seeds(cell)}.json"


def _key_of_all_seeds(of: Cell | Result) -> str:
    settings = of.settings if isinstance(of, Cell) else settings_from(of.settings, of.experiment)
    given = identity(settings, of.extras, of.measure)
    return digest({name: value for name, value in given.items() if name not in _UNTRIED} | code(of))


def code(of: Cell | Result) -> dict[str, str]:
    """What a key has of the code of a network of one's own."""
    return {} if of.source_digest is None else {"source_digest": of.source_digest}


def is_to_be_tuned(cell: Cell) -> bool:
    return cell.measure == "train" and cell.settings.training.lr is None and "lrs" in cell.extras


def digest(what: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Bench:
    """What a measure works with."""

    cell: Cell
    work: Path
    folder: Path

    @property
    def settings(self) -> Settings:
        return self.cell.settings

    @cached_property
    def images(self) -> Images:
        """The seed draws which ones are validation images."""
        images = load_images(self.settings)
        return images._replace(pixels=preprocessing(images.pixels, self.cell.extras.get("slip")))

    def with_seed(self, seed: int) -> Bench:
        return replace(self, cell=replace(self.cell, seed=seed))

    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.settings.training.seed)

    def started(self) -> tuple[Classifier, dict[str, Any]]:
        """The network before its first step, filters and classifier fitted, with the accuracy and the time of that."""
        file = start_file(self.folder, self.cell)
        net = build_network(self.settings, self.images, self.generator())
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(file.with_suffix(".lock")):
            if not file.exists():
                facts = self._start(net)
                write_tensors(file, "start", facts, net.state_dict())
        facts, tensors = read_tensors(file, "start")
        net.load_state_dict(tensors)
        return net, facts

    def _start(self, net: Classifier) -> dict[str, Any]:
        began, facts = clock(), {}
        if not isinstance(net, CKN):
            return {"start_seconds": 0.0}  # a ConvNet begins as random as it is
        how, unlabeled = self.settings.training, self.images.unlabeled
        images = self.images.train if unlabeled is None else unlabeled
        fit_filters(net, images, how.patches, restarts=how.restarts, generator=self.generator())
        if self.cell.measure != "gradient":
            head = fit_head_as(how, net, self.images.train, self.images.valid, lam=None, generator=self.generator())
            facts = {"start_valid_accuracy": head.accuracy, "start_lam": head.lam}
        return facts | {"start_seconds": round(clock() - began, 2)}

    def trained(self, net: Classifier, run_dir: Path | None, **overrides: Any) -> TrainResult:
        return runs.train(
            net,
            self.images.train,
            self.images.valid,
            self.settings.training,
            generator=self.generator(),
            run_dir=run_dir,
            resume=run_dir is not None,
            method_class=method_class(self.cell.extras.get("slip")),
            clock=clock,
            **overrides,
        )

    def tested(self, net: Classifier) -> float:
        if self.images.test is None:
            raise DataError(f"{self.settings.data} has no test images, which experiments are measured with")
        return evaluate(net, self.images.test).accuracy


def timed(bench: Bench) -> Bench:
    """The cell with as many steps as fit into its total time, if it has one, without the time of the last classifier."""
    total = bench.cell.extras.get("total_seconds")
    if total is None:
        return bench
    file = speed_file(bench.folder, bench.cell)
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_suffix(".lock")):
        if not file.exists():
            write_atomically(file, json.dumps(_speed(bench.with_seed(0))).encode())
    speed = json.loads(file.read_text())
    later = (total - speed["start_seconds"] - speed["first_seconds"]) / speed["step_seconds"]
    steps = math.floor(speed["first_steps"] + later)
    if steps < 1:
        raise ConfigError(
            f"{bench.cell.name}: total_seconds = {total} expected more than the {speed['start_seconds']:.0f} s before the first "
            "step"
        )
    given = bench.cell.given | {"steps": steps, "evaluate_every": max(1, steps // 10)}
    return replace(bench, cell=replace(bench.cell, given=given))


def _speed(bench: Bench) -> dict[str, float]:
    """By two passes over the images: in the first one, more is computed than later."""
    net, facts = bench.started()
    training = bench.settings.training.resolved(net.default_method, len(bench.images.train))
    first = max(1, len(bench.images.train) // (training.batch_size or 1))
    lr = bench.settings.training.lr or next(iter(_schedules(bench.cell)), None)
    result = bench.trained(net, None, lr=lr, steps=2 * first, evaluate_every=first, final_head=False)
    at = {record["step"]: record["seconds"] for record in result.history if "valid_accuracy" in record}
    return {
        "start_seconds": facts["start_seconds"],
        "first_steps": first,
        "first_seconds": at[first] - at[0],
        "step_seconds": (at[2 * first] - at[first]) / first,
    }


def tuned(bench: Bench) -> tuple[Any, dict[str, float]]:
    """The learning rate whose trial, with seed 0, has the best validation accuracy; and the accuracies of all."""
    if not is_to_be_tuned(bench.cell):
        return bench.settings.training.lr, {}
    file = trials_file(bench.folder, bench.cell)
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_suffix(".lock")):
        if not file.exists():
            earlier = _trials_of_results(bench)
            if earlier:
                write_atomically(file, json.dumps(earlier).encode())
            else:
                _try(bench.with_seed(0), file.with_suffix(".part")).replace(file)
    trials: dict[str, float] = json.loads(file.read_text())
    return max(trials, key=lambda lr: trials[lr]), trials


def _trials_of_results(bench: Bench) -> dict[str, float]:
    """What was tried for a cell that has a result already, on another machine perhaps; empty if there is none."""
    key = _key_of_all_seeds(bench.cell)
    results = read_results(bench.folder, bench.cell.scale).of(bench.cell.experiment)
    return next((result["trials"] for result in results if result["trials"] and _key_of_all_seeds(result) == key), {})


def _try(bench: Bench, file: Path) -> Path:
    """Write down the accuracy of each learning rate, with a classifier refitted to the filters after the trial.

    The classifier of the last step is that of a few images, and noisier for larger steps; it would favour small ones.
    After an interruption, the file has what was tried before, and the trial goes on from its last checkpoint.
    """
    some = bench.images.train[:_TRIAL_IMAGES]
    trials: dict[str, float] = json.loads(file.read_text()) if file.exists() else {}
    steps = bench.cell.extras.get("trial_steps", bench.settings.training.steps)
    for lr in _schedules(bench.cell):
        if lr not in trials:
            net, _ = bench.started()
            run = file.with_name(f"{file.stem}-{lr.replace(':', '-')}")
            try:
                bench.trained(net, run, lr=lr, steps=steps, evaluate_every=steps, final_head=False)
                trials[lr] = _refitted_accuracy(net, some, bench)
            except NumericalError as error:
                if error.__cause__ is not None and is_out_of_memory(error.__cause__):
                    raise  # says nothing about a learning rate
                trials[lr] = 0.0
            write_atomically(file, json.dumps(trials).encode())
            shutil.rmtree(run, ignore_errors=True)
    return file


def _refitted_accuracy(net: Classifier, some: Part, bench: Bench) -> float:
    try:
        return fit_head_as(bench.settings.training, net, some, bench.images.valid, lam=None, folds=0).accuracy or 0.0
    except DataError:  # features are not finite
        return 0.0


def _schedules(cell: Cell) -> list[str]:
    """The learning rates to try."""
    return [lr if isinstance(lr, str) else f"cosine:{lr}" for lr in cell.extras.get("lrs", [])]
