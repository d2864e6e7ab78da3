"""What experiments vary in the methods and in the preprocessing, and errors of gradients."""

from __future__ import annotations

import pytest
import torch

import torchckn
from torchckn import ConfigError, data, zoo
from torchckn.experiments.gradient import gradient_errors
from torchckn.experiments.variants import OppositeDiagonal, SGOWithoutPenalty, method_class, preprocessing
from torchckn.fit.methods import SGO, ULR, MethodOptions
from torchckn.kernels import RBFSphere
from torchckn.nn.functional import filter_gram
from torchckn.nn.invsqrt import newton


def test_errors_of_the_gradient_are_smallest_for_the_closed_form_and_finite_differences_agree() -> None:
    generator = torch.Generator().manual_seed(0)
    ckn = torchckn.translate(zoo.build("allcnn", filters=4, bias=False), (3, 32, 32), RBFSphere(0.6), generator=generator)
    images = torch.randint(256, (20, 3, 32, 32), generator=generator, dtype=torch.uint8)
    part = data.Part(images, torch.arange(20) % 10)
    found = gradient_errors(ckn, part, generator, images=8, methods=["eigh", "newton-2", "newton-20", "svd"], directions=3)
    errors = found["errors"]
    assert found["finite_differences"] < 1e-5
    assert errors["eigh"] < 1e-5
    assert errors["newton-2"] > 100 * errors["newton-20"], "two iterations have not converged"
    assert errors["eigh"] <= 1.5 * errors["newton-20"]
    roots = found["root_errors"]
    assert max(roots["eigh"], roots["newton-20"]) < errors["eigh"], "less than with all in float32"
    assert roots["eigh"] <= 1.5 * roots["svd"]


def test_the_opposite_diagonal_steps_the_other_way() -> None:
    net = torchckn.translate(zoo.build("lenet1", filters=4), (1, 28, 28), RBFSphere(0.6))
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.rand(20, 1, 28, 28, generator=generator), torch.arange(20) % 10
    options = MethodOptions(lam=0.1, hessian="diag")
    scaled = net.scaling(net.features(images))
    right, wrong = (method(net, options)._reduce(scaled, labels).eta for method in (ULR, OppositeDiagonal))
    torch.testing.assert_close(wrong, -right)


def test_half_whitened_patches_are_less_white() -> None:
    images = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    pixels = data.Preprocessing.fit(images, whiten=True)
    spreads = []
    for slip in ("none", "half-whitening"):
        node = preprocessing(pixels, slip).nodes()[-1]
        patches = node.module((3, 8, 8))(images).flatten(2).double()
        values = torch.linalg.eigvalsh(patches @ patches.mT / 64)[:, 6:]
        spreads.append(values.amax(1) / values.amin(1))
    assert (spreads[1] > 2 * spreads[0]).all()
    assert preprocessing(pixels, None) is pixels


def test_without_a_slip_the_training_step_is_the_right_one() -> None:
    assert method_class(None) is None
    assert method_class("none") is None


def test_sgo_without_its_penalty_descends_on_the_loss_alone() -> None:
    net = torchckn.translate(zoo.build("lenet1", filters=4), (1, 28, 28), RBFSphere(0.6))
    images, labels = torch.rand(20, 1, 28, 28), torch.arange(20) % 10
    gradients = []
    for method in (SGO, SGOWithoutPenalty):
        method(net, MethodOptions(lam=2.0))._descend(images, labels)
        assert net.head.weight.grad is not None
        gradients.append(net.head.weight.grad.clone())
        net.zero_grad()
    torch.testing.assert_close(gradients[0] - gradients[1], 2 * 2.0 * net.head.weight.detach())


def test_layers_make_as_many_newton_iterations_as_asked_for() -> None:
    for method, count in (("newton", 20), ("newton:2", 2), ("newton:50", 50)):
        layer = torchckn.nn.KernelLinear(6, 5, kernel=RBFSphere(0.6), inverse_sqrt=method).train()
        gram = filter_gram(layer.filter_matrix(), layer.kernel, layer.eps)
        torch.testing.assert_close(layer.projection(), newton(gram, iters=count).root)
    for wrong in ("newton:0", "newton:many", "eigh:3", "newton:"):
        with pytest.raises(ConfigError, match="expected a number of iterations for newton only, as in 'newton:50', got"):
            torchckn.nn.KernelLinear(6, 5, inverse_sqrt=wrong)
