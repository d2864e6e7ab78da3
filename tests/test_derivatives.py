"""Derivatives that are written by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchckn
from torchckn.errors import DerivativeError
from torchckn.kernels import ArcCosine, Kernel, RBFSphere


def network(kernel: Kernel | str = "match", dtype: torch.dtype = torch.float64) -> torchckn.CKN:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GELU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(36, 3))
    generator = torch.Generator().manual_seed(0)
    return torchckn.translate(net, (1, 8, 8), kernel, generator=generator).to(dtype)  # type: ignore[arg-type]


def images(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(1), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kernel", ["match", RBFSphere(0.6), RBFSphere(0.6, trainable=True), ArcCosine(1)], ids=str)
def test_second_derivatives_of_a_network_are_refused_rather_than_zero(kernel: Kernel | str, dtype: torch.dtype) -> None:
    for ckn in (network(kernel, dtype), network(kernel, dtype).eval()):
        with pytest.raises(DerivativeError, match="finite differences of gradients"):
            torch.autograd.functional.hvp(lambda x, ckn=ckn: ckn(x).square().sum(), images(dtype), images(dtype))


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_first_derivatives_are_the_same_in_a_checkpoint(use_reentrant: bool) -> None:
    ckn, plain, recomputed = network(), images().requires_grad_(), images().requires_grad_()
    ckn(plain).square().sum().backward()
    checkpoint(ckn, recomputed, use_reentrant=use_reentrant).square().sum().backward()
    torch.testing.assert_close(recomputed.grad, plain.grad)
