"""The paper's experiments as their specifications have them. What is made of their results: test_judging.py, test_results.py."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from torchckn import ConfigError
from torchckn.choices import ScaleName
from torchckn.experiments.results import read_results
from torchckn.experiments.spec import SCALES, Cell, experiment, experiments

from .experiments import SPEC, cell

ROOT = Path(__file__).parent.parent


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
    def length(cell: Cell) -> float:
        return cell.extras.get("total_seconds", cell.settings.training.steps)

    for one in (each for each in experiments().values() if "cpu" in each.scale):
        small, large = one.cells("cpu"), one.cells("paper" if "paper" in one.scale else "long")
        assert max(c.variables.get("filters", 0) for c in small) <= max(c.variables.get("filters", 0) for c in large)
        assert one.measure != "train" or max(map(length, small)) <= max(map(length, large))
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


def test_connection_schemes_are_tested_with_seeds_that_the_protocol_was_not_chosen_with() -> None:
    cells = experiment("connections").cells("cpu")
    assert {each.seed for each in cells} == {3, 4, 5, 6, 7}, "it was chosen with 0, 1 and 2"
    assert {each.variables["centering"] for each in cells} == {"image", "feature"}
    assert {each.seed for each in experiment("connections").cells("paper")} == {3, 4, 5, 6, 7}


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
    spec.write_text(SPEC.replace("filters = [4]", "filters = [4, 4]").replace('["kind"]', '["kind", "filters"]'))
    with pytest.raises(ConfigError, match="two cells of the name small/lenet1-4-ckn-seed0"):
        experiment(str(spec)).cells("cpu")
    for wrong, message in (
        (
            SPEC.replace("filters = [4]", "filters = [4, 8]"),
            "'filters' has several values; expected it among panels or lines",
        ),
        (
            SPEC.replace("filters = [4]", "filters = [[4], 8]"),
            r"grid.filters: expected numbers, texts, true or false, got \[4\]",
        ),
        (SPEC.replace("seeds = 2", "seeds = 2\ngrid = { tau = [0.1] }"), "a scale has the variable 'tau', which"),
        (SPEC.replace('"small"', '"a small one"'), "name: expected text that matches"),
    ):
        spec.write_text(wrong)
        with pytest.raises(ConfigError, match=message):
            experiment(str(spec))
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
    with pytest.raises(ConfigError, match="unknown experiment 'ulr-sdg'.*'ulr-sgo'"):
        experiment("ulr-sdg")


@pytest.mark.parametrize(
    ("measure", "given", "message"),
    [
        ("train", {"lrs": [0.1]}, "lrs needs trial_steps as well"),
        ("train", {"lrs": 0.1, "trial_steps": 1}, "lrs: expected a list, got 0.1"),
        ("train", {"lrs": [], "trial_steps": 1}, r"lrs: expected at least 1 item, got \[\]"),
        ("train", {"lrs": ["cosin:1"], "trial_steps": 1}, "unknown learning rate 'cosin:1'.*Did you mean 'cosine:NUMBER'"),
        ("train", {"total_seconds": "240"}, "total_seconds: expected a number, got '240'"),
        ("train", {"refit_images": 0}, "refit_images: expected a number greater than or equal to 1, got 0"),
        ("train", {"slip": "half-whitning"}, "slip: expected 'none'.*got 'half-whitning'. Did you mean 'half-whitening'"),
        ("train", {"steps": 0}, "steps expected at least 1, got 0"),
        ("gradient", {}, "the measure 'gradient' needs gradient, as in gradient = { images = 64, "),
        ("gradient", {"gradient": {"images": 3, "methods": ["svd"]}}, "gradient: directions is missing"),
        ("unsupervised", {"kind": "convnet"}, "the measure 'unsupervised' is for kind = 'ckn', got 'convnet'"),
        ("few-labels", {"learner": "tree", "label_counts": [10]}, "learner: expected 'ckn', .*got 'tree'"),
        (
            "few-labels",
            {"learner": "ckn", "label_counts": [10, 5]},
            r"label_counts: expected growing numbers .*got \[10, 5\]",
        ),
        ("few-labels", {"learner": "ckn", "label_counts": ["10"]}, "label_counts.0: expected an integer, got '10'"),
        ("few-labels", {"learner": "ckn"}, "the measure 'few-labels' needs label_counts, as in label_counts = "),
    ],
)
def test_a_wrong_cell_is_refused_before_anything_runs(measure: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"one/lenet1-4-seed0: .*{message}"):
        cell(measure=measure, **given).check()


def is_tuned(cell: Cell) -> bool:
    """Whether this is a network of equal time that the experiment tuning is for."""
    return bool(cell.variables["bandwidths"] or cell.variables["weight_decay"] == 0.0005)


@pytest.mark.parametrize(
    ("kind", "filters", "least"),
    [("ckn", 8, 1), ("convnet", 8, 3), ("ckn", 16, 3), ("convnet", 16, 4), ("ckn", 32, 2), ("convnet", 32, 2)],
)
def test_the_tuned_networks_of_equal_time_have_the_best_validation_accuracy_that_was_tried(
    kind: str, filters: int, least: int
) -> None:
    runs = read_results(ROOT / "experiments", "cpu").of("tuning", kind=kind, filters=filters, total_seconds=1800)
    tried = [run for run in runs if run.seed == 0]
    best = max(tried, key=lambda run: run["valid_accuracy"])
    tuned = [each for each in experiment("equal-time").cells("cpu") if is_tuned(each) and each.settings.filters == filters]
    cells = [each for each in tuned if each.settings.kind == kind]
    assert len(tried) >= least
    assert [best.is_of(each) for each in cells if each.seed == 0] == [True]


@pytest.mark.parametrize("filters", [8, 16, 32])
def test_the_convnets_of_lenet5_have_the_learning_rate_that_is_best_over_all_steps(filters: int) -> None:
    results = read_results(ROOT / "experiments", "cpu")
    tried = [run for run in results.of("lenet-rates", filters=filters) if run.seed == 0]
    best = max(tried, key=lambda run: run["valid_accuracy"])
    runs = results.of("lenets", network="lenet5", kind="convnet", filters=filters)
    assert len(tried) >= 2
    assert [run["lr"] for run in runs] == [best["lr"]] * 3


@pytest.mark.parametrize(("scale", "seconds"), [("cpu", 240), ("cpu", 1800), ("long", 1800)])
def test_the_networks_of_equal_time_have_the_same_total_time_and_are_tuned_over_all_of_it_or_over_four_minutes(
    scale: ScaleName, seconds: int
) -> None:
    cells = [each for each in experiment("equal-time").cells(scale) if each.extras["total_seconds"] == seconds]
    for each in cells:
        each.check()
        assert len(each.extras["lrs"]) == 3
        assert "trial_steps" not in each.extras
        if (scale, seconds) == ("cpu", 1800) and not is_tuned(each):
            short = {**each.variables, "total_seconds": 240, "filters": 8, "augment": "none", "weight_decay": 0.0}
            runs = read_results(ROOT / "experiments", "cpu").of("equal-time", **short)
            assert {run["lr"] for run in runs} == {each.settings.training.lr}, "the best in four minutes"
        elif (scale, seconds) != ("cpu", 1800):
            assert each.settings.training.lr is None
    assert {each.settings.kind for each in cells} == {"ckn", "convnet"}
    assert {each.settings.training.optimizer for each in cells} == {"sgd", "adamw"}
