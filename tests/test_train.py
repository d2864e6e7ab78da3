"""Training with labels: the methods, the options, the loop."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import torchckn
from torchckn import ConfigError
from torchckn.fit import chunks, methods
from torchckn.fit.methods import METHODS, MethodOptions
from torchckn.fit.sphere import tangent
from torchckn.graph import Conv, Dense, Graph, Whiten
from torchckn.nn import whitening

from .training import OPTIONS, convnet, digits, dropping, network, trained


def test_ultimate_layer_reversal_learns() -> None:
    ckn, result = trained(steps=40, lr="cosine:0.125", method="ulr")
    assert result.start is not None
    assert result.start.accuracy is not None
    assert result.head is not None
    assert result.head.accuracy is not None
    assert result.head.accuracy > result.start.accuracy + 0.03
    assert [record["step"] for record in result.history] == list(range(41))
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


@pytest.mark.parametrize("method", sorted(METHODS))
def test_momentum_is_an_option_of_every_method(method: str) -> None:
    """The loss before the third step is the first one that momentum, which the first step only starts, changes much."""
    losses = []
    for momentum in (0.0, 0.5):
        net = convnet() if method == "sgd" else network()
        _, result = trained(net, steps=3, lr=2**-4, method=method, momentum=momentum, final_head=False)
        losses.append([record["loss"] for record in result.history[1:]])
    first, second, third = (abs(plain - other) for plain, other in zip(*losses, strict=True))
    assert first == 0
    assert third > 3 * second, (second, third)


@pytest.mark.parametrize(
    ("method", "loss", "norm"),
    [
        ("sgd", 2.297422, 17.189926),
        ("sgo", 2.581824, 13.712883),
        ("sgo-ball", 2.313980, 13.713278),
        ("ulr", 1.681241, 18.213381),
    ],
)
def test_training_gives_the_numbers_that_it_gave_before_it_had_one_configuration(
    method: str, loss: float, norm: float
) -> None:
    """The last loss and the classifier's norm, recorded with the code before ``TrainConfig``, from the same random filters."""
    net = convnet() if method == "sgd" else network()
    net.filters_fitted.fill_(True)
    net, result = trained(net, method=method, steps=4, lam=2**-10)
    assert result.history[-1]["loss"] == pytest.approx(loss, rel=1e-3)
    assert float(net.head.weight.detach().norm()) == pytest.approx(norm, rel=1e-3)


def test_exact_and_reused_classifiers_differ_and_both_learn() -> None:
    found = {update: trained(steps=20, lr=2**-5, head_update=update, final_head=False)[1] for update in ("exact", "reuse")}
    for result in found.values():
        assert result.history[-1]["valid_accuracy"] > result.history[0]["valid_accuracy"]
    assert found["exact"].history[-1]["loss"] != found["reuse"].history[-1]["loss"]


def test_the_last_classifier_is_fitted_to_validation_images_too_on_request() -> None:
    net, result = trained(steps=2, validation_labels=True)
    assert result.head is not None
    assert result.head.refitted
    plain, usual = trained(steps=2)
    assert usual.head is not None
    assert not usual.head.refitted
    assert (result.head.lam, result.head.accuracy) == (usual.head.lam, usual.head.accuracy), "chosen on unseen images"
    with pytest.raises(ConfigError, match="validation_labels is for the last classifier, expected final_head=True"):
        trained(steps=2, validation_labels=True, final_head=False)
    unsupervised = trained(steps=0, validation_labels=True)[1].head
    assert unsupervised is not None
    assert unsupervised.refitted
    torchckn.fit_head(plain, *digits(), lam=result.head.lam, refit=True)
    torch.testing.assert_close(net.head.weight, plain.head.weight, rtol=1e-2, atol=1e-2)


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


def test_a_layer_that_is_fixed_keeps_its_bandwidth_as_well() -> None:
    ckn = network()
    ckn.layers["conv"].requires_grad_(False)
    trained(ckn, bandwidths=True)
    assert float(ckn.layers["conv"].kernel.sigma) == 0.6 != float(ckn.layers["dense"].kernel.sigma)
    ckn.layers["dense"].requires_grad_(False)
    with pytest.raises(ConfigError, match="bandwidths=True expected trainable layers"):
        trained(ckn, bandwidths=True)


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
    assert float(value) == pytest.approx(float(total.detach()), rel=1e-5)
    torch.testing.assert_close(found, net.body[0].weight.grad, rtol=1e-4, atol=1e-4)


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
    assert restored == [1, 1], "the last epoch is undone as well"


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


def test_an_image_is_whitened_once_in_a_training(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    plainly = whitening.whitening_matrices
    monkeypatch.setattr(whitening, "whitening_matrices", lambda x, *a: computed.append(len(x)) or plainly(x, *a))

    def weights() -> dict[str, Tensor]:
        nodes = [Whiten("whiten"), Conv("conv", filters=4), Dense("dense", filters=5)]
        net = torchckn.CKN(Graph((1, 14, 14), nodes), generator=torch.Generator().manual_seed(0))
        return trained(net, steps=3)[0].state_dict()

    kept = weights()
    assert sum(computed) == 1 + 300 + 100  # one to see what a matrix is like, then those for training and validation
    monkeypatch.setattr(whitening.KeptMatrices, "of", lambda self, images, digests, compute: compute(images))
    monkeypatch.setattr(whitening, "KEPT_IMAGES", 0)
    assert all(torch.equal(value, kept[name]) for name, value in weights().items())
    assert sum(computed) > 4 * 401


def test_weight_decay_shrinks_the_weights_of_a_convnet_but_not_its_classifier_s() -> None:
    plain, decayed = (METHODS["sgd"](convnet(), MethodOptions(lam=0.1, weight_decay=decay)) for decay in (0.0, 0.25))
    assert [optimizer.param_groups[0]["weight_decay"] for optimizer in decayed.optimizers] == [0.25, 0]
    assert [optimizer.param_groups[0]["weight_decay"] for optimizer in plain.optimizers] == [0, 0]


def test_an_epoch_of_a_loader_has_the_loader_s_own_batches() -> None:
    train_data, valid_data = digits()
    loader = DataLoader(TensorDataset(*train_data), 32)
    options = OPTIONS | {"batch_size": None}
    assert torchckn.train(network(), loader, valid_data, **options, epochs=1).steps == len(loader) == 10
