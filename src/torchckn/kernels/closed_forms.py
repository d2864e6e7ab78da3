"""Kernels in closed form: linear, polynomial, arc-cosine, Matern. Read next: :mod:`torchckn.kernels.rbf`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..choices import as_integer
from ..errors import ConfigError
from .base import WIDEST, Kernel, as_number, is_one, positive, safe_norms, short, with_slope


class Linear(Kernel):
    """kappa(t) = t, so k(x, y) = <x, y>: the counterpart of a convolution without a nonlinearity."""

    is_pointwise = True

    def kappa(self, t: Tensor) -> Tensor:
        return t

    def map(self, responses: Tensor, squared_norms: Tensor, inplace: bool = False) -> Tensor:
        if self.degree != 1:  # of a kernel that is derived from this one
            return super().map(responses, squared_norms)
        return responses  # |x| <w, x> / |x|: the norms cancel

    def native(self) -> tuple[str, tuple[float, ...]] | None:
        return ("linear", ()) if self.degree == 1 else None

    def random_features(self, responses: Tensor, squared_norms: Tensor, phases: Tensor) -> Tensor:
        return responses


class Polynomial(Kernel):
    """kappa(t) = ((t + offset) / (1 + offset))^degree; with offset 0, k(x, y) = <x, y>^degree.

    The polynomial's degree is also the degree of the norms, so that offset 0 gives the usual homogeneous kernel.
    """

    def __init__(self, degree: int, offset: float = 0.0) -> None:
        super().__init__()
        if (number := as_integer(degree, 1)) is None:
            raise ConfigError(f"Polynomial expected an integer degree >= 1, got {degree!r}")
        if number > 1000:
            raise ConfigError(f"Polynomial expected a degree of at most 1000, got {short(degree)}")
        if not 0 <= as_number(offset) <= WIDEST:
            raise ConfigError(f"Polynomial expected a finite offset >= 0 (for a positive definite kernel), got {offset!r}")
        self.degree = number
        self.offset = float(offset)

    def kappa(self, t: Tensor) -> Tensor:
        return ((t + self.offset) / (1 + self.offset)) ** self.degree

    def random_features(self, responses: Tensor, squared_norms: Tensor, phases: Tensor) -> Tensor:
        # With z = <w, x> / |x| and normalized Hermite polynomials, E[h_k(z) h_k(z')] = t^k, and 0 for different powers.
        norms, inverse = safe_norms(squared_norms)
        z = responses * inverse
        before, current, total = torch.zeros_like(z), torch.ones_like(z), torch.zeros_like(z)
        for k in range(self.degree + 1):
            part = math.comb(self.degree, k) * self.offset ** (self.degree - k) / (1 + self.offset) ** self.degree
            total = total + current * math.sqrt(part)
            before, current = current, (z * current - math.sqrt(k) * before) / math.sqrt(k + 1)
        return total * norms**self.degree


class ArcCosine(Kernel):
    r"""The arc-cosine kernel of order 0, 1 or 2 (Cho and Saul, 2009): infinitely many Gaussian units.

    ``kappa(t)`` is proportional to the mean of ``a(<w, x>) a(<w, y>)`` over Gaussian w, with a(u) = 1, u, u^2 for
    u > 0 and 0 elsewhere. The paper's appendix has the bracket of order 1 in the wrong place; it is
    (sin theta + (pi - theta) cos theta) / pi.

    The derivatives form a chain, kappa_2' = 4/3 kappa_1 and kappa_1' = kappa_0, so orders 1 and 2 are differentiable
    everywhere and can be trained. (The paper considers them not differentiable, and uses the RBF kernel instead.)
    kappa_0' = 1 / (pi sin theta) is unbounded at |t| = 1: there, up to rounding, it is set to zero, because the diagonal of
    a Gram matrix is constant.
    """

    is_pointwise = True

    def __init__(self, order: int) -> None:
        super().__init__()
        if order not in (0, 1, 2):
            raise ConfigError(f"ArcCosine expected order 0 (step function), 1 (ReLU) or 2, got {order!r}")
        self.order = int(order)
        self.degree = self.order
        self.is_steep = self.order == 0

    def kappa(self, t: Tensor) -> Tensor:
        return with_slope(t, self._value, self._slope)

    def native(self) -> tuple[str, tuple[float, ...]] | None:
        return (f"arc_cosine_{self.order}", ()) if self.order else None

    def random_features(self, responses: Tensor, squared_norms: Tensor, phases: Tensor) -> Tensor:
        step = (responses > 0).to(responses.dtype)
        return step * responses**self.order * (2 / (3 if self.order == 2 else 1)) ** 0.5

    def _value(self, t: Tensor) -> Tensor:
        if self.order == 0:
            t = t.where(~is_one(t.abs()), t.sign())
        return self._of_order(t.clamp(-1, 1), self.order)

    def _slope(self, t: Tensor) -> Tensor:
        t = t.clamp(-1, 1)
        if self.order == 2:
            return self._of_order(t, 1).mul_(4 / 3)
        if self.order == 1:
            return self._of_order(t, 0)
        sine_squared = (1 - t) * (1 + t)
        return sine_squared.masked_fill_(is_one(t.abs()), torch.inf).rsqrt_().div_(math.pi)

    @staticmethod
    def _of_order(t: Tensor, order: int) -> Tensor:
        if order == 0:
            return 1 - torch.acos(t) / math.pi
        sine = ((1 - t) * (1 + t)).sqrt_()
        supplement = math.pi - torch.acos(t)
        if order == 1:
            return supplement.mul_(t).add_(sine).div_(math.pi)
        return (1 + 2 * t * t).mul_(supplement).add_(sine.mul_(t), alpha=3).div_(3 * math.pi)


class Matern(Kernel):
    r"""The Matern kernel of half-integer order nu = p + 1/2, as a function of the chord between two points of the sphere.

    .. math:: \kappa(t) = M_\nu(u), \quad u = \frac{\sqrt{2\nu}}{\sigma} \sqrt{2 - 2t}, \quad
              M_{p + 1/2}(u) = e^{-u} \frac{p!}{(2p)!} \sum_{i=0}^{p} \frac{(p+i)!}{i!(p-i)!} (2u)^{p-i}

    From ``M_nu'(u) = -u M_{nu-1}(u) / (2 nu - 2)`` follows ``kappa'(t) = nu M_{nu-1}(u) / (sigma^2 (nu - 1))``, finite at
    t = 1. For nu = 1/2 it is ``e^-u / (sigma^2 u)``, unbounded at t = 1 and set to zero there, as for ``ArcCosine(0)``.
    """

    def __init__(self, nu: float, sigma: float) -> None:
        super().__init__()
        if not 0 < as_number(nu) < 20 or (2 * nu) % 2 != 1:
            raise ConfigError(f"Matern expected a half-integer nu of at most 19.5 (0.5, 1.5, 2.5, ...), got {nu!r}")
        self.nu = float(nu)
        self.is_steep = self.nu < 1
        self.sigma = positive("Matern", "sigma", sigma)

    def kappa(self, t: Tensor) -> Tensor:
        return with_slope(t, self._value, self._slope)

    def _scaled_chord(self, t: Tensor) -> Tensor:
        return (2 - 2 * t).clamp_(min=0).sqrt_().mul_(math.sqrt(2 * self.nu) / self.sigma)

    def _value(self, t: Tensor) -> Tensor:
        if self.nu < 1:
            t = t.masked_fill(is_one(t), 1.0)
        return self._of_order(self._scaled_chord(t), int(self.nu))

    def _slope(self, t: Tensor) -> Tensor:
        u = self._scaled_chord(t)
        if self.nu > 1:
            return self._of_order(u, int(self.nu) - 1).mul_(self.nu / (self.nu - 1) / self.sigma**2)
        return torch.exp(-u).div_(u.masked_fill(is_one(t), torch.inf)).div_(self.sigma**2)

    @staticmethod
    def _of_order(u: Tensor, p: int) -> Tensor:
        # Horner's scheme from the highest power of 2u down, with a part of exp(-u) in every step to avoid overflow.
        decay = torch.exp(-u / (p + 1))
        scale = math.factorial(p) / math.factorial(2 * p)
        total = decay * scale
        for i in range(1, p + 1):
            factor = math.factorial(p + i) / (math.factorial(i) * math.factorial(p - i)) * scale
            total = total.mul_(2 * u).mul_(decay).add_(factor * decay ** (i + 1))
        return total
