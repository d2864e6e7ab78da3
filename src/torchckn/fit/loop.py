"""The loop that all methods share: steps, validation, roll-back, checkpoints, and the way back from them.

Read first: :mod:`torchckn.fit.methods`, what a step is. Read next: :mod:`torchckn.fit.trainer`, what comes before and after.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor

from ..errors import CKNError, DataError, NumericalError
from ..network import CKN, Classifier
from ..progress import progress as show_progress
from ..runs import Run, read_checkpoint, read_metrics, read_result
from ..storage import load, save, write_atomically
from .batches import TrainingBatches
from .classifier import HeadFit
from .features import evaluate
from .methods import Method, MethodOptions
from .schedules import Search, StepSize

#: a drop of the training accuracy from one epoch to the next that is undone, and what the step size is multiplied with then
DROP, BACK_OFF = 0.02, 1 / 4


@dataclass(frozen=True)
class TrainResult:
    """What :func:`train` did."""

    history: list[dict[str, Any]] = field(repr=False)
    """one record a step: step, loss, accuracy, lr, seconds; valid_accuracy where it was taken"""
    lam: float
    """the penalty during the steps"""
    start: HeadFit | None
    """the classifier before the steps, if it was fitted here"""
    head: HeadFit | None
    """the classifier after the steps"""
    seconds: float
    """of training, without validation and checkpoints"""
    steps: int

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "history"}


@dataclass
class Loop:
    """The loop, and all of its state."""

    net: Classifier
    order: TrainingBatches
    valid_data: Any
    rule: StepSize
    steps: int
    generator: torch.Generator
    folder: Run | None
    rollback: bool
    evaluate_every: int
    checkpoint_every: int
    show: bool | None
    on_step: Callable[[dict[str, Any]], None] | None

    history: list[dict[str, Any]] = field(default_factory=list)
    step: int = 0
    lr: float | None = None
    scale: float = 1.0
    """of the step size, after roll-backs"""
    seconds: float = 0.0
    epoch_accuracy: float | None = None
    epoch_state: dict[str, Tensor] = field(default_factory=dict)
    start: HeadFit | None = None

    def run(
        self,
        method: type[Method],
        options: MethodOptions,
        prepare: Callable[[], tuple[float, HeadFit | None]],
        finish: Callable[[float], HeadFit | None],
    ) -> TrainResult:
        if self.folder and self.folder.is_finished:
            return self._as_it_was(self.folder)
        checkpoint = read_checkpoint(self.folder.folder) if self.folder else None
        clock = time.perf_counter()
        if checkpoint is None:
            if self.folder:
                self.folder.keep_metrics(-1)
            lam, self.start = prepare()
            self.method = method(self.net, replace(options, lam=lam))
            self.seconds += time.perf_counter() - clock
            self._record({"step": 0, **self._validate(), "seconds": self.seconds})
            self._save(lam)
        else:
            lam = float(checkpoint[1]["lam"])
            self.method = method(self.net, replace(options, lam=lam))
            self._restore(*checkpoint)
        self._loop(lam)
        clock = time.perf_counter()
        head = finish(lam)
        self.seconds += time.perf_counter() - clock
        result = TrainResult(self.history, lam, self.start, head, self.seconds, self.steps)
        if self.folder:
            self.net.eval()
            if isinstance(self.net, CKN):
                save(self.net, self.folder.model_path)
            else:
                weights = {name: tensor.detach().cpu().clone() for name, tensor in self.net.state_dict().items()}
                write_atomically(self.folder.model_path, to_bytes(weights))
            self.folder.save_result(result.to_json())
        return result

    def _as_it_was(self, run: Run) -> TrainResult:
        """The network and the result of a run that is finished."""
        result = read_result(run.folder) or {}
        weights = load(run.model_path).state_dict() if isinstance(self.net, CKN) else from_bytes(run.model_path.read_bytes())
        self.net.load_state_dict(weights)
        start, head = (HeadFit.from_json(result[key]) if result.get(key) else None for key in ("start", "head"))
        history = read_metrics(run.folder)
        return TrainResult(history, result["lam"], start, head, result["seconds"], result["steps"])

    def _loop(self, lam: float) -> None:
        name = type(self.method).__name__
        with show_progress(name, self.steps, self.show) as report, _ctrl_c() as asked_to_stop:
            while self.step < self.steps:
                before = self._state(lam)
                clock = time.perf_counter()
                try:
                    record = self._one_step()
                except NumericalError as error:
                    self._give_up(error, before)
                self.seconds += time.perf_counter() - clock
                record["seconds"] = round(self.seconds, 3)
                if self.step % self.evaluate_every == 0 or self.step == self.steps:
                    record |= self._validate()
                self._record(record)
                valid = next((r["valid_accuracy"] for r in reversed(self.history) if "valid_accuracy" in r), None)
                shown = "" if valid is None else f" valid {100 * valid:.1f}"
                now = f"loss {record['loss']:.3f} train {100 * record['accuracy']:.1f}{shown} lr {record['lr']:.1g}"
                report(self.step, now)
                if self.step % self.checkpoint_every == 0 or self.step == self.steps or asked_to_stop():
                    self._save(lam)
                if asked_to_stop() and self.step < self.steps:
                    self._stop()

    def _one_step(self) -> dict[str, Any]:
        trials: list[tuple[Tensor, Tensor]] = []

        def trial(lr: float) -> float:
            if not trials:
                trials.extend(self.order.extra() for _ in range(self.rule.tries + 1))
            state = self.method.state()
            try:
                for images, labels in trials[:-1]:
                    self.method.step(images, labels, lr)
                return self.method.loss(*trials[-1])
            except (NumericalError, DataError):
                return float("inf")
            finally:
                self.method.restore(state)

        if self.rollback and self.step and self.order.at_end_of_epoch:
            self._watch_epoch()
        self.lr = self.rule.choose(self.step, self.steps, self.lr, trial)
        lr = self.lr * self.scale
        loss, accuracy = self.method.step(*self.order.next(), lr)
        self.step += 1
        return {"step": self.step, "loss": loss, "accuracy": accuracy, "lr": lr}

    def _watch_epoch(self) -> None:
        """Go back to the epoch before if training accuracy fell by more than the paper allows."""
        recent = [record["accuracy"] for record in self.history if "accuracy" in record][-self.order.steps_an_epoch :]
        accuracy = sum(recent) / max(1, len(recent))
        if self.epoch_accuracy is not None and accuracy < self.epoch_accuracy - DROP:
            self.method.restore(self.epoch_state)
            if isinstance(self.rule, Search) and self.lr is not None:
                self.lr *= BACK_OFF  # the search goes on from there
            else:
                self.scale *= BACK_OFF
        else:
            self.epoch_accuracy, self.epoch_state = accuracy, self.method.state()

    def _validate(self) -> dict[str, Any]:
        if self.valid_data is None:
            return {}
        found = evaluate(self.net, self.valid_data, progress=False)
        if self.folder and isinstance(self.net, CKN):
            layers = [layer for layer in self.net.kernel_layers().values() if layer.init != "identity"]
            if layers:
                self.folder.save_filters(self.step, layers[0].weight)
        return {"valid_accuracy": found.accuracy, "valid_loss": found.loss}

    def _record(self, record: dict[str, Any]) -> None:
        self.history.append(record)
        if self.folder:
            self.folder.log(record)
        if self.on_step:
            self.on_step(record)

    # Checkpoints: everything that the next step depends on.

    def _state(self, lam: float) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = self.method.state()
        tensors |= {f"epoch.{name}": value for name, value in self.epoch_state.items()}
        tensors |= {f"order.{name}": value for name, value in self.order.state().items()}
        tensors["generator"] = self.generator.get_state()
        tensors["chance"] = torch.get_rng_state()  # of dropout and the like
        info = {
            "step": self.step,
            "lr": self.lr,
            "scale": self.scale,
            "lam": lam,
            "seconds": self.seconds,
            "epoch_accuracy": self.epoch_accuracy,
            "start": asdict(self.start) if self.start else None,
        }
        return tensors, info

    def _save(self, lam: float) -> None:
        if self.folder:
            self.folder.save_checkpoint(*self._state(lam))

    def _restore(self, tensors: dict[str, Tensor], info: dict[str, Any]) -> None:
        parts: dict[str, dict[str, Tensor]] = {"epoch.": {}, "order.": {}}
        for prefix, part in parts.items():
            part |= {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
        self.method.restore(tensors)
        self.epoch_state = parts["epoch."]
        self.order.restore(parts["order."])
        self.generator.set_state(tensors["generator"])
        torch.set_rng_state(tensors["chance"])
        self.step, self.lr, self.scale = info["step"], info["lr"], info["scale"]
        self.seconds, self.epoch_accuracy = info["seconds"], info["epoch_accuracy"]
        self.start = HeadFit.from_json(info["start"]) if info["start"] else None
        if self.folder:
            self.history = self.folder.keep_metrics(self.step)

    def _give_up(self, error: CKNError, before: tuple[dict[str, Tensor], dict[str, Any]]) -> None:
        self.method.restore(before[0])
        saved = "The network is as it was before that step."
        if self.folder:
            self.folder.save_checkpoint(*before)
            saved += f" Its state is kept in {self.folder.folder}."
        raise NumericalError(
            f"step {self.step + 1} failed: {error}. {saved} Try a smaller step size (lr), a larger tau or eps, or float64, "
            "in a new run"
        ) from error

    def _stop(self) -> None:
        how = f"it goes on with resume=True, run_dir={str(self.folder.folder)!r}" if self.folder else "it has no run_dir"
        raise KeyboardInterrupt(f"training was interrupted after step {self.step} of {self.steps}; {how}")


@contextmanager
def _ctrl_c() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C only asks to stop; the second one stops."""
    asked = False
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def ask(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler if before is None else before)
