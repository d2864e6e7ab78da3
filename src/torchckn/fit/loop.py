"""A training in progress: prepare, steps, finish.

Read first: :mod:`torchckn.fit.methods`, what a step is, and :mod:`torchckn.fit.state`, what it depends on. Read next:
:mod:`torchckn.runs.trainer`, which puts it together.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor

from ..distributed import from_first, is_first, total_of_numbers
from ..errors import NumericalError, is_out_of_memory
from ..network import CKN, Classifier
from .classifier import HeadFit
from .features import evaluate
from .filters import fit_filters
from .head import fit_head_as
from .result import Record, TrainResult
from .schedules import Search
from .signals import on_signals, stop_signals
from .state import TrainingState
from .trials import Trials

#: a drop of the training accuracy from one epoch to the next that is undone, and what the learning rate is multiplied by then
DROP, BACK_OFF = 0.02, 1 / 4

# A ConvNet's classifier starts as random as its filters. Fitted to random features first, as a CKN's is to good ones, its weights
# are so large that only tiny steps are stable: on validation images of MNIST LeNet-5 then has 96.9 % after 3,900 steps, where it
# has 98.3 % after 1,000 from a random one.
#: L2 penalty of a ConvNet's classifier during SGD, unless another is given
SGD_LAM = 2.0**-17


class TrainingLoop(TrainingState):
    """A training in progress; callbacks see it as a :class:`torchckn.fit.callbacks.Training`."""

    _interrupted: Callable[[], bool] = staticmethod(lambda: False)
    _asked_to_stop = False  # by a signal to any of the processes
    _reason: str | None = None  # why this process wants to stop; all of them agree on that after each step

    def stop(self, reason: str) -> None:
        """Ask training to end after this step, as if it had been the last one."""
        self._reason = reason

    @property
    def is_stopping(self) -> bool:
        """Whether no step will follow in this process."""
        asked = self._asked_to_stop or self.stop_reason is not None or self._reason is not None
        return self.step >= self.steps or asked

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
            self.continue_from(*checkpoint)
            self._tell("on_train_start")
            self._tell("on_steps_start")
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
        self._tell("on_steps_start")

    def _fit_start(self) -> None:
        net, config = self.net, self.config
        if config.method == "sgd":
            net.penalty = next(lam for lam in (config.lam, net.penalty, SGD_LAM) if lam is not None)
            return
        if net.needs_filters:
            assert isinstance(net, CKN)
            fit_filters(
                net,
                self.train_data if self.unlabeled is None else self.unlabeled,
                config.patches,
                restarts=config.restarts,
                generator=self.generator,
                progress=self.progress,
            )
        other_penalty = config.lam is not None and net.penalty != config.lam
        if net.penalty is None or other_penalty or net.head_loss not in (config.loss, None):
            some = self.batches.sample(config.start_images) if config.start_images and self.steps else None
            self.start = self._fit_head(self.train_data if some is None else some)

    def _fit_head(self, train_data: Any, **others: Any) -> HeadFit:
        given = self.config, self.net, train_data, self.valid_data, self.generator
        return fit_head_as(*given, progress=self.progress, **others)

    def take_steps(self) -> None:
        """Step after step, until the last one or until somebody asks to stop."""
        with stop_signals() as self._interrupted:
            before = None
            self._agree_on_stopping()
            while not self.is_stopping:
                here = self.snapshot()
                assert self.method is not None
                if before is None or not self.method.checks.are_waiting:
                    before = here  # else this step checks what the last one did, and may find that it failed
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
                    remedy = (
                        "graph_memory=0 or a smaller chunk (chunk=32, say), which a resumed run may have, or a smaller "
                        "batch_size in a new run"
                    )
                    self._give_up(f"there is not enough memory. Try {remedy}", before, error)
                before = here
                self.seconds += self.clock() - clock
                record["seconds"] = round(self.seconds, 3)
                every = self.config.evaluate_every or max(1, self.steps // 10)
                if self.step // every > here[1]["step"] // every or self.step == self.steps:
                    record |= self._validation()
                self.history.append(record)
                if "valid_accuracy" in record:
                    self._tell("on_validation_end", record)
                self._tell("on_step_end", record)
                if self._agree_on_stopping() and self.store:
                    self.store.save_checkpoint(*self.state())  # which says that it ends here
            if self._asked_to_stop and self.stop_reason is None:
                raise KeyboardInterrupt(
                    f"training was interrupted after step {self.step} of {self.steps}; {self._how_to_resume}"
                )

    def _agree_on_stopping(self) -> bool:
        """What one process asks for, a signal or a callback, all of them do; whether that is new."""
        before = self._asked_to_stop, self.stop_reason
        interrupted, stopping = total_of_numbers(self._interrupted(), self._reason is not None)
        self._asked_to_stop |= interrupted > 0
        if stopping and self.stop_reason is None:
            self.stop_reason = self._reason or "another process asked to stop"
        return before != (self._asked_to_stop, self.stop_reason)

    def finish(self) -> TrainResult:
        """The classifier on all features, and the run's result."""
        self._check_epoch()
        self._tell("on_steps_end")
        clock = self.clock()
        lam = self.net.penalty
        assert lam is not None  # since prepare()
        refit = self.config.validation_labels and self.valid_data is not None
        head = self.start if not self.steps and not refit else None  # which was fitted to these very features
        if self.config.final_head and head is None:
            # Filters know the training labels by now, so only validation images may choose.
            chosen = self.valid_data is None or (self.start is not None and not self.steps)
            head = self._fit_head(self.train_data, lam=lam if chosen else self.config.lam, folds=0, refit=refit)
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
        self._check_epoch()
        assert self.method is not None
        trials = Trials(self.method, self.batches, self.schedule, self.steps - self.step)
        self.lr = self.schedule.choose(self.step, self.steps, self.lr, trials)
        lr = self.lr * self.scale
        if trials.best is not None:
            self.method.restore(trials.best.state)
            (loss, accuracy), taken = trials.best.last, trials.best.steps
        else:
            (loss, accuracy), taken = self.method.step(*self.batches.next(), lr), 1
        self.step += taken
        if self.step == self.steps:
            self.method.checks.read()  # there is no next step to check this one
        return {"step": self.step, "loss": loss, "accuracy": accuracy, "lr": lr}

    def _check_epoch(self) -> None:
        """With ``rollback``, at the end of an epoch: go back to the one before if training accuracy dropped by too much."""
        if not (self.config.rollback and self.step and self.batches.at_end_of_epoch):
            return
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
            self.method.checks.read()
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

    def _give_up(self, why: str, before: tuple[dict[str, Tensor], dict[str, Any]], error: BaseException) -> NoReturn:
        assert self.method is not None
        self.method.restore(before[0])
        step = before[1]["step"]
        saved = f"The network is as it was before {'that step' if step == self.step else f'step {step + 1}'}."
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
