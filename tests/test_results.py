"""The page that is made from experiments' results, its figures and notes; and the results in the repository."""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from torchckn import ConfigError, DataError
from torchckn.experiments import labels, notes, page
from torchckn.experiments.results import Results, is_finished, read_results
from torchckn.experiments.spec import experiments
from torchckn.plots import crop_out_start, new_figure

from .results import result, seeds

ROOT = Path(__file__).parent.parent


def test_the_error_for_a_damaged_result_names_its_file(tmp_path: Path) -> None:
    file = tmp_path / "results" / "cpu" / "one" / "x.json"
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    with pytest.raises(DataError, match="x.json is not a result"):
        read_results(tmp_path, "cpu")


def test_numbers_in_the_notes_come_from_the_results() -> None:
    runs = seeds("slips", [0.5, 0.6], network="allcnn", normalize=True)
    assert notes.filled("has {slips test network=allcnn normalize=true} here", Results(runs)) == "has 55.0 % here"
    timed = [replace(run, history=[{"seconds": 7.0}]) for run in runs]
    assert notes.filled("{slips seconds}", Results(timed)) == "7 s"
    with pytest.raises(DataError, match=r"notes.md: \{slips test network=lenet5\} names no run"):
        notes.filled("{slips test network=lenet5}", Results(runs))
    with pytest.raises(ConfigError, match=r"unknown number in notes.md, \{slips tests\}: 'tests'.*Did you mean 'test'"):
        notes.filled("{slips tests}", Results(runs))
    with pytest.raises(DataError, match="names no run"):
        notes.filled("{slips test augment=flip,crop}", Results(runs))


def test_no_measured_number_in_the_notes_is_written_by_hand() -> None:
    text = (ROOT / "experiments" / "results" / "cpu" / "notes.md").read_text()
    percentages = set(re.findall(r"[\d.]+ %", text))
    about = experiments()["released"].about
    assert percentages
    assert all(number.removesuffix(" %") in about for number in percentages), "only the released curves have no files here"


def test_the_page_in_the_docs_is_made_from_the_results_in_the_repository() -> None:
    docs = ROOT / "docs" / "results.md"
    shown, folder = list(experiments().values()), ROOT / "experiments"
    assert page.page_text(folder, "cpu", docs, shown, page.current_results(folder, "cpu", shown)) == docs.read_text()
    for link in re.findall(r"\]\((images/.*?)\)", docs.read_text()):
        assert (docs.parent / link).exists(), link


def test_runs_of_different_lengths_have_rows_of_their_own_and_one_column_of_steps() -> None:
    runs = [
        result(
            "released",
            seed,
            [{"step": steps, "seconds": 5.0}],
            steps=steps,
            kind="ckn",
            test_accuracy=0.5,
            valid_accuracy=0.5,
        )
        for seed, steps in ((0, 100), (1, 100), (0, 1000))
    ]
    table = [line.strip("| ").split(" | ") for line in page.experiment_table(experiments()["released"], runs).splitlines()]
    assert table[0].count("steps") == 1
    assert [row[table[0].index("steps")] for row in table[2:]] == ["100", "1,000"]


def test_a_result_of_an_experiment_that_has_been_changed_since_is_left_out(tmp_path: Path) -> None:
    cells = experiments()["kernels"].cells("cpu")
    file = Path("results", "cpu", f"{cells[0].name}.json")
    (tmp_path / file).parent.mkdir(parents=True)
    shutil.copy(ROOT / "experiments" / file, tmp_path / file)
    assert len(read_results(tmp_path, "cpu", cells).all) == 1
    changed = [replace(cells[0], given=cells[0].given | {"batch_size": 7})]
    left = read_results(tmp_path, "cpu", changed)
    assert (list(left.all), left.outdated) == ([], 1)
    kept = read_results(tmp_path, "cpu")
    assert (len(kept.all), kept.outdated) == (1, 0)
    text = page.page_text(tmp_path, "cpu", tmp_path / "page.md", [], replace(kept, outdated=1))
    assert "Results left out, because their experiments have been changed since: 1." in text


def test_the_whole_small_scale_is_in_the_repository_as_its_experiments_are_now() -> None:
    cells = {c.name: c for one in experiments().values() if "cpu" in one.scale for c in one.cells("cpu")}
    files = (ROOT / "experiments" / "results" / "cpu").glob("*/*.json")
    assert {f"{file.parent.name}/{file.stem}" for file in files} == cells.keys()
    assert [name for name, cell in cells.items() if not is_finished(ROOT / "experiments", cell)] == []


def test_claims_are_in_tables_by_their_source_and_what_was_not_run_is_a_list() -> None:
    paper = seeds("lenets", [0.98, 0.98], network="lenet1", filters=8, kind="ckn")
    released = result("released", network="lenet5", kind="ckn", steps=100, test_accuracy=0.987)
    ours = seeds("kernels", [0.7], network="lenet5", kernel="rbf:0.6") + seeds(
        "kernels", [0.6], network="lenet5", kernel="arccosine:1"
    )
    sections = page.claims_sections(Results([*paper, released, *ours]))
    heads = [part for part in sections if part.startswith("###")]
    assert heads == [
        "### The paper",
        "### The runs that the authors released",
        "### Not in the paper",
        "### Not run at this scale",
    ]
    assert "LeNet-1 after 10,000 steps: the test accuracies" in sections[1]
    assert "Released run, LeNet-5 CKN" in sections[3]
    assert "arc-cosine" in sections[5]
    assert all(line.startswith("- ") for line in sections[7].splitlines())
    assert "arc-cosine" not in sections[7]


def test_times_by_different_clocks_are_not_averaged() -> None:
    def seconds(*clocks: str) -> str:
        runs = [
            replace(
                result("kernels", seed, [{"seconds": 7.0, "step": 1}], test_accuracy=0.5, valid_accuracy=0.5), clock=clock
            )
            for seed, clock in enumerate(clocks)
        ]
        return page.experiment_table(experiments()["kernels"], runs).splitlines()[-1].split(" | ")[-2]

    assert (seconds("cpu", "cpu"), seconds("wall"), seconds("cpu", "wall")) == ("7", "7 w", "-")


def test_how_far_layers_are_from_their_kernels_is_a_table_of_the_runs_that_say_it() -> None:
    spec = experiments()["bandwidths"]
    layers = [{"error": 0.25, "bandwidth": 0.6}, {"error": 0.996, "bandwidth": 0.304}, {"error": 0.0, "bandwidth": None}]
    common = {"network": "allcnn", "filters": 16}
    trained = result("bandwidths", bandwidths=True, layers=layers, **common)
    older = result("bandwidths", bandwidths=False, **common)
    _, table = page.approximation_table(spec, [trained, older])
    head, _, *rows = (line.strip("| ").split(" | ") for line in table.splitlines())
    assert head[-3:] == ["error of the approximation (%)", "bandwidths", "seeds"]
    assert [row[-3:] for row in rows] == [["0 to 100", "0.30 to 0.60", "1"]]
    assert page.approximation_table(spec, [older]) == []


def test_learning_rates_say_among_how_many_they_were_chosen() -> None:
    def label(lr: object, *tried: float) -> str:
        return labels.learning_rate_label(result("kernels", lr=lr, trials={f"cosine:{rate}": 0.5 for rate in tried}))

    assert label("cosine:0.25", 0.03125, 0.125, 0.25) == "2^-2 (largest of 3)"
    assert label("constant:0.1", 0.1, 0.3) == "0.1 (smallest of 2)"
    assert label("cosine:1.0", 0.3, 1.0, 3.0) == "1 (best of 3)"
    assert label(0.03125) == "2^-5"
    assert label("search") == "search"


def test_values_have_labels_for_figures_and_tables() -> None:
    assert labels.value_label("filters", 8) == "8 filters"
    assert labels.value_label("steps", 1000) == "1,000 steps"
    assert labels.value_label("total_seconds", 240) == "4 minutes"
    assert labels.value_label("options.bias", True) == "with biases"
    assert labels.value_label("bandwidths", False) == "without trained bandwidths"
    assert labels.value_label("penalty", "first") == "L2 penalty of the first classifier"
    assert labels.value_label("penalty", "2^-14") == "L2 penalty 2^-14"
    assert labels.value_label("loss", "square") == "square loss"
    assert labels.value_label("inverse_sqrt", "newton:50") == "Newton"


def test_without_matplotlib_the_error_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"figures need matplotlib, .* install it with: pip install 'torchckn\[plot\]'"):
        new_figure(1, 1)


def test_a_first_point_far_below_the_others_is_cropped_and_other_first_points_are_not() -> None:
    for first, shown in ((10.0, False), (90.0, True)):
        (axes,) = [new_figure(1, 1).subplots()]
        axes.plot([first, 95.0, 98.0])
        crop_out_start(axes, [[first, 95.0, 98.0]])
        assert (axes.get_ylim()[0] <= first) == shown
