from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchckn import kernels
from torchckn.errors import ConfigError, DataError
from torchckn.kernels import KernelSpec

from . import oracles
from .contracts import EXACT, Case, every_kernel, is_rough

every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])


@every_kernel
def test_kappa_equals_the_textbook_formula(case: Case) -> None:
    t = torch.linspace(-1, 1, 401, dtype=torch.float64)
    expected = [oracles.kappa(case.name, float(v), **case.arguments) for v in t]
    np.testing.assert_allclose(case.build().kappa(t).detach(), expected, rtol=1e-10, atol=1e-12)


@every_kernel
@every_dtype
def test_value_and_gradient_are_finite_on_the_whole_interval(case: Case, dtype: torch.dtype) -> None:
    near_the_ends = torch.tensor([1.0, 0.9999999, 0.99999, -0.99999, -0.9999999, -1.0])
    rounded_beyond = torch.tensor([1 + 2e-7, -1 - 2e-7])
    t = torch.cat([torch.linspace(-1, 1, 2001), near_the_ends, rounded_beyond]).to(dtype).requires_grad_()
    values = case.build().kappa(t)
    (gradient,) = torch.autograd.grad(values.sum(), t)
    assert values.dtype == dtype
    assert torch.isfinite(values).all()
    assert torch.isfinite(gradient).all()


@every_kernel
def test_kappa_of_equal_directions_is_one(case: Case) -> None:
    assert case.build().kappa(torch.ones((), dtype=torch.float64)).item() == pytest.approx(1, abs=1e-14)


@every_kernel
def test_kappa_has_the_gradient_of_finite_differences(case: Case) -> None:
    ends = 0.99 if is_rough(case) else 1 - 1e-4
    t = torch.linspace(-ends, ends, 41, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(case.build().kappa, t, atol=1e-6)


@every_kernel
def test_smooth_kernels_have_a_nonzero_gradient_at_one(case: Case) -> None:
    t = torch.ones((), dtype=torch.float64, requires_grad=True)
    (at_one,) = torch.autograd.grad(case.build().kappa(t), t)
    step = 1e-7
    slope = (1 - oracles.kappa(case.name, 1 - step, **case.arguments)) / step
    if is_rough(case):
        assert at_one == 0  # unbounded there; the Gram matrix's diagonal is constant, so it needs none
    else:
        assert at_one.item() == pytest.approx(slope, rel=2e-3)


@every_kernel
@given(seed=st.integers(0, 1000), rows=st.integers(1, 12), columns=st.integers(1, 6))
def test_gram_matrices_are_symmetric_and_positive_semidefinite(case: Case, seed: int, rows: int, columns: int) -> None:
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    gram = case.build().gram(x).detach()
    torch.testing.assert_close(gram, gram.T)
    assert torch.linalg.eigvalsh(gram).min() > -1e-9 * gram.diagonal().max()


@every_kernel
@given(seed=st.integers(0, 1000), a=st.floats(0.01, 100), b=st.floats(0.01, 100))
def test_the_kernel_is_homogeneous_of_its_degree(case: Case, seed: int, a: float, b: float) -> None:
    kernel, g = case.build(), torch.Generator().manual_seed(seed)
    x, y = (torch.randn(3, 4, generator=g, dtype=torch.float64) for _ in range(2))
    torch.testing.assert_close(kernel.gram(a * x, b * y), (a * b) ** kernel.degree * kernel.gram(x, y))


@every_kernel
def test_gram_equals_the_oracle_also_for_zero_rows(case: Case, generator: torch.Generator) -> None:
    x = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    y = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    x[1] = 0
    expected = [[oracles.kernel(case.name, a.numpy(), b.numpy(), **case.arguments) for b in y] for a in x]
    np.testing.assert_allclose(case.build().gram(x, y).detach(), expected, rtol=1e-10, atol=1e-12)


@every_kernel
@every_dtype
@pytest.mark.parametrize("inplace", [False, True])
def test_map_is_the_kernel_with_unit_filters(
    case: Case, dtype: torch.dtype, inplace: bool, generator: torch.Generator
) -> None:
    w = torch.nn.functional.normalize(torch.randn(5, 7, generator=generator, dtype=torch.float64))
    x = torch.randn(2, 7, 3, 3, generator=generator, dtype=torch.float64)
    x[0, :, 1, 1] = 0
    responses = torch.einsum("fc,nchw->nfhw", w, x).to(dtype)
    mapped = case.build().map(responses, x.square().sum(1, keepdim=True).to(dtype), inplace=inplace)
    expected = case.build().gram(w, x.movedim(1, -1).reshape(-1, 7)).T.reshape(2, 3, 3, 5).movedim(-1, 1)
    torch.testing.assert_close(mapped.double(), expected, rtol=EXACT[dtype], atol=EXACT[dtype])


@every_kernel
def test_map_has_the_gradient_of_finite_differences(case: Case, generator: torch.Generator) -> None:
    kernel = case.build()
    norms = 0.5 + torch.rand(2, 1, 2, 2, generator=generator, dtype=torch.float64)
    cosines = torch.rand(2, 3, 2, 2, generator=generator, dtype=torch.float64) * 1.6 - 0.8
    inputs = ((cosines * norms).requires_grad_(), norms.square().requires_grad_(), *kernel.parameters())
    assert torch.autograd.gradcheck(lambda r, s, *_: kernel.map(r, s), inputs)


@every_kernel
def test_map_gives_zero_patches_no_gradient(case: Case) -> None:
    responses = torch.zeros(1, 2, 1, 1, dtype=torch.float64, requires_grad=True)
    squares = torch.zeros(1, 1, 1, 1, dtype=torch.float64, requires_grad=True)
    kernel = case.build()
    values = kernel.map(responses, squares)
    expected = oracles.kappa(case.name, 0.0, **case.arguments) if kernel.degree == 0 else 0.0
    assert values.flatten().tolist() == pytest.approx([expected, expected])
    if case.name != "Linear":  # <w, x> has a gradient at zero; the others are not differentiable there
        gradients = torch.autograd.grad(values.sum(), (responses, squares))
        assert all((g == 0).all() for g in gradients)


@every_kernel
def test_a_kernel_is_rebuilt_from_its_description(case: Case) -> None:
    kernel = case.build()
    spec = kernel.spec()
    again = KernelSpec(spec.name, tuple(json.loads(json.dumps(spec.arguments)))).build()
    t = torch.linspace(-1, 1, 11, dtype=torch.float64)
    assert type(again) is type(kernel)
    assert torch.equal(again.kappa(t), kernel.kappa(t))
    assert [p.shape for p in again.parameters()] == [p.shape for p in kernel.parameters()]
    assert hash(spec) == hash(kernel.spec())


@pytest.mark.parametrize(("order", "factor", "below"), [(2, 4 / 3, 1), (1, 1.0, 0)])
def test_arc_cosine_derivatives_form_a_chain(order: int, factor: float, below: int) -> None:
    t = torch.linspace(-1, 1, 101, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(kernels.ArcCosine(order).kappa(t).sum(), t)
    torch.testing.assert_close(gradient, factor * kernels.ArcCosine(below).kappa(t))


def test_a_trainable_bandwidth_is_a_parameter_with_the_paper_derivative() -> None:
    kernel = kernels.RBFSphere(0.7, trainable=True)
    t = torch.linspace(-1, 1, 21, dtype=torch.float64)
    (parameter,) = kernel.parameters()
    (gradient,) = torch.autograd.grad(kernel.kappa(t).sum(), parameter)
    expected = (2 / 0.7**3 * kernel.kappa(t) * (1 - t)).sum()  # lemma "rbf_sphere_bw_grad"
    torch.testing.assert_close(gradient, expected.detach())


def test_a_new_kernel_is_one_class_with_one_method(generator: torch.Generator) -> None:
    class Cubed(kernels.Kernel):
        def kappa(self, t: torch.Tensor) -> torch.Tensor:
            return t**3

    x = torch.randn(3, 4, generator=generator)
    norms = x.norm(dim=1)
    expected = (x @ x.T) ** 3 / (norms[:, None] * norms) ** 2
    torch.testing.assert_close(Cubed().gram(x), expected)
    assert "Cubed" in kernels.names()
    assert isinstance(KernelSpec("Cubed").build(), Cubed)


def test_a_kernel_without_kappa_names_what_is_missing() -> None:
    class Empty(kernels.Kernel):
        pass

    with pytest.raises(TypeError, match="Empty must define kappa"):
        Empty().kappa(torch.ones(1))


def test_a_kernel_that_does_not_store_its_arguments_names_them() -> None:
    class Hiding(kernels.Kernel):
        def __init__(self, width: float) -> None:
            super().__init__()

        def kappa(self, t: torch.Tensor) -> torch.Tensor:
            return t

    with pytest.raises(ConfigError, match=r"Hiding must store its arguments \['width'\] as attributes"):
        Hiding(1.0).spec()


def test_the_name_of_a_kernel_of_the_library_cannot_be_used_again() -> None:
    with pytest.raises(ConfigError, match="expected a new class name for a kernel, got Linear, which torchckn already has"):
        type("Linear", (kernels.Kernel,), {"__module__": "elsewhere"})
    assert KernelSpec("Linear").build().__class__ is kernels.Linear


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: kernels.RBFSphere(0), "RBFSphere expected a positive, finite sigma, got 0"),
        (lambda: kernels.RBFSphere(math.nan), "positive, finite sigma, got nan"),
        (lambda: kernels.RBFSphere("wide"), "positive, finite sigma, got 'wide'"),
        (lambda: kernels.ArcCosine(3), r"order 0 \(step function\), 1 \(ReLU\) or 2, got 3"),
        (lambda: kernels.Polynomial(0), "an integer degree >= 1, got 0"),
        (lambda: kernels.Polynomial(2, offset=-1), "finite offset >= 0 .* got -1"),
        (lambda: kernels.Matern(1.0, 0.6), r"half-integer nu of at most 19.5 \(0.5, 1.5, 2.5, ...\), got 1.0"),
        (lambda: kernels.Matern(0.5, -1), "Matern expected a positive, finite sigma, got -1"),
        (lambda: KernelSpec("RBFSpere", ()).build(), "unknown kernel 'RBFSpere'.*Did you mean 'RBFSphere'"),
        (lambda: KernelSpec("Linear", (("sigma", 1),)).build(), "kernel Linear cannot be built from {'sigma': 1}"),
    ],
)
def test_bad_kernels_are_refused_with_a_reason(build: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build()  # type: ignore[operator]


def test_gram_refuses_rows_of_different_lengths() -> None:
    with pytest.raises(DataError, match=r"rows of equal length, got \(2, 3\) and \(2, 4\) of torch.float32"):
        kernels.Linear().gram(torch.ones(2, 3), torch.ones(2, 4))
