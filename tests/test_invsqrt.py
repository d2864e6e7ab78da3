from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import torchckn
from torchckn.errors import ConfigError, DataError, DerivativeError, NumericalError
from torchckn.nn.devices import choose_method, computes_wide
from torchckn.nn.invsqrt import newton, newton_residual, precomputed_inverse_sqrt

from . import oracles

METHODS = ["eigh", "newton", "svd"]


def positive_definite(size: int, seed: int, batch: tuple[int, ...] = (), floor: float = 0.1) -> torch.Tensor:
    x = torch.randn(*batch, size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x @ x.mT / size + floor * torch.eye(size, dtype=torch.float64)


@pytest.mark.parametrize("method", METHODS)
@given(size=st.integers(1, 10), seed=st.integers(0, 1000))
def test_every_method_inverts_the_square_root(method: str, size: int, seed: int) -> None:
    matrix = positive_definite(size, seed)
    root = torchckn.inverse_sqrt(matrix, method)
    torch.testing.assert_close(root @ matrix @ root, torch.eye(size, dtype=torch.float64), rtol=0, atol=1e-9)
    np.testing.assert_allclose(root, oracles.inverse_sqrt(matrix.numpy()), atol=1e-9)
    torch.testing.assert_close(root, root.mT)


@given(size=st.integers(1, 8), seed=st.integers(0, 1000), log_distance=st.floats(-8, 2), log_floor=st.floats(-8, 0))
def test_the_square_root_is_continuous_with_the_paper_s_bound(
    size: int, seed: int, log_distance: float, log_floor: float
) -> None:
    a = positive_definite(size, seed, floor=10**log_floor)
    b = a + 10**log_distance * positive_definite(size, seed + 1, floor=0.0)

    def norm(matrix: torch.Tensor) -> float:
        return float(torch.linalg.matrix_norm(matrix, 2))

    roots = [matrix @ torchckn.inverse_sqrt(matrix, "eigh") for matrix in (a, b)]
    # lemma "matrix_sqrt_cont": its proof gives |A^(1/2) - B^(1/2)| <= C |A - B|^(1/2) with C = (4 + 2) / pi; the best C is 1
    assert norm(roots[0] - roots[1]) <= norm(a - b) ** 0.5 + 1e-7


def test_near_singular_matrices_the_square_root_is_not_lipschitz() -> None:
    small, twice = (size * torch.eye(2, dtype=torch.float64) for size in (1e-8, 2e-8))
    change = twice @ torchckn.inverse_sqrt(twice) - small @ torchckn.inverse_sqrt(small)
    assert float(change[0, 0]) == pytest.approx(1e-4 * (2**0.5 - 1)), "far more than the change of the matrix, 1e-8"


@pytest.mark.parametrize("method", METHODS)
def test_a_batch_is_its_matrices_one_by_one(method: str) -> None:
    batch = positive_definite(5, 0, batch=(2, 3))
    roots = torchckn.inverse_sqrt(batch, method)
    one_by_one = [torchckn.inverse_sqrt(m, method) for m in batch.flatten(0, 1)]
    torch.testing.assert_close(roots.flatten(0, 1), torch.stack(one_by_one))


@pytest.mark.parametrize("method", METHODS)
def test_gradients_are_those_of_finite_differences(method: str) -> None:
    matrix = positive_definite(5, 1, batch=(2,), floor=0.5).requires_grad_()
    # A random symmetric direction, because changing single entries would break the symmetry that all methods rely on.
    assert torch.autograd.gradcheck(lambda m: torchckn.inverse_sqrt((m + m.mT) / 2, method), matrix, atol=1e-6)


def test_the_closed_form_passes_gradcheck_entry_by_entry() -> None:
    matrix = positive_definite(4, 2).requires_grad_()
    assert torch.autograd.gradcheck(torchckn.inverse_sqrt, matrix)


def test_a_precomputed_root_has_the_exact_gradient() -> None:
    matrix = positive_definite(4, 3)
    root, cotangent = torchckn.inverse_sqrt(matrix), torch.randn(4, 4, dtype=torch.float64)
    first, second = matrix.clone().requires_grad_(), matrix.clone().requires_grad_()
    torchckn.inverse_sqrt(first).backward(cotangent)
    precomputed_inverse_sqrt(second, root).backward(cotangent)
    torch.testing.assert_close(second.grad, first.grad)


def test_the_derivative_solves_the_lyapunov_equation_of_the_paper() -> None:
    """Lemma "matrix_sqrt" for M^(1/2), then lemma "matrix_inv": with Kronecker products, no eigenvalues."""
    n = 4
    matrix, direction = positive_definite(n, 4), positive_definite(n, 5)
    root = torchckn.inverse_sqrt(matrix)
    square_root, identity = torch.linalg.inv(root).contiguous(), torch.eye(n, dtype=torch.float64)
    kronecker = torch.kron(identity, square_root) + torch.kron(square_root, identity)
    of_square_root = torch.linalg.solve(kronecker, direction.T.reshape(-1)).reshape(n, n).T
    expected = -root @ of_square_root @ root
    jacobian = torch.autograd.functional.jacobian(torchckn.inverse_sqrt, matrix)
    torch.testing.assert_close(torch.einsum("ijkl,kl->ij", jacobian, direction), expected)


def test_second_derivatives_are_refused_rather_than_wrong() -> None:
    matrix = positive_definite(3, 0).requires_grad_()
    with pytest.raises(DerivativeError, match="create_graph=True"):
        torch.autograd.grad(torchckn.inverse_sqrt(matrix).sum(), matrix, create_graph=True)


def test_an_eigenvalue_that_is_rounding_noise_is_not_positive() -> None:
    for seed in range(6):
        rows = torch.randn(10, 9, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        with pytest.raises(NumericalError, match="positive definite matrix"):
            torchckn.inverse_sqrt(rows @ rows.T)


def test_newton_makes_at_least_one_iteration() -> None:
    with pytest.raises(DataError, match="at least one Newton iteration, got 0"):
        torchckn.inverse_sqrt(torch.eye(2), "newton", iters=0)


def test_symmetry_is_checked_relative_to_the_scale_of_each_matrix() -> None:
    crooked = torch.tensor([[1e-6, 1e-7], [-1e-7, 1e-6]])
    with pytest.raises(NumericalError, match="symmetric"):
        torchckn.inverse_sqrt(torch.stack([torch.eye(2), crooked]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["identity", "duplicates"])
def test_repeated_eigenvalues_give_finite_exact_gradients(kind: str, dtype: torch.dtype) -> None:
    base = torch.eye(6) if kind == "identity" else torch.ones(6, 6) + 1e-3 * torch.eye(6)
    matrix = base.to(dtype).requires_grad_()
    cotangent = torch.randn(6, 6, generator=torch.Generator().manual_seed(0)).to(dtype)
    (gradient,) = torch.autograd.grad(torchckn.inverse_sqrt(matrix, "eigh"), matrix, cotangent)
    assert torch.isfinite(gradient).all()
    if kind == "identity":  # d M^(-1/2) = -dM / 2 at the identity
        torch.testing.assert_close(gradient, -(cotangent + cotangent.T) / 4)


def test_newton_is_algorithm_1_of_the_paper() -> None:
    matrix = positive_definite(4, 6).numpy()
    norm = np.sqrt((matrix**2).sum())
    s, t = matrix / norm, np.eye(4)
    for _ in range(7):
        s, t = 0.5 * s @ (3 * np.eye(4) - t @ s), 0.5 * (3 * np.eye(4) - t @ s) @ t
    np.testing.assert_allclose(torchckn.inverse_sqrt(torch.from_numpy(matrix), "newton", iters=7), t / norm**0.5)


def test_newton_iterates_to_a_residual_on_request() -> None:
    matrix = positive_definite(8, 7)
    few, enough = newton(matrix, iters=3), newton(matrix, iters=100, tol=1e-10)
    assert few.residual > 1e-3
    assert enough.residual <= 1e-10
    assert 3 < enough.iterations < 100
    torch.testing.assert_close(enough.residual, newton_residual(matrix, enough.root))
    torch.testing.assert_close(enough.root, torchckn.inverse_sqrt(matrix, "eigh"))


def test_newton_raises_an_error_when_it_does_not_reach_the_residual() -> None:
    with pytest.raises(NumericalError, match="after 3 iterations, expected 1.0e-10; allow more iters"):
        torchckn.inverse_sqrt(positive_definite(8, 7), "newton", iters=3, tol=1e-10)


def test_the_result_has_the_dtype_of_the_input() -> None:
    for dtype in (torch.float32, torch.float64):
        matrix = positive_definite(3, 8).to(dtype).requires_grad_()
        root = torchckn.inverse_sqrt(matrix)
        root.sum().backward()
        assert root.dtype == dtype
        assert matrix.grad is not None
        assert matrix.grad.dtype == dtype


def test_newton_iterations_that_start_from_the_root_of_another_matrix_do_not_reach_the_root() -> None:
    before, now = positive_definite(6, 1), positive_definite(6, 1) + 0.01 * positive_definite(6, 2)
    identity = torch.eye(6, dtype=now.dtype)
    t = torchckn.inverse_sqrt(before, "eigh")
    s = now @ t
    for _ in range(20):
        step = (3 * identity - t @ s) / 2
        s, t = s @ step, step @ t
    assert torch.linalg.matrix_norm(t @ s - identity) < 1e-10  # they converge
    assert newton_residual(now, t) > 1e-4  # to something else
    assert newton(now, iters=60, tol=1e-10).residual < 1e-10


def test_auto_is_the_closed_form_on_a_cpu_and_newton_elsewhere_in_float64_if_it_is_small() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert (choose_method(cpu), choose_method(cuda)) == ("eigh", "newton")
    assert [computes_wide("newton", cuda, size) for size in (32, 33)] == [True, False]
    assert computes_wide("eigh", cuda, 512)
    assert not computes_wide("newton", cpu, 8)  # as the paper compares it
    matrix = positive_definite(4, 9)
    assert torch.equal(torchckn.inverse_sqrt(matrix), torchckn.inverse_sqrt(matrix, "eigh"))


def test_an_empty_batch_stays_empty() -> None:
    assert torchckn.inverse_sqrt(torch.zeros(0, 3, 3)).shape == (0, 3, 3)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("matrix", "error", "message"),
    [
        (torch.ones(2, 3), DataError, r"floating-point square matrices \(..., f, f\), got \(2, 3\)"),
        (torch.ones(3), DataError, r"floating-point square matrices .* got \(3,\)"),
        (torch.eye(3, dtype=torch.long), DataError, "got .* of torch.int64"),
        (torch.tensor([[1.0, torch.nan], [0.0, 1.0]]), NumericalError, "finite entries, got NaN or infinity"),
        (torch.tensor([[1.0, 0.5], [0.0, 1.0]]), NumericalError, r"symmetric matrix, .* pass \(M \+ M.T\) / 2"),
        (torch.tensor([[1.0, 2.0], [2.0, 1.0]]), NumericalError, "smallest eigenvalue -1.0e.00; add eps"),
        (torch.ones(2, 2) * 0, NumericalError, "positive definite matrix"),
    ],
)
def test_bad_matrices_are_refused_with_a_reason(
    method: str, matrix: torch.Tensor, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        torchckn.inverse_sqrt(matrix, method)


def test_the_error_for_an_unknown_method_suggests_the_closest_one() -> None:
    with pytest.raises(ConfigError, match="unknown inverse square root method 'eig'.*Did you mean 'eigh'"):
        torchckn.inverse_sqrt(torch.eye(2), "eig")


@pytest.mark.parametrize("size", [1e-24, 1e20])
def test_newton_takes_matrices_whose_squares_are_no_numbers(size: float) -> None:
    matrix = torch.tensor([[2.0, 1.0], [1.0, 3.0]]) * size
    torch.testing.assert_close(
        torchckn.inverse_sqrt(matrix, "newton"), torchckn.inverse_sqrt(matrix, "eigh"), rtol=1e-4, atol=0
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_svd_of_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    matrix = torch.eye(3, dtype=dtype) * 4
    torch.testing.assert_close(torchckn.inverse_sqrt(matrix, "svd"), torch.eye(3, dtype=dtype) / 2)
