"""Trials of learning rates: what they leave behind, and what they are judged by."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import TensorDataset

import torchckn
from torchckn import ConfigError, DataError
from torchckn.fit import methods
from torchckn.fit.schedules import Search, Search2019
from torchckn.fit.trials import Trials

from .training import convnet, digits, trained


def test_the_papers_search_of_the_step_size_leaves_no_trace_but_the_step_size() -> None:
    rule = Search(first=(2**-9, 2**-5, 2**4), every=6, tries=2)
    _, result = trained(lr=rule, steps=12, final_head=False)
    lrs = [record["lr"] for record in result.history[1:]]
    assert lrs[0] in rule.first
    assert lrs[:6] == [lrs[0]] * 6
    assert lrs[6] / lrs[0] in rule.factors
    fixed = trained(lr=lrs[0], steps=1, final_head=False)[1]
    assert fixed.history[1]["loss"] != 0


def classifier_of(images: Tensor, labels: Tensor, ckn: torchckn.CKN, lam: float) -> tuple[float, float]:
    """Loss and objective of logistic regression on a batch, in double precision and by another optimizer."""
    with torch.no_grad():
        x = ckn.train().scaling(ckn.features(images)).double()
    weight = torch.zeros(x.shape[1], 10, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(10, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=500, line_search_fn="strong_wolfe", tolerance_grad=1e-9)

    def losses() -> tuple[Tensor, Tensor]:
        loss = F.cross_entropy(x @ weight + bias, labels)
        return loss, loss + lam * weight.square().sum()

    def closure() -> Tensor:
        optimizer.zero_grad()
        objective = losses()[1]
        objective.backward()
        return objective

    optimizer.step(closure)
    loss, objective = (float(value.detach()) for value in losses())
    return loss, objective


class OneBatch:
    """Training batches of which every one is the same."""

    def __init__(self) -> None:
        self.batch, self.drawn = tuple(part[:40] for part in digits()[0]), 0

    def extra(self) -> Any:
        self.drawn += 1
        return self.batch


def test_a_search_may_keep_the_steps_of_its_best_trial() -> None:
    ckn, _ = trained(steps=0)
    options = methods.MethodOptions(lam=2**-12, tau=2**-5)
    rule = Search2019(first=(2**-9, 2**-5), tries=3)
    method, batches = methods.ULR(ckn, options), OneBatch()
    before = method.state()
    trials = Trials(method, batches, rule, steps=2)  # type: ignore[arg-type]
    best = rule.choose(0, 2, None, trials)
    assert all(torch.equal(value, before[name]) for name, value in method.state().items()), "each trial is undone"
    assert batches.drawn == 2, "one batch for all steps, and one to judge by"
    assert trials.best is not None
    assert trials.best.steps == 2, "not more steps than are left"
    for _ in range(2):
        last = method.step(*batches.batch, best)
    assert trials.best.last == last
    assert all(torch.equal(value, trials.best.state[name]) for name, value in method.state().items())
    assert method.refitted_loss(*batches.batch) == trials.best.loss
    fitted, objective = classifier_of(*batches.batch, ckn, method.lam)
    assert trials.best.loss == pytest.approx(fitted, rel=1e-4), "without the penalty"
    assert objective <= method.loss(*batches.batch), "of all classifiers, that one has the lowest objective"


def test_steps_that_a_search_keeps_count_and_are_evaluated() -> None:
    rule = Search2019(first=(2**-6, 2**-5), every=6, tries=4)
    _, result = trained(lr=rule, steps=8, evaluate_every=3, final_head=False)
    assert [record["step"] for record in result.history] == [0, 4, 5, 6, 8]
    assert [record["step"] for record in result.history if "valid_accuracy" in record] == [0, 4, 6, 8]


def test_a_search_that_keeps_steps_is_refused_with_roll_back() -> None:
    with pytest.raises(ConfigError, match="rollback: expected a schedule that keeps no steps .* use lr='search'"):
        trained(lr="search:2019", rollback=True)


def test_wrong_labels_are_no_fault_of_the_learning_rates() -> None:
    ckn, _ = trained(steps=0)
    (images, labels), valid = digits()
    wrong = torch.utils.data.TensorDataset(images, labels + 1)
    with pytest.raises(DataError, match="labels must be from 0 to 9"):
        torchckn.train(ckn, wrong, valid, lr="search", steps=2, batch_size=250)


def test_images_that_are_not_finite_are_no_fault_of_the_learning_rates() -> None:
    (images, labels), valid = digits()
    damaged = TensorDataset(torch.full_like(images, torch.nan), labels)
    with pytest.raises(DataError, match="expected finite input, got NaN"):
        torchckn.train(convnet(), damaged, valid, steps=2, lr="search", batch_size=32)
