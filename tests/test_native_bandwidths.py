"""Trained bandwidths in the compiled layer: the gradient of the plain one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from torchckn.kernels import RBFSphere
from torchckn.nn import GaussianPool2d, native
from torchckn.nn.functional import kernel_conv2d

from .test_native import assert_same

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C++ compiler: the plain layer is used and tested")


@settings(max_examples=40, deadline=None)
@given(
    sigma=st.sampled_from([0.01, 0.1, 0.6, -0.8, 2.0, 300.0]),
    channels=st.sampled_from([1, 8, 40]),
    filters=st.sampled_from([5, 8, 32, 40]),
    kernel_size=st.integers(1, 3),
    pool=st.sampled_from([None, nn.AvgPool2d(2), nn.AvgPool2d(2, 1), GaussianPool2d(2)]),
    needed=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    blank=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_a_trained_bandwidth_has_the_gradient_of_the_plain_layer(
    sigma, channels, filters, kernel_size, pool, needed, blank, seed
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(3, channels, 7, 6, generator=generator, dtype=torch.float64)
    if blank:
        x[0] = 0
    weight = torch.randn(filters, channels, kernel_size, kernel_size, generator=generator, dtype=torch.float64)
    weight = weight / weight.flatten(1).norm(dim=1).reshape(-1, 1, 1, 1)
    root = torch.randn(filters, filters, generator=generator, dtype=torch.float64)
    found = []
    for dtype in (torch.float32, torch.float64):
        kernel = RBFSphere(0.6, trainable=True)
        kernel.sigma.data.fill_(sigma)  # training may change its sign
        leaves = [t.to(dtype).requires_grad_(needs) for t, needs in zip((x, weight, root), needed, strict=True)]
        out = kernel_conv2d(*leaves, kernel, pool=pool)
        assert ("FusedConv" in str(_operations(out))) == (dtype == torch.float32 and 0.1 <= abs(sigma) <= 2)
        out.square().sum().backward()
        found.append([kernel.sigma.grad, *(leaf.grad.double() for leaf in leaves if leaf.grad is not None)])
    # The gradient of sigma is a sum of g v (1 - t), with 1 - t from 0 to 2: its error is relative to the sum of g v.
    terms = 2 * out.detach().square().sum() * 2 / abs(sigma) ** 3
    assert abs(found[0][0] - found[1][0]) <= 5e-6 * terms
    assert_same(found[0][1:], found[1][1:], 5e-5)


def test_the_gradient_of_a_bandwidth_has_few_digits_so_that_sums_over_chunks_are_exact(generator: torch.Generator) -> None:
    kernel, filters = RBFSphere(0.6, trainable=True), torch.eye(8).reshape(8, 2, 2, 2)
    x = torch.randn(4, 2, 6, 6, generator=generator)
    kernel_conv2d(x, filters, torch.eye(8), kernel).square().sum().backward()
    gradient = kernel.sigma.grad
    assert gradient.dtype == torch.float64
    assert float(gradient) == float(gradient.float()) != 0


def _operations(out: Tensor) -> list[str]:
    """The names of all operations in the graph of a tensor."""
    nodes, names = [out.grad_fn], []
    while nodes:
        node = nodes.pop()
        if node is not None:
            names.append(node.name())
            nodes += [before for before, _ in node.next_functions]
    return names
