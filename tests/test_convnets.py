"""ConvNets: He weights, AdamW, features as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sklearn.base import clone

import torchckn
from torchckn import ConfigError, data
from torchckn.building import build_network, load_images
from torchckn.fit.methods import METHODS, MethodOptions
from torchckn.network import FeatureScaling
from torchckn.settings import Settings
from torchckn.sklearn import CKNClassifier

from .training import convnet, trained
from .training import digits as small_digits


def test_he_weights_have_the_standard_deviation_of_their_layer() -> None:
    net = convnet().initialize_(None, torch.Generator().manual_seed(0))
    weights = [parameter for parameter in net.body.parameters() if parameter.ndim > 1]
    for weight in weights:
        assert float(weight.detach().std()) == pytest.approx((2 / weight[0].numel()) ** 0.5, rel=0.15)
    settings = Settings(kind="convnet", init="he", init_std=0.1)
    with pytest.raises(ConfigError, match="give init = 'he' or init_std, not both; got init_std = 0.1"):
        build_network(settings, load_images(settings), torch.Generator())


def test_a_convnet_is_trained_by_adamw_as_torch_has_it() -> None:
    net, other = convnet(), convnet()
    (images, labels), _ = small_digits(64)
    options = MethodOptions(lam=0.0, optimizer="adamw", weight_decay=0.1)
    method = METHODS["sgd"](net, options)
    groups = [{"params": other.body.parameters()}, {"params": other.head.parameters(), "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1)
    for _ in range(2):
        method.step(images, labels, 0.01)
        other.train()
        optimizer.zero_grad()
        F.cross_entropy(other.head(other.scaling(other.features(images))), labels).backward()
        optimizer.step()
    for ours, theirs in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    with pytest.raises(ConfigError, match="optimizer 'adamw' is for ConvNets"):
        trained(method="sgo", optimizer="adamw", steps=1)


def test_a_training_by_adamw_is_resumed_bit_for_bit(tmp_path: Path) -> None:
    class Stop(torchckn.Callback):
        def on_step_end(self, training: Any, record: Any) -> None:
            if record["step"] == 2:
                raise KeyboardInterrupt

    options = {"steps": 4, "optimizer": "adamw", "lr": 0.01, "checkpoint_every": 1, "final_head": False}
    whole, _ = trained(convnet(), **options)
    with pytest.raises(KeyboardInterrupt):
        trained(convnet(), callbacks=[Stop()], run_dir=tmp_path, **options)
    resumed, _ = trained(convnet(), run_dir=tmp_path, resume=True, **options)
    assert all(torch.equal(one, two) for one, two in zip(whole.parameters(), resumed.parameters(), strict=True))


def test_raw_features_are_as_they_are() -> None:
    scaling = FeatureScaling(4, "raw")
    x = torch.randn(3, 4)
    assert torch.equal(scaling(x), x)
    scaling.calibrate(x)
    assert torch.equal(scaling.eval()(x), x)


@pytest.mark.parametrize("net", ["lenet1", "own"])
def test_an_estimator_takes_any_convnet(net: str, digits: data.DataSet) -> None:
    own = torch.nn.Sequential(
        torch.nn.Conv2d(1, 6, 5), torch.nn.ReLU(), torch.nn.AvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(216, 10)
    )
    model = CKNClassifier(net=own if net == "own" else net, patches=200, lam=1e-3, random_state=0)
    images, labels = digits.train[:150]
    model = clone(model).fit(images.numpy(), labels.numpy())
    assert model.score(images.numpy(), labels.numpy()) > 0.8
    assert model.ckn_.head.out_features == 10
    with pytest.raises(ConfigError, match="unknown network 'lenet'.*Or pass your own ConvNet"):
        CKNClassifier(net="lenet").fit(images.numpy(), labels.numpy())
