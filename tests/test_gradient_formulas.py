"""The formulas of the appendix "CKN gradient", with its Kronecker products, compared with autograd.

Notation of the appendix: vec stacks columns, so vec(A X B) = (B^T kron A) vec(X). Images are matrices (channels, positions).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from torchckn import kernels
from torchckn.nn.functional import kernel_conv2d, projection

from .contracts import unit_rows

EPS = 1e-3
CHANNELS, SIDE, SIZE, FILTERS, POOL = 2, 5, 3, 4, 2
KERNELS = [kernels.RBFSphere(0.6), kernels.ArcCosine(1), kernels.Polynomial(1, 0.5), kernels.Matern(2.5, 0.8)]


def vec(matrix: np.ndarray) -> np.ndarray:
    return matrix.T.reshape(-1)


def kron(*matrices: np.ndarray) -> np.ndarray:
    return np.kron(*matrices)


class Layer:
    """One layer on one image, with every matrix of the appendix."""

    def __init__(self, kernel: kernels.Kernel) -> None:
        g = torch.Generator().manual_seed(3)
        self.kernel = kernel
        self.weight = unit_rows(FILTERS, CHANNELS, SIZE, SIZE, generator=g)
        self.image = torch.randn(1, CHANNELS, SIDE, SIDE, generator=g, dtype=torch.float64)
        self.f, self.s = FILTERS, CHANNELS * SIZE * SIZE
        self.w = self.weight.flatten(1).numpy()  # (f, s)
        self.e = F.unfold(self.image, SIZE)[0].numpy()  # (s, p)
        self.p = self.e.shape[1]
        self.n = np.diag(np.sqrt((self.e**2).sum(0)))  # (p, p)
        self.n_inverse = np.linalg.inv(self.n)
        side = SIDE - SIZE + 1
        pool = F.avg_pool2d(torch.eye(self.p, dtype=torch.float64).reshape(self.p, 1, side, side), POOL, 1)
        self.pool = pool.flatten(1).numpy()  # (p, p')
        self.a = projection(torch.from_numpy(self.w), kernel, EPS).detach().numpy()
        self.b = self.k(self.w @ self.e @ self.n_inverse)

    def k(self, t: np.ndarray) -> np.ndarray:
        return self.kernel.kappa(torch.from_numpy(t)).detach().numpy()

    def k_prime(self, t: np.ndarray) -> np.ndarray:
        x = torch.from_numpy(t).requires_grad_()
        return torch.autograd.grad(self.kernel.kappa(x).sum(), x)[0].numpy()

    def forward(self, weight: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        root = projection(weight.flatten(1), self.kernel, EPS)
        return kernel_conv2d(image, weight, root, self.kernel, pool=lambda x: F.avg_pool2d(x, POOL, 1))

    def extraction(self) -> np.ndarray:
        """Sigma: vec of the image to vec of its patches."""
        pixels = SIDE * SIDE
        columns = []
        for position in range(pixels):  # columns are stacked: by position, then by channel
            for channel in range(CHANNELS):
                basis = torch.zeros(1, CHANNELS, pixels, dtype=torch.float64)
                basis[0, channel, position] = 1
                columns.append(vec(F.unfold(basis.view(1, CHANNELS, SIDE, SIDE), SIZE)[0].numpy()))
        return np.stack(columns, 1)

    def of_root(self) -> np.ndarray:
        """-(I kron A + A kron I)^-1 (A^2 kron A^2): the derivative of A with respect to the Gram matrix."""
        identity, square = np.eye(self.f), self.a @ self.a
        return -np.linalg.solve(kron(identity, self.a) + kron(self.a, identity), kron(square, square))


@pytest.fixture(params=KERNELS, ids=str)
def layer(request: pytest.FixtureRequest) -> Layer:
    return Layer(request.param)


def jacobian(layer: Layer, of: str) -> np.ndarray:
    """Autograd's Jacobian, in the appendix's order of rows and columns."""
    if of == "weight":
        full = torch.autograd.functional.jacobian(lambda w: layer.forward(w, layer.image), layer.weight)
        inputs = full[0].flatten(1, 2).flatten(3).permute(1, 0, 3, 2)  # (p', f, s, f): both vecs with columns first
    else:
        full = torch.autograd.functional.jacobian(lambda x: layer.forward(layer.weight, x), layer.image)
        inputs = full[0].flatten(1, 2)[:, :, 0].flatten(3).permute(1, 0, 3, 2)
    return inputs.flatten(2).flatten(0, 1).numpy()


def test_the_layer_is_the_matrix_equation_of_the_appendix(layer: Layer) -> None:
    expected = layer.a @ layer.b @ layer.n @ layer.pool
    np.testing.assert_allclose(layer.forward(layer.weight, layer.image)[0].flatten(1), expected, atol=1e-12)


def test_derivative_with_respect_to_the_weights(layer: Layer) -> None:
    """Proposition "1layer_grad"."""
    f, s = layer.f, layer.s
    transpose = np.zeros((f * s, f * s))  # T: vec(H^T) = T vec(H)
    for i in range(f):
        for j in range(s):
            transpose[i * s + j, j * f + i] = 1
    identity = np.eye(f)
    through_root = (
        kron((layer.b @ layer.n @ layer.pool).T, identity)
        @ layer.of_root()
        @ np.diag(vec(layer.k_prime(layer.w @ layer.w.T)))
        @ (kron(layer.w, identity) + kron(identity, layer.w) @ transpose)
    )
    cosines = layer.w @ layer.e @ layer.n_inverse
    through_responses = (
        kron((layer.n @ layer.pool).T, layer.a)
        @ np.diag(vec(layer.k_prime(cosines)))
        @ kron((layer.e @ layer.n_inverse).T, identity)
    )
    np.testing.assert_allclose(jacobian(layer, "weight"), through_root + through_responses, atol=1e-8)


def test_derivative_with_respect_to_the_input(layer: Layer) -> None:
    """Proposition "2layer_grad_part1"; the corollary's exponent is that of N^-3, as used here."""
    identity = np.eye(layer.p)
    cosines = layer.w @ layer.e @ layer.n_inverse
    n_cubed = np.diag(np.diag(layer.n) ** -3.0)
    through_cosines = (
        kron((layer.n @ layer.pool).T, layer.a)
        @ np.diag(vec(layer.k_prime(cosines)))
        @ (
            kron(layer.n_inverse, layer.w)
            - kron(identity, layer.w @ layer.e) @ np.diag(vec(n_cubed)) @ kron(identity, layer.e.T)
        )
    )
    through_norms = kron(layer.pool.T, layer.a @ layer.b) @ np.diag(vec(layer.n_inverse)) @ kron(identity, layer.e.T)
    expected = (through_cosines + through_norms) @ layer.extraction()
    np.testing.assert_allclose(jacobian(layer, "input"), expected, atol=1e-8)


def test_derivative_with_respect_to_the_bandwidth() -> None:
    """Proposition "1layer_grad_bw"."""
    sigma = 0.6
    layer = Layer(kernels.RBFSphere(sigma))
    cosines, gram = layer.w @ layer.e @ layer.n_inverse, layer.w @ layer.w.T
    of_gram = 2 / sigma**3 * layer.k(gram) * (1 - gram)
    of_values = 2 / sigma**3 * layer.b * (1 - cosines)
    expected = kron((layer.b @ layer.n @ layer.pool).T, np.eye(layer.f)) @ layer.of_root() @ vec(of_gram)
    expected += kron((layer.n @ layer.pool).T, layer.a) @ vec(of_values)

    layer.kernel = kernels.RBFSphere(sigma, trainable=True)
    (parameter,) = layer.kernel.parameters()
    features = layer.forward(layer.weight, layer.image)[0].flatten(1)
    actual = [torch.autograd.grad(v, parameter, retain_graph=True)[0].item() for v in features.T.flatten()]
    np.testing.assert_allclose(actual, expected, atol=1e-8)


def test_the_gradient_of_a_loss_is_the_product_of_layer_jacobians() -> None:
    """Proposition "loss_grad", for two layers: L' vec(W_3)^T (d Psi_2 / d F_1) (d Psi_1 / d W_1)."""
    g = torch.Generator().manual_seed(0)
    kernel = kernels.RBFSphere(0.6)
    first = unit_rows(3, 1, 2, 2, generator=g).requires_grad_()
    second = unit_rows(2, 3, 2, 2, generator=g)
    image = torch.randn(1, 1, 4, 4, generator=g, dtype=torch.float64)
    head = torch.randn(8, generator=g, dtype=torch.float64)

    def psi(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return kernel_conv2d(x, weight, projection(weight.flatten(1), kernel, EPS), kernel)

    between = psi(first, image)
    features = psi(second, between)
    score = features.flatten() @ head
    (gradient,) = torch.autograd.grad((score - 1) ** 2, first)
    of_second = torch.autograd.functional.jacobian(lambda x: psi(second, x).flatten(), between.detach())
    of_first = torch.autograd.functional.jacobian(lambda w: psi(w, image), first.detach())
    chain = (2 * (score.detach() - 1) * head) @ of_second.flatten(1) @ of_first.flatten(0, 3).flatten(1)
    torch.testing.assert_close(gradient.flatten(), chain, rtol=1e-8, atol=1e-8)
