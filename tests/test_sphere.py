"""Steps on spheres: the laws of the projection, the transport, and the optimizer."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import torchckn
from torchckn import ConfigError, NumericalError
from torchckn.fit import SphereSGD
from torchckn.fit.sphere import project_to_ball, project_to_sphere, tangent, transport, unit_or_zero
from torchckn.graph import Conv, Dense, Graph
from torchckn.kernels import RBFSphere
from torchckn.nn import KernelConv2d
from torchckn.nn import sphere_groups as groups

seeds = st.integers(0, 2**32)


def rows(seed: int, n: int = 5, d: int = 4) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(seeds, st.floats(1e-6, 1e3), st.booleans(), st.sampled_from([0.0, 0.9]))
@settings(max_examples=50, deadline=None)
def test_filters_stay_on_their_spheres_whatever_the_step(seed: int, lr: float, normalize: bool, momentum: float) -> None:
    weight = nn.Parameter(project_to_sphere(rows(seed)))
    optimizer = SphereSGD([weight], lr=lr, normalize=normalize, momentum=momentum)
    for step in range(3):
        weight.grad = rows(seed + step + 1)
        optimizer.step()
        torch.testing.assert_close(weight.detach().norm(dim=1), torch.ones(5, dtype=torch.float64))


def test_a_step_is_the_papers_step() -> None:
    weight = nn.Parameter(project_to_sphere(rows(0)))
    before, weight.grad = weight.detach().clone(), rows(1) * torch.tensor([1.0, 10, 100, 1e3, 1e4])[:, None]
    SphereSGD([weight], lr=0.1).step()
    moved = before - 0.1 * weight.grad / weight.grad.norm(dim=1, keepdim=True)
    torch.testing.assert_close(weight.detach(), moved / moved.norm(dim=1, keepdim=True))


def test_without_normalisation_the_step_is_that_of_the_plain_gradient() -> None:
    weight = nn.Parameter(project_to_sphere(rows(0)))
    before, weight.grad = weight.detach().clone(), rows(1)
    SphereSGD([weight], lr=0.1, normalize=False).step()
    torch.testing.assert_close(weight.detach(), project_to_sphere(before - 0.1 * weight.grad))


def test_a_filter_without_gradient_stays_where_it_is() -> None:
    weight = nn.Parameter(project_to_sphere(rows(0)))
    before, weight.grad = weight.detach().clone(), rows(1)
    weight.grad[2] = 0
    SphereSGD([weight], lr=0.5).step()
    torch.testing.assert_close(weight.detach()[2], before[2])
    assert not torch.allclose(weight.detach()[1], before[1])


@given(seeds)
@settings(max_examples=50, deadline=None)
def test_transport_keeps_lengths_angles_and_tangency(seed: int) -> None:
    start, end = project_to_sphere(rows(seed)), project_to_sphere(rows(seed + 1))
    u, v = tangent(start, rows(seed + 2)), tangent(start, rows(seed + 3))
    moved_u, moved_v = transport(start, end, u), transport(start, end, v)
    torch.testing.assert_close((moved_u * end).sum(1), torch.zeros(5, dtype=torch.float64), atol=1e-9, rtol=0)
    torch.testing.assert_close((moved_u * moved_v).sum(1), (u * v).sum(1), atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(transport(end, start, moved_u), u, atol=1e-9, rtol=1e-9)


def test_momentum_goes_on_in_the_same_direction() -> None:
    weight = nn.Parameter(torch.tensor([[1.0, 0.0, 0.0]]))
    optimizer = SphereSGD([weight], lr=0.1, momentum=0.9)
    weight.grad = torch.tensor([[0.0, -1.0, 0.0]])
    optimizer.step()
    first = float(torch.atan2(*weight.detach()[0, [1, 0]]))
    weight.grad = torch.zeros(1, 3)
    optimizer.step()
    second = float(torch.atan2(*weight.detach()[0, [1, 0]]))
    assert second - first == pytest.approx(0.9 * first, rel=0.01)
    assert float(weight[0, 2].detach()) == 0


def test_an_interrupted_optimizer_goes_on_from_its_state_dict() -> None:
    def run(optimizer: SphereSGD, weight: nn.Parameter, start: int, stop: int) -> None:
        for step in range(start, stop):
            weight.grad = rows(100 + step)
            optimizer.step()

    one = nn.Parameter(project_to_sphere(rows(0)))
    whole = SphereSGD([one], lr=0.1, momentum=0.9)
    run(whole, one, 0, 3)
    two = nn.Parameter(one.detach().clone())
    resumed = SphereSGD([two], lr=5.0)
    resumed.load_state_dict(copy.deepcopy(whole.state_dict()))
    run(whole, one, 3, 6)
    run(resumed, two, 3, 6)
    assert torch.equal(one, two)


def test_a_closure_is_called_for_the_gradients_and_its_value_returned() -> None:
    weight = nn.Parameter(project_to_sphere(rows(0)))
    target = project_to_sphere(rows(1))
    optimizer = SphereSGD([weight], lr=0.05)

    def closure() -> float:
        optimizer.zero_grad()
        loss = (weight - target).square().sum()
        loss.backward()
        return loss.item()

    values = [optimizer.step(closure) for _ in range(80)]
    assert values[-1] is not None
    assert values[0] is not None
    assert values[-1] < 0.1 * values[0]


def test_groups_are_filters_on_spheres_and_bandwidths_as_positive_numbers() -> None:
    kernel = RBFSphere(0.6, trainable=True)
    graph = Graph((1, 8, 8), [Conv("conv", filters=4, kernel_size=(3, 3), kernel=kernel), Dense("dense", filters=5)])
    ckn = torchckn.CKN(graph, 3)
    found = {group["dims"]: group["params"] for group in groups(ckn)}
    assert {dims: len(params) for dims, params in found.items()} == {3: 1, 1: 1, 0: 1}
    ckn.layers["dense"].weight.requires_grad_(False)
    assert {group["dims"] for group in groups(ckn)} == {3, 0}
    (sigma,) = found[0]
    optimizer = SphereSGD(groups(ckn), lr=4.0)
    for sign in (1.0, -1.0):
        sigma.grad = torch.full_like(sigma, sign)
        optimizer.step()
        assert sigma.item() > 0
    assert sigma.item() == pytest.approx(0.6)


def test_the_ball_takes_what_is_outside_to_its_surface() -> None:
    inside, outside = torch.full((2, 2), 0.1), torch.full((2, 2), 3.0)
    assert torch.equal(project_to_ball(inside, 1.0), inside)
    torch.testing.assert_close(project_to_ball(outside, 1.0), torch.full((2, 2), 0.5))
    torch.testing.assert_close(unit_or_zero(torch.zeros(2, 3)), torch.zeros(2, 3))


def test_bad_settings_and_steps_are_refused_and_change_nothing() -> None:
    weight = nn.Parameter(project_to_sphere(rows(0)))
    with pytest.raises(ConfigError, match="lr expected"):
        SphereSGD([weight], lr=-1.0)
    with pytest.raises(ConfigError, match="momentum expected"):
        SphereSGD([weight], lr=0.1, momentum=1.0)
    before, weight.grad = weight.detach().clone(), torch.full((5, 4), torch.nan, dtype=torch.float64)
    with pytest.raises(NumericalError, match="smaller learning rate"):
        SphereSGD([weight], lr=0.1).step()
    assert torch.equal(weight, before)


def test_what_layers_share_is_moved_once() -> None:
    kernel = RBFSphere(0.6, trainable=True)
    net = nn.Sequential(KernelConv2d(1, 4, 3, kernel=kernel), KernelConv2d(4, 4, 3, kernel=kernel))
    optimizer = SphereSGD(groups(net), lr=0.1)
    net(torch.rand(2, 1, 8, 8)).square().sum().backward()
    optimizer.step()
    assert math.isclose(abs(math.log(kernel.bandwidth / 0.6)), 0.1, rel_tol=1e-6)


def test_parameters_that_are_no_filters_are_refused_without_a_number_of_dimensions() -> None:
    layer = KernelConv2d(1, 4, 3, kernel=RBFSphere(0.6, trainable=True))
    for parameters in (layer.parameters(), nn.Linear(3, 2).parameters()):
        with pytest.raises(ConfigError, match=r"SphereSGD expected filters, .* pass torchckn.nn.sphere_groups"):
            SphereSGD(parameters, lr=0.1)
