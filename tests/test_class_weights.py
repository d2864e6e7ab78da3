"""Class weights and label smoothing: in the classifier, in ultimate layer reversal, and in training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import torchckn
from torchckn import ConfigError
from torchckn.fit.classifier import fit_classifier
from torchckn.fit.targets import Aim, aim
from torchckn.fit.ulr import reduced_objective

from .training import OPTIONS, network, points, trained
from .training import digits as small_digits


def aimed_objective(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, lam: float, weights: Tensor, s: float) -> Tensor:
    """The definition, image by image."""
    total = x.new_zeros(())
    for i in range(len(x)):
        log_p = torch.log_softmax(x[i] @ weight + bias, 0)
        target = torch.full_like(log_p, s / len(log_p))
        target[y[i]] += 1 - s
        total = total - weights[y[i]] * (target * log_p).sum()
    return total / len(x) + lam * weight.square().sum()


@pytest.mark.parametrize("most", [2**10, 0])
def test_the_classifier_minimizes_the_weighted_and_smoothed_objective(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchckn.fit.solvers.Multinomial._MOST", most)
    x, y = points()
    goal = Aim((0.5, 2.0, 1.0), 0.1)
    weight, bias, _ = fit_classifier(x, y, 3, lam=1e-3, aim=goal)
    weight, bias = weight.requires_grad_(), bias.requires_grad_()
    value = aimed_objective(x, y, weight, bias, 1e-3, torch.tensor(goal.class_weights), 0.1)
    gradients = torch.autograd.grad(value, [weight, bias])
    assert all(float(gradient.detach().abs().max()) < 1e-3 for gradient in gradients)
    plain, plain_bias, _ = fit_classifier(x, y, 3, lam=1e-3)
    assert float(aimed_objective(x, y, plain, plain_bias, 1e-3, torch.tensor(goal.class_weights), 0.1)) > float(
        value.detach()
    )


def test_weighted_least_squares_are_those_of_repeated_images() -> None:
    x, y = points(20)
    repeated = torch.cat([torch.arange(20), torch.nonzero(y == 1).flatten()])
    weights = torch.where(torch.arange(3) == 1, 2.0, 1.0).tolist()
    lam = 1e-2
    weight, bias, _ = fit_classifier(x, y, 3, loss="square", lam=lam, aim=Aim(tuple(weights)))
    other = fit_classifier(x[repeated], y[repeated], 3, loss="square", lam=lam * 20 / len(repeated))
    torch.testing.assert_close((weight, bias), other[:2])


@pytest.mark.parametrize("hessian", ["full", "diag", "cg"])
def test_ultimate_layer_reversal_is_exact_with_weights_and_smoothing(hessian: Any) -> None:
    x, y = points(12, 4)
    head = torch.nn.Linear(4, 3, dtype=torch.float64)
    goal = Aim((0.5, 2.0, 1.0), 0.1)

    def reduced(features: Tensor) -> Tensor:
        return reduced_objective(features, y, head, 1e-2, 2**-3, hessian=hessian, aim=goal).objective

    assert torch.autograd.gradcheck(reduced, x.requires_grad_())
    if hessian == "diag":
        return
    eta = reduced_objective(x, y, head, 1e-2, 2**-3, hessian=hessian, aim=goal).eta
    start = torch.cat([head.weight, head.bias[:, None]], 1).detach()

    def objective(v: Tensor) -> Tensor:
        return aimed_objective(x.detach(), y, v[:, :-1].T, v[:, -1], 1e-2, torch.tensor(goal.class_weights), 0.1)

    gradient = torch.autograd.functional.jacobian(objective, start).flatten()
    matrix = torch.autograd.functional.hessian(objective, start).reshape(15, 15) + 2**-3 * torch.eye(15)
    torch.testing.assert_close(eta.flatten(), -torch.linalg.solve(matrix, gradient), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("images", [12, 3])  # fewer images than features: the other factorization
def test_the_square_loss_is_minimized_exactly_with_weights_and_smoothing(images: int) -> None:
    x, y = points(images, 4)
    head = torch.nn.Linear(4, 3, dtype=torch.float64)
    goal = Aim((0.5, 2.0, 1.0), 0.2)
    eta = reduced_objective(x, y, head, 1e-2, loss="square", aim=goal).eta
    best = (torch.cat([head.weight, head.bias[:, None]], 1) + eta).detach().requires_grad_()
    weights = torch.tensor(goal.class_weights, dtype=torch.float64)[y]
    targets = 0.8 * F.one_hot(y, 3).double() + 0.2 / 3
    residual = targets - x @ best[:, :-1].T - best[:, -1]
    value = (weights * residual.square().sum(1)).mean() + 1e-2 * best[:, :-1].square().sum()
    (gradient,) = torch.autograd.grad(value, best)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-10)


def test_balanced_weights_let_every_class_count_the_same() -> None:
    labels = torch.tensor([0, 0, 0, 1])
    weights = aim("balanced", None, labels, 2).class_weights
    assert weights == (4 / 6, 2.0)
    with pytest.raises(ConfigError, match=r"class_weights expected a positive number for each of 2 classes, or 'balanced'"):
        aim((1.0, 0.0), None, labels, 2)
    with pytest.raises(ConfigError, match="label_smoothing expected a number from 0 to below 1, got 1"):
        aim(None, 1.0, labels, 2)


@pytest.mark.parametrize("method", ["ulr", "sgo"])
def test_training_takes_weights_and_smoothing(method: Any) -> None:
    plain, aimed = (
        trained(method=method, lr=2**-4, steps=2, lam=2**-8, **options)[0]
        for options in ({}, {"class_weights": "balanced", "label_smoothing": 0.1})
    )
    assert not torch.equal(plain.layers["conv"].weight, aimed.layers["conv"].weight)
    train_data, valid_data = small_digits()
    dataset = torch.utils.data.TensorDataset(*train_data)
    with pytest.raises(ConfigError, match="'balanced' needs all training labels at once, which TensorDataset does not have"):
        torchckn.train(network(), dataset, valid_data, class_weights="balanced", **OPTIONS)
