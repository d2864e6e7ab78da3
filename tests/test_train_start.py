"""What training starts from: filters that are fitted or not, the first classifier and its penalty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import torchckn
from torchckn import zoo
from torchckn.fit import HeadFit, TrainConfig, loop

from .training import OPTIONS, digits, mnist_mini, network, trained


def test_what_is_fitted_already_is_not_fitted_again() -> None:
    (train_data, valid_data), ckn = digits(), network()
    g = torch.Generator().manual_seed(0)
    torchckn.fit_filters(ckn, train_data, 300, generator=g)
    found = torchckn.fit_head(ckn, train_data, valid_data, lambdas=OPTIONS["lambdas"])
    before = ckn.layers["conv"].weight.detach().clone()
    result = torchckn.train(ckn, train_data, valid_data, steps=1, lr=1e-9, batch_size=64, generator=g, final_head=False)
    assert result.start is None
    assert result.lam == found.lam
    torch.testing.assert_close(ckn.layers["conv"].weight.detach(), before)


def test_the_flags_of_what_is_fitted_travel_with_the_state_and_the_file(tmp_path: Path) -> None:
    ckn, _ = trained(steps=1)
    other = network(5)
    other.load_state_dict(ckn.state_dict())
    for loaded in (other, torchckn.load(torchckn.save(ckn, tmp_path / "ckn"))):
        assert bool(loaded.filters_fitted)
        assert loaded.penalty == ckn.penalty is not None


def test_a_head_that_is_not_fitted_has_no_penalty_wherever_its_state_goes(tmp_path: Path) -> None:
    ckn, fitted = network(), trained(steps=1)[0]
    assert ckn.penalty is None
    assert "lam" not in ckn.state_dict()
    assert torchckn.load(torchckn.save(ckn, tmp_path / "ckn")).penalty is None
    torchckn.storage.load_weights(fitted, tmp_path / "ckn")
    assert fitted.penalty is None
    train_data, valid_data = digits()
    torchckn.fit_head(ckn, train_data, valid_data, lambdas=OPTIONS["lambdas"])
    assert ckn.penalty in OPTIONS["lambdas"]
    torchckn.fit_filters(ckn, train_data, 300)
    assert ckn.penalty is None, "the head is that of other filters"


def test_a_negative_penalty_is_not_loaded() -> None:
    ckn = network()
    state = ckn.state_dict() | {"lam": torch.tensor(-1.0, dtype=torch.float64)}
    with pytest.raises(RuntimeError, match="lam expected a number >= 0, got -1.0"):
        ckn.load_state_dict(state)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_penalty_is_not_rounded_when_the_weights_are(tmp_path: Path, dtype: torch.dtype) -> None:
    ckn = network()
    ckn.penalty = 1e-9  # 0 in float16
    again = torchckn.load(torchckn.save(ckn.to(dtype), tmp_path / "ckn"))
    assert (ckn.penalty, again.penalty, again.head.weight.dtype) == (1e-9, 1e-9, dtype)


def test_a_classifier_of_other_filters_or_another_loss_is_refitted() -> None:
    (train_data, valid_data), ckn = digits(), network()
    torchckn.fit_filters(ckn, train_data, 300, generator=torch.Generator().manual_seed(0))
    torchckn.fit_head(ckn, train_data, valid_data, lambdas=OPTIONS["lambdas"])
    torchckn.fit_filters(ckn, train_data, 300, generator=torch.Generator().manual_seed(1))
    assert trained(ckn, steps=1)[1].start is not None
    assert trained(ckn, steps=1)[1].start is None
    assert trained(ckn, steps=1, loss="square")[1].start is not None


def test_a_convnet_starts_from_its_own_random_classifier() -> None:
    convnet = torchckn.ScaledConvNet(zoo.build("lenet5", filters=4, padding=2), (1, 28, 28)).initialize_(0.2)
    before = convnet.head.weight.detach().clone()
    part = mnist_mini().train[:200]
    result = torchckn.train(convnet, part, part, method="sgd", steps=1, lr=1e-9, final_head=False)
    torch.testing.assert_close(convnet.head.weight.detach(), before)
    assert result.start is None
    assert result.lam == 2**-17
    torchckn.train(convnet, part, part, method="sgd", steps=1, lr=1e-9, lam=0.5, final_head=False)
    assert convnet.penalty == 0.5


@pytest.mark.parametrize("stream", [False, True])
def test_the_first_classifier_may_be_fitted_to_some_of_the_images(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted: list[Tensor] = []
    plainly = loop.fit_head_as

    def fit_head_as(config: TrainConfig, net: torchckn.CKN, images: Any, *others: Any, **options: Any) -> HeadFit:
        fitted.append(images[0] if isinstance(images, tuple) else images)
        return plainly(config, net, images, *others, **options)

    monkeypatch.setattr(loop, "fit_head_as", fit_head_as)
    train_data, valid_data = digits()
    everything: Any = DataLoader(TensorDataset(*train_data), 64) if stream else train_data
    torchckn.train(network(), everything, valid_data, **OPTIONS, steps=1, start_images=150)
    some = {tuple(image.flatten().tolist()) for image in fitted[0]}
    assert len(some) == len(fitted[0]) == 150
    assert some < {tuple(image.flatten().tolist()) for image in train_data[0]}
    assert fitted[1] is (everything if stream else train_data[0])
    torchckn.train(network(), train_data, valid_data, **OPTIONS, steps=1, start_images=300)
    assert fitted[2] is train_data[0]


def test_all_penalties_are_tried_and_k_means_is_started_as_often_as_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[int] = []
    plainly = loop.fit_filters
    monkeypatch.setattr(loop, "fit_filters", lambda *a, **given: starts.append(given["restarts"]) or plainly(*a, **given))
    train_data, valid_data = digits()
    lambdas = [2.0**-i for i in range(0, 24, 3)]
    curves = {}
    for search in ("path", "exhaustive"):
        given = OPTIONS | {"penalty_search": search, "lambdas": lambdas, "restarts": 5}
        result = torchckn.train(network(), train_data, valid_data, steps=0, **given)
        assert result.start is not None
        curves[search] = {score.lam for score in result.start.curve}
    assert curves["exhaustive"] == set(lambdas)
    assert curves["path"] <= curves["exhaustive"]
    assert starts == [5, 5]


def test_the_validation_before_the_first_step_is_that_of_the_first_classifier() -> None:
    net, (train_data, valid_data) = network(), digits()
    result = torchckn.train(net, train_data, valid_data, **OPTIONS, steps=1, lr=1e-12, final_head=False, start_images=200)
    assert result.start is not None
    assert result.history[0]["valid_accuracy"] == result.start.accuracy
    (score,) = [score for score in result.start.curve if score.lam == result.start.lam]
    assert result.history[0]["valid_loss"] == score.loss
    other = network()
    generator = torch.Generator().manual_seed(0)
    torchckn.fit_filters(other, train_data, OPTIONS["patches"], generator=generator)
    fit = torchckn.fit_head(other, train_data, valid_data, lambdas=OPTIONS["lambdas"], folds=0)
    again = torchckn.train(other, train_data, valid_data, **OPTIONS, steps=1, final_head=False)  # nothing to fit: validated
    assert again.start is None
    assert again.history[0]["valid_accuracy"] == pytest.approx(fit.accuracy)
    (score,) = [score for score in fit.curve if score.lam == fit.lam]
    assert again.history[0]["valid_loss"] == pytest.approx(score.loss, rel=1e-4)
