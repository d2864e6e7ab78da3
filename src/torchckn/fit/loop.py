"""A training in progress: prepare, steps, finish, and all of its state.

Read first: :mod:`torchckn.fit.methods`, what a step is. Read next: :mod:`torchckn.runs.trainer`, which puts it together.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor

from ..distributed import from_first, is_first, largest
from ..errors import CKNError, DataError, NumericalError, is_out_of_memory
from ..network import CKN, Classifier
from .batches import TrainingBatches
from .callbacks import Callback
from .classifier import LAMBDAS, HeadFit
from .config import TrainConfig
from .features import evaluate
from .filters import fit_filters
from .head import fit_head
from .methods import Method, net_state
from .result import Record, TrainResult
from .schedules import Schedule, Search, schedule
from .signals import on_signals, stop_signals

#: a drop of the training accuracy from one epoch to the next that is undone, and what the learning rate is multiplied by then
DROP, BACK_OFF = 0.02, 1 / 4

# A ConvNet's classifier starts as random as its filters. Fitted to random features first, as a CKN's is to good ones, its weights
# are so large that only tiny steps are stable: on validation images of MNIST LeNet-5 then has 96.9 % after 3,900 steps, where it
# has 98.3 % after 1,000 from a random one.
#: L2 penalty of a ConvNet's classifier during SGD, unless another is given
SGD_LAM = 2.0**-17


class Store(Protocol):
    """Where a training is kept, so that it can be resumed: a run folder, :class:`torchckn.runs.Run`."""

    folder: Path

    def load_result(self, net: Classifier) -> TrainResult | None:
        """The result of a training that is finished, whose weights the network gets."""

    def load_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """What :meth:`TrainingLoop.state` was at the last checkpoint."""

    def save_checkpoint(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Keep the state of a training."""

    def save_result(self, net: Classifier, result: TrainResult) -> None:
        """Keep the trained network and the result."""


@dataclass
class TrainingLoop:
    """A training in progress; callbacks see it as a :class:`torchckn.fit.callbacks.Training`."""

    net: Classifier
    config: TrainConfig
    """with the defaults filled in"""
    method_class: type[Method]
    train_data: Any
    valid_data: Any
    batches: TrainingBatches
    generator: torch.Generator
    callbacks: Sequence[Callback]
    store: Store | None = None
    """of the first process; others have none"""
    progress: bool | None = None
    clock: Callable[[], float] = time.perf_counter
    """what seconds are measured with"""
    unlabelled: Any = None
    """what the unsupervised filters are fitted to, if not to the training data"""

    history: list[Record] = field(default_factory=list)
    step: int = 0
    """steps that were made"""
    lr: float | None = None
    scale: float = 1.0
    """of the learning rate, after roll-backs"""
    seconds: float = 0.0
    start: HeadFit | None = None
    stop_reason: str | None = None
    epoch_accuracy: float | None = None
    epoch_state: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.method: Method | None = None  # without steps there is none
        self.schedule: Schedule = schedule(self.config.lr, convnet=self.config.method == "sgd")
        self._interrupted: Callable[[], bool] = lambda: False
        self._asked_to_stop = False  # by a signal to any of the processes

    @property
    def steps(self) -> int:
        """Steps in all."""
        assert self.config.steps is not None
        return self.config.steps

    def stop(self, reason: str) -> None:
        """Ask training to end after this step, as if it had been the last one."""
        self.stop_reason = reason

    @property
    def is_stopping(self) -> bool:
        """Whether no step will follow in this process."""
        return self.step >= self.steps or self.stop_reason is not None or self._asked_to_stop

    def train(self) -> TrainResult:
        """All of it: what :func:`torchckn.train` does once everything has been checked."""
        finished = from_first(lambda: self.store.load_result(self.net) if self.store else None)
        if finished is not None:
            share_weights(self.net)
            return finished
        try:
            with on_signals(signal.default_int_handler):
                with self._saying("before the first step", "filters and classifier"):
                    self.prepare()
                self.take_steps()
                with self._saying(f"after step {self.step} of {self.steps}", "the final classifier"):
                    return self.finish()
        finally:
            self._tell("on_exit")

    @contextmanager
    def _saying(self, when: str, what: str) -> Iterator[None]:
        """Within this context, Ctrl-C says what was under way, and what is kept."""
        try:
            yield
        except KeyboardInterrupt as stop:
            if str(stop):
                raise
            raise KeyboardInterrupt(
                f"training was interrupted {when}, while fitting {what}; {self._how_to_resume}"
            ) from None

    @property
    def _how_to_resume(self) -> str:
        if self.store is None:
            return "it has no run_dir, so it cannot be resumed"
        return f"resume it with resume=True, run_dir={str(self.store.folder)!r}"

    def prepare(self) -> None:
        """Fit filters and classifier where that was not done before; or go back to the last checkpoint."""
        checkpoint = from_first(lambda: self.store.load_checkpoint() if self.store else None)
        clock = self.clock()
        if checkpoint is not None:
            self._continue_from(*checkpoint)
            self._tell("on_train_start")
            return
        self._fit_start()
        if self.steps:
            self.method = self.method_class(self.net, self.config)
        self.seconds += self.clock() - clock
        first = {"step": 0, **(self._validation_of(self.start) or self._validation()), "seconds": self.seconds}
        self.history.append(first)
        self._tell("on_train_start")
        if "valid_accuracy" in first:
            self._tell("on_validation_end", first)

    def _continue_from(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Back to a checkpoint; a :class:`DataError` if it is not one of such a run."""
        try:
            self.net.load_state_dict(_part(tensors, "net."))
            if self.steps:
                self.method = self.method_class(self.net, self.config)
            self._restore(tensors, facts)
        except CKNError:
            raise
        except _NOT_A_CHECKPOINT as error:
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            folder = self.store.folder / "checkpoint" if self.store else "the run's folder"
            raise DataError(
                f"the checkpoint in {folder} is not one of this run ({type(error).__name__}: {reason}); delete {folder} to start "
                "again"
            ) from error

    def _fit_start(self) -> None:
        net, config = self.net, self.config
        if config.method == "sgd":
            net.lam.fill_(config.lam if config.lam is not None else net.lam if net.lam >= 0 else SGD_LAM)
            return
        if net.needs_filters:
            assert isinstance(net, CKN)
            fit_filters(
                net,
                self.train_data if self.unlabelled is None else self.unlabelled,
                config.patches,
                restarts=config.restarts,
                generator=self.generator,
                progress=self.progress,
            )
        other_penalty = config.lam is not None and float(net.lam) != config.lam
        if not net.lam >= 0 or other_penalty or net.head_loss not in (config.loss, None):
            some = self.batches.sample(config.start_images) if config.start_images and self.steps else None
            self.start = self._fit_head(config.lam, self.train_data if some is None else some, config.folds)

    def _fit_head(self, lam: float | None, train_data: Any, folds: int | None) -> HeadFit:
        return fit_head(
            self.net,
            train_data,
            self.valid_data,
            loss=self.config.loss,
            lam=lam,
            lambdas=self.config.lambdas or LAMBDAS,
            search=self.config.penalty_search,
            folds=folds,
            class_weights=self.config.class_weights,
            label_smoothing=self.config.label_smoothing,
            progress=self.progress,
        )

    def take_steps(self) -> None:
        """Step after step, until the last one or until somebody asks to stop."""
        with stop_signals() as self._interrupted:
            while not self.is_stopping:
                before = self.state()
                clock = self.clock()
                try:
                    record = self._one_step()
                except NumericalError as error:
                    self._give_up(
                        f"{error}. Try a smaller learning rate (lr), a larger tau or eps, or float64, in a new run",
                        before,
                        error,
                    )
                except (MemoryError, RuntimeError) as error:
                    if not is_out_of_memory(error):
                        raise
                    chunk = (
                        "a smaller chunk (chunk=32, say), which a resumed run may have, or a smaller batch_size in a new run"
                    )
                    self._give_up(f"there is not enough memory. Try {chunk}", before, error)
                self.seconds += self.clock() - clock
                record["seconds"] = round(self.seconds, 3)
                if self.step % (self.config.evaluate_every or max(1, self.steps // 10)) == 0 or self.step == self.steps:
                    record |= self._validation()
                self.history.append(record)
                self._asked_to_stop = largest(int(self._interrupted())) > 0
                if "valid_accuracy" in record:
                    self._tell("on_validation_end", record)
                self._tell("on_step_end", record)
            self._asked_to_stop = self._asked_to_stop or largest(int(self._interrupted())) > 0  # in the last step
            if self._asked_to_stop and self.stop_reason is None:
                raise KeyboardInterrupt(
                    f"training was interrupted after step {self.step} of {self.steps}; {self._how_to_resume}"
                )

    def finish(self) -> TrainResult:
        """The classifier on all features, and the run's result."""
        self._tell("on_steps_end")
        clock = self.clock()
        lam = float(self.net.lam)
        head = self.start if not self.steps else None  # which was fitted to these very features
        if self.config.final_head and head is None:
            # Filters know the training labels by now, so only validation images may choose.
            head = self._fit_head(lam if self.valid_data is None else self.config.lam, self.train_data, folds=0)
        self.seconds += self.clock() - clock
        result = TrainResult(self.history, lam, self.start, head, self.seconds, self.step, self.stop_reason)
        if self.store:
            self.net.eval()
            self.store.save_result(self.net, result)
        self._tell("on_train_end", result)
        return result

    def _tell(self, event: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(self, *arguments)

    # One step

    def _one_step(self) -> Record:
        if self.config.rollback and self.step and self.batches.at_end_of_epoch:
            self._check_epoch()
        trials: list[tuple[Tensor, Tensor]] = []

        def trial(lr: float) -> float:
            if not trials:
                trials.extend(self.batches.extra() for _ in range(self.schedule.tries + 1))
            return self._try_rate(lr, trials)

        self.lr = self.schedule.choose(self.step, self.steps, self.lr, trial)
        lr = self.lr * self.scale
        assert self.method is not None
        loss, accuracy = self.method.step(*self.batches.next(), lr)
        self.step += 1
        return {"step": self.step, "loss": loss, "accuracy": accuracy, "lr": lr}

    def _try_rate(self, lr: float, batches: list[tuple[Tensor, Tensor]]) -> float:
        """The loss on the last batch after steps with a learning rate on the others; leaves no trace."""
        assert self.method is not None
        state = self.method.state()
        try:
            for images, labels in batches[:-1]:
                self.method.step(images, labels, lr)
            return self.method.loss(*batches[-1])
        except (NumericalError, DataError):
            return float("inf")
        finally:
            self.method.restore(state)

    def _check_epoch(self) -> None:
        """Go back to the epoch before if training accuracy dropped by more than the paper allows."""
        recent = [record["accuracy"] for record in self.history if "accuracy" in record][-self.batches.steps_per_epoch :]
        accuracy = sum(recent) / max(1, len(recent))
        assert self.method is not None
        if self.epoch_accuracy is not None and accuracy < self.epoch_accuracy - DROP:
            self.method.restore(self.epoch_state)
            if isinstance(self.schedule, Search) and self.lr is not None:
                self.lr *= BACK_OFF  # the search continues from there
            else:
                self.scale *= BACK_OFF
        else:
            self.epoch_accuracy, self.epoch_state = accuracy, self.method.state()

    def _validation_of(self, head: HeadFit | None) -> Record:
        """What the choice of a classifier's penalty has measured on the validation data already, if it has."""
        scores = [score for score in head.curve if score.lam == head.lam] if head and not head.folds else []
        if not scores or self.config.loss != "multinomial":
            return {}
        return {"valid_accuracy": scores[0].accuracy, "valid_loss": scores[0].loss}

    def _validation(self) -> Record:
        if self.valid_data is None:
            return {}
        evaluation = evaluate(self.net, self.valid_data, progress=False)
        return {"valid_accuracy": evaluation.accuracy, "valid_loss": evaluation.loss}

    # Checkpoints: everything that the next step depends on

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and plain facts, copied: all that is needed to continue exactly from here."""
        tensors = self.method.state() if self.method else net_state(self.net)
        tensors |= {f"epoch.{name}": value for name, value in self.epoch_state.items()}
        tensors |= {f"batches.{name}": value for name, value in self.batches.state().items()}
        for key, callback in self._callbacks_by_name():
            tensors |= {f"{key}{name}": value.clone() for name, value in callback.state().items()}
        tensors["generator"] = self.generator.get_state()
        tensors["torch_generator"] = torch.get_rng_state()  # of dropout and the like
        facts = {
            "step": self.step,
            "lr": self.lr,
            "scale": self.scale,
            "steps": self.steps,
            "seconds": self.seconds,
            "epoch_accuracy": self.epoch_accuracy,
            "start": asdict(self.start) if self.start else None,
            "stop_reason": self.stop_reason,
            "history": list(self.history),
        }
        return tensors, facts

    def _callbacks_by_name(self) -> Iterator[tuple[str, Callback]]:
        """Each callback with a key that does not depend on other callbacks, which a resumed run may have or not."""
        names = [type(callback).__name__ for callback in self.callbacks]
        for i, callback in enumerate(self.callbacks):
            yield f"callback.{names[i]}.{names[:i].count(names[i])}.", callback

    def _restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        if self.method:
            self.method.restore(tensors)
        self.epoch_state = _part(tensors, "epoch.")
        self.batches.restore(_part(tensors, "batches."))
        for key, callback in self._callbacks_by_name():
            callback.restore(_part(tensors, key))
        self.generator.set_state(tensors["generator"])
        if is_first():  # others draw other numbers, for other images
            torch.set_rng_state(tensors["torch_generator"])
        self.step, self.scale, self.seconds = (_number(facts[name]) for name in ("step", "scale", "seconds"))  # type: ignore[assignment]
        self.lr, self.epoch_accuracy = (
            None if facts[name] is None else _number(facts[name]) for name in ("lr", "epoch_accuracy")
        )
        if not isinstance(self.step, int) or not 0 <= self.step <= self.steps:
            raise ValueError(f"step {self.step} of {self.steps}")
        self.stop_reason = facts["stop_reason"] if facts["steps"] == self.steps else None  # it is trained further now
        self.start = HeadFit.from_json(facts["start"]) if facts["start"] else None
        self.history = list(facts["history"])

    def _give_up(self, why: str, before: tuple[dict[str, Tensor], dict[str, Any]], error: BaseException) -> NoReturn:
        assert self.method is not None
        self.method.restore(before[0])
        saved = "The network is as it was before that step."
        if self.store:
            self.store.save_checkpoint(*before)
            saved += f" Its state is kept in {self.store.folder}."
        raise NumericalError(f"step {self.step + 1} failed: {why}. {saved}") from error


@torch.no_grad()
def share_weights(net: Classifier) -> None:
    """Give every process the tensors that the first one has."""
    state = from_first(lambda: {name: value.cpu() for name, value in net.state_dict().items()})
    if not is_first():
        net.load_state_dict(state)


#: what a checkpoint that is none of the run's may raise while training goes back to it
_NOT_A_CHECKPOINT = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RuntimeError)


def _number(value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TypeError(f"expected a number, got {value!r}")
    return value


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
