"""Cells of experiments: what they leave, what they share, and interruptions."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from torchckn import ConfigError, NumericalError
from torchckn.experiments import cell as cells
from torchckn.experiments import shared
from torchckn.experiments.results import is_finished, result_file
from torchckn.experiments.runner import _Process, _Running, run_cells
from torchckn.experiments.spec import Cell, experiment
from torchckn.fit.methods import ULR

from . import forks
from .experiments import _beside_the_digits, cell, run_cell  # noqa: F401 - a fixture


def test_a_cell_leaves_one_file_with_all_that_is_known_of_it(tmp_path: Path) -> None:
    found = run_cell(cell(), tmp_path)
    assert json.loads(result_file(tmp_path, cell()).read_text()) == found
    assert found["settings"]["steps"] == 3
    assert [record["step"] for record in found["history"]] == [0, 1, 2, 3]
    assert 0.1 < found["measured"]["test_accuracy"] <= 1
    assert found["measured"]["start_valid_accuracy"] > 0.5
    assert {"versions", "processor", "git"} <= found["environment"].keys()
    assert not any(p.is_dir() for p in (tmp_path / "work" / "cpu" / "one").iterdir()), "what it worked with is gone"
    stamp = result_file(tmp_path, cell()).stat().st_mtime_ns
    assert run_cell(cell(), tmp_path) == found
    assert result_file(tmp_path, cell()).stat().st_mtime_ns == stamp, "what is done is not done again"


def test_the_result_of_a_kernel_network_says_how_far_each_layer_is_from_its_kernel(tmp_path: Path) -> None:
    layers = run_cell(cell(), tmp_path)["measured"]["layers"]
    assert [layer["name"] for layer in layers] == ["layers_conv1", "layers_tanh1", "layers_conv2", "layers_tanh2"]
    assert all(0 <= layer["error"] < 1 <= layer["condition"] for layer in layers)
    assert {(layer["kernel"], layer["bandwidth"]) for layer in layers} == {("RBFSphere(0.6)", 0.6)}
    assert "layers" not in run_cell(cell(kind="convnet", method="sgd"), tmp_path)["measured"]


def test_one_thread_is_measured_by_its_cpu_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(10**6))
    monkeypatch.setattr(shared.time, "process_time", lambda: float(next(ticks)))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    found = run_cell(cell(evaluate_every=1), tmp_path)
    assert found["clock"] == "cpu"
    spans = [
        after["seconds"] - before["seconds"] for before, after in zip(found["history"], found["history"][1:], strict=False)
    ]
    assert spans == [1, 1, 1], "a tick per step: validations are not counted"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert run_cell(cell("other", steps=2), tmp_path)["clock"] == "wall"


def test_refitted_accuracies_stand_beside_those_of_the_last_step_and_change_nothing(tmp_path: Path) -> None:
    plain = run_cell(cell(), tmp_path)
    refitted = run_cell(cell("refitted", refit_images=400), tmp_path)
    assert "copied_from" not in refitted
    accuracies = [record.pop("refitted_accuracy") for record in refitted["history"]]
    assert all(0.5 < accuracy <= 1 for accuracy in accuracies)
    for record in plain["history"] + refitted["history"]:
        del record["seconds"]
    assert refitted["history"] == plain["history"]
    assert refitted["measured"]["test_accuracy"] == plain["measured"]["test_accuracy"]


def test_a_cell_with_a_total_time_takes_the_steps_that_fit_into_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(10**6))
    monkeypatch.setattr(shared.time, "process_time", lambda: float(next(ticks)))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    timed = cell(total_seconds=6.5, lr=None, lrs=[0.01, 0.02])  # a tick before the first step, one per step
    found = run_cell(timed, tmp_path)
    assert found["measured"]["start_seconds"] == 1.0
    assert [record["step"] for record in found["history"]] == [0, 1, 2, 3, 4, 5]
    assert found["history"][-1]["seconds"] - found["history"][0]["seconds"] == 5
    assert found["measured"]["trials"].keys() == {"cosine:0.01", "cosine:0.02"}
    assert is_finished(tmp_path, timed)
    assert len(list((tmp_path / "work" / "speeds").glob("*.json"))) == 1
    with pytest.raises(ConfigError, match=r"total_seconds = 0.5 expected more than the 1 s before the first step"):
        cells.run_cell(cell("short", total_seconds=0.5), tmp_path)


def test_what_is_done_is_done_again_when_its_experiment_has_changed(tmp_path: Path) -> None:
    run_cell(cell(), tmp_path)
    assert is_finished(tmp_path, cell())
    assert is_finished(tmp_path, cell(checkpoint_every=7)), "that changes nothing"
    changed = cell(steps=2)
    assert not is_finished(tmp_path, changed)
    assert run_cell(changed, tmp_path)["history"][-1]["step"] == 2


def test_cells_share_their_beginning_and_equal_cells_their_result(tmp_path: Path) -> None:
    first = run_cell(cell(), tmp_path)
    other = run_cell(cell("sgo", method="sgo", lr="search"), tmp_path)
    assert len(list((tmp_path / "work" / "starts").glob("*.safetensors"))) == 1
    assert other["measured"]["start_valid_accuracy"] == first["measured"]["start_valid_accuracy"]
    assert "copied_from" not in other
    same = cell("three", method="ulr")  # as it is by default
    found = run_cell(same, tmp_path)
    assert (found["experiment"], found["measured"], found["seconds"]) == ("three", first["measured"], first["seconds"])
    assert found["copied_from"] == "one: lenet1-4"
    assert is_finished(tmp_path, same)


def test_two_processes_do_not_do_the_same_cell_twice(tmp_path: Path) -> None:
    def work() -> None:
        cells.run_cell(cell(), tmp_path)

    threads = [threading.Thread(target=work) for _ in range(2)]
    calls: list[int] = []
    original = cells._MEASURES["train"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(cells._MEASURES, "train", lambda bench: calls.append(1) or original(bench))  # type: ignore[func-returns-value]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert calls == [1]
    assert is_finished(tmp_path, cell())


def test_processes_do_not_wait_for_a_beginning_that_another_one_computes(tmp_path: Path) -> None:
    alike, other = cell("alike", method="sgo"), cell("other", kernel="rbf:0.7")
    running = _Running(tmp_path, 1, None)
    assert running._environment["OMP_NUM_THREADS"] == "1"
    assert running.next_of([alike, other]) == 0
    running.processes = [_Process(cell(), None, 0.0, tmp_path, 0)]  # type: ignore[arg-type]
    assert running.next_of([alike, other]) == 1
    assert running.next_of([alike]) == 0
    shared.start_file(tmp_path, alike).parent.mkdir(parents=True)
    shared.start_file(tmp_path, alike).touch()
    assert running.next_of([alike, other]) == 0


def test_the_step_size_with_the_best_trial_is_taken(tmp_path: Path) -> None:
    tuned = cell(kind="convnet", lam=0.001, lr=None, lrs=[100.0, 0.1], trial_steps=20)  # whose steps are quick
    found = run_cell(tuned, tmp_path)["measured"]
    assert found["trials"].keys() == {"cosine:100.0", "cosine:0.1"}
    assert found["lr"] == max(found["trials"], key=lambda lr: found["trials"][lr])
    assert found["lr"] == "cosine:0.1", "steps that destroy what was there lose"
    assert shared.is_to_be_tuned(cell(lr=None, lrs=["constant:0.03"], trial_steps=1))


def test_seeds_and_lengths_share_one_choice_of_a_step_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned = {"lr": None, "lrs": [0.01, 1e-9], "trial_steps": 2}
    first, second, longer = cell(**tuned), replace(cell(**tuned), seed=1), cell("longer", steps=4, **tuned)
    files = [shared.trials_file(tmp_path, each) for each in (first, second, longer)]
    assert files[0] == files[1] == files[2] != shared.trials_file(tmp_path, cell(batch_size=10, **tuned))
    found = run_cell(second, tmp_path)["measured"]["trials"]
    monkeypatch.setattr(shared, "_try", lambda *_: pytest.fail("tried again"))
    assert run_cell(first, tmp_path)["measured"]["trials"] == run_cell(longer, tmp_path)["measured"]["trials"] == found
    shutil.rmtree(tmp_path / "work")  # as on another machine that has the results
    assert run_cell(replace(first, seed=2), tmp_path)["measured"]["trials"] == found


def test_results_without_training_do_not_depend_on_how_it_would_be(tmp_path: Path) -> None:
    run_cell(cell(measure="unsupervised"), tmp_path)
    assert is_finished(tmp_path, cell(measure="unsupervised", steps=4, lrs=[1.0]))
    assert not is_finished(tmp_path, cell(measure="unsupervised", patches=400))


def test_networks_without_labels_are_measured(tmp_path: Path) -> None:
    found = run_cell(cell(measure="unsupervised"), tmp_path)["measured"]
    assert 0.5 < found["test_accuracy"] < 1
    assert found["valid_accuracy"] == found["start_valid_accuracy"]


def read(file: Path) -> list[dict[str, Any]]:
    """The complete lines of a history."""
    return [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")]


def fail_once(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The third step fails; gives a list that grows with every step."""
    step, calls = ULR.step, []

    def failing(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise error
        return step(*arguments, **options)

    monkeypatch.setattr(ULR, "step", failing)
    return calls


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError()])
def test_a_trial_that_is_interrupted_or_lacks_memory_goes_on_where_it_was(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = cell(steps=1, lr=None, lrs=[0.01, 0.02], trial_steps=4, checkpoint_every=1)
    trials = run_cell(own, tmp_path / "undisturbed")["measured"]["trials"]
    calls = fail_once(error, monkeypatch)
    with pytest.raises((KeyboardInterrupt, NumericalError)):
        cells.run_cell(own, tmp_path)
    assert run_cell(own, tmp_path)["measured"]["trials"] == trials, "that says nothing about a learning rate"
    assert len(calls) == 2 + 1 + 2 + 4 + 1, "it started again"
    assert not list((tmp_path / "work" / "trials").glob("*/")), "folders of trials are removed"


def test_a_learning_rate_whose_trial_diverges_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_once(NumericalError("nan"), monkeypatch)
    found = run_cell(cell(steps=1, lr=None, lrs=[0.01, 0.02], trial_steps=3), tmp_path)["measured"]
    assert found["trials"]["cosine:0.01"] == 0.0
    assert found["lr"] == "cosine:0.02"


def test_a_cell_that_is_interrupted_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process; a command that is killed takes a minute (the next test)."""
    own = cell(steps=4, checkpoint_every=1)
    undisturbed = run_cell(own, tmp_path / "undisturbed")
    calls = fail_once(KeyboardInterrupt(), monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        cells.run_cell(own, tmp_path)
    assert not is_finished(tmp_path, own)
    resumed = run_cell(own, tmp_path)
    assert len(calls) == 2 + 1 + 2, "it started again"
    assert resumed["measured"]["test_accuracy"] == undisturbed["measured"]["test_accuracy"]
    assert [r["loss"] for r in resumed["history"][1:]] == [r["loss"] for r in undisturbed["history"][1:]]


@pytest.mark.slow
def test_the_runner_survives_a_kill_and_gives_what_it_would_have_given(spec: Path, tmp_path: Path) -> None:
    (first, *_) = experiment(str(spec)).cells("cpu")
    run_cells([first], tmp_path / "undisturbed", jobs=2, quiet=True)
    undisturbed = json.loads(result_file(tmp_path / "undisturbed", first).read_text())
    command = [
        sys.executable,
        "-c",
        "from torchckn.cli import main; main()",
        "reproduce",
        str(spec),
        "--seeds",
        "1",
        "--jobs",
        "2",
        "-o",
    ]
    output = tmp_path / "experiments"
    process = subprocess.Popen([*command, str(output)], stdout=subprocess.DEVNULL)
    while not (files := list(output.glob(f"work/cpu/{first.name}-*/run/metrics.jsonl"))) or len(read(files[0])) < 8:
        assert process.poll() is None
        time.sleep(0.02)
    (metrics,) = files
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(2.5)  # what it had started ends as well
    length = metrics.stat().st_size
    time.sleep(1)
    assert metrics.stat().st_size == length, "a cell outlived the command that ran it"
    before = {record["step"]: record["seconds"] for record in read(metrics)}
    done = subprocess.run([*command, str(output)], capture_output=True, text=True, check=True)
    assert re.search("2 cells, [01] of them done before; [12] left", done.stdout)
    assert "nothing is left" in done.stdout
    resumed = json.loads(result_file(output, first).read_text())
    early = resumed["history"][1]
    assert early["seconds"] == pytest.approx(before[early["step"]], rel=1e-3), "it started again"
    assert resumed["measured"]["test_accuracy"] == undisturbed["measured"]["test_accuracy"]
    assert [r["loss"] for r in resumed["history"][1:]] == [r["loss"] for r in undisturbed["history"][1:]]
    written = (output / "results-small-cpu.md").read_text()
    assert "A small experiment" in written
    assert (output / "images" / "results-small-cpu" / "small-steps.png").stat().st_size > 1000
    again = subprocess.run([*command, str(output)], capture_output=True, text=True, check=True)
    assert "2 cells, 2 of them done before" in again.stdout


def test_a_cell_that_fails_is_told_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", forks.executable())
    bad = replace(cell(), given={"data": str(tmp_path / "nothing.npz")}, experiment="bad")
    good = cell(kind="convnet", lam=0.001)
    outcome = run_cells([bad, good], tmp_path / "out", jobs=2, quiet=True)
    assert [c.name for c in outcome.done] == [good.name]
    (message,) = outcome.failed.values()
    assert "nothing.npz" in message
    assert "its log is" in message
    with pytest.raises(ConfigError, match="jobs"):
        run_cells([], tmp_path, jobs=0)


def test_a_result_is_of_the_code_that_a_network_had(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text("from torchckn.zoo import build\n\n\ndef Net():\n    return build('lenet1', filters=4)\n")
    own = Cell("own", "cpu", "unsupervised", {"network": f"{file}:Net"}, cell().given, 0)
    run_cell(own, tmp_path)
    assert is_finished(tmp_path, own)
    file.write_text(file.read_text().replace("filters=4", "filters=5"))
    assert not is_finished(tmp_path, own)
    again, fresh = (run_cell(own, folder)["measured"] for folder in (tmp_path, tmp_path / "fresh"))
    assert is_finished(tmp_path, own)
    assert again["test_accuracy"] == fresh["test_accuracy"], "nothing of the old network is used"


def test_a_result_with_an_option_that_is_no_more_is_outdated(tmp_path: Path) -> None:
    run_cell(cell(measure="unsupervised"), tmp_path)
    file = result_file(tmp_path, cell(measure="unsupervised"))
    content = json.loads(file.read_text())
    content["settings"]["gone"] = 1
    file.write_text(json.dumps(content))
    assert not is_finished(tmp_path, cell(measure="unsupervised"))


def test_cells_end_when_the_runner_does_also_if_they_ignore_ctrl_c(tmp_path: Path) -> None:
    running = _Running(tmp_path, 1, None)
    with subprocess.Popen(["sh", "-c", "trap '' INT; echo ready; exec sleep 600"], stdout=subprocess.PIPE) as deaf:
        assert deaf.stdout is not None
        deaf.stdout.readline()
        running.processes = [_Process(cell(), deaf, 0.0, tmp_path, 0)]
        running.stop()
        assert deaf.returncode == -signal.SIGTERM
