"""The paper's experiments: specs, cells, and the runner. What is made of their results: test_results.py."""

from __future__ import annotations

import json
import re
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

import torchckn
from torchckn import ConfigError, data, zoo
from torchckn.experiments import baselines, learners
from torchckn.experiments import cell as cells
from torchckn.experiments.few_labels import accuracy_by_labels, draw_order
from torchckn.experiments.gradient import gradient_errors
from torchckn.experiments.results import is_finished, read_results, result_file
from torchckn.experiments.runner import _Process, _Running, run_cells
from torchckn.experiments.spec import SCALES, Cell, experiment, experiments
from torchckn.experiments.variants import OppositeDiagonal, SGOWithoutPenalty, method_class, preprocessing
from torchckn.fit.methods import SGO, ULR, MethodOptions
from torchckn.kernels import RBFSphere
from torchckn.nn.functional import filter_gram
from torchckn.nn.invsqrt import newton
from torchckn.settings import settings_from

ROOT = Path(__file__).parent.parent

SPEC = """
name = "small"
title = "A small experiment"
paper = "nowhere"
about = "Small enough for a test."

[grid]
network = ["lenet1"]
filters = [4]
kind = ["ckn", "convnet"]

[[rules]]
settings = { data = "digits.npz", steps = 30, batch_size = 64, patches = 500, lr = "cosine:0.01", checkpoint_every = 5 }

[figure]
kind = "curves"
panels = ["network"]
lines = ["kind"]

[scale.cpu]
seeds = 2
rules = [{ match = { kind = "convnet" }, seeds = 1 }]

[scale.paper]
rules = [{ settings = { steps = 100 } }, { match = { kind = "convnet" }, skip = true }]
"""


@pytest.fixture(autouse=True)
def _beside_the_digits(few_digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells find their few images in the current folder."""
    monkeypatch.chdir(few_digits.parent)


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    file = tmp_path / "small.toml"
    file.write_text(SPEC)
    return file


def cell(experiment: str = "one", measure: str = "train", **given: Any) -> Cell:
    common = {"data": "digits.npz", "steps": 3, "batch_size": 64, "patches": 500, "lr": 0.01, "linear_kernel": "rbf:0.6"}
    return Cell(experiment, "cpu", measure, {"network": "lenet1", "filters": 4}, common | given, 0)


def run_cell(cell: Cell, folder: Path) -> dict[str, Any]:
    cells.run_cell(cell, folder)
    return json.loads(result_file(folder, cell).read_text())


@pytest.mark.parametrize("scale", SCALES)
def test_every_cell_of_every_experiment_can_be_built(scale: Any) -> None:
    names = []
    for one in (one for one in experiments().values() if scale in one.scale):
        cells = one.cells(scale)
        assert cells
        for each in cells:
            settings = each.settings
            if one.measure == "few-labels":
                assert settings.network == ("lenet1" if settings.data == "mnist" else "ckn-cifar")
                names.append(each.name)
                continue
            assert settings.data == ("cifar10" if settings.network == "allcnn" else "mnist"), "never other data"
            assert settings.validation == 10_000
            assert settings.whiten == (settings.network == "allcnn")
            names.append(each.name)
    assert len(names) == len(set(names)) > (50 if scale == "long" else 100)


def test_the_small_scale_is_the_large_one_with_fewer_filters_steps_and_seeds() -> None:
    for one in experiments().values():
        small, large = one.cells("cpu"), one.cells("paper")
        assert max(c.variables.get("filters", 0) for c in small) <= max(c.variables.get("filters", 0) for c in large)
        assert one.measure != "train" or (
            max(c.settings.training.steps for c in small) < max(c.settings.training.steps for c in large)
        )
        assert max(c.seed for c in small) <= max(c.seed for c in large)


def test_the_paper_s_protocol_is_in_its_preset() -> None:
    cells = experiment("ckn-convnet").cells("paper")
    table = {(c.settings.network, c.settings.filters): c.settings for c in cells if c.variables["kind"] == "ckn"}
    assert [table["lenet5", f].training.batch_size for f in (8, 16, 32, 64, 128)] == [8192, 4096, 2048, 1024, 512]
    assert [table["allcnn", f].training.batch_size for f in (8, 16, 32, 64, 128)] == [2048, 2048, 1024, 512, 256]
    one = table["lenet1", 128]
    how = one.training
    assert (how.tau, how.hessian, one.linear_kernel, how.lr, how.steps) == (2**-5, "diag", "linear", "search", 10_000)
    assert (table["allcnn", 8].training.tau, table["allcnn", 8].training.momentum) == (2**-4, 0)
    convnet = next(c.settings for c in cells if c.variables["kind"] == "convnet")
    assert (convnet.training.momentum, convnet.options["bias"]) == (0.9, False)
    assert {(c.settings.training.penalty_search, c.settings.training.restarts) for c in cells} == {("exhaustive", 10)}


def test_a_protocol_is_tested_with_seeds_that_it_was_not_chosen_with() -> None:
    chosen, tested = ({c.seed for c in experiment("connections").cells(scale)} for scale in ("cpu", "long"))
    assert chosen.isdisjoint(tested)
    assert {c.variables["centering"] for c in experiment("connections").cells("long")} == {"image", "feature"}


def test_the_released_runs_have_fixed_learning_rates_and_convnets_trained_by_reversal() -> None:
    cells = {(c.settings.network, c.variables["kind"]): c for c in experiment("released").cells("paper")}
    lenet, allcnn = cells["lenet5", "ckn"].settings, cells["allcnn", "ckn"].settings
    assert (lenet.filters, lenet.training.lr, lenet.training.batch_size, lenet.linear_kernel) == (32, 2**-5, 4096, "rbf:0.6")
    assert (allcnn.filters, allcnn.training.lr, allcnn.training.batch_size, allcnn.whiten) == (32, 2**-6, 1024, True)
    for network, filters, decay in (("lenet5", None, 2**-9), ("allcnn", 32, 2**-7)):
        how = cells[network, "convnet"].settings
        assert (how.filters, how.training.method, how.training.tau, how.training.momentum) == (filters, "ulr", 2**-4, 0)
        assert (how.training.weight_decay, how.options["bias"]) == (decay, True)
    assert all(c.extras["refit_images"] == 50_000 and c.settings.training.final_head for c in cells.values())


def test_later_rules_overrule_earlier_ones_and_cells_can_be_left_out(spec: Path) -> None:
    own = experiment(str(spec))
    assert [c.name for c in own.cells("cpu")] == [
        "small/lenet1-4-ckn-seed0",
        "small/lenet1-4-convnet-seed0",
        "small/lenet1-4-ckn-seed1",
    ]
    assert {c.settings.training.steps for c in own.cells("cpu")} == {30}
    (only,) = own.cells("paper")
    assert only.settings.training.steps == 100
    assert len(own.cells("cpu", seeds=3)) == 6


def test_a_wrong_spec_is_refused_with_the_place(spec: Path) -> None:
    spec.write_text(SPEC.replace('kind = "curves"', 'kind = "curve"'))
    with pytest.raises(
        ConfigError,
        match="small.toml: figure: kind: expected 'curves', 'over-filters', 'over-labels', 'errors' or 'table', got 'curve'",
    ):
        experiment(str(spec))
    spec.write_text(SPEC.replace("seeds = 2", "sedes = 2"))
    with pytest.raises(ConfigError, match="scale.cpu: unknown option 'sedes'. Did you mean 'seeds'?"):
        experiment(str(spec))
    spec.write_text(SPEC.replace("steps = 30", "steps = -1"))
    with pytest.raises(ConfigError, match="steps: expected a number greater than or equal to 0, got -1"):
        _ = experiment(str(spec)).cells("cpu")[0].settings
    spec.write_text(SPEC.replace("steps = 30", "stepps = 30"))
    with pytest.raises(ConfigError, match="unknown setting of small 'stepps'.*'steps'"):
        experiment(str(spec)).cells("cpu")
    spec.write_text(SPEC.replace("filters = [4]", "filtres = [4]"))
    with pytest.raises(ConfigError, match="unknown setting of small 'filtres'.*'filters'"):
        _ = experiment(str(spec)).cells("cpu")[0].settings
    spec.write_text(SPEC.replace("filters = [4]", "filters = [4, 4]"))
    with pytest.raises(ConfigError, match="two cells of the name small/lenet1-4-ckn-seed0"):
        experiment(str(spec)).cells("cpu")
    spec.write_text(SPEC.partition("[scale.paper]")[0])
    with pytest.raises(ConfigError, match="small has no scale 'paper'; it has cpu"):
        experiment(str(spec)).cells("paper")
    spec.write_text(SPEC.replace('"small"', '"ulr-sgo"'))
    with pytest.raises(ConfigError, match="choose another"):
        experiment(str(spec))
    spec.write_text(SPEC.replace('"small"', '"a/b"'))
    with pytest.raises(ConfigError, match="small.toml: name"):
        experiment(str(spec))
    for right, wrong, message in (
        ('panels = ["network"]', 'panels = ["netwrok"]', "figure: 'netwrok' is not among the variables of grid: network"),
        ('panels = ["network"]', 'beside = { kind = "ckn" }', "figure.beside: expected an experiment's name"),
        ('kind = "curves"', 'kind = "errors"', "the kind 'errors' is for the measure 'gradient'"),
        ('paper = "nowhere"', 'paper = "nowhere"\nmeasure = "gradient"', "the kind 'errors' is for the measure 'gradient'"),
        ("filters = [4]", "filters = []", "grid.filters: expected at least one value"),
        ("filters = [4]", "seed = [4]", "grid: seed is not a variable"),
    ):
        spec.write_text(SPEC.replace(right, wrong))
        with pytest.raises(ConfigError, match=f"small.toml: .*{re.escape(message)}"):
            experiment(str(spec))
    spec.write_text(SPEC.replace('kind = "curves"', 'kind = "over-filters"').replace("filters = [4]\n", ""))
    with pytest.raises(ConfigError, match="the kind 'over-filters' needs filters in grid"):
        experiment(str(spec))
    with pytest.raises(ConfigError, match="lrs needs trial_steps"):
        cell(lrs=[0.1]).check()
    with pytest.raises(ConfigError, match="needs gradient = { images, directions, methods }"):
        cell(measure="gradient").check()
    with pytest.raises(ConfigError, match="unknown experiment 'ulr-sdg'.*'ulr-sgo'"):
        experiment("ulr-sdg")


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


def test_one_thread_is_measured_by_its_cpu_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(10**6))
    monkeypatch.setattr(cells.time, "process_time", lambda: float(next(ticks)))
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
    cells.start_file(tmp_path, alike).parent.mkdir(parents=True)
    cells.start_file(tmp_path, alike).touch()
    assert running.next_of([alike, other]) == 0


def test_the_step_size_with_the_best_trial_is_taken(tmp_path: Path) -> None:
    found = run_cell(cell(lr=None, lrs=[1e-9, 0.03], trial_steps=40, steps=3), tmp_path)["measured"]
    assert found["trials"].keys() == {"cosine:1e-09", "cosine:0.03"}
    assert found["lr"] == max(found["trials"], key=lambda lr: found["trials"][lr])
    assert found["lr"] == "cosine:0.03", "steps that lead nowhere lose"
    assert cells._is_to_be_tuned(cell(lr=None, lrs=["constant:0.03"], trial_steps=1))


def test_seeds_and_lengths_share_one_choice_of_a_step_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned = {"lr": None, "lrs": [0.01, 1e-9], "trial_steps": 2}
    first, second, longer = cell(**tuned), replace(cell(**tuned), seed=1), cell("longer", steps=4, **tuned)
    files = [cells.trials_file(tmp_path, each) for each in (first, second, longer)]
    assert files[0] == files[1] == files[2] != cells.trials_file(tmp_path, cell(batch_size=10, **tuned))
    found = run_cell(second, tmp_path)["measured"]["trials"]
    monkeypatch.setattr(cells, "_try", lambda *_: pytest.fail("tried again"))
    assert run_cell(first, tmp_path)["measured"]["trials"] == run_cell(longer, tmp_path)["measured"]["trials"] == found


def test_results_without_training_do_not_depend_on_how_it_would_be(tmp_path: Path) -> None:
    run_cell(cell(measure="unsupervised"), tmp_path)
    assert is_finished(tmp_path, cell(measure="unsupervised", steps=4, lrs=[1.0]))
    assert not is_finished(tmp_path, cell(measure="unsupervised", patches=400))


def test_networks_without_labels_are_measured(tmp_path: Path) -> None:
    found = run_cell(cell(measure="unsupervised"), tmp_path)["measured"]
    assert 0.5 < found["test_accuracy"] < 1
    assert found["valid_accuracy"] == found["start_valid_accuracy"]


def test_errors_of_the_gradient_are_smallest_for_the_closed_form_and_finite_differences_agree() -> None:
    generator = torch.Generator().manual_seed(0)
    ckn = torchckn.translate(zoo.build("allcnn", filters=4, bias=False), (3, 32, 32), RBFSphere(0.6), generator=generator)
    images = torch.randint(256, (20, 3, 32, 32), generator=generator, dtype=torch.uint8)
    part = data.Part(images, torch.arange(20) % 10)
    found = gradient_errors(ckn, part, generator, images=8, methods=["eigh", "newton-2", "newton-20", "svd"], directions=3)
    errors = found["errors"]
    assert found["finite_differences"] < 1e-5
    assert errors["eigh"] < 1e-5
    assert errors["newton-2"] > 100 * errors["newton-20"], "two iterations have not converged"
    assert errors["eigh"] <= 1.5 * errors["newton-20"]
    roots = found["root_errors"]
    assert max(roots["eigh"], roots["newton-20"]) < min(roots["svd"], errors["eigh"]), "less than with all in float32"


def test_the_opposite_diagonal_steps_the_other_way() -> None:
    net = torchckn.translate(zoo.build("lenet1", filters=4), (1, 28, 28), RBFSphere(0.6))
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.rand(20, 1, 28, 28, generator=generator), torch.arange(20) % 10
    options = MethodOptions(lam=0.1, hessian="diag")
    scaled = net.scaling(net.features(images))
    right, wrong = (method(net, options)._reduce(scaled, labels).eta for method in (ULR, OppositeDiagonal))
    torch.testing.assert_close(wrong, -right)


def test_half_whitened_patches_are_less_white() -> None:
    images = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    pixels = data.Preprocessing.fit(images, whiten=True)
    spreads = []
    for slip in ("none", "half-whitening"):
        node = preprocessing(pixels, slip).nodes()[-1]
        patches = node.module((3, 8, 8))(images).flatten(2).double()
        values = torch.linalg.eigvalsh(patches @ patches.mT / 64)[:, 6:]
        spreads.append(values.amax(1) / values.amin(1))
    assert (spreads[1] > 2 * spreads[0]).all()
    assert preprocessing(pixels, None) is pixels


def test_an_unknown_slip_is_refused() -> None:
    assert method_class(None) is None
    assert method_class("none") is None
    with pytest.raises(ConfigError, match="unknown slip 'no-such'"):
        method_class("no-such")


def test_sgo_without_its_penalty_descends_on_the_loss_alone() -> None:
    net = torchckn.translate(zoo.build("lenet1", filters=4), (1, 28, 28), RBFSphere(0.6))
    images, labels = torch.rand(20, 1, 28, 28), torch.arange(20) % 10
    gradients = []
    for method in (SGO, SGOWithoutPenalty):
        method(net, MethodOptions(lam=2.0))._descend(images, labels)
        assert net.head.weight.grad is not None
        gradients.append(net.head.weight.grad.clone())
        net.zero_grad()
    torch.testing.assert_close(gradients[0] - gradients[1], 2 * 2.0 * net.head.weight.detach())


def test_layers_make_as_many_newton_iterations_as_asked_for() -> None:
    for method, count in (("newton", 20), ("newton:2", 2), ("newton:50", 50)):
        layer = torchckn.nn.KernelLinear(6, 5, kernel=RBFSphere(0.6), inverse_sqrt=method).train()
        gram = filter_gram(layer.filter_matrix(), layer.kernel, layer.eps)
        torch.testing.assert_close(layer.projection(), newton(gram, iters=count).root)
    for wrong in ("newton:0", "newton:many", "eigh:3", "newton:"):
        with pytest.raises(ConfigError, match="expected a number of iterations for newton only, as in 'newton:50', got"):
            torchckn.nn.KernelLinear(6, 5, inverse_sqrt=wrong)


def read(file: Path) -> list[dict[str, Any]]:
    """The complete lines of a history."""
    return [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")]


def test_a_cell_that_is_interrupted_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process; a command that is killed takes a minute (the next test)."""
    own = cell(steps=4, checkpoint_every=1, lambdas=[2**-6, 2**-9, 2**-12])
    undisturbed = run_cell(own, tmp_path / "undisturbed")
    step, calls = ULR.step, []

    def interrupted(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return step(*arguments, **options)

    monkeypatch.setattr(ULR, "step", interrupted)
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
    written = (output / "results-cpu.md").read_text()
    assert "A small experiment" in written
    assert (output / "images" / "results-cpu" / "small-steps.png").stat().st_size > 1000
    again = subprocess.run([*command, str(output)], capture_output=True, text=True, check=True)
    assert "2 cells, 2 of them done before" in again.stdout


def test_a_cell_that_fails_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    bad = replace(cell(), given={"data": str(tmp_path / "nothing.npz")}, experiment="bad")
    outcome = run_cells([bad, cell()], tmp_path / "out", jobs=2, quiet=True)
    assert [c.name for c in outcome.done] == [cell().name]
    (message,) = outcome.failed.values()
    assert "nothing.npz" in message
    assert "its log is" in message
    with pytest.raises(ConfigError, match="jobs"):
        run_cells([], tmp_path, jobs=0)


def test_the_runs_of_equal_time_can_be_built_and_have_the_steps_that_fit_into_the_time() -> None:
    own = experiment(str(ROOT / "experiments" / "equal-time.toml"))
    for scale, minutes in (("paper", 30), ("cpu", 4)):
        cells = own.cells(scale)  # type: ignore[arg-type]
        for each in cells:
            each.check()
            assert each.settings.training.steps == each.extras["trial_steps"], "tuned over runs of full length"
            speeds = [
                r
                for r in read_results(ROOT / "experiments", "cpu").of("ckn-convnet", network="allcnn")
                if r["filters"] == each.settings.filters and r["kind"] == each.settings.kind
                if r.settings["batch_size"] == each.settings.training.batch_size
                and r["options.bias"] == (r["kind"] != "ckn")
            ]
            start, step = speeds[0]["start_seconds"], speeds[0]["step_seconds"]
            assert start + each.settings.training.steps * step == pytest.approx(60 * minutes, rel=0.05)
        kinds = {(each.settings.kind, each.settings.training.optimizer, each.settings.init) for each in cells}
        assert kinds == {("ckn", "sgd", "paper"), ("convnet", "sgd", "paper"), ("convnet", "adamw", "he")}


# Few labels


def test_a_draw_has_all_classes_in_turn_and_more_labels_are_a_superset() -> None:
    labels = torch.tensor([0] * 30 + [1] * 10 + [2] * 20)
    order = draw_order(labels, torch.Generator().manual_seed(0))
    assert sorted(order.tolist()) == list(range(60))
    for n in (3, 6, 30):
        assert torch.bincount(labels[order[:n]]).tolist() == [n // 3] * 3
    assert not torch.equal(order, draw_order(labels, torch.Generator().manual_seed(1)))


def test_held_out_images_are_folds_until_there_are_enough() -> None:
    labels = torch.arange(100) % 4
    for at_least, count in ((20, 1), (21, 2), (100, 5), (1000, 5)):
        masks = list(learners.splits(labels, at_least))
        assert len(masks) == count
        assert all(bool((rest ^ here).all()) and int(here.sum()) == 20 for rest, here in masks)
        assert int(torch.stack([here for _, here in masks]).sum(0).max()) == 1, "each image once"


@pytest.mark.parametrize("learner", ["ckn", "svm", "hog-svm", pytest.param("kmeans", marks=pytest.mark.slow)])
def test_learners_learn_from_few_labels_and_are_resumed(learner: str, tmp_path: Path) -> None:
    own = replace(cell(measure="few-labels", learner=learner, label_counts=[20, 60]), seed=1)
    own.check()
    settings = settings_from(own.settings.to_flat() | {"data": "mnist-mini"}, "test")
    records = accuracy_by_labels(settings, learner, [20, 60], tmp_path / "shared", tmp_path / "work")
    assert [record["labels"] for record in records] == [20, 60]
    assert records[1]["test_accuracy"] > 0.5
    again = accuracy_by_labels(settings, "none", [20, 60], tmp_path / "shared", tmp_path / "work")
    assert again == records, "what is done is not computed again"


def test_a_convnet_learns_from_few_labels(digits: data.DataSet) -> None:
    recipe = baselines.ConvNetRecipe(0.004, 20, True, False, 0)
    images, labels = digits.train[:200]
    scores = baselines.convnet_scores(recipe, images, labels, digits.train.images[200:400], 10)
    assert float((scores.argmax(1) == digits.train.labels[200:400]).double().mean()) > 0.4


def test_histograms_of_gradients_follow_edges_and_not_brightness() -> None:
    images = torch.zeros(3, 1, 16, 16, dtype=torch.uint8)
    images[0, :, :, 8:] = 200
    images[1, :, :, 8:] = 100
    images[2, :, 8:] = 200
    found = baselines.hog(images)
    torch.testing.assert_close(found[0], found[1], rtol=1e-2, atol=1e-2)
    assert float((found[0] - found[2]).norm()) > 0.5


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"learner": "tree", "label_counts": [10]}, "unknown learner of .* 'tree': expected one of ckn,"),
        ({"learner": "ckn", "label_counts": [10, 5]}, r"label_counts expected growing numbers of labels, got \[10, 5\]"),
        ({"learner": "ckn"}, "label_counts expected growing numbers of labels, got None"),
    ],
)
def test_a_wrong_cell_of_few_labels_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cell(measure="few-labels", **given).check()
