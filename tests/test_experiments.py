"""The paper's experiments: specs, cells, the runner, and what is made of the results."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import torchckn
from torchckn import ConfigError, DataError, data, zoo
from torchckn.experiments import claims, figures, page
from torchckn.experiments.cell import result_file, run_cell
from torchckn.experiments.gradient import gradient_errors
from torchckn.experiments.results import Result, Results, read_results
from torchckn.experiments.runner import run_cells
from torchckn.experiments.slips import with_slip
from torchckn.experiments.spec import SCALES, Cell, experiment, experiments
from torchckn.fit import ulr
from torchckn.kernels import RBFSphere
from torchckn.nn.whitening import whiten
from torchckn.settings import Settings

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
settings = { data = "mnist-mini", steps = 30, batch_size = 64, patches = 500, lr = "falling:0.01", checkpoint_every = 5 }

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


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    file = tmp_path / "small.toml"
    file.write_text(SPEC)
    return file


def cell(experiment: str = "one", measure: str = "train", **given: Any) -> Cell:
    common = {"data": "mnist-mini", "steps": 3, "batch_size": 64, "patches": 500, "lr": 0.01, "linear_kernel": "rbf:0.6"}
    return Cell(experiment, "cpu", measure, {"network": "lenet1", "filters": 4}, common | given, 0)


@pytest.mark.parametrize("scale", SCALES)
def test_every_cell_of_every_experiment_can_be_built(scale: Any) -> None:
    names = []
    for one in experiments().values():
        cells = one.cells(scale)
        assert cells
        for each in cells:
            settings = each.settings
            assert settings.data == ("cifar10" if settings.network == "allcnn" else "mnist"), "never other data"
            assert settings.validation == 10_000
            assert settings.whiten == (settings.network == "allcnn")
            names.append(each.name)
    assert len(names) == len(set(names)) > 100


def test_the_small_scale_is_the_large_one_with_fewer_filters_steps_and_seeds() -> None:
    for one in experiments().values():
        small, large = one.cells("cpu"), one.cells("paper")
        assert len(small) < len(large) or one.name in ("connections",)
        assert max(c.settings.steps for c in small) < max(c.settings.steps for c in large) or one.measure != "train"
        assert max(c.seed for c in small) <= max(c.seed for c in large)


def test_the_paper_s_protocol_is_in_its_preset() -> None:
    cells = experiment("ckn-convnet").cells("paper")
    table = {(c.settings.network, c.settings.filters): c.settings for c in cells if c.variables["kind"] == "ckn"}
    assert [table["lenet5", f].batch_size for f in (8, 16, 32, 64, 128)] == [8192, 4096, 2048, 1024, 512]
    assert [table["allcnn", f].batch_size for f in (8, 16, 32, 64, 128)] == [2048, 2048, 1024, 512, 256]
    one = table["lenet1", 128]
    assert (one.tau, one.hessian, one.linear_kernel, one.lr, one.steps) == (2**-5, "diag", "linear", "search", 10_000)
    assert (table["allcnn", 8].tau, table["allcnn", 8].rollback, table["allcnn", 8].momentum) == (2**-4, True, 0)
    convnet = next(c.settings for c in cells if c.variables["kind"] == "convnet")
    assert (convnet.momentum, convnet.options["bias"]) == (0.9, False)


def test_the_released_runs_are_a_preset_with_their_stages() -> None:
    one = experiment("ckn-convnet")
    released = one.model_copy(update={"scale": {"paper": one.scale["paper"].model_copy(update={"preset": "released"})}})
    cells = released.cells("paper")
    ckn = next(c.settings for c in cells if c.variables["kind"] == "ckn" and c.name.split("/")[1].startswith("lenet5-32"))
    assert ckn.lr == [2**-5, 2**-6, 2**-5, 2**-5, 2**-5]
    assert (ckn.tau, ckn.batch_size, ckn.linear_kernel) == (2**-7, 4096, "rbf:0.6")


def test_later_rules_overrule_earlier_ones_and_cells_can_be_left_out(spec: Path) -> None:
    own = experiment(str(spec))
    assert [c.name for c in own.cells("cpu")] == [
        "small/lenet1-4-ckn-seed0",
        "small/lenet1-4-convnet-seed0",
        "small/lenet1-4-ckn-seed1",
    ]
    assert {c.settings.steps for c in own.cells("cpu")} == {30}
    (only,) = own.cells("paper")
    assert only.settings.steps == 100
    assert len(own.cells("cpu", seeds=3)) == 6


def test_a_wrong_spec_is_refused_with_the_place(spec: Path) -> None:
    spec.write_text(SPEC.replace('kind = "curves"', 'kind = "curve"'))
    with pytest.raises(ConfigError, match="small.toml: figure.kind: input should be 'curves'"):
        experiment(str(spec))
    spec.write_text(SPEC.replace("seeds = 2", "sedes = 2"))
    with pytest.raises(ConfigError, match="scale.cpu.sedes"):
        experiment(str(spec))
    spec.write_text(SPEC.replace("steps = 30", "stepps = 30, steps = 0"))
    with pytest.raises(ConfigError, match="steps = 0"):
        _ = experiment(str(spec)).cells("cpu")[0].settings
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
    assert not (tmp_path / "work" / "cpu" / "one").exists() or not any((tmp_path / "work" / "cpu" / "one").iterdir())
    stamp = result_file(tmp_path, cell()).stat().st_mtime_ns
    assert run_cell(cell(), tmp_path) == found
    assert result_file(tmp_path, cell()).stat().st_mtime_ns == stamp, "what is done is not done again"


def test_cells_share_their_beginning_and_equal_cells_their_result(tmp_path: Path) -> None:
    first = run_cell(cell(), tmp_path)
    run_cell(cell(method="sgo", lr="search"), tmp_path / "x")
    other = run_cell(cell("two", steps=2), tmp_path)
    assert len(list((tmp_path / "work" / "starts").glob("*.safetensors"))) == 1
    assert other["measured"]["start_valid_accuracy"] == first["measured"]["start_valid_accuracy"]
    same = run_cell(cell("three"), tmp_path)
    assert (same["experiment"], same["measured"], same["seconds"]) == ("three", first["measured"], first["seconds"])


def test_the_step_size_with_the_best_trial_is_taken(tmp_path: Path) -> None:
    found = run_cell(cell(lr=None, lrs=[1e-9, 0.02], trial_steps=5, steps=5), tmp_path)["measured"]
    assert found["trials"].keys() == {"falling:1e-09", "falling:0.02"}
    assert found["lr"] == max(found["trials"], key=lambda lr: found["trials"][lr]) == "falling:0.02"


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
    assert found["finite_differences"] < 1e-6
    assert errors["eigh"] < 1e-5
    assert errors["newton-2"] > 100 * errors["newton-20"], "two iterations have not converged"
    assert errors["eigh"] <= 1.5 * errors["newton-20"]


def test_slips_are_made_only_where_asked_for() -> None:
    generator = torch.Generator().manual_seed(0)
    features, targets = torch.randn(12, 4, generator=generator), torch.arange(12) % 3
    head = torch.nn.Linear(4, 3)
    right = ulr.reduced_objective(features, targets, head, 0.1, hessian="diag").eta
    images = torch.rand(2, 3, 8, 8, generator=generator)
    with with_slip("diagonal-sign"):
        torch.testing.assert_close(ulr.reduced_objective(features, targets, head, 0.1, hessian="diag").eta, -right)
    torch.testing.assert_close(ulr.reduced_objective(features, targets, head, 0.1, hessian="diag").eta, right)
    white = whiten(images)
    with with_slip("half-whitening"):
        half = whiten(images)
    flat, half_flat = white.flatten(2).double(), half.flatten(2).double()
    spread, half_spread = (torch.linalg.eigvalsh(x @ x.mT / 64)[:, 6:] for x in (flat, half_flat))
    assert (half_spread.amax(1) / half_spread.amin(1) > 2 * spread.amax(1) / spread.amin(1)).all(), "less white"
    with pytest.raises(ConfigError, match="unknown slip"), with_slip("no-such"):
        pass


def test_sgo_without_its_penalty_descends_on_the_loss_alone(tmp_path: Path) -> None:
    found = {}
    for slip in ("none", "sgo-without-penalty"):
        given = {"method": "sgo", "lam": 1.0, "steps": 2, "final_head": False, "slip": slip}
        found[slip] = run_cell(cell(slip, **given), tmp_path)["history"][-1]["loss"]
    assert found["sgo-without-penalty"] < found["none"]


def test_the_runner_survives_a_kill_and_gives_what_it_would_have_given(spec: Path, tmp_path: Path) -> None:
    (first, *_) = experiment(str(spec)).cells("cpu")
    run_cells([first], tmp_path / "undisturbed", quiet=True)
    undisturbed = json.loads(result_file(tmp_path / "undisturbed", first).read_text())
    command = [sys.executable, "-c", "from torchckn.cli import main; main()", "reproduce", str(spec), "--seeds", "1", "-o"]
    output = tmp_path / "experiments"
    process = subprocess.Popen([*command, str(output)], stdout=subprocess.DEVNULL)
    metrics = output / "work" / "cpu" / first.name / "run" / "metrics.jsonl"
    while not metrics.exists() or len(metrics.read_text().splitlines()) < 8:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(2.5)  # what it had started ends as well
    length = metrics.stat().st_size
    time.sleep(1)
    assert metrics.stat().st_size == length, "a cell outlived the command that ran it"
    done = subprocess.run([*command, str(output)], capture_output=True, text=True, check=True)
    assert "2 cells, 0 of them done before" in done.stdout
    assert "that was the last" in done.stdout
    resumed = json.loads(result_file(output, first).read_text())
    assert resumed["measured"]["test_accuracy"] == undisturbed["measured"]["test_accuracy"]
    assert [r["loss"] for r in resumed["history"][1:]] == [r["loss"] for r in undisturbed["history"][1:]]
    written = (output / "results.md").read_text()
    assert "A small experiment" in written
    assert (output / "images" / "results" / "small-steps.png").stat().st_size > 1000
    again = subprocess.run([*command, str(output)], capture_output=True, text=True, check=True)
    assert "2 cells, 2 of them done before" in again.stdout


def test_a_cell_that_fails_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    bad = replace(cell(), given={"data": str(tmp_path / "nothing.npz")}, experiment="bad")
    outcome = run_cells([bad, cell()], tmp_path / "out", quiet=True)
    assert [c.name for c in outcome.done] == [cell().name]
    (message,) = outcome.failed.values()
    assert "nothing.npz" in message
    with pytest.raises(ConfigError, match="jobs"):
        run_cells([], tmp_path, jobs=0)


def result(experiment: str, seed: int = 0, history: list[dict[str, Any]] | None = None, **values: Any) -> Result:
    measured = {k: values.pop(k) for k in list(values) if k in ("test_accuracy", "valid_accuracy", "errors")}
    variables = {key.replace("__", "."): value for key, value in values.items()}
    return Result(experiment, variables, seed, measured, history or [], {}, 1.0, {})


def verdicts(*found: Result) -> dict[str, claims.Judged]:
    return {judged.claim: judged for judged in claims.judge(Results(found))}


def test_claims_are_judged_by_the_numbers() -> None:
    assert {judged.verdict for judged in verdicts().values()} == {"not run at this scale"}
    for ratio, verdict in ((3.0, "holds"), (2.0, "does not hold")):
        found = verdicts(result("gradient", filters=8, errors={"svd": ratio * 1e-6, "newton-20": 1e-6, "eigh": 1e-7}))
        assert next(j for c, j in found.items() if "2.5 times" in c).verdict == verdict

    def networks(ckn: float, convnet: float) -> list[Result]:
        common = {"network": "lenet5", "filters": 8, "options__bias": False, "budget": "steps"}
        return [
            result("ckn-convnet", kind="ckn", test_accuracy=ckn, **common),
            result("ckn-convnet", kind="convnet", test_accuracy=convnet, **common),
        ]

    claim = "LeNet-5: the CKN's accuracy is from 0.1 % below to 1 % above the ConvNet's"
    for ckn, convnet, verdict in ((0.99, 0.985, "holds"), (0.985, 0.99, "does not hold")):
        judged = verdicts(*networks(ckn, convnet))[claim]
        assert judged.verdict == verdict
        assert f"{100 * (ckn - convnet):+.2f} %" in judged.measured
        assert judged.runs == 2
    assert verdicts(*networks(0.99, 0.96))["LeNet-5: CKN and ConvNet are both above 97 %"].verdict == "holds in part"


def test_methods_are_compared_at_the_last_moment_that_both_have_reached() -> None:
    def curve(*points: tuple[float, float]) -> list[dict[str, Any]]:
        return [{"step": i, "seconds": s, "valid_accuracy": a} for i, (s, a) in enumerate(points)]

    common = {"network": "lenet5", "filters": 8, "loss": "multinomial"}
    ulr = result("ulr-sgo", method="ulr", valid_accuracy=0.98, history=curve((0, 0.5), (10, 0.7), (20, 0.98)), **common)
    sgo = result("ulr-sgo", method="sgo", valid_accuracy=0.9, history=curve((0, 0.5), (5, 0.6), (12, 0.9)), **common)
    judged = next(j for c, j in verdicts(ulr, sgo).items() if "LeNet-5, 8 filters" in c)
    assert judged.verdict == "holds in part"
    assert judged.measured == "after 2 steps +8.0 %, after the same time -20.0 %"


def test_a_damaged_result_is_named(tmp_path: Path) -> None:
    file = tmp_path / "results" / "cpu" / "one" / "x.json"
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    with pytest.raises(DataError, match="x.json is not a result"):
        read_results(tmp_path, "cpu")


def test_the_page_in_the_docs_is_made_from_the_results_in_the_repository() -> None:
    shown = list(experiments().values())
    results = read_results(ROOT / "experiments", "cpu")
    text = (ROOT / "docs" / "results.md").read_text()
    pictures = {
        one.name: [
            f"images/results/{f.name}" for f in sorted((ROOT / "docs/images/results").glob(f"{one.name}*.png"), reverse=True)
        ]
        for one in shown
    }
    for kind in pictures.values():
        kind.sort(key=lambda name: "seconds" in name)
        for link in kind:
            assert f"]({link})" in text
    assert page.page_text(results, "cpu", pictures, shown) == text
    assert not [one.name for one in shown if results.of(one.name) and one.figure.kind != "table" and not pictures[one.name]]


def test_committed_results_are_of_cells_that_exist() -> None:
    known = {c.name: c for one in experiments().values() for c in one.cells("cpu")}
    for file in (ROOT / "experiments" / "results" / "cpu").glob("*/*.json"):
        name = f"{file.parent.name}/{file.stem}"
        assert name in known, name
        content = json.loads(file.read_text())
        assert Settings(**content["settings"]) == known[name].settings, name


def test_values_are_said_in_words() -> None:
    assert figures.say("filters", 8) == "8 filters"
    assert figures.say("options.bias", True) == "with biases"
    assert figures.say("bandwidths", False) == "without trained bandwidths"
    assert figures.say("slip", "none") == "as it should be"
