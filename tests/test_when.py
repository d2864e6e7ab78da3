"""Few labels and equal time: their tables, claims, and the page "When to use a kernel network"."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from torchckn.experiments.figures import _curves_over
from torchckn.experiments.labels import distinguishing_labels
from torchckn.experiments.results import Result, Results, read_results
from torchckn.experiments.spec import experiments
from torchckn.experiments.summary import summary_table
from torchckn.experiments.when import equal_time_table, few_labels_tables, when_text

from .results import result, verdicts
from .test_readme import ROOT


def test_the_page_on_when_to_use_a_kernel_network_is_made_from_the_results_in_the_repository() -> None:
    docs = ROOT / "docs" / "when.md"
    assert when_text(read_results(ROOT / "experiments", "cpu"), "results.md", "images/results") == docs.read_text()
    for link in re.findall(r"\]\((images/.*?)\)", docs.read_text()):
        assert (docs.parent / link).exists(), link


def test_the_best_learner_of_each_number_of_labels_is_in_bold() -> None:
    def of(learner: str, seed: int, *accuracies: float) -> Result:
        history = [{"labels": n, "test_accuracy": a} for n, a in zip((50, 100), accuracies, strict=False)]
        return result("few-labels", seed, history, data="mnist", learner=learner)

    (table,) = few_labels_tables([of("ckn", 0, 0.5, 0.9), of("ckn", 1, 0.7, 0.9), of("svm", 0, 0.65)])
    assert table.splitlines() == [
        "| MNIST | 50 labels | 100 labels | draws |",
        "| --- | --- | --- | --- |",
        "| CKN, unsupervised filters | 60.0 (50.0 to 70.0) | **90.0 (90.0 to 90.0)** | 2 |",
        "| RBF SVM on pixels | **65.0** | - | 1 |",
    ]


def test_learners_with_few_labels_are_compared_draw_by_draw() -> None:
    def of(learner: str, seed: int, *accuracies: float) -> Result:
        history = [{"labels": n, "test_accuracy": a} for n, a in zip((100, 300), accuracies, strict=True)]
        return result("few-labels", seed, history, data="cifar10", learner=learner)

    ours = [of("ckn", seed, 0.5 + 0.1 * seed, 0.6 + 0.1 * seed) for seed in range(3)]
    others = [of("convnet", seed, 0.4 + 0.101 * seed, 0.7 + 0.099 * seed) for seed in (0, 1, 2, 7)]
    judged = verdicts(*ours, *others)[
        "Few labels, CIFAR-10: *CKN, unsupervised filters* is more accurate than *ConvNet, AdamW*"
    ]
    assert judged.runs == 6, "the draw without a partner does not count"
    assert [case.holds for case in judged.cases] == [True, False]
    assert judged.cases[0].text.startswith("100 labels: +9.9 points (")


def test_of_two_regularizations_the_better_one_in_cross_validation_is_taken() -> None:
    def of(experiment: str, learner: str, seed: int, *records: tuple[int, float, float]) -> Result:
        history = [{"labels": n, "valid_accuracy": v, "test_accuracy": t} for n, v, t in records]
        return result(experiment, seed, history, data="cifar10", learner=learner)

    runs = [
        run
        for seed in (0, 1)
        for run in (
            of("untuned", "ckn-augmented", seed, (100, 0.5, 0.1 + seed / 10), (300, 0.6, 0.2)),
            of("few-labels", "ckn-augmented", seed, (100, 0.4, 0.9), (300, 0.7, 0.6), (3000, 0.9, 0.9)),
            of("few-labels", "convnet-augmented", seed, (100, 0.5, 0.0), (300, 0.5, 0.5), (3000, 0.9, 0.9)),
        )
    ]
    found = next(
        j
        for c, j in verdicts(*runs).items()
        if "regularization chosen between the two on the same labels" in c and "augmented" in c
    )
    assert [case.text.partition(" points ")[0] for case in found.cases] == ["100 labels: +15.0", "300 labels: +10.0"]


def equal_time_run(kind: str, method: str, optimizer: str, accuracy: float, seconds: float, total_seconds: int) -> Result:
    how = {"kind": kind, "method": method, "optimizer": optimizer, "total_seconds": total_seconds, "weight_decay": 0.0}
    how |= {"bandwidths": False}
    centering = "raw" if optimizer == "adamw" else "feature"
    run = result("equal-time", 0, [{"seconds": seconds}], filters=8, centering=centering, augment="none", **how)
    return replace(run, measured={"test_accuracy": accuracy, "start_seconds": 60.0})


EQUAL_TIME = [
    ("ckn", "ulr", "sgd", 0.6, 180, 240),
    ("convnet", "sgd", "sgd", 0.5, 183, 240),
    ("convnet", "sgd", "adamw", 0.55, 177, 240),
    ("ckn", "ulr", "sgd", 0.6, 1800, 1800),
    ("convnet", "sgd", "sgd", 0.65, 1770, 1800),
]


def test_networks_of_equal_time_stand_beside_each_other_with_the_time_that_they_took() -> None:
    assert equal_time_table([equal_time_run(*run) for run in EQUAL_TIME]).splitlines() == [
        "| filters | time budget (minutes) | augmentation | machine | CKN, ULR | ConvNet, SGD | ConvNet, Adam |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| 8 | 4 | none | 1: unknown | **60.0**<br>4.0 min, n = 1 | 50.0<br>4.0 min, n = 1 | 55.0<br>4.0 min, n = 1 |",
        "| 8 | 30 | none | 1: unknown | 60.0<br>31.0 min, n = 1 | **65.0**<br>30.5 min, n = 1 | - |",
    ]


def test_runs_in_equal_time_on_different_machines_are_not_compared() -> None:
    runs = [equal_time_run(*run) for run in EQUAL_TIME]
    elsewhere = replace(runs[1], environment={"processor": "another", "platform": "one"})
    assert equal_time_table([runs[0], elsewhere]).splitlines() == [
        "| filters | time budget (minutes) | augmentation | machine | CKN, ULR | ConvNet, SGD |",
        "| --- | --- | --- | --- | --- | --- |",
        "| 8 | 4 | none | 1: unknown | **60.0**<br>4.0 min, n = 1 | - |",
        "| 8 | 4 | none | 2: another | - | **50.0**<br>4.0 min, n = 1 |",
    ]
    judged = [judged for claim, judged in verdicts(runs[0], elsewhere).items() if "in equal total time" in claim]
    assert not any(one.cases for one in judged)
    assert judged[0].remark == "not compared, because of different machines: 8 filters, 4 minutes"
    assert not any(one.remark for one in judged[1:]), "of those, one side was not run"


def test_augmentation_has_rows_of_its_own_and_other_centerings_are_not_mixed_into_the_table_of_equal_time() -> None:
    runs = [equal_time_run(*run) for run in EQUAL_TIME]
    other = replace(runs[0], variables=runs[0].variables | {"centering": "image"})
    augmented = replace(runs[0], variables=runs[0].variables | {"augment": "flip,crop"})
    assert equal_time_table([*runs, other]) == equal_time_table(runs)
    assert equal_time_table([other]) == "Not run yet."
    last = "| 8 | 4 | flips and crops | 1: unknown | **60.0**<br>4.0 min, n = 1 | - | - |"
    assert equal_time_table([augmented, *runs]) == f"{equal_time_table(runs)}\n{last}"


@pytest.mark.parametrize(
    ("run", "changed", "columns"),
    [
        (1, {"weight_decay": 0.0005}, "ConvNet, SGD | ConvNet, SGD, weight decay 0.0005"),
        (0, {"bandwidths": True}, "CKN, ULR | CKN, ULR, with trained bandwidths"),
    ],
)
def test_another_way_to_train_has_a_column_of_its_own(run: int, changed: dict[str, Any], columns: str) -> None:
    plain = equal_time_run(*EQUAL_TIME[run])
    other = replace(plain, variables=plain.variables | changed, measured={"test_accuracy": 0.7})
    head, _, row = equal_time_table([plain, other]).splitlines()
    assert f"| {columns} |" in head
    assert re.search(rf"\| {100 * EQUAL_TIME[run][3]:.1f}<br>[^|]* \| \*\*70.0\*\*<br>", row)


def test_claims_on_equal_time_compare_runs_of_the_same_time() -> None:
    runs = [equal_time_run(*run) for run in EQUAL_TIME]
    decayed = replace(runs[1], variables=runs[1].variables | {"weight_decay": 0.0005}, measured={"test_accuracy": 0.7})
    trained = replace(runs[0], variables=runs[0].variables | {"bandwidths": True}, measured={"test_accuracy": 0.8})
    by_ulr = {"method": "ulr", "weight_decay": 0.0078125}
    reversing = replace(runs[1], variables=runs[1].variables | by_ulr, measured={"test_accuracy": 0.35})
    found = verdicts(*runs, decayed, trained, reversing)
    by_optimizer = [judged.measured for claim, judged in found.items() if "in equal total time" in claim]
    assert by_optimizer == [
        "8 filters, 4 minutes (0.99 times the ConvNet's time): +10.0 points (n = 1)"
        "<br>8 filters, 30 minutes (1.02 times the ConvNet's time): -5.0 points (n = 1)",
        "8 filters, 4 minutes (1.31 times the ConvNet's time): -10.0 points (n = 1)",
        "8 filters, 4 minutes (0.74 times the ConvNet's time): +30.0 points (n = 1)",
        "8 filters, 4 minutes (0.98 times the ConvNet's time): +10.0 points (n = 1)",
        "",
        "",
        "8 filters, 4 minutes (1.01 times the ConvNet's time): +5.0 points (n = 1)",
        "8 filters, 4 minutes (1.31 times the ConvNet's time): +25.0 points (n = 1)",
    ]


def test_the_summary_compares_seed_by_seed_and_names_who_is_more_accurate() -> None:
    def few(experiment: str, learner: str, accuracies: Sequence[float]) -> list[Result]:
        records = [[{"labels": 300, "valid_accuracy": accuracy, "test_accuracy": accuracy}] for accuracy in accuracies]
        return [result(experiment, seed, record, data="cifar10", learner=learner) for seed, record in enumerate(records)]

    def half_hour(experiment: str, kind: str, accuracies: Sequence[float], **how: Any) -> list[Result]:
        common = {"kind": kind, "filters": 16, "total_seconds": 1800, **how}
        history = [{"seconds": 1500.0 if kind == "ckn" else 1000.0}]
        return [
            result(experiment, seed, history, test_accuracy=accuracy, **common) for seed, accuracy in enumerate(accuracies)
        ]

    def lenets(filters: int, kind: str, accuracies: Sequence[float]) -> list[Result]:
        common = {"network": "lenet5", "kind": kind, "filters": filters}
        history = [{"step": 10_000, "seconds": 200.0 if kind == "ckn" else 100.0}]
        return [
            result("lenets", seed, history, test_accuracy=accuracy, **common) for seed, accuracy in enumerate(accuracies)
        ]

    runs = [
        *few("few-labels", "convnet-augmented", (0.5, 0.6)),
        *few("few-labels", "ckn-augmented", (0.55, 0.65)),
        *few("untuned", "ckn-augmented", (0.45, 0.55)),
        *half_hour("equal-time", "ckn", (0.7, 0.8), bandwidths=True, augment="none"),
        *half_hour("equal-time", "convnet", (0.8, 0.7), weight_decay=0.0005, augment="none"),
        *half_hour("tuning", "convnet", (0.69,), weight_decay=0.0005, lr="cosine:0.3"),
        *lenets(16, "ckn", (0.992, 0.990)),
        *lenets(16, "convnet", (0.991, 0.989)),
        *lenets(8, "ckn", (0.97,)),
        *lenets(8, "convnet", (0.98,)),
        *lenets(32, "ckn", (0.97,)),  # whose ConvNet was not run
    ]
    rows = [line.strip("| ").split(" | ") for line in summary_table(Results(runs)).splitlines()[2:]]
    assert [(row[2].partition(" ")[0], *row[3:]) for row in rows] == [
        ("-5.0", "ConvNet", "-"),
        ("+5.0", "CKN", "-"),
        ("+5.0", "CKN", "-"),
        ("+0.0", "undecided", "1.50"),
        ("+1.0", "undecided", "1.50"),
        ("-1.00", "undecided", "2.00"),
        ("+0.10", "CKN", "2.00"),
    ]
    assert rows[-1][:2] == ["MNIST, all labels, LeNet-5 with 16 filters", "after 10,000 steps each"]
    assert summary_table(Results([])) == "Not run yet."
    elsewhere = [replace(run, environment={"processor": "another"}) if run["kind"] == "ckn" else run for run in runs]
    rows = [line.strip("| ").split(" | ") for line in summary_table(Results(elsewhere)).splitlines()[2:]]
    assert len(rows) == 3 + 2, "equal times on different processors are not compared"
    assert [row[4] for row in rows[3:]] == ["-", "-"], "times of equal steps are those of a processor"


def test_labels_of_lines_leave_out_what_does_not_distinguish_them() -> None:
    names = ("kind", "weight_decay", "centering")
    lines = [("ckn", 0.0, "feature"), ("convnet", 0.0, "feature"), ("convnet", 0.1, "feature"), ("convnet", 0.2, "raw")]
    assert list(distinguishing_labels(names, lines).values()) == [
        "CKN",
        "ConvNet",
        "ConvNet, weight decay 0.1",
        "ConvNet, weight decay 0.2",
    ]
    assert distinguishing_labels(names, [*lines, ("ckn", 0.0, "image")])[lines[0]] == "CKN, centering per feature"


def test_published_accuracies_are_marked_up_to_the_end_of_the_curves() -> None:
    released = experiments()["released"]
    history = [{"step": step, "seconds": float(step), "valid_accuracy": 0.5} for step in (0, 1000)]
    run = result("released", 0, history, network="allcnn", kind="convnet", steps=1000)
    figure = _curves_over("steps", released.figure, [replace(run, settings={"data": "cifar10"})])
    (axes,) = figure.axes
    marks = next(line for line in axes.get_lines() if line.get_label().startswith("released"))
    assert list(zip(*marks.get_data(), strict=True)) == [(0, 26.9), (100, 16.4), (1000, 29.1), (1000, 40.7)]
    assert axes.get_ylim()[0] < 16.4
