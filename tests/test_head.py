"""The classifier on fixed features, and the choice of its penalty."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression, Ridge

from torchckn import data, translate, zoo
from torchckn.errors import ConfigError, DataError
from torchckn.fit import classifier, evaluate, fit_filters, fit_head, solvers
from torchckn.fit.classifier import fit_classifier
from torchckn.kernels import RBFSphere

from .training import IMAGES, seeded, two_layers


def features(n: int = 400, d: int = 12, classes: int = 4, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Strongly correlated features, as those of a network are."""
    g = seeded(seed)
    mix = torch.randn(d, d, generator=seeded(99)) @ torch.diag(10.0 ** -torch.linspace(0, 2, d))
    x = torch.randn(n, d, generator=g) @ mix.T + 1
    y = (x @ torch.randn(d, classes, generator=seeded(98)) * 3 + torch.randn(n, classes, generator=g)).argmax(1)
    return x, y


def multinomial_objective(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, b: torch.Tensor, lam: float) -> float:
    return float(F.cross_entropy(x.double() @ w.double() + b.double(), y) + lam * w.double().square().sum())


@pytest.mark.parametrize("lam", [1e-1, 1e-3, 1e-6])
@pytest.mark.parametrize("most", [0, solvers.Multinomial._MOST])  # preconditioned by a covariance, by the Hessian
def test_the_multinomial_head_is_the_minimiser_that_scikit_learn_finds(
    lam: float, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solvers.Multinomial, "_MOST", most)
    x, y = features()
    weight, bias, _ = fit_classifier(x, y, 4, lam=lam)
    # scikit-learn's objective is C sum_i loss_i + |w|^2 / 2
    other = LogisticRegression(C=1 / (2 * lam * len(x)), max_iter=20_000, tol=1e-10).fit(x.double().numpy(), y.numpy())
    theirs = multinomial_objective(x, y, torch.from_numpy(other.coef_.T), torch.from_numpy(other.intercept_), lam)
    assert multinomial_objective(x, y, weight, bias, lam) <= theirs * (1 + 1e-3)


@pytest.mark.parametrize(("label", "classes"), [(0, 1), (2, 3)])
def test_data_of_one_class_are_fitted_in_a_few_iterations(label: int, classes: int) -> None:
    x, y = features(100)[0], torch.full((100,), label)
    weight, bias, fit = fit_classifier(x, y, classes, x, y, lambdas=[1.0, 2**-20, 0.0], search="exhaustive")
    assert [score.accuracy for score in fit.curve] == [1, 1, 1]
    assert max(score.evaluations for score in fit.curve) < 150  # of 1,000 that are allowed
    assert bool(torch.isfinite(weight).all() and torch.isfinite(bias).all())


@pytest.mark.parametrize("lam", [1e-1, 1e-4])
def test_the_square_head_is_ridge_regression(lam: float) -> None:
    x, y = features()
    weight, bias, _ = fit_classifier(x.double(), y, 4, loss="square", lam=lam)
    targets = F.one_hot(y, 4).double().numpy()
    ridge = Ridge(alpha=lam * len(x)).fit(x.double().numpy(), targets)
    np.testing.assert_allclose(weight.T, ridge.coef_, atol=1e-8)
    np.testing.assert_allclose(bias, ridge.intercept_, atol=1e-8)


@pytest.mark.parametrize("loss", ["multinomial", "square"])
def test_lambda_is_chosen_on_validation_data_along_a_path(loss: Any) -> None:
    x, y = features(200)
    vx, vy = features(200, seed=1)
    grid = [2.0**-i for i in range(16)]
    path = fit_classifier(x, y, 4, vx, vy, loss=loss, lambdas=grid)[2]
    full = fit_classifier(x, y, 4, vx, vy, loss=loss, lambdas=grid, search="exhaustive")[2]
    assert len(full.curve) == 16
    assert len(path.curve) <= len(full.curve)
    assert full.accuracy == max(score.accuracy for score in full.curve)
    assert path.accuracy is not None
    assert path.accuracy >= full.accuracy - 0.02
    assert [score.lam for score in path.curve] == sorted((score.lam for score in path.curve), reverse=True)
    assert path.to_json()["lam"] == path.lam


@pytest.mark.parametrize(
    ("search", "few", "many"), [("path", 2**19, 2**24), ("path", 0, 2**24), ("path", 0, 0), ("exhaustive", 2**19, 2**24)]
)
def test_the_accuracy_that_chose_the_penalty_is_that_of_the_classifier_that_is_kept(
    monkeypatch: pytest.MonkeyPatch, search: Any, few: int, many: int
) -> None:
    monkeypatch.setattr(classifier, "_FEW", few, raising=False)  # 0: as if there were more than a few features
    monkeypatch.setattr(classifier, "_MANY", many, raising=False)
    for seed in range(0, 8, 2):
        x, y = features(80, 40, seed=seed)
        vx, vy = features(30, 40, seed=seed + 1)
        weight, bias, fit = fit_classifier(x, y, 4, vx, vy, search=search, lambdas=[2.0**-i for i in range(0, 24, 3)])
        (chosen,) = (score for score in fit.curve if score.lam == fit.lam)
        kept = float(((vx @ weight + bias).argmax(1) == vy).double().mean())
        assert fit.accuracy == chosen.accuracy == kept
        if many:
            assert kept == max(score.accuracy for score in fit.curve)


@pytest.mark.parametrize(
    ("loss", "search"), [("multinomial", "path"), ("multinomial", "exhaustive"), ("square", "exhaustive")]
)
def test_penalties_of_equal_accuracy_are_ranked_by_their_validation_loss(loss: Any, search: Any) -> None:
    x, y = features(200, seed=2)
    vx, vy = features(8, seed=3)  # so few that many penalties are equally accurate
    lambdas = [2.0**-i for i in range(20)]
    weight, bias, fit = fit_classifier(x, y, 4, vx, vy, loss=loss, search=search, lambdas=lambdas)
    equals = [score for score in fit.curve if score.accuracy == fit.accuracy]
    assert len(equals) > 2
    assert fit.lam == min(equals, key=lambda score: score.loss).lam
    assert fit.lam < max(score.lam for score in equals), "the largest of them would do without a look at the loss"
    scores = vx @ weight + bias
    of_images = F.cross_entropy(scores, vy) if loss == "multinomial" else (scores - F.one_hot(vy, 4)).square().sum(1).mean()
    assert min(score.loss for score in equals) == pytest.approx(float(of_images), rel=1e-6)


def test_a_fitted_head_has_the_accuracy_that_is_reported_even_on_few_images(digits: data.DataSet) -> None:
    train, valid = digits.train[:300], digits.train[300:320]
    ckn = translate(zoo.build("lenet1", filters=6), (1, 28, 28), RBFSphere(0.6), generator=seeded())
    fit = fit_head(ckn, train, valid, folds=0)
    assert evaluate(ckn, valid).accuracy == fit.accuracy == max(score.accuracy for score in fit.curve)


def test_a_head_without_a_bias_is_refused() -> None:
    ckn = two_layers()
    ckn.head = torch.nn.Linear(ckn.head.in_features, 3, bias=False)
    with pytest.raises(ConfigError, match="expected a head with a bias, got one without; build the head with bias=True"):
        fit_head(ckn, (IMAGES, LABELS), lam=1.0)


def test_features_that_are_not_finite_are_refused() -> None:
    x, y = features(50)
    x[3, 4] = torch.inf
    with pytest.raises(DataError, match="the features are not finite, .*; check images and filters for NaN"):
        fit_classifier(x, y, 4, lam=1e-3)


def test_preconditioning_saves_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = features(2000, 60)
    valid = features(100, 60, seed=1)

    def score() -> classifier.LambdaScore:
        return fit_classifier(x, y, 4, *valid, lambdas=[2.0**-12])[2].curve[0]

    by_hessian = score()
    monkeypatch.setattr(solvers.Multinomial, "_MOST", 0)
    by_covariance = score()
    monkeypatch.setattr(solvers, "_factor", lambda matrix: torch.eye(len(matrix), dtype=torch.float64))
    plain = score()
    assert by_hessian.evaluations < 0.7 * by_covariance.evaluations < 0.7 * 0.7 * plain.evaluations
    assert max(by_hessian.objective, by_covariance.objective) <= plain.objective * 1.001


def test_the_preconditioner_of_few_features_is_the_hessian_and_holds_what_the_loss_leaves_free() -> None:
    x = torch.cat([torch.randn(5000, 4, generator=seeded()).double(), torch.ones(5000, 1).double()], 1)
    y = torch.randint(3, (5000,), generator=seeded())
    v = torch.randn(5, 3, generator=seeded()).double()

    def objective(flat: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x @ flat.view(5, 3), y) + 0.1 * flat.view(5, 3)[:-1].square().sum()

    coordinates = solvers._OfAll(x, torch.softmax(x @ v, 1), 0.1)
    hessian = torch.autograd.functional.hessian(objective, v.flatten())
    hessian[-3:, -3:] += 1 / 3  # the same bias for all classes, which changes no probability
    torch.testing.assert_close(coordinates.factor @ coordinates.factor.T, hessian, atol=1e-6, rtol=0)
    torch.testing.assert_close(coordinates.decode(coordinates.encode(v)), v)
    gradient = torch.autograd.functional.jacobian(objective, v.flatten())
    in_u = torch.autograd.functional.jacobian(lambda u: objective(coordinates.decode(u).flatten()), coordinates.encode(v))
    torch.testing.assert_close(coordinates.gradient(gradient.view(5, 3)), in_u)


def test_rounding_errors_do_not_decide_the_biases() -> None:
    x, y = (part.double() if part.is_floating_point() else part for part in features(200))
    order = torch.randperm(200, generator=seeded())
    (weight, bias, _), (other_weight, other_bias, _) = (
        fit_classifier(some, labels, 4, lam=2**-9) for some, labels in ((x, y), (x[order], y[order]))
    )
    torch.testing.assert_close(other_weight, weight, atol=1e-12, rtol=0)
    torch.testing.assert_close(other_bias, bias, atol=1e-12, rtol=0)


def test_refitting_uses_validation_images_too() -> None:
    x, y = features(60)
    vx, vy = features(300, seed=1)
    plain = fit_classifier(x, y, 4, vx, vy, lambdas=[1e-3])
    refit = fit_classifier(x, y, 4, vx, vy, lambdas=[1e-3], refit=True)
    both = fit_classifier(torch.cat([x, vx]), torch.cat([y, vy]), 4, lam=1e-3)
    assert refit[2].refitted
    assert refit[2].accuracy == plain[2].accuracy  # reported from before the refit: the images are training images now
    everything = torch.cat([x, vx]), torch.cat([y, vy])
    objectives = [multinomial_objective(*everything, w, b, 1e-3) for w, b, _ in (refit, both, plain)]
    assert objectives[0] == pytest.approx(objectives[1], rel=1e-3)
    assert objectives[0] < objectives[2]


def test_a_whole_network_is_trained_without_labels_for_its_filters(digits: data.DataSet) -> None:
    assert digits.test is not None
    train, valid = data.split(digits.train[:2500], 500)
    pixels = data.Preprocessing.fit(train.images)
    net = zoo.build("lenet1", filters=12)
    ckn = translate(net, (1, 28, 28), RBFSphere(0.6), preprocessing=pixels, generator=seeded())
    fit_filters(ckn, train, 1000, generator=seeded())
    found = fit_head(ckn, train, valid)
    result = evaluate(ckn, digits.test)
    assert result.accuracy > 0.9
    assert result.images == 1500
    assert math.isfinite(result.loss)
    assert ckn.training  # left as it was
    scores = ckn.eval()(digits.test.images[:200].float() / 255)  # the same through the network itself
    assert torch.equal(scores.argmax(1), result.predictions[:200])
    assert found.accuracy == pytest.approx(evaluate(ckn, valid).accuracy)


LABELS = torch.arange(120) % 3


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda c: fit_head(c, (IMAGES, LABELS), folds=0),
            ConfigError,
            "chooses the L2 penalty on validation data: pass valid_data, the penalty itself as lam=..., or folds=5",
        ),
        (lambda c: fit_head(c, IMAGES, lam=1.0), DataError, "fit_head needs labels in train_data"),
        (lambda c: fit_head(c, (IMAGES, LABELS + 1), lam=1.0), DataError, "labels must be from 0 to 2 .* got 1 to 3"),
        (lambda c: fit_head(c, (IMAGES, LABELS.float()), lam=1.0), DataError, "labels must be integers"),
        (
            lambda c: fit_head(c, (IMAGES, ["a"] * len(LABELS)), lam=1.0),
            DataError,
            "expected arrays of numbers as images and",
        ),
        (lambda c: fit_head(c, (IMAGES, LABELS), lam=1.0, loss="hinge"), ConfigError, "unknown loss 'hinge'"),
        (lambda c: fit_head(c, (IMAGES, LABELS), lam=1.0, search="grid"), ConfigError, "unknown search 'grid'"),
        (lambda c: fit_head(c, (IMAGES, LABELS), (IMAGES, LABELS), lambdas=[]), ConfigError, "lambdas expected numbers"),
        (lambda c: evaluate(c, IMAGES), DataError, "evaluate needs labels"),
        (lambda c: evaluate(c, (IMAGES[:0], LABELS[:0])), DataError, "there are no images"),
    ],
)
def test_heads_that_cannot_be_fitted_are_refused_with_a_reason(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(two_layers())


def test_features_that_depend_on_each_other_do_not_stop_the_solver() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(400, 1, generator=g) * torch.ones(40) + 1e-5 * torch.randn(400, 40, generator=g)
    x = x - x.mean(1, keepdim=True)
    found = fit_classifier(x, torch.arange(400) % 4, 4, x[:50], torch.arange(50) % 4)[2]
    assert all(score.objective <= 1.387 for score in found.curve)  # log 4, the objective of an empty classifier
