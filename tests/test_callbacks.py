"""Callbacks: what they see, how they stop a training, and that nothing of them is lost in an interruption."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import torchckn
from torchckn import Callback, ConfigError, runs
from torchckn.errors import DataError
from torchckn.fit import EarlyStopping, TensorBoard
from torchckn.fit.schedules import Search

from .training import StopAfter, StopHereError, digits, network, trained


class Notes(Callback):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def on_train_start(self, training: Any) -> None:
        self.events.append(("start", training.step, training.net.needs_filters))

    def on_steps_start(self, training: Any) -> None:
        self.events.append(("steps start", training.step))

    def on_step_end(self, training: Any, record: dict[str, Any]) -> None:
        assert training.history[-1] is record
        self.events.append(("step", record["step"]))

    def on_validation_end(self, training: Any, record: dict[str, Any]) -> None:
        self.events.append(("validation", record["step"]))

    def on_steps_end(self, training: Any) -> None:
        self.events.append(("steps end", training.step))

    def on_train_end(self, training: Any, result: Any) -> None:
        self.events.append(("end", result.steps))

    def on_exit(self, training: Any) -> None:
        self.events.append(("exit",))


def test_callbacks_are_told_of_everything_in_order() -> None:
    notes = Notes()
    trained(steps=3, evaluate_every=2, callbacks=[notes])
    assert notes.events == [
        ("start", 0, False),
        ("validation", 0),
        ("steps start", 0),
        ("step", 1),
        ("validation", 2),
        ("step", 2),
        ("validation", 3),
        ("step", 3),
        ("steps end", 3),
        ("end", 3),
        ("exit",),
    ]


def test_callbacks_can_close_what_is_open_whatever_happens() -> None:
    notes = Notes()
    with pytest.raises(StopHereError):
        trained(steps=3, callbacks=[StopAfter(2), notes])
    assert notes.events[-1] == ("exit",)


class StopAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, training: Any, record: dict[str, Any]) -> None:
        if record["step"] == self.step:
            training.stop("that is enough")


def test_a_callback_can_ask_to_stop_and_the_classifier_is_refitted(tmp_path: Path) -> None:
    stopped, result = trained(steps=12, callbacks=[StopAt(5)], run_dir=tmp_path / "run")
    assert (result.steps, result.stopped) == (5, "that is enough")
    assert result.head is not None
    expected, _ = trained(steps=12, callbacks=[StopAt(5)])
    assert torch.equal(stopped.head.weight, expected.head.weight)
    again = trained(steps=12, run_dir=tmp_path / "run", resume=True)[1]
    assert (again.steps, again.stopped) == (5, "that is enough")


def test_a_run_that_was_killed_after_it_was_asked_to_stop_does_not_go_on(tmp_path: Path) -> None:
    class KillAtTheEnd(Callback):
        def on_steps_end(self, training: Any) -> None:
            raise StopHereError

    with pytest.raises(StopHereError):
        trained(steps=12, callbacks=[StopAt(5), KillAtTheEnd()], run_dir=tmp_path / "run")
    result = trained(steps=12, run_dir=tmp_path / "run", resume=True)[1]
    assert (result.steps, result.stopped) == (5, "that is enough")


class Worse(Callback):
    """Lets validation accuracy be what a list says."""

    def __init__(self, *accuracies: float) -> None:
        self.accuracies = accuracies

    def on_validation_end(self, training: Any, record: dict[str, Any]) -> None:
        record["valid_accuracy"] = self.accuracies[sum("valid_accuracy" in r for r in training.history) - 1]


def test_patience_counts_validations_without_a_better_accuracy() -> None:
    worse = Worse(0.1, 0.5, 0.4, 0.5, 0.6, 0.2, 0.3, 0.6)
    _, result = trained(steps=10, evaluate_every=1, patience=3, callbacks=[worse])
    assert result.steps == 7
    assert result.stopped == "no validation accuracy above the 60.00 % of step 4 in 3 validations"
    assert trained(steps=7, evaluate_every=1, patience=8, callbacks=[worse])[1].stopped is None


def test_keeping_the_best_ends_with_the_weights_of_the_best_validation(tmp_path: Path) -> None:
    worse = Worse(0.1, 0.5, 0.9, 0.4, 0.3)
    best, _ = trained(steps=2, lr=2**-4, final_head=False)
    kept, _ = trained(steps=4, lr=2**-4, evaluate_every=1, keep_best=True, callbacks=[worse], final_head=False)
    assert torch.equal(kept.layers["conv"].weight, best.layers["conv"].weight)
    options = {"steps": 4, "lr": 2**-4, "evaluate_every": 1, "keep_best": True, "final_head": False, "checkpoint_every": 1}
    with pytest.raises(StopHereError):
        trained(callbacks=[worse, StopAfter(3)], run_dir=tmp_path / "run", **options)
    resumed, _ = trained(callbacks=[worse, StopAfter(9)], run_dir=tmp_path / "run", resume=True, **options)
    assert torch.equal(resumed.layers["conv"].weight, best.layers["conv"].weight)


def test_the_first_validation_is_part_of_the_first_checkpoint(tmp_path: Path) -> None:
    worse = Worse(0.9, 0.5, 0.4)
    options = {"steps": 2, "evaluate_every": 1, "keep_best": True, "final_head": False}
    best, whole = trained(callbacks=[worse], **options)
    with pytest.raises(StopHereError):
        trained(callbacks=[worse, StopAfter(1)], run_dir=tmp_path / "run", **options)
    resumed, result = trained(callbacks=[worse], run_dir=tmp_path / "run", resume=True, **options)
    assert torch.equal(resumed.layers["conv"].weight, best.layers["conv"].weight), "those before the first step"
    accuracies = [[record["valid_accuracy"] for record in one.history] for one in (whole, result)]
    assert accuracies == [[0.9, 0.5, 0.4]] * 2
    assert runs.read_metrics(tmp_path / "run")[0]["valid_accuracy"] == 0.9


def test_metrics_keep_the_numbers_of_a_line_that_has_other_things(tmp_path: Path) -> None:
    class Note(Callback):
        def on_step_end(self, training: Any, record: dict[str, Any]) -> None:
            record["note"] = "as planned"

    trained(steps=2, callbacks=[Note()], run_dir=tmp_path / "run", final_head=False)
    assert [record["step"] for record in runs.read_metrics(tmp_path / "run")] == [0, 1, 2]


def test_patience_and_keep_best_need_validation_data() -> None:
    train_data, _ = digits()
    for name, value in (("patience", 2), ("keep_best", True)):
        with pytest.raises(ConfigError, match=f"{name} needs validation data"):
            torchckn.train(network(), train_data, lam=2**-8, steps=1, **{name: value})
    with pytest.raises(ConfigError, match="patience: expected an integer >= 1, got 0"):
        EarlyStopping(0)


def test_tensorboard_gets_every_record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    written: list[tuple[str, int]] = []

    class SummaryWriter:
        def __init__(self, folder: str) -> None:
            assert folder == str(tmp_path / "board")

        def add_scalar(self, key: str, value: float, step: int) -> None:
            written.append((key, step))

        def close(self) -> None:
            written.append(("closed", -1))

    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    trained(steps=2, evaluate_every=2, callbacks=[TensorBoard(tmp_path / "board")])
    assert [step for key, step in written if key == "valid_accuracy"] == [0, 2]
    assert [step for key, step in written if key == "loss"] == [1, 2]
    assert written[-1] == ("closed", -1)


def test_tensorboard_that_is_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match=r"TensorBoard is not installed: pip install 'torchckn\[tensorboard\]'"):
        TensorBoard("board")


def test_without_steps_there_are_unsupervised_filters_and_a_classifier(tmp_path: Path) -> None:
    ckn, result = trained(steps=0, run_dir=tmp_path / "run")
    expected = network()
    train_data, valid_data = digits()
    torchckn.fit_filters(expected, train_data, 300, generator=torch.Generator().manual_seed(0))
    head = torchckn.fit_head(expected, train_data, valid_data, lambdas=[2.0**-6, 2.0**-12], folds=0)
    assert torch.equal(ckn.head.weight, expected.head.weight)
    assert result.head == head
    assert [record["step"] for record in result.history] == [0]
    assert runs.summary(tmp_path / "run")["state"] == "finished"


@pytest.mark.parametrize("first", [0, 6])
def test_a_finished_run_can_be_trained_further(tmp_path: Path, first: int) -> None:
    trained(steps=first, run_dir=tmp_path / "run")
    assert runs.summary(tmp_path / "run")["state"] == "finished"
    further, result = trained(steps=12, run_dir=tmp_path / "run", resume=True)
    expected, whole = trained(steps=12)  # the learning rate is constant, so the steps are the same
    assert torch.equal(further.head.weight, expected.head.weight)
    assert [record["loss"] for record in result.history[1:]] == [record["loss"] for record in whole.history[1:]]
    assert runs.read_config(tmp_path / "run")["training"]["steps"] == 12
    assert [record["step"] for record in runs.read_metrics(tmp_path / "run")] == list(range(13))
    with pytest.raises(ConfigError, match="another configuration: steps .expected steps = 12, got 6.*steps may grow"):
        trained(steps=6, run_dir=tmp_path / "run", resume=True)


def test_a_run_that_is_trained_further_may_have_another_learning_rate(tmp_path: Path) -> None:
    trained(steps=4, run_dir=tmp_path / "run")
    with pytest.raises(ConfigError, match="another configuration: lr .*with more steps lr, head_update, augment may differ"):
        trained(steps=4, run_dir=tmp_path / "run", resume=True, lr=0.001)
    changes = {"lr": 0.001, "head_update": "reuse"}
    with pytest.raises(StopHereError):
        trained(steps=8, run_dir=tmp_path / "run", resume=True, callbacks=[StopAfter(6)], **changes)
    _, result = trained(steps=8, run_dir=tmp_path / "run", resume=True, **changes)
    rates = [record["lr"] for record in result.history[1:]]
    assert rates[:4] == [rates[0]] * 4
    assert rates[0] != 0.001
    assert rates[4:] == [0.001] * 4
    config = runs.read_config(tmp_path / "run")
    assert config["earlier"] == [{"steps": 4, "lr": rates[0], "head_update": "exact"}]
    assert {name: config["training"][name] for name in ("steps", "lr", "head_update")} == {"steps": 8, **changes}


def test_an_unfinished_run_that_is_trained_further_says_how_far_it_was(tmp_path: Path) -> None:
    with pytest.raises(StopHereError):
        trained(steps=10, run_dir=tmp_path / "run", callbacks=[StopAfter(3)], checkpoint_every=2)
    trained(steps=12, run_dir=tmp_path / "run", resume=True, lr=0.001)
    (earlier,) = runs.read_config(tmp_path / "run")["earlier"]
    rates = [record["lr"] for record in runs.read_metrics(tmp_path / "run")[1:]]
    assert rates == [earlier["lr"]] * earlier["steps"] + [0.001] * (12 - earlier["steps"])


def test_a_run_that_is_trained_further_searches_its_learning_rate_anew(tmp_path: Path) -> None:
    trained(steps=2, run_dir=tmp_path / "run", lr=1e-6)
    search = Search(first=(0.25, 0.5), tries=1)
    _, result = trained(steps=3, run_dir=tmp_path / "run", resume=True, lr=search)
    assert result.history[-1]["lr"] in search.first
    _, same = trained(steps=4, run_dir=tmp_path / "run", resume=True, lr=search)
    assert same.history[-1]["lr"] == result.history[-1]["lr"]


def test_a_damaged_list_of_earlier_options_is_an_error_that_loses_nothing(tmp_path: Path) -> None:
    trained(steps=2, run_dir=tmp_path / "run")
    file = tmp_path / "run" / "config.toml"
    file.write_text("earlier = 3\n" + file.read_text())
    with pytest.raises(DataError, match="invalid earlier"):
        trained(steps=3, run_dir=tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "result.json").exists()


def test_a_run_from_before_an_option_existed_can_be_resumed(tmp_path: Path) -> None:
    trained(steps=4, run_dir=tmp_path / "run")
    file = tmp_path / "run" / "config.toml"
    lines = file.read_text().splitlines()
    file.write_text("\n".join(line for line in lines if not line.startswith("validation_labels")) + "\n")
    assert len(file.read_text().splitlines()) == len(lines) - 1
    trained(steps=6, run_dir=tmp_path / "run", resume=True)


def test_training_further_that_is_interrupted_can_be_resumed(tmp_path: Path) -> None:
    trained(steps=4, run_dir=tmp_path / "run")
    with pytest.raises(StopHereError):
        trained(steps=12, run_dir=tmp_path / "run", resume=True, callbacks=[StopAfter(9)], checkpoint_every=2)
    further, _ = trained(steps=12, run_dir=tmp_path / "run", resume=True)
    assert torch.equal(further.head.weight, trained(steps=12)[0].head.weight)


def test_patience_starts_again_when_a_run_that_it_stopped_is_trained_further(tmp_path: Path) -> None:
    def further(steps: int, *callbacks: Callback) -> torchckn.fit.TrainResult:
        folder = {"run_dir": tmp_path / "run", "resume": True}
        options = {"lr": 1e-12, "evaluate_every": 1, "patience": 2, "head_update": "reuse", "tau": 1e12}
        return trained(steps=steps, callbacks=callbacks, **folder, **options)[1]

    first = further(20)
    assert first.stopped is not None
    stopped = first.steps
    with pytest.raises(StopHereError):
        further(30, StopAfter(stopped + 1))
    second = further(30)
    assert second.steps == stopped + 2, "and an interruption changes nothing"
    assert second.stopped is not None
