"""Learners with few labels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from torchckn import data
from torchckn.experiments import baselines, learners
from torchckn.experiments.few_labels import accuracy_by_labels, draw_order
from torchckn.fit.folds import FEW_IMAGES
from torchckn.settings import settings_from

from .experiments import _beside_the_digits, cell, run_cell  # noqa: F401 - a fixture


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


@pytest.mark.usefixtures("_few_penalties")
@pytest.mark.parametrize(
    "learner",
    ["ckn", "ckn-augmented", "svm", "hog-svm", "hog-svm-augmented", pytest.param("kmeans", marks=pytest.mark.slow)],
)
def test_learners_learn_from_few_labels_and_are_resumed(
    learner: str, tmp_path: Path, few_digits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learners, "LAMBDAS", (2.0**-10, 2.0**-18))
    own = replace(cell(measure="few-labels", learner=learner, label_counts=[20, 60]), seed=1)
    own.check()
    settings = settings_from(own.settings.to_flat() | {"data": str(few_digits)}, "test")
    records = accuracy_by_labels(settings, learner, [20, 60], tmp_path / "shared", tmp_path / "work")
    assert [record["labels"] for record in records] == [20, 60]
    assert records[1]["test_accuracy"] > 0.5
    again = accuracy_by_labels(settings, "none", [20, 60], tmp_path / "shared", tmp_path / "work")
    assert again == records, "what is done is not computed again"


def test_further_numbers_of_labels_are_measured_without_the_first_ones_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = run_cell(cell(measure="few-labels", learner="svm", label_counts=[20]), tmp_path)
    learned: list[int] = []

    def learner(problem: learners.Problem) -> learners.Learner:
        def learn(count: int) -> learners.Learned:
            learned.append(count)
            return learners.Learned(problem.test_labels, 1.0, {})

        return learn

    monkeypatch.setitem(learners.LEARNERS, "svm", learner)
    more = run_cell(cell(measure="few-labels", learner="svm", label_counts=[20, 60]), tmp_path)
    assert learned == [60]
    assert more["history"][0] == few["history"][0]
    assert more["history"][1]["test_accuracy"] == 1
    assert more["measured"] == {"earlier_seconds": few["seconds"], "earlier_environment": few["environment"]}
    run_cell(cell(measure="few-labels", learner="svm", label_counts=[20, 60, 80], patches=600), tmp_path)
    assert learned == [60, 20, 60, 80], "other settings"


@pytest.mark.slow
def test_filters_are_trained_with_few_labels_and_with_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learners, "ULR_STEPS", 2)
    monkeypatch.setattr(learners, "ULR_RATES", ("cosine:0.004",))
    own = cell(measure="few-labels", learner="ckn-ulr", label_counts=[20, FEW_IMAGES])
    settings = settings_from(own.settings.to_flat() | {"data": "mnist-mini"}, "test")
    few, more = accuracy_by_labels(settings, "ckn-ulr", [20, FEW_IMAGES], tmp_path / "shared", tmp_path / "work")
    assert more["test_accuracy"] > few["test_accuracy"] > 0.3


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
