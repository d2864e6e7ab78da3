"""Steps of ultimate layer reversal on networks: chunks, what is computed once, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchckn
from torchckn import ConfigError, DataError, NumericalError, zoo
from torchckn.fit.chunks import batch_features, batch_gradient
from torchckn.fit.methods import ULR, MethodOptions
from torchckn.fit.ulr import reduced_objective
from torchckn.graph import Conv, Graph, Local, Node
from torchckn.kernels import ArcCosine, RBFSphere
from torchckn.nn.shared_roots import _Cosines, shared_projections


def network(dtype: torch.dtype = torch.float64) -> torchckn.CKN:
    g = torch.Generator().manual_seed(0)
    net = zoo.build("lenet5", filters=4, padding=2).to(dtype)
    return torchckn.translate(net, (1, 28, 28), RBFSphere(0.6), generator=g)


@pytest.mark.parametrize("memory", [0, 4, 2**20], ids=["two passes", "some graphs kept", "graphs kept"])
def test_the_chunked_step_gives_the_gradients_of_the_whole_batch(memory: float) -> None:
    g = torch.Generator().manual_seed(1)
    images, labels = torch.rand(50, 1, 28, 28, generator=g, dtype=torch.float64), torch.arange(50) % 10
    found = []
    for chunk in ("all", 16):
        ckn = network()

        def objective(features: Tensor, ckn: torchckn.CKN = ckn) -> tuple[Tensor, Tensor]:
            return reduced_objective(ckn.scaling(features), labels, ckn.head, 2**-8)

        value, eta = batch_gradient(ckn, images, objective, chunk, graph_memory=memory)
        grads = {name: p.grad for name, p in ckn.named_parameters() if p.grad is not None}
        assert {name for name in grads if "weight" in name} >= {
            f"layers.{n}.weight" for n in ("layers_conv1", "layers_conv2")
        }
        found.append((float(value), eta, grads))
    (value, eta, whole), (chunked_value, chunked_eta, chunked) = found
    assert value == pytest.approx(chunked_value, rel=1e-12)
    torch.testing.assert_close(chunked_eta, eta, rtol=1e-10, atol=1e-10)
    assert whole.keys() == chunked.keys()
    for name, gradient in whole.items():
        torch.testing.assert_close(chunked[name], gradient, rtol=1e-10, atol=1e-10, msg=name)


def test_the_memory_for_graphs_changes_no_bit_of_a_step() -> None:
    g = torch.Generator().manual_seed(1)
    images, labels = torch.rand(50, 1, 28, 28, generator=g), torch.arange(50) % 10
    weights = []
    for memory in (0, 1280):
        ckn = network(torch.float32)
        method = ULR(ckn, MethodOptions(lam=2**-8, chunk=16, graph_memory=memory))
        results = [method.step(images, labels, 2**-6) for _ in range(2)]
        weights.append([results, *ckn.state_dict().values()])
    assert weights[0][0] == weights[1][0]
    assert all(torch.equal(a, b) for a, b in zip(weights[0][1:], weights[1][1:], strict=True))


def test_features_in_chunks_are_the_features() -> None:
    ckn = network().train()
    images = torch.rand(20, 1, 28, 28, dtype=torch.float64)
    torch.testing.assert_close(batch_features(ckn, images, 7), ckn.features(images).detach())


def decompositions(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """The shapes of all matrices that are decomposed from now on."""
    shapes: list[torch.Size] = []
    original = torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda matrix: shapes.append(matrix.shape) or original(matrix))  # type: ignore[func-returns-value]
    return shapes


def test_the_inverse_roots_of_all_layers_are_computed_once_for_all_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = decompositions(monkeypatch)
    ckn = network()
    ckn.train()
    batch_gradient(ckn, torch.rand(20, 1, 28, 28, dtype=torch.float64), lambda x: (x.square().mean(), None), 4)
    assert sum(shape[:-2].numel() for shape in shapes) == len(ckn.kernel_layers())


def test_a_step_with_the_exact_classifier_decomposes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ckn = network()
    images, labels = torch.rand(20, 1, 28, 28, dtype=torch.float64), torch.arange(20) % 10
    method = ULR(ckn, MethodOptions(lam=2**-8))
    method.step(images, labels, 2**-6)
    shapes = decompositions(monkeypatch)
    method.step(images, labels, 2**-6)
    trained = [layer for layer in ckn.kernel_layers().values() if layer.weight.requires_grad]
    assert sum(shape[:-2].numel() for shape in shapes) == len(trained)


@pytest.mark.parametrize(
    ("layer", "matrices"),
    [
        (Conv("a", filters=16, kernel_size=(3, 3), root_block=8), 2),
        (Conv("a", filters=15, kernel_size=(3, 3), root_block=8), 2),
        (Conv("a", filters=16, kernel_size=(3, 3), groups=2), 2),
        (Conv("a", filters=16, kernel_size=(3, 3), kernel=ArcCosine(0)), 1),
        (Conv("a", filters=16, kernel_size=(3, 3), kernel=RBFSphere(0.6, trainable=True)), 1),
        (Local("a", filters=5, kernel_size=(3, 3), regions=(2, 2)), 4),
    ],
    ids=["blocks", "unequal blocks", "groups", "steep kernel", "trained bandwidth", "regions"],
)
def test_a_step_decomposes_the_matrices_of_any_layer_once(
    layer: Node, matrices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ckn = torchckn.CKN(Graph((2, 8, 8), [layer]), generator=torch.Generator().manual_seed(0))
    images, labels = torch.rand(20, 2, 8, 8), torch.arange(20) % 10
    method = ULR(ckn, MethodOptions(lam=2**-8))
    method.step(images, labels, 2**-6)
    shapes = decompositions(monkeypatch)
    method.step(images, labels, 2**-6)
    assert sum(shape[:-2].numel() for shape in shapes) == matrices


def test_the_roots_of_layers_that_are_not_trained_are_kept_until_their_filters_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ckn = network().train()
    fixed = [layer for layer in ckn.kernel_layers().values() if not layer.weight.requires_grad]
    assert fixed
    assert {layer.init for layer in fixed} == {"identity"}
    frozen = next(layer for layer in ckn.kernel_layers().values() if layer.weight.requires_grad)
    frozen.weight.requires_grad_(False)
    shared_projections(ckn)
    shapes = decompositions(monkeypatch)
    shared_projections(ckn)
    assert not shapes
    frozen.weight.data.copy_(frozen.weight.flip(0))
    with shared_projections(ckn):
        after = frozen.projection()
    assert len(shapes) == 1
    assert torch.equal(after, frozen.projection())


def test_roots_that_are_computed_together_equal_those_computed_one_by_one() -> None:
    ckn = network().train()
    with shared_projections(ckn):
        together = {name: layer.projection() for name, layer in ckn.kernel_layers().items()}
    for name, layer in ckn.kernel_layers().items():
        torch.testing.assert_close(together[name], layer.projection(), rtol=1e-12, atol=1e-12)
        if not layer.weight.requires_grad:
            with shared_projections(ckn):
                assert not layer.projection().requires_grad
            continue
        own = torch.autograd.grad(layer.projection().square().sum(), layer.weight)[0]
        with shared_projections(ckn):
            layer.projection().square().sum().backward()
        torch.testing.assert_close(layer.weight.grad, own, rtol=1e-10, atol=1e-10)
        layer.weight.grad = None


def test_the_gradient_of_cosines_between_filters_is_exact() -> None:
    rows = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(_Cosines.apply, (rows,))
    assert torch.autograd.gradgradcheck(_Cosines.apply, (rows,))


def test_filters_that_left_their_spheres_are_named_in_a_step_too() -> None:
    ckn = network().train()
    with torch.no_grad():
        next(iter(ckn.kernel_layers().values())).weight.mul_(2)
    with pytest.raises(NumericalError, match="expected filters of norm 1, got norms from 2"):
        shared_projections(ckn)


def test_a_network_whose_images_depend_on_each_other_is_not_cut_into_chunks() -> None:
    body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))
    net = torchckn.ScaledConvNet(body, (1, 8, 8)).train()
    images = torch.rand(10, 1, 8, 8)
    expected = net.features(images).detach()
    torch.testing.assert_close(batch_features(net, images, "auto"), expected)
    with pytest.raises(ConfigError, match="BatchNorm2d"):
        batch_features(net, images, 4)


def test_a_network_that_cannot_be_cut_into_chunks_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Dropout(), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))
    net = torchckn.ScaledConvNet(body, (1, 8, 8)).eval()
    images = torch.rand(12, 1, 8, 8), torch.arange(12) % 3
    seen: list[str] = []

    class Noted(torchckn.Callback):
        def on_train_start(self, training: Any) -> None:
            seen.append("training")

    with pytest.raises(ConfigError, match=r"cut into chunks for a network with Dropout.*use chunk='all' \(--chunk all\)"):
        torchckn.train(net, images, steps=2, lam=0.1, chunk=4, run_dir=tmp_path / "run", callbacks=[Noted()])
    assert not seen
    assert not (tmp_path / "run").exists()


def test_a_convnet_is_a_feature_extractor_too() -> None:
    net = torchckn.ScaledConvNet(zoo.build("lenet5", filters=4, padding=2), (1, 28, 28))
    images, labels = torch.rand(30, 1, 28, 28), torch.arange(30) % 10
    value, _ = batch_gradient(net, images, lambda x: reduced_objective(net.scaling(x), labels, net.head, 2**-8))
    assert value < 3
    assert all(p.grad is not None for p in net.body.parameters())


class Odd(nn.Module):
    """Its classifier is not the last layer that was registered."""

    def __init__(self, after: nn.Module) -> None:
        super().__init__()
        self.head = nn.Linear(36, 3)
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.AvgPool2d(2), nn.Flatten())
        self.gate = nn.Linear(36, 36)
        self.after = after

    def forward(self, x: Tensor) -> Tensor:
        maps = self.body(x)
        return self.after(self.head(maps * self.gate(maps).sigmoid()))


def test_the_head_of_a_convnet_is_the_layer_its_scores_come_from() -> None:
    net = torchckn.ScaledConvNet(Odd(nn.Identity()), (1, 8, 8))
    assert (net.head.in_features, net.head.out_features) == (36, 3)
    assert net.features(torch.rand(2, 1, 8, 8)).shape == (2, 36)
    with pytest.raises(torchckn.TranslationError, match="expected a ConvNet whose output is that of an nn.Linear"):
        torchckn.ScaledConvNet(Odd(nn.LogSoftmax(1)), (1, 8, 8))
    with pytest.raises(DataError, match=r"does not run on images of shape \(3, 8, 8\)"):
        torchckn.ScaledConvNet(Odd(nn.Identity()), (3, 8, 8))
    with pytest.raises(DataError, match="expected images"):
        net(torch.rand(2, 1, 9, 9))


def test_a_head_without_bias_is_refused_by_fit_head() -> None:
    ckn = network(torch.float32)
    ckn.head = nn.Linear(ckn.head.in_features, 10, bias=False)
    with pytest.raises(ConfigError, match="fit_head expected a head with a bias, got one without"):
        torchckn.fit_head(ckn, (torch.rand(20, 1, 28, 28), torch.arange(20) % 10), lam=0.1)
