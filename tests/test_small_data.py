"""Small data: cross-validation, a warning at chance level, splits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import torchckn
from torchckn import ConfigError, data
from torchckn.errors import ChanceWarning
from torchckn.fit import fit_head
from torchckn.fit.classifier import fit_classifier
from torchckn.fit.folds import cross_validated_penalty, fold_of, in_their_span

from .training import OPTIONS, network, points
from .training import digits as small_digits

# Cross-validation


@given(st.lists(st.integers(0, 3), min_size=5, max_size=40), st.integers(2, 5))
def test_folds_have_the_same_sizes_and_classes_but_for_one_image(labels: list[int], folds: int) -> None:
    y = torch.tensor(labels)
    fold = fold_of(y, folds)
    sizes = torch.bincount(fold, minlength=folds)
    assert sizes.max() - sizes.min() <= 1
    for label in y.unique():
        counts = torch.bincount(fold[y == label], minlength=folds)
        assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("loss", ["multinomial", "square"])
def test_the_penalty_is_that_of_the_best_mean_over_folds(loss: Any) -> None:
    x, y = points()
    lambdas = [1.0, 2.0**-4, 2.0**-8]
    lam, curve = cross_validated_penalty(x, y, 3, loss=loss, lambdas=lambdas, search="exhaustive", folds=3)
    fold, expected = fold_of(y, 3), {}
    for value in lambdas:
        right = 0.0
        for k in range(3):
            weight, bias, _ = fit_classifier(x[fold != k], y[fold != k], 3, loss=loss, lam=value)
            right += float(((x[fold == k] @ weight + bias).argmax(1) == y[fold == k]).sum())
        expected[value] = right / len(y)
    assert {score.lam: pytest.approx(score.accuracy) for score in curve} == expected
    assert expected[lam] == max(expected.values())
    best = [score for score in curve if score.accuracy == max(expected.values())]
    assert lam == min(best, key=lambda score: score.loss).lam, "ties by loss"


def test_copies_are_in_the_folds_of_their_originals_which_alone_are_validated_on() -> None:
    x, y = points(30)
    copies = torch.cat([x, x + 0.3 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype)])
    copy_of, lambdas = torch.arange(60) % 30, [1.0, 2.0**-8]
    _, curve = cross_validated_penalty(
        copies, y.repeat(2), 3, lambdas=lambdas, search="exhaustive", folds=3, copy_of=copy_of
    )
    fold = fold_of(y, 3)
    for score in curve:
        right = 0.0
        for k in range(3):
            rest = (fold != k).repeat(2)
            weight, bias, _ = fit_classifier(copies[rest], y.repeat(2)[rest], 3, lam=score.lam)
            right += float(((x[fold == k] @ weight + bias).argmax(1) == y[fold == k]).sum())
        assert score.accuracy == pytest.approx(right / 30)


def test_features_in_their_span_have_the_same_inner_products() -> None:
    x = points(8, 20)[0]
    assert in_their_span(x).shape == (8, 8)
    torch.testing.assert_close(in_their_span(x) @ in_their_span(x).T, x @ x.T)
    assert in_their_span(x.T) is not x.T
    assert in_their_span(x.T).shape == (20, 8)


def test_few_images_choose_the_penalty_by_folds_and_need_no_validation_images() -> None:
    (images, labels), valid = small_digits(100)
    net = torchckn.fit_filters(network(), images, 200)
    lambdas = OPTIONS["lambdas"]
    alone = fit_head(net, (images, labels), lambdas=lambdas)
    assert alone.folds == 5
    assert alone.accuracy == max(score.accuracy for score in alone.curve)
    both = fit_head(net, (images, labels), valid, lambdas=lambdas, folds=2)
    assert both.folds == 2
    assert both.accuracy == torchckn.evaluate(net, valid).accuracy
    assert fit_head(net, (images, labels), valid, lambdas=lambdas, folds=0).folds == 0
    with pytest.raises(ConfigError, match=r"folds expected 0, or a number from 2 to that of the images \(100\), got 101"):
        fit_head(net, (images, labels), folds=101)
    result = torchckn.train(network(), (images, labels), steps=1, **OPTIONS | {"folds": None})
    assert result.start is not None
    assert result.start.folds == 5
    with pytest.raises(ConfigError, match="--folds 5. to choose it by cross-validation"):
        torchckn.train(network(), (images, labels), steps=1, **OPTIONS | {"folds": 0})


# Chance


def test_a_classifier_at_chance_level_is_warned_of() -> None:
    (images, labels), (valid_images, valid_labels) = small_digits(100)
    net = torchckn.fit_filters(network(), images, 200)
    shuffled = labels[torch.randperm(100, generator=torch.Generator().manual_seed(0))]
    with pytest.warns(
        ChanceWarning, match=r"validation accuracy \d+\.\d % on 100 images, .* \(two standard errors are \d\.\d %\)"
    ):
        fit_head(net, (images, shuffled), (valid_images, valid_labels), lam=2.0**-6)


def test_a_classifier_that_has_learned_something_is_not(recwarn: pytest.WarningsRecorder) -> None:
    train, valid = small_digits(100)
    fit_head(torchckn.fit_filters(network(), train[0], 200), train, valid, lam=2.0**-6)
    assert not [warning for warning in recwarn if issubclass(warning.category, ChanceWarning)]


# Splits


@given(st.lists(st.integers(0, 3), min_size=2, max_size=60), st.data())
def test_few_images_are_split_in_proportion_and_every_class_is_left_to_train_on(
    labels: list[int], drawn: st.DataObject
) -> None:
    part = data.Part(torch.zeros(len(labels), 1, 1, 1), torch.tensor(labels))
    held = drawn.draw(st.integers(1, len(labels) - 1))
    train, valid = data.split(part, held, seed=1)
    assert len(valid) == held
    assert sorted([*train.labels.tolist(), *valid.labels.tolist()]) == sorted(labels)
    if held <= len(labels) - len(set(labels)):
        assert set(train.labels.tolist()) == set(labels)
        for label in set(labels):
            spare = labels.count(label) - 1
            share = held * spare / (len(labels) - len(set(labels))) if spare else 0
            assert abs(int((valid.labels == label).sum()) - share) <= 1
