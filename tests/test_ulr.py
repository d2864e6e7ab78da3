"""Ultimate layer reversal: the reduced objective, its gradient, its solvers, and the chunked step."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import scipy.optimize
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchckn
from torchckn import ConfigError, DataError, NumericalError, zoo
from torchckn.choices import Centering
from torchckn.fit import chunks, ulr
from torchckn.fit.chunks import batch_features, batch_gradient
from torchckn.fit.methods import ULR, MethodOptions
from torchckn.fit.ulr import reduced_objective
from torchckn.graph import Conv, Graph, Local, Node
from torchckn.kernels import ArcCosine, RBFSphere
from torchckn.network import FeatureScaling
from torchckn.nn.base import _Cosines, shared_projections

CLASSES = 3


def problem(n: int = 12, d: int = 4, bias: bool = True, seed: int = 0) -> tuple[Tensor, Tensor, nn.Linear]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=g, dtype=torch.float64)
    head = nn.Linear(d, CLASSES, bias=bias, dtype=torch.float64)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=g, dtype=torch.float64))
    return x, torch.randint(CLASSES, (n,), generator=g), head


def objective(x: Tensor, y: Tensor, classifier: Tensor, lam: float, loss: str) -> Tensor:
    """f of the paper, written down; the last column of the classifier is the bias."""
    scores = x @ classifier[:, :-1].T + classifier[:, -1]
    one_hot = F.one_hot(y, CLASSES)
    value = F.cross_entropy(scores, y) if loss == "multinomial" else (one_hot - scores).square().sum(1).mean()
    return value + lam * classifier[:, :-1].square().sum()


def joined(head: nn.Linear) -> Tensor:
    return torch.cat([head.weight, head.bias[:, None]], 1).detach()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("loss", "hessian"),
    [("multinomial", "full"), ("multinomial", "cg"), ("multinomial", "diag"), ("square", "auto")],
)
def test_the_gradient_equals_finite_differences_through_the_whole_solve(loss: str, hessian: str, bias: bool) -> None:
    x, y, head = problem(bias=bias)

    def reduced(features: Tensor) -> Tensor:
        return reduced_objective(features, y, head, 2**-4, 2**-3, loss, hessian).objective  # type: ignore[arg-type]

    assert torch.autograd.gradcheck(reduced, x.clone().requires_grad_(), rtol=1e-6, atol=1e-8)


def test_the_hessian_its_products_and_its_diagonal_are_those_of_autograd() -> None:
    x, y, head = problem()
    batch = ulr.Batch(x, y, head, 0.1, ulr.of_this_process)
    expected = torch.autograd.functional.hessian(
        lambda flat: objective(x, y, flat.view(CLASSES, -1), 0.1, "multinomial"), joined(head).flatten()
    )
    torch.testing.assert_close(batch.gradient_and_hessian()[1], expected)
    torch.testing.assert_close(batch.gradient_and_diagonal()[1].flatten(), expected.diagonal())
    v = torch.randn(CLASSES, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(batch.product(v).flatten(), expected @ v.flatten())


def test_eta_minimises_the_quadratic_model() -> None:
    x, y, head = problem()
    value, eta = reduced_objective(x, y, head, 2**-4, 2**-3, hessian="full")
    batch = ulr.Batch(x, y, head, 2**-4, ulr.of_this_process)
    gradient, hessian = batch.gradient_and_hessian()

    def model(flat: Tensor) -> Tensor:
        curved = flat @ hessian @ flat / 2 + 2**-3 / 2 * flat @ flat
        return objective(x, y, joined(head), 2**-4, "multinomial") + gradient.flatten() @ flat + curved

    torch.testing.assert_close(value, model(eta.flatten()))
    found = scipy.optimize.minimize(lambda flat: float(model(torch.from_numpy(flat))), eta.flatten().numpy() * 0)
    torch.testing.assert_close(torch.from_numpy(found.x), eta.flatten(), rtol=1e-4, atol=1e-4)
    assert float(value) <= found.fun + 1e-9


@pytest.mark.parametrize("tau", [0.0, 2**-5, 1.0])
def test_conjugate_gradients_find_what_the_full_hessian_finds(tau: float) -> None:
    x, y, head = problem(40, 6)
    full = reduced_objective(x, y, head, 2**-6, tau, hessian="full")
    cg = reduced_objective(x, y, head, 2**-6, tau, hessian="cg")
    torch.testing.assert_close(cg.objective, full.objective, rtol=1e-10, atol=0)
    shift = (cg.eta - full.eta).mean(0)  # with tau 0 the same may be added to every class's bias
    assert tau == 0 or float(shift.abs().max()) < 1e-8
    torch.testing.assert_close(cg.eta - shift, full.eta, rtol=1e-7, atol=1e-8)


def test_the_diagonal_agrees_with_the_full_hessian_where_the_classes_are_far_apart() -> None:
    x, y, head = problem(30, 5)
    with (
        torch.no_grad()
    ):  # the head tells every image's class for certain, so that p is 0 or 1 and the Hessian the penalty's
        x = torch.cat([x[:, :2], F.one_hot(y, CLASSES)], 1)
        head.weight.copy_(torch.cat([torch.zeros(CLASSES, 2), 80 * torch.eye(CLASSES)], 1))
    full, diagonal = (reduced_objective(x, y, head, 2**-4, 2**-3, hessian=h) for h in ("full", "diag"))  # type: ignore[arg-type]
    torch.testing.assert_close(diagonal.eta, full.eta)
    torch.testing.assert_close(diagonal.objective, full.objective)


def test_every_hessian_goes_downhill() -> None:
    x, y, head = problem(60, 6)
    start = objective(x, y, joined(head), 2**-8, "multinomial")
    for hessian in ("full", "cg", "diag"):
        value, eta = reduced_objective(x, y, head, 2**-8, 2**-2, hessian=hessian)  # type: ignore[arg-type]
        assert value < start, hessian
        assert objective(x, y, joined(head) + 0.1 * eta, 2**-8, "multinomial") < start, hessian


@pytest.mark.parametrize(("n", "d"), [(20, 4), (6, 15)], ids=["more images than features", "fewer"])
def test_the_square_loss_is_minimised_exactly(n: int, d: int) -> None:
    """Proposition "simp_least_square", both of its forms, and explicit minimisation."""
    x, y, head = problem(n, d)
    lam = 2**-5
    value, eta = reduced_objective(x, y, head, lam, loss="square")
    best = (joined(head) + eta).requires_grad_()
    torch.testing.assert_close(value, objective(x, y, best, lam, "square"))
    (slope,) = torch.autograd.grad(objective(x, y, best, lam, "square"), best)
    torch.testing.assert_close(slope, torch.zeros_like(slope), atol=1e-10, rtol=0)
    targets = F.one_hot(y, CLASSES).double()
    centre = torch.eye(n, dtype=torch.float64) - 1 / n
    inner = torch.linalg.inv(x.T @ centre @ x + n * lam * torch.eye(d))
    first = (centre @ targets).square().sum() / n - torch.trace(targets.T @ centre @ x @ inner @ x.T @ centre @ targets) / n
    outer = torch.linalg.inv(torch.eye(n) + centre @ x @ x.T @ centre / (n * lam))
    second = torch.trace(targets.T @ centre @ outer @ centre @ targets) / n
    torch.testing.assert_close(value, first)
    torch.testing.assert_close(value, second)


@pytest.mark.parametrize("loss", ["multinomial", "square"])
def test_the_gradients_of_the_reduced_and_the_full_objective_have_equal_norms(loss: str) -> None:
    """Proposition "ulr_grad": at the minimising classifier, the gradient in it vanishes and the one in the rest is shared."""
    x, y, head = problem(30, 5)
    lam, x = 2**-5, x.requires_grad_()
    if loss == "multinomial":  # let the model's minimum be the loss's: Newton's method from zero, until its step is zero
        ulr.step_head(head, -joined(head))
        for _ in range(20):
            ulr.step_head(head, reduced_objective(x.detach(), y, head, lam, 0.0, hessian="full").eta)
    value, eta = reduced_objective(x, y, head, lam, 0.0, loss, "full")  # type: ignore[arg-type]
    (of_reduced,) = torch.autograd.grad(value, x)
    best = (joined(head) + eta).requires_grad_()
    of_full = torch.autograd.grad(objective(x, y, best, lam, loss), (x, best))
    whole = torch.cat([part.flatten() for part in of_full]).norm()
    torch.testing.assert_close(of_reduced.norm(), whole, rtol=1e-8, atol=0)


@pytest.mark.parametrize("centering", ["image", "feature"])
def test_several_processes_add_their_parts_in_one_place(centering: Centering) -> None:
    x, y, head = problem(20, 4)
    scaling = FeatureScaling(4, centering)
    whole = x.clone().requires_grad_()
    value, eta = reduced_objective(scaling(whole), y, head, 2**-5, hessian="full")
    value.backward()
    found: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
    barrier = threading.Barrier(2)
    shared: list[Tensor | None] = [None, None]

    def work(rank: int) -> None:
        def total(part: Tensor) -> Tensor:
            shared[rank] = part
            barrier.wait()
            both = shared[0] + shared[1]  # type: ignore[operator]
            barrier.wait()
            return both

        mine = slice(0, 7) if rank == 0 else slice(7, 20)
        part = x[mine].clone().requires_grad_()
        scaling = FeatureScaling(4, centering)
        scaling.total = total
        local, step = reduced_objective(scaling(part), y[mine], head, 2**-5, hessian="full", total=scaling.total)
        local.backward(retain_graph=True)  # it goes through the other's features as well: the scale is of both
        barrier.wait()
        assert part.grad is not None
        found[rank] = local.detach(), step, part.grad

    threads = [threading.Thread(target=work, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.testing.assert_close(found[0][1], eta)
    torch.testing.assert_close(found[1][1], eta)
    torch.testing.assert_close(torch.cat([found[0][2], found[1][2]]), whole.grad)


def test_auto_takes_the_full_hessian_for_few_features_and_conjugate_gradients_for_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used: list[str] = []

    def spy(name: str) -> Callable[..., Tensor]:
        solver = ulr._SOLVERS[name]
        return lambda batch, tau: used.append(name) or solver(batch, tau)  # type: ignore[func-returns-value]

    monkeypatch.setattr(ulr, "_SOLVERS", {name: spy(name) for name in ulr._SOLVERS})
    reduced_objective(*problem(10, 4), 2**-5)
    reduced_objective(*problem(10, 400), 2**-5)
    assert used == ["full", "cg"]


def test_what_cannot_be_solved_or_makes_no_sense_says_so() -> None:
    x, y, head = problem(5, 9)
    with pytest.raises(NumericalError, match="tau > 0"):
        reduced_objective(x, y, head, 0.0, 0.0, hessian="full")
    with pytest.raises(NumericalError, match="lam > 0"):
        reduced_objective(x, y, head, 0.0, loss="square")
    with pytest.raises(ConfigError, match="lam and tau"):
        reduced_objective(x, y, head, -1.0)
    with pytest.raises(ConfigError, match="unknown hessian 'ful'.*'full'"):
        reduced_objective(x, y, head, 0.1, hessian="ful")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="unknown loss"):
        reduced_objective(x, y, head, 0.1, loss="hinge")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="features"):
        reduced_objective(x[:, 1:], y, head, 0.1)
    with pytest.raises(DataError, match="labels must be from 0 to 2"):
        reduced_objective(x, y + 1, head, 0.1)


def network(dtype: torch.dtype = torch.float64) -> torchckn.CKN:
    g = torch.Generator().manual_seed(0)
    net = zoo.build("lenet5", filters=4, padding=2).to(dtype)
    return torchckn.translate(net, (1, 28, 28), RBFSphere(0.6), generator=g)


@pytest.mark.parametrize("kept", [0, 2**22, 2**40], ids=["two passes", "some graphs kept", "graphs kept"])
def test_the_chunked_step_gives_the_gradients_of_the_whole_batch(monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    monkeypatch.setattr(chunks, "KEPT", kept)
    g = torch.Generator().manual_seed(1)
    images, labels = torch.rand(50, 1, 28, 28, generator=g, dtype=torch.float64), torch.arange(50) % 10
    found = []
    for chunk in ("all", 16):
        ckn = network()

        def objective(features: Tensor, ckn: torchckn.CKN = ckn) -> tuple[Tensor, Tensor]:
            return reduced_objective(ckn.scaling(features), labels, ckn.head, 2**-8)

        value, eta = batch_gradient(ckn, images, objective, chunk)
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


def test_a_convnet_is_a_feature_extractor_too() -> None:
    net = torchckn.ScaledConvNet(zoo.build("lenet5", filters=4, padding=2), (1, 28, 28))
    images, labels = torch.rand(30, 1, 28, 28), torch.arange(30) % 10
    value, _ = batch_gradient(net, images, lambda x: reduced_objective(net.scaling(x), labels, net.head, 2**-8))
    assert value < 3
    assert all(p.grad is not None for p in net.body.parameters())


def test_features_that_are_not_finite_are_noticed_at_once() -> None:
    x, y, head = problem(50, 300)
    x[3, 7] = torch.nan
    for hessian in ("full", "cg"):
        with pytest.raises(NumericalError, match="NaN"):
            reduced_objective(x, y, head, 2**-5, hessian=hessian)  # type: ignore[arg-type]


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
    with pytest.raises(DataError, match=r"does not take images of shape \(3, 8, 8\)"):
        torchckn.ScaledConvNet(Odd(nn.Identity()), (3, 8, 8))
    with pytest.raises(DataError, match="expected images"):
        net(torch.rand(2, 1, 9, 9))


def test_a_head_without_bias_is_refused_by_fit_head() -> None:
    ckn = network(torch.float32)
    ckn.head = nn.Linear(ckn.head.in_features, 10, bias=False)
    with pytest.raises(ConfigError, match="fit_head expected a head with a bias, got one without"):
        torchckn.fit_head(ckn, (torch.rand(20, 1, 28, 28), torch.arange(20) % 10), lam=0.1)
