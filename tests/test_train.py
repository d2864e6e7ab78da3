"""Training with labels: the methods, the loop, resuming, and what is refused."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import torchckn
from torchckn import ConfigError, DataError, NumericalError, data, runs, zoo
from torchckn.fit import chunks, loop, methods
from torchckn.fit.methods import METHODS, MethodOptions
from torchckn.fit.schedules import Search
from torchckn.fit.sphere import tangent
from torchckn.graph import AveragePool, Conv, Dense, Graph
from torchckn.kernels import RBFSphere


def digits(count: int = 300) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Small pictures of digits: training and validation part."""
    images, labels = data.load("mnist-mini").train
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[: count + 100]
    small = torch.nn.functional.avg_pool2d(images[order].float() / 255, 2)
    return (small[:count], labels[order][:count]), (small[count:], labels[order][count:])


def network(seed: int = 0, dtype: torch.dtype | None = None) -> torchckn.CKN:
    layers = [
        Conv("conv", filters=8, kernel_size=(5, 5), kernel=RBFSphere(0.6)),
        AveragePool("pool", kernel_size=(2, 2), stride=(2, 2)),
        Dense("dense", filters=12, kernel=RBFSphere(0.6)),
    ]
    return torchckn.CKN(Graph((1, 14, 14), layers), generator=torch.Generator().manual_seed(seed), dtype=dtype)


def convnet() -> torchckn.ScaledConvNet:
    body = nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(150, 20), nn.ReLU(), nn.Linear(20, 10)
    )
    net = torchckn.ScaledConvNet(body, (1, 14, 14), generator=torch.Generator().manual_seed(0))
    return net.initialize_(0.2, torch.Generator().manual_seed(1))


OPTIONS: dict[str, Any] = {"batch_size": 64, "lambdas": [2.0**-6, 2.0**-12], "patches": 300}


def trained(net: Any = None, seed: int = 0, **options: Any) -> tuple[Any, loop.TrainResult]:
    net = network() if net is None else net
    train_data, valid_data = digits()
    generator = torch.Generator().manual_seed(seed)
    arguments = {"steps": 12, "lr": 2**-4, **OPTIONS, **options}
    return net, torchckn.train(net, train_data, valid_data, generator=generator, **arguments)


def test_ultimate_layer_reversal_learns() -> None:
    ckn, result = trained(steps=30, lr="cosine:0.125", method="ulr")
    assert result.start is not None
    assert result.start.accuracy is not None
    assert result.head is not None
    assert result.head.accuracy is not None
    assert result.head.accuracy > result.start.accuracy + 0.03
    assert [record["step"] for record in result.history] == list(range(31))
    assert result.history[-1]["loss"] < result.history[1]["loss"]
    assert result.history[-1]["seconds"] <= result.seconds
    norms = ckn.layers["conv"].filter_matrix().norm(dim=1)
    torch.testing.assert_close(norms, torch.ones(8))


@pytest.mark.parametrize("method", ["ulr", "sgo", "sgo-ball"])
@pytest.mark.parametrize("loss", ["multinomial", "square"])
def test_every_method_and_loss_goes_downhill(method: str, loss: str) -> None:
    lr = {"ulr": 2**-5, "sgo": 2**-2, "sgo-ball": 2**-2}[method]
    _, result = trained(steps=25, lr=lr, method=method, loss=loss, final_head=False)
    losses = [record["loss"] for record in result.history[1:]]
    assert sum(losses[-5:]) < sum(losses[:5])


@pytest.mark.parametrize("method", ["sgd", "ulr"])
def test_a_convnet_is_trained_by_the_same_loop(method: str) -> None:
    _, result = trained(convnet(), steps=40, lr=2**-4, method=method, momentum=0.9, final_head=False)
    losses = [record["loss"] for record in result.history[1:]]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def test_momentum_is_an_option_of_every_method() -> None:
    plain = trained(method="ulr")[0].state_dict()
    with_momentum = trained(method="ulr", momentum=0.5)[0].state_dict()
    assert not torch.equal(plain["layers.conv.weight"], with_momentum["layers.conv.weight"])


def test_exact_and_reused_classifiers_differ_and_both_learn() -> None:
    found = {update: trained(steps=20, lr=2**-5, head_update=update, final_head=False)[1] for update in ("exact", "reuse")}
    for result in found.values():
        assert result.history[-1]["valid_accuracy"] > result.history[0]["valid_accuracy"]
    assert found["exact"].history[-1]["loss"] != found["reuse"].history[-1]["loss"]


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
        assert float(loaded.lam) == float(ckn.lam)


def test_only_the_layers_that_are_named_are_trained() -> None:
    ckn = network()
    train_data, _ = digits()
    torchckn.fit_filters(ckn, train_data, 300, generator=torch.Generator().manual_seed(0))
    before = {name: layer.weight.detach().clone() for name, layer in ckn.kernel_layers().items()}
    trained(ckn, trainable=["dense"])
    assert torch.equal(ckn.layers["conv"].weight, before["conv"])
    assert not torch.equal(ckn.layers["dense"].weight, before["dense"])
    assert ckn.layers["conv"].weight.requires_grad
    with pytest.raises(ConfigError, match="unknown layer 'dens'.*'dense'"):
        trained(network(), trainable=["dens"])


def test_bandwidths_are_trained_on_request_and_saved(tmp_path: Path) -> None:
    ckn, _ = trained(bandwidths=True)
    sigmas = [float(ckn.layers[name].kernel.sigma) for name in ("conv", "dense")]
    assert all(abs(sigma - 0.6) > 1e-4 for sigma in sigmas)
    loaded = torchckn.load(torchckn.save(ckn, tmp_path / "ckn"))
    assert [float(loaded.layers[name].kernel.sigma) for name in ("conv", "dense")] == sigmas
    assert float(trained()[0].layers["conv"].kernel.sigma) == 0.6


def test_training_leaves_nothing_behind_but_what_it_trained(tmp_path: Path) -> None:
    ckn = network().eval()
    ckn.layers["dense"].train()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="not empty"):
        trained(ckn, run_dir=tmp_path / "full", bandwidths=True)
    trained(ckn, bandwidths=True, trainable=["conv"])
    modes = {name: module.training for name, module in ckn.named_modules() if module.training}
    assert set(modes) == {"layers.dense", "layers.dense.kernel"}
    assert not any(isinstance(p, nn.Parameter) for layer in ckn.kernel_layers().values() for p in layer.kernel.parameters())
    assert float(ckn.layers["dense"].kernel.sigma) == 0.6
    assert all(p.grad is None for p in ckn.parameters())
    assert ckn.layers["dense"].weight.requires_grad
    sigma = float(ckn.layers["conv"].kernel.sigma)
    trained(ckn, lam=2**-8)
    assert float(ckn.layers["conv"].kernel.sigma) == sigma != 0.6


class Dropping(torchckn.ScaledConvNet):
    """A ConvNet with dropout, as a module or as a function."""

    def features(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(super().features(x), 0.5, self.training)


def dropping() -> Dropping:
    layers = nn.Sequential(nn.Conv2d(1, 6, 5), nn.ReLU(), nn.AvgPool2d(5), nn.Flatten(), nn.Linear(24, 10))
    net = Dropping(layers, (1, 14, 14), generator=torch.Generator().manual_seed(0))
    net.initialize_(0.2, torch.Generator().manual_seed(1))
    return net


def test_dropout_is_part_of_what_a_seed_decides_and_of_what_is_resumed(tmp_path: Path) -> None:
    options = {"method": "sgd", "lr": 2**-4, "lam": 2**-8, "final_head": False}
    torch.manual_seed(5)
    expected = trained(dropping(), **options)[0].state_dict()
    torch.manual_seed(6)
    with pytest.raises(StopHereError):
        trained(dropping(), run_dir=tmp_path / "run", checkpoint_every=2, on_step=stop_after(5), **options)
    net = dropping()
    outside = torch.get_rng_state()
    found = trained(net, run_dir=tmp_path / "run", resume=True, **options)[0].state_dict()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert torch.equal(torch.get_rng_state(), outside)


def test_both_passes_of_a_large_batch_see_the_same_dropout() -> None:
    net, images = dropping().train(), digits()[0][0]
    torch.manual_seed(0)
    net.zero_grad()
    value, _ = chunks.batch_gradient(net, images, lambda x: (x.square().sum(), None), 20)  # fifteen chunks: two passes
    found = net.body[0].weight.grad.clone()
    torch.manual_seed(0)
    net.zero_grad()
    total = sum((net.features(piece).square().sum() for piece in images.split(20)), torch.zeros(()))
    total.backward()
    assert value == pytest.approx(float(total.detach()), rel=1e-5)
    torch.testing.assert_close(found, net.body[0].weight.grad, rtol=1e-4, atol=1e-4)


def test_a_classifier_of_other_filters_or_another_loss_is_fitted_anew() -> None:
    (train_data, valid_data), ckn = digits(), network()
    torchckn.fit_filters(ckn, train_data, 300, generator=torch.Generator().manual_seed(0))
    torchckn.fit_head(ckn, train_data, valid_data, lambdas=OPTIONS["lambdas"])
    torchckn.fit_filters(ckn, train_data, 300, generator=torch.Generator().manual_seed(1))
    assert trained(ckn, steps=1)[1].start is not None
    assert trained(ckn, steps=1)[1].start is None
    assert trained(ckn, steps=1, loss="square")[1].start is not None


def test_a_run_without_a_generator_is_resumed_with_its_own_seed(tmp_path: Path) -> None:
    train_data, valid_data = digits()
    arguments = {"steps": 6, "lr": 2**-5, "run_dir": tmp_path / "run", **OPTIONS}
    with pytest.raises(StopHereError):
        torchckn.train(network(), train_data, valid_data, checkpoint_every=2, on_step=stop_after(4), **arguments)
    result = torchckn.train(network(), train_data, valid_data, resume=True, **arguments)
    assert len(result.history) == 7


def test_other_images_are_another_configuration(tmp_path: Path) -> None:
    (images, labels), valid_data = digits()
    arguments: dict[str, Any] = {"steps": 2, "lr": 2**-5, **OPTIONS}
    for name, first, second in (
        ("pair", (images, labels), (images.clone().index_fill_(0, torch.tensor([7]), 0.0), labels)),
        ("dataset", TensorDataset(images, labels), TensorDataset(images[:200], labels[:200])),
    ):
        generator = torch.Generator().manual_seed(0)
        torchckn.train(network(), first, valid_data, run_dir=tmp_path / name, generator=generator, **arguments)
        generator = torch.Generator().manual_seed(0)
        with pytest.raises(ConfigError, match="another configuration: data differ"):
            torchckn.train(
                network(), second, valid_data, run_dir=tmp_path / name, resume=True, generator=generator, **arguments
            )


def test_the_papers_search_of_the_step_size_leaves_no_trace_but_the_step_size() -> None:
    rule = Search(first=(2**-9, 2**-5, 2**4), every=6, tries=2)
    _, result = trained(lr=rule, steps=12, final_head=False)
    lrs = [record["lr"] for record in result.history[1:]]
    assert lrs[0] in rule.first
    assert lrs[:6] == [lrs[0]] * 6
    assert lrs[6] / lrs[0] in rule.factors
    fixed = trained(lr=lrs[0], steps=1, final_head=False)[1]
    assert fixed.history[1]["loss"] != 0


def test_a_dataset_and_a_dataloader_are_training_data_too() -> None:
    (images, labels), valid_data = digits()
    dataset = TensorDataset(images, labels)
    for source in (dataset, DataLoader(dataset, 64, shuffle=True, generator=torch.Generator().manual_seed(0))):
        ckn = network()
        result = torchckn.train(ckn, source, valid_data, steps=8, lr=2**-5, **OPTIONS)
        assert result.history[-1]["valid_accuracy"] > 0.5


def test_the_same_seed_gives_the_same_network_and_another_seed_another() -> None:
    one, two, other = (trained(seed=seed)[0].state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["layers.conv.weight"], other["layers.conv.weight"])


class StopHereError(Exception):
    pass


def stop_after(step: int) -> Any:
    def stop(record: dict[str, Any]) -> None:
        if record["step"] == step:
            raise StopHereError

    return stop


@pytest.mark.parametrize(
    "options",
    [
        {"method": "ulr", "momentum": 0.9},
        {"method": "ulr", "lr": Search(first=(2**-6, 2**-4), every=4, tries=2)},
        {"method": "sgo", "rollback": True, "steps": 16, "bandwidths": True},
        {"method": "sgo-ball"},
    ],
    ids=["ulr with momentum", "ulr with search", "sgo with roll-back", "sgo-ball"],
)
def test_a_resumed_run_gives_exactly_what_the_uninterrupted_one_gives(tmp_path: Path, options: dict[str, Any]) -> None:
    expected, whole = trained(**options)
    folder = {"run_dir": tmp_path / "run", "checkpoint_every": 3}
    for step in (0, 4, 7, 11):
        with pytest.raises(StopHereError):
            trained(on_step=stop_after(step), resume=True, **folder, **options)
    resumed, result = trained(resume=True, **folder, **options)
    for name, value in expected.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name
    timeless = [[{k: v for k, v in r.items() if k != "seconds"} for r in part] for part in (whole.history, result.history)]
    assert timeless[0] == timeless[1]
    assert timeless[0] == [{k: v for k, v in r.items() if k != "seconds"} for r in runs.read_metrics(tmp_path / "run")]


def test_a_run_folder_has_all_that_there_is_to_know(tmp_path: Path) -> None:
    ckn, result = trained(run_dir=tmp_path / "run")
    config = runs.read_config(tmp_path / "run")
    assert config["method"] == "ulr"
    assert config["steps"] == 12
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["versions"]["torch"] == torch.__version__
    assert [r["step"] for r in runs.read_metrics(tmp_path / "run")] == list(range(13))
    found = runs.read_result(tmp_path / "run")
    assert found is not None
    assert found["lam"] == result.lam
    filters = runs.read_filters(tmp_path / "run")
    assert min(filters) == 0
    assert max(filters) == 12
    assert torch.equal(filters[12], ckn.layers["conv"].weight)
    loaded = torchckn.load(tmp_path / "run" / "model" / "model.safetensors")
    assert torch.equal(loaded.head.weight, ckn.head.weight)


@pytest.mark.parametrize("build", [network, convnet])
def test_resuming_a_finished_run_gives_what_it_gave(tmp_path: Path, build: Any) -> None:
    method = "ulr" if build is network else "sgd"
    first, before = trained(build(), run_dir=tmp_path / "run", method=method)
    runs.add_to_result(tmp_path / "run", {"test_accuracy": 0.5})
    again, after = trained(build(), run_dir=tmp_path / "run", method=method, resume=True)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in first.state_dict().items())
    assert (after.head, after.lam, after.history) == (before.head, before.lam, before.history)
    assert (runs.read_result(tmp_path / "run") or {})["test_accuracy"] == 0.5


def test_a_folder_of_another_run_is_refused_and_untouched(tmp_path: Path) -> None:
    trained(run_dir=tmp_path / "run")

    def content() -> dict[str, bytes]:
        files = (path for path in (tmp_path / "run").rglob("*") if path.is_file() and path.name != ".lock")
        return {str(path): path.read_bytes() for path in files}

    before = content()
    with pytest.raises(ConfigError, match="has a run already; go on with it .resume=True"):
        trained(run_dir=tmp_path / "run")
    with pytest.raises(ConfigError, match="another configuration: batch_size differ .batch_size was 64, is 32"):
        trained(run_dir=tmp_path / "run", resume=True, batch_size=32)
    other = torchckn.CKN(Graph((1, 14, 14), [Dense("dense", filters=9)]))
    with pytest.raises(ConfigError, match="another configuration: network"):
        trained(other, run_dir=tmp_path / "run", resume=True)
    assert content() == before
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="not empty and not a run"):
        trained(run_dir=tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").iterdir() if path.name != ".lock"] == ["thesis.tex"]


def test_two_processes_do_not_train_in_one_folder(tmp_path: Path) -> None:
    other = runs.Run(tmp_path / "run", {"a": 1})
    with pytest.raises(ConfigError, match="another process is training"):
        trained(run_dir=tmp_path / "run", resume=True)
    other.close()


def test_a_damaged_checkpoint_says_so(tmp_path: Path) -> None:
    with pytest.raises(StopHereError):
        trained(run_dir=tmp_path / "run", on_step=stop_after(2))
    (tmp_path / "run" / "checkpoint" / "last.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00{}      ")
    with pytest.raises(DataError, match="is damaged"):
        trained(run_dir=tmp_path / "run", resume=True)


def test_after_a_drop_in_accuracy_training_goes_back_and_takes_smaller_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    original, made = methods.ULR.step, []

    def stumbling(self: methods.Method, images: Tensor, labels: Tensor, lr: float) -> methods.StepResult:
        result = original(self, images, labels, lr)
        made.append(lr)
        return result._replace(accuracy=0.9 if len(made) <= 4 else 0.5)  # an epoch is four steps

    monkeypatch.setattr(methods.ULR, "step", stumbling)
    restored: list[int] = []
    restore = methods.ULR.restore
    monkeypatch.setattr(methods.ULR, "restore", lambda self, state: restored.append(1) or restore(self, state))  # type: ignore[func-returns-value]
    trained(rollback=True, steps=12, lr=2**-4, final_head=False)
    assert made == [2**-4] * 8 + [2**-6] * 4
    assert restored == [1]


def test_a_step_that_is_not_finite_stops_and_keeps_the_last_good_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, _ = trained(steps=5, final_head=False)
    original, calls = methods.ULR._descend, []

    def poisoned(self: Any, images: Tensor, labels: Tensor) -> tuple[float, float]:
        calls.append(1)
        value, accuracy = original(self, images, labels)
        return (math.nan if len(calls) == 6 else value), accuracy

    monkeypatch.setattr(methods.ULR, "_descend", poisoned)
    ckn = network()
    with pytest.raises(NumericalError, match="step 6 failed.*nan.*smaller step size"):
        trained(ckn, run_dir=tmp_path / "run", final_head=False)
    for name, value in good.state_dict().items():
        assert torch.equal(ckn.state_dict()[name], value), name
    checkpoint = runs.read_checkpoint(tmp_path / "run")
    assert checkpoint is not None
    assert checkpoint[1]["step"] == 5
    assert torch.equal(checkpoint[0]["net.layers.conv.weight"], good.layers["conv"].weight)


def broken(what: str) -> tuple[Any, dict[str, Any]]:
    (images, labels), _ = digits()
    if what == "labels out of range":
        return (images, labels + 1), {}
    if what == "a class missing":
        return (images[labels != 3], labels[labels != 3]), {}
    if what == "fewer images than the batch":
        return (images, labels), {"batch_size": 512}
    if what == "NaN pixels":
        images = images.clone()
        images[17, 0, 3, 3] = torch.nan
        return (images, labels), {}
    if what == "no labels":
        return images, {}
    return (images, labels), {what: "nonsense"}


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("labels out of range", "labels must be from 0 to 9"),
        ("a class missing", "no image of class 3"),
        ("fewer images than the batch", "batch_size is 512, but there are 300 training images"),
        ("NaN pixels", "NaN or infinity in 1 images, first 17"),
        ("no labels", "labels are needed"),
        ("method", "unknown method 'nonsense'"),
        ("loss", "unknown loss 'nonsense'"),
        ("hessian", "unknown hessian 'nonsense'"),
        ("head_update", "unknown head_update 'nonsense'"),
        ("lr", "unknown step size 'nonsense'"),
        ("steps", "steps expected a whole number"),
        ("evaluate_every", "evaluate_every expected a whole number"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(tmp_path: Path, what: str, message: str) -> None:
    train_data, options = broken(what)
    arguments = {"steps": 3, **OPTIONS, **options}
    with pytest.raises((ConfigError, DataError), match=message):
        torchckn.train(network(), train_data, digits()[1], run_dir=tmp_path / "run", **arguments)
    assert not (tmp_path / "run").exists()


def test_what_else_is_refused() -> None:
    train_data, valid_data = digits()
    with pytest.raises(ConfigError, match="validation data.*lam"):
        torchckn.train(network(), train_data, steps=1)
    with pytest.raises(ConfigError, match=r"CKN .* or a torchckn.ScaledConvNet, got LeNet5"):
        torchckn.train(zoo.build("lenet5"), train_data, valid_data)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="'sgd' is for ConvNets"):
        trained(method="sgd")
    with pytest.raises(ConfigError, match="for kernel networks"):
        trained(convnet(), bandwidths=True)
    with pytest.raises(ConfigError, match="nothing to train"):
        trained(trainable=[])
    with pytest.raises(ConfigError, match="trainable expected a list"):
        trained(trainable="conv")
    for name in ("tau", "momentum", "radius", "lam"):
        with pytest.raises(ConfigError, match=f"{name} expected a number"):
            trained(**{name: "a"})
        with pytest.raises(ConfigError, match=f"{name} expected a number"):
            trained(**{name: math.nan})
    with pytest.raises(ConfigError, match="generator expected a torch.Generator"):
        torchckn.train(network(), train_data, valid_data, generator=3)  # type: ignore[arg-type]


def test_the_constrained_problem_keeps_its_classifier_in_the_ball() -> None:
    ckn, _ = trained(method="sgo-ball", radius=0.5, lr="root:2", final_head=False)
    assert float(ckn.head.weight.detach().norm()) <= 0.5 + 1e-6


def test_constrained_sgo_finds_stationary_points_at_the_rate_of_the_proposition() -> None:
    """prop:sgo_constrained: the mean squared gradient on the manifold is O(1 / sqrt(T)) for steps c / sqrt(T)."""
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(240) % 3
    centres = torch.randn(3, 1, 3, 3, generator=g, dtype=torch.float64)
    images = centres[labels] + torch.randn(240, 1, 3, 3, generator=g, dtype=torch.float64)
    means = []
    for horizon in (16, 64, 256, 1024):
        start = torch.Generator().manual_seed(0)
        ckn = torchckn.CKN(Graph((1, 3, 3), [Dense("dense", filters=5)]), 3, generator=start, dtype=torch.float64)
        method = METHODS["sgo-ball"](ckn, MethodOptions(lam=0.0, radius=2.0))
        draw, squares = torch.Generator().manual_seed(1), []
        for step in range(horizon):
            if step % max(1, horizon // 64) == 0:
                squares.append(_manifold_gradient(method, images, labels))
            index = torch.randint(240, (8,), generator=draw)
            method.step(images[index], labels[index], 3 / math.sqrt(horizon))
        means.append(sum(squares) / len(squares))
    slopes = [math.log(after / before) / math.log(4) for before, after in itertools.pairwise(means)]
    assert all(slope < -0.35 for slope in slopes), (means, slopes)
    assert sum(slopes) / len(slopes) < -0.42


def _manifold_gradient(method: methods.Method, images: Tensor, labels: Tensor) -> float:
    """The squared norm of the gradient of all images, its part that is tangent to the constraints."""
    for optimizer in method.optimizers:
        optimizer.zero_grad()
    method.net.train()
    method._descend(images, labels)
    total = 0.0
    assert isinstance(method.net, torchckn.CKN)
    for layer in method.net.kernel_layers().values():
        assert layer.weight.grad is not None
        gradient = layer.weight.grad.reshape(layer.filter_matrix().shape)
        total += float(tangent(layer.filter_matrix().detach(), gradient).square().sum())
    weight = method.net.head.weight
    assert weight.grad is not None
    assert isinstance(method, methods.SGOBall)
    gradient, radius = weight.grad.flatten(), method.radius
    if float(weight.detach().norm()) > radius * (1 - 1e-9):
        direction = weight.detach().flatten() / radius
        gradient = gradient - (gradient @ direction).clamp(max=0) * direction
    assert method.net.head.bias.grad is not None
    return total + float(gradient.square().sum()) + float(method.net.head.bias.grad.square().sum())


SCRIPT = textwrap.dedent(
    """
    import sys, torch
    sys.path.insert(0, {tests!r})
    from test_train import trained
    ckn, _ = trained(steps={steps}, run_dir=sys.argv[1], resume=True, checkpoint_every=2, momentum=0.9)
    torch.save(ckn.state_dict(), sys.argv[2])
    """
)


def script(tmp_path: Path, steps: int) -> list[str]:
    file = tmp_path / "script.py"
    file.write_text(SCRIPT.format(tests=str(Path(__file__).parent), steps=steps))
    return [sys.executable, str(file)]


def killed_at_random_moments(tmp_path: Path, times: int, steps: int) -> None:
    expected, _ = trained(steps=steps, momentum=0.9)
    command = [*script(tmp_path, steps), str(tmp_path / "run"), str(tmp_path / "weights")]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
    chance, kills = random.Random(0), 0
    while kills < times and not (tmp_path / "weights").exists():
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
        metrics, wait = tmp_path / "run" / "metrics.jsonl", chance.uniform(0, 0.4)
        size = metrics.stat().st_size if metrics.exists() else 0
        while process.poll() is None and not (metrics.exists() and metrics.stat().st_size > size):
            time.sleep(0.005)  # until it has gone on by a step at least
        time.sleep(wait)
        if process.poll() is None:
            process.kill()
            kills += 1
        process.communicate()
    assert kills == times, f"only {kills} kills before it was done: more steps are needed"
    subprocess.run(command, env=environment, check=True, capture_output=True)
    found = torch.load(tmp_path / "weights")
    for name, value in expected.state_dict().items():
        assert torch.equal(found[name], value), name
    assert not list((tmp_path / "run").rglob(".last*")), "temporary files were left behind"


def test_a_killed_run_is_resumed_to_the_same_weights(tmp_path: Path) -> None:
    killed_at_random_moments(tmp_path, times=2, steps=300)


@pytest.mark.slow
def test_a_run_killed_twenty_times_is_resumed_to_the_same_weights(tmp_path: Path) -> None:
    killed_at_random_moments(tmp_path, times=20, steps=2000)


def test_ctrl_c_finishes_the_step_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    command = [*script(tmp_path, 5000), str(tmp_path / "run"), str(tmp_path / "weights")]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "run" / "metrics.jsonl"
    while not metrics.exists() or len(metrics.read_text().splitlines()) < 4:
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, message = process.communicate(timeout=60)
    assert "training was interrupted after step" in message
    assert "resume=True" in message
    steps = [record["step"] for record in runs.read_metrics(tmp_path / "run")]
    checkpoint = runs.read_checkpoint(tmp_path / "run")
    assert checkpoint is not None
    assert checkpoint[1]["step"] == steps[-1] >= 3


def test_a_convnet_starts_from_its_own_random_classifier(tmp_path: Path) -> None:
    convnet = torchckn.ScaledConvNet(zoo.build("lenet5", filters=4, padding=2), (1, 28, 28)).initialize_(0.2)
    before = convnet.head.weight.detach().clone()
    digits = data.load("mnist-mini").train
    part = data.Part(digits.images[:200], digits.labels[:200])
    result = torchckn.train(convnet, part, part, method="sgd", steps=1, lr=1e-9, final_head=False)
    torch.testing.assert_close(convnet.head.weight.detach(), before)
    assert result.start is None
    assert result.lam == 2**-17
    torchckn.train(convnet, part, part, method="sgd", steps=1, lr=1e-9, lam=0.5, final_head=False)
    assert float(convnet.lam) == 0.5
