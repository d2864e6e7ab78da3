"""Ultimate layer reversal: the reduced objective, its gradient, and its solvers."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import scipy.optimize
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchckn import ConfigError, DataError, NumericalError
from torchckn.choices import Centering
from torchckn.fit import batch_model, ulr
from torchckn.fit.ulr import reduced_objective
from torchckn.network import FeatureScaling

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


@pytest.mark.parametrize("numbers", [1, 100, 2**22], ids=["image by image", "in parts", "at once"])
def test_the_hessian_its_products_and_its_diagonal_are_those_of_autograd(
    monkeypatch: pytest.MonkeyPatch, numbers: int
) -> None:
    monkeypatch.setattr(batch_model, "SPREAD", numbers)
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


def test_features_that_are_not_finite_are_noticed_at_once() -> None:
    x, y, head = problem(50, 300)
    x[3, 7] = torch.nan
    for hessian in ("full", "cg"):
        with pytest.raises(NumericalError, match="NaN"):
            reduced_objective(x, y, head, 2**-5, hessian=hessian)  # type: ignore[arg-type]
