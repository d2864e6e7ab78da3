r"""The inverse square root of the filters' Gram matrix, and its derivative.

.. math:: A = M^{-1/2}, \qquad M = \kappa(W W^T) + \epsilon I

Paper: section 4.2 and Algorithm 1 (intertwined Newton), lemma "matrix_sqrt" (the Lyapunov equation of the derivative).
Read next: :mod:`torchckn.nn.functional`.

Three methods, each for one matrix (f, f) or a batch (..., f, f):

``eigh``
    M = U diag(s^2) U^T gives A = U diag(1/s) U^T. In the eigenbasis the paper's Lyapunov equation is diagonal, so the
    derivative is exact and has no singularity, not even at repeated eigenvalues:

    .. math:: \bar M = U \left[ (U^T \bar A U) \circ F \right] U^T, \qquad F_{ij} = \frac{-1}{s_i s_j (s_i + s_j)}

    Computed in float64, whatever the dtype of M.
``newton``
    The paper's method: matrix products only, differentiated by autograd through the iterations.
``svd``
    Autograd through a singular value decomposition, included because the paper compares with it. Its derivative divides by
    differences of singular values: inaccurate when they are close, NaN when they are equal.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..choices import RootMethod, check_choice
from ..derivatives import first_only
from ..errors import ConfigError, DataError, NumericalError
from ..kernels.base import require_tensor
from .checks import require
from .devices import choose_method, reads_are_free, wide_dtype

#: Newton iterations, as in the paper
ITERATIONS = 20


def check_method(method: str) -> tuple[str, int]:
    """The method and its number of Newton iterations, from a text such as ``"newton"`` or ``"newton:50"``."""
    name, colon, number = method.partition(":") if isinstance(method, str) else (method, "", "")
    check_choice("inverse square root method", name, RootMethod)
    if not colon:
        return name, ITERATIONS
    if name != "newton" or not number.isdecimal() or len(number) > 4 or not int(number):
        raise ConfigError(
            f"inverse_sqrt: expected a number of iterations for newton only, as in 'newton:50', got {method!r}"
        )
    return name, int(number)


def resolve_method(method: str, device: torch.device) -> tuple[str, int]:
    """The method with ``"auto"`` resolved, and its number of Newton iterations."""
    name, iters = check_method(method)
    return (choose_method(device) if name == "auto" else name), iters


def inverse_sqrt(
    matrix: Tensor,
    method: str = "auto",
    *,
    iters: int | None = None,
    tol: float | None = None,
    spectrum: Spectrum | None = None,
) -> Tensor:
    """M^(-1/2) of a symmetric positive definite matrix (f, f) or a batch of them (..., f, f).

    Args:
        matrix: symmetric (up to rounding; the symmetric part is used) and positive definite.
        method: ``"eigh"``, ``"newton"``, ``"svd"``, or ``"auto"``, see
            :func:`torchckn.nn.devices.choose_method`. ``"newton:50"``: 50 iterations.
        iters: Newton iterations, 20 by default as in the paper; with ``tol``, the maximum.
        tol: for Newton, stop as soon as :func:`newton_residual` is below this; an error if ``iters`` do not reach it.
        spectrum: for ``"eigh"``, the decomposition of the last call, used again if the matrix is the same.

    Example:
        >>> inverse_sqrt(torch.diag(torch.tensor([4.0, 25.0])))
        tensor([[0.5000, 0.0000],
                [0.0000, 0.2000]])
    """
    require_tensor("inverse_sqrt", matrix)
    method, method_iters = resolve_method(method, matrix.device)
    iters = method_iters if iters is None else iters
    _require_symmetric(matrix)
    symmetric = (matrix + matrix.mT) / 2
    if method == "newton":
        if iters < 1:
            raise DataError(f"iters expected at least one Newton iteration, got {iters!r}")
        return newton(symmetric, iters=iters, tol=tol).root
    if method == "eigh":
        return closed_form(symmetric, spectrum or Spectrum())
    return _svd_inverse_sqrt(symmetric)


class Spectrum:
    """The last matrices whose roots were computed in closed form, and what they were computed from.

    A training step computes roots for its gradient, moves the filters, and computes roots again for the new classifier: the
    next step begins with these very matrices.
    """

    def __init__(self) -> None:
        self._last: tuple[Tensor, Tensor, Tensor] | None = None
        self._parts: dict[int, Spectrum] = {}

    def part(self, i: int) -> Spectrum:
        """That of the i-th block of filters."""
        return self._parts.setdefault(i, Spectrum())

    def of(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        """M = U diag(s^2) U^T as s, U, in float64."""
        if self._last is not None and reads_are_free(matrix.device):
            matrix_before, scales, vectors = self._last
            if matrix_before.dtype == matrix.dtype and torch.equal(matrix_before, matrix):
                return scales, vectors
        values, vectors = torch.linalg.eigh(matrix.to(wide_dtype(matrix.device)))
        # An eigenvalue below the rounding error of the largest one is noise, whatever its sign.
        noise = matrix.shape[-1] * torch.finfo(values.dtype).eps * values[..., -1:].abs()
        _require_positive(values[..., :1] - noise, matrix)
        scales = values.sqrt()
        if not torch.compiler.is_compiling() and not vectors.is_inference():  # training could not use what is of that mode
            self._last = matrix.detach(), scales, vectors
        return scales, vectors


class _EighInverseSqrt(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: Tensor, spectrum: Spectrum) -> Tensor:
        scales, vectors = spectrum.of(matrix)
        ctx.save_for_backward(scales, vectors)
        return ((vectors / scales[..., None, :]) @ vectors.mT).to(matrix.dtype)

    @staticmethod
    @first_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        scales, vectors = ctx.saved_tensors
        return lyapunov_gradient(scales, vectors, grad), None


def closed_form(matrix: Tensor, spectrum: Spectrum) -> Tensor:
    """M^(-1/2) of matrices that are symmetric and finite, without a check that they are; ``eigh`` as above."""
    return _EighInverseSqrt.apply(matrix, spectrum)


def lyapunov_gradient(scales: Tensor, vectors: Tensor, grad: Tensor) -> Tensor:
    """The gradient with respect to M = U diag(s^2) U^T, given the one with respect to M^(-1/2): the closed form above."""
    wide = grad.to(vectors.dtype)
    wide = vectors.mT @ (wide + wide.mT) @ vectors / 2
    row, column = scales[..., :, None], scales[..., None, :]
    return (vectors @ (-wide / (row * column * (row + column))) @ vectors.mT).to(grad.dtype)


class _PrecomputedRoot(torch.autograd.Function):
    """A root computed earlier, with the exact gradient with respect to its matrix."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, root: Tensor) -> Tensor:
        ctx.save_for_backward(root)
        return root.view_as(root)

    @staticmethod
    @first_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (root,) = ctx.saved_tensors
        inverse_scales, vectors = torch.linalg.eigh(root.to(wide_dtype(root.device)))
        return lyapunov_gradient(1 / inverse_scales, vectors, grad), None


def precomputed_inverse_sqrt(matrix: Tensor, root: Tensor) -> Tensor:
    """``root``, which equals ``matrix^(-1/2)``, as a differentiable function of ``matrix``; costs nothing until backward."""
    return _PrecomputedRoot.apply(matrix, root)


class NewtonResult(NamedTuple):
    root: Tensor
    """the approximate inverse square root, (..., f, f)"""
    residual: Tensor
    """its error: ``newton_residual(matrix, root)``, one number per matrix"""
    iterations: int
    """number of iterations made"""


def newton(matrix: Tensor, iters: int = ITERATIONS, tol: float | None = None) -> NewtonResult:
    """Algorithm 1 of the paper: Newton's method for sign([[0, M], [I, 0]]), with one inner Newton step per inverse.

    Differentiable by autograd through the iterations. ``tol`` as in :func:`inverse_sqrt`.
    """
    _require_positive(_definiteness(matrix), matrix)
    # Divided by the Frobenius norm, the spectrum is in (0, 1]. Squares of tiny or huge entries are not numbers, so the norm is
    # computed of entries that are scaled by a power of two, which does not round.
    size = matrix.detach().abs().amax((-2, -1), keepdim=True).log2().round().exp2()
    norm = torch.linalg.matrix_norm(matrix / size, keepdim=True) * size
    root, iterations = newton_iterations(matrix, norm, iters, tol)
    residual = newton_residual(matrix.detach(), root.detach())
    if tol is not None and not bool((residual <= tol).all()):
        raise NumericalError(
            f"Newton's method reached a residual of {residual.max().item():.1e} after {iterations} iterations, expected "
            f"{tol:.1e}; allow more iters, a larger tol or eps, use float64, or method='eigh'"
        )
    return NewtonResult(root, residual, iterations)


def newton_iterations(matrix: Tensor, norm: Tensor, iters: int, tol: float | None = None) -> tuple[Tensor, int]:
    """The iterations of :func:`newton`, without its checks, and how many of them were made.

    ``norm``: what matrices (..., f, f) are divided by, so that their spectra are in (0, 1]: (..., 1, 1)
    """
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    s, t = matrix / norm, identity.expand_as(matrix)
    iterations = 0
    while iterations < iters:
        step = (3 * identity - t @ s) / 2
        s, t = s @ step, step @ t
        iterations += 1
        # T S -> I: the residual of the iteration, which needs fewer products than newton_residual.
        if tol is not None and bool((torch.linalg.matrix_norm((t @ s).detach() - identity) <= tol).all()):
            break
    return t / norm.sqrt(), iterations


def newton_residual(matrix: Tensor, root: Tensor) -> Tensor:
    """|T M T - I| in the Frobenius norm, for each matrix M with approximate inverse square root T."""
    product = root @ matrix @ root
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    return torch.linalg.matrix_norm(product - identity)


def _svd_inverse_sqrt(matrix: Tensor) -> Tensor:
    _require_positive(_definiteness(matrix), matrix)
    half = matrix.dtype in (torch.float16, torch.bfloat16)  # which torch has no SVD for
    left, values, right = torch.linalg.svd(matrix.float() if half else matrix)
    return ((left * values.rsqrt()[..., None, :]) @ right).to(matrix.dtype)


def _require_symmetric(matrix: Tensor) -> None:
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2] or not matrix.is_floating_point():
        raise DataError(
            f"inverse_sqrt expected floating-point square matrices (..., f, f), got {tuple(matrix.shape)} of {matrix.dtype}"
        )
    if torch.compiler.is_compiling() or not matrix.numel():
        return
    detached = matrix.detach()
    sizes = detached.abs().amax((-2, -1), keepdim=True)
    scale = sizes.clamp(min=torch.finfo(matrix.dtype).tiny)
    asymmetry = ((detached - detached.mT).abs() / scale).max()  # NaN if an entry is not finite
    tolerance = 1e-3 if matrix.dtype in (torch.float16, torch.bfloat16) else 1e-5
    require(asymmetry <= tolerance, lambda: _asymmetry_error(sizes, asymmetry))


def _asymmetry_error(sizes: Tensor, asymmetry: Tensor) -> NumericalError:
    if not bool(sizes.isfinite().all()):
        return NumericalError(
            "inverse_sqrt expected finite entries, got NaN or infinity; check the filters and the bandwidth, and try a smaller "
            "learning rate, because too large a training step is the usual cause"
        )
    return NumericalError(
        f"inverse_sqrt expected a symmetric matrix, got one whose asymmetry is {asymmetry.item():.1e} of its largest entry; "
        "pass (M + M.T) / 2 to use its symmetric part"
    )


def _definiteness(matrix: Tensor) -> Tensor:
    """1 for a positive definite matrix, at most 0 otherwise: whether its Cholesky factorization succeeds."""
    _, info = torch.linalg.cholesky_ex(matrix.detach().to(wide_dtype(matrix.device)))
    return 1 - info


def _require_positive(definiteness: Tensor, matrix: Tensor) -> None:
    def error() -> NumericalError:
        lowest = torch.linalg.eigvalsh(matrix.detach().to(wide_dtype(matrix.device))).min().item()
        return NumericalError(
            f"inverse_sqrt expected a positive definite matrix, got one with smallest eigenvalue {lowest:.1e}; "
            "add eps * I to it (for a layer: a larger eps, at least 1e-6 in float32), and check for duplicate filters"
        )

    require(definiteness > 0, error)
