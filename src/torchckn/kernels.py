r"""Dot-product kernels on the sphere: the counterpart of a ConvNet's nonlinearity.

.. math::  k(x, y) = (\|x\| \|y\|)^{\text{degree}} \; \kappa\!\left(\frac{\langle x, y\rangle}{\|x\|\|y\|}\right),
           \qquad \kappa(1) = 1

Paper: section 3.1, "Overall formulation" (the form), section 3.2 and table 1 (which activation corresponds to
which kernel), appendix "CKN gradient" (derivatives). Read next: :mod:`torchckn.nn.invsqrt`.

=====================  =====================================================  ======  =======================
kernel                 kappa(t), theta = arccos t                              degree  counterpart of
=====================  =====================================================  ======  =======================
``Linear()``           t                                                      1       no nonlinearity
``ArcCosine(0)``       1 - theta / pi                                         0       step function (~ tanh)
``ArcCosine(1)``       (sin theta + (pi - theta) t) / pi                      1       ReLU
``ArcCosine(2)``       (3 sin theta t + (pi - theta)(1 + 2 t^2)) / (3 pi)     2       squared ReLU
``RBFSphere(sigma)``   exp((t - 1) / sigma^2)                                 1       smooth, ReLU-like
``Polynomial(d, c)``   ((t + c) / (1 + c))^d                                  d       power d
``Matern(nu, sigma)``  Matern function of the chord sqrt(2 - 2 t)             1       (rougher RBF)
=====================  =====================================================  ======  =======================

To add a kernel, write a subclass of :class:`Kernel` with one method, ``kappa``; see CONTRIBUTING.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .errors import ConfigError, DataError, unknown_name


def safe_norms(squared: Tensor) -> tuple[Tensor, Tensor]:
    """Norms and their inverses from squared norms; both are 0, with zero gradient, for a zero vector."""
    zero = squared <= torch.finfo(squared.dtype).tiny  # not `~(squared > tiny)`: a NaN must stay a NaN
    norms = squared.masked_fill(zero, 1.0).sqrt()
    return norms.masked_fill(zero, 0.0), norms.reciprocal().masked_fill(zero, 0.0)


class Kernel(nn.Module):
    """Base class: subclasses define ``kappa`` and, where it is not 1, ``degree``.

    Constructor arguments are stored as attributes of the same names, so that a kernel can be saved with a model
    (:meth:`spec`) and rebuilt from it. Subclasses are registered under their class name.
    """

    #: k(x, y) grows like (|x| |y|)^degree; 0 ignores the norms.
    degree: int = 1

    #: kappa' is unbounded at t = 1
    is_steep: bool = False
    #: its random features are an activation, a function of each unit separately
    is_pointwise: bool = False

    _registry: ClassVar[dict[str, type[Kernel]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        registered = Kernel._registry.get(cls.__name__)
        if registered is not None and registered.__module__ == __name__ != cls.__module__:
            raise ConfigError(
                f"expected a new class name for a kernel, got {cls.__name__}, which torchckn already has; choose another "
                "name, because saved models refer to kernels by name"
            )
        Kernel._registry[cls.__name__] = cls
        if "kappa" in vars(cls):  # a parent's hand-written methods are valid for the parent's kappa only
            for method in ("map", "random_features"):
                if method not in vars(cls):
                    setattr(cls, method, getattr(Kernel, method))

    def kappa(self, t: Tensor) -> Tensor:
        """Elementwise kappa of cosines ``t``: differentiable, value and gradient finite on all of [-1, 1]."""
        raise TypeError(f"{type(self).__name__} must define kappa(t): the kernel as a function of the cosine")

    def gram(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """Kernel values of the rows of ``x`` (n, d) against the rows of ``y`` (m, d), norms included: (n, m)."""
        y = x if y is None else y
        if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1] or not x.is_floating_point():
            raise DataError(
                f"gram expected two floating-point matrices with rows of equal length, got {tuple(x.shape)} and "
                f"{tuple(y.shape)} of {x.dtype}; flatten images or patches to rows first"
            )
        x_norms, x_inverse = safe_norms(x.square().sum(1, keepdim=True))  # (n, 1)
        y_norms, y_inverse = safe_norms(y.square().sum(1, keepdim=True))  # (m, 1)
        values = self.kappa((x * x_inverse) @ (y * y_inverse).T)
        return values * (x_norms @ y_norms.T) ** self.degree if self.degree else values

    def map(self, responses: Tensor, squared_norms: Tensor, inplace: bool = False) -> Tensor:
        """|x|^degree kappa(<w, x> / |x|) for unit filters w, from the products <w, x> and the squares |x|^2.

        This is ``k(W E N^-1) N`` in the layer equation. With ``inplace``, ``responses`` may be overwritten.
        """
        norms, inverse = safe_norms(squared_norms)
        values = self.kappa(responses * inverse)
        return values * norms**self.degree if self.degree else values

    def random_features(self, responses: Tensor, squared_norms: Tensor, phases: Tensor) -> Tensor:
        """Activations whose mean product over Gaussian w is the kernel (first proposition of the paper).

        Args:
            responses: <w, x> for w with independent standard normal entries, (N, f, ...)
            squared_norms: |x|^2, (N, 1, ...)
            phases: one number per filter, uniform on [0, 2 pi), broadcastable to ``responses``
        """
        raise ConfigError(f"{type(self).__name__} has no random features; use Linear, ArcCosine or RBFSphere")

    def spec(self) -> KernelSpec:
        """This kernel as plain data: its class name and its constructor arguments."""
        parameters = list(inspect.signature(type(self).__init__).parameters.values())[1:]
        names = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        missing = [name for name in names if not hasattr(self, name)]
        if missing:
            raise ConfigError(f"{type(self).__name__} must store its arguments {missing} as attributes of the same names")
        values = ((name, getattr(self, name)) for name in names)
        return KernelSpec(type(self).__name__, tuple((n, _plain(v)) for n, v in values))

    def extra_repr(self) -> str:
        try:
            return ", ".join(f"{name}={value}" for name, value in self.spec().arguments)
        except ConfigError:
            return ""


def _plain(value: Any) -> Any:
    """A constructor argument as plain data: tensors become numbers or tuples of numbers."""
    if not isinstance(value, Tensor):
        return value
    numbers = value.detach().tolist()
    return tuple(numbers) if isinstance(numbers, list) else numbers


@dataclass(frozen=True)
class KernelSpec:
    """A description of a kernel: hashable, comparable, convertible to JSON. ``build`` creates the kernel."""

    name: str
    arguments: tuple[tuple[str, Any], ...] = ()

    def build(self) -> Kernel:
        if self.name not in Kernel._registry:
            remedy = "Import your own kernel before you load a model that uses it."
            raise unknown_name("kernel", self.name, Kernel._registry, remedy)
        try:
            return Kernel._registry[self.name](**dict(self.arguments))
        except TypeError as error:
            raise ConfigError(f"kernel {self.name} cannot be built from {dict(self.arguments)}: {error}") from error

    def __str__(self) -> str:
        values = (value for name, value in self.arguments if name != "trainable")
        trained = ", trained" if dict(self.arguments).get("trainable") else ""
        return f"{self.name}({', '.join(f'{v:g}' if isinstance(v, float) else repr(v) for v in values)}{trained})"


def names() -> list[str]:
    """The names of all registered kernels, user-defined ones included."""
    return sorted(Kernel._registry)


#: names of kernels on the command line and in configuration files, with their classes and the types of their arguments
_TEXT_NAMES: dict[str, tuple[str, tuple[type, ...]]] = {
    "linear": ("Linear", ()),
    "rbf": ("RBFSphere", (float,)),
    "arccosine": ("ArcCosine", (int,)),
    "polynomial": ("Polynomial", (int, float)),
    "matern": ("Matern", (float, float)),
}


def parse(text: str) -> Kernel | Literal["match"]:
    """A kernel from its command-line form: ``rbf:0.6``, ``arccosine:1``, ``linear``, ``matern:1.5:0.6``, or ``match``.

    Example:
        >>> parse("rbf:0.6")
        RBFSphere(sigma=0.6, trainable=False)
    """
    name, *numbers = text.split(":")
    if name == "match" and not numbers:
        return "match"
    if name not in _TEXT_NAMES:
        raise unknown_name("kernel", name, ["match", *_TEXT_NAMES], "Write its numbers after colons, as in rbf:0.6.")
    class_name, types = _TEXT_NAMES[name]
    try:
        values = [kind(number) for kind, number in zip(types, numbers, strict=True)]
    except ValueError:
        expected = ":".join([name, *("NUMBER" for _ in types)])
        raise ConfigError(f"kernel: expected {expected}, got {text!r}; write for example rbf:0.6 or arccosine:1") from None
    return Kernel._registry[class_name](*values)


class _WithSlope(torch.autograd.Function):
    """value(t) with the hand-written derivative slope(t), because autograd gives inf * 0 at |t| = 1."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, value: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(t)
        ctx.slope = slope
        return value(t)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (t,) = ctx.saved_tensors
        return grad * ctx.slope(t), None, None


def _is_one(t: Tensor) -> Tensor:
    """Where a cosine is 1 up to the rounding error of an inner product.

    Kernels with an unbounded slope at 1 amplify that error to its square root, so they treat such a cosine as exactly 1.
    (The limit of 1e-3 is for float16 and bfloat16.)
    """
    return t > 1 - min(32 * torch.finfo(t.dtype).eps, 1e-3)


class Linear(Kernel):
    """kappa(t) = t, so k(x, y) = <x, y>: the counterpart of a convolution without a nonlinearity."""

    is_pointwise = True

    def kappa(self, t: Tensor) -> Tensor:
        return t

    def map(self, responses: Tensor, squared_norms: Tensor, inplace: bool = False) -> Tensor:
        return responses  # |x| <w, x> / |x|: the norms cancel

    def random_features(self, responses: Tensor, squared_norms: Tensor, phases: Tensor) -> Tensor:
        return responses


class Polynomial(Kernel):
    """kappa(t) = ((t + offset) / (1 + offset))^degree; with offset 0, k(x, y) = <x, y>^degree.

    The polynomial's degree is also the degree of the norms, so that offset 0 gives the usual homogeneous kernel.
    """

    def __init__(self, degree: int, offset: float = 0.0) -> None:
        super().__init__()
        if not isinstance(degree, int) or degree < 1:
            raise ConfigError(f"Polynomial expected an integer degree >= 1, got {degree!r}")
        if degree > 1000:
            raise ConfigError(f"Polynomial expected a degree of at most 1000, got {_short(degree)}")
        if not 0 <= _number(offset) <= _WIDEST:
            raise ConfigError(f"Polynomial expected a finite offset >= 0 (for a positive definite kernel), got {offset!r}")
        self.degree = degree
        self.offset = float(offset)

    def kappa(self, t: Tensor) -> Tensor:
        return ((t + self.offset) / (1 + self.offset)) ** self.degree


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
        return _WithSlope.apply(t, self._value, self._slope)

    def random_features(self, responses: Tensor, squared_norms: Tensor, phases: Tensor) -> Tensor:
        step = (responses > 0).to(responses.dtype)
        return step * responses**self.order * (2 / (3 if self.order == 2 else 1)) ** 0.5

    def _value(self, t: Tensor) -> Tensor:
        if self.order == 0:
            t = t.where(~_is_one(t.abs()), t.sign())
        return self._of_order(t.clamp(-1, 1), self.order)

    def _slope(self, t: Tensor) -> Tensor:
        t = t.clamp(-1, 1)
        if self.order == 2:
            return self._of_order(t, 1).mul_(4 / 3)
        if self.order == 1:
            return self._of_order(t, 0)
        sine_squared = (1 - t) * (1 + t)
        return sine_squared.masked_fill_(_is_one(t.abs()), torch.inf).rsqrt_().div_(math.pi)

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
        if not 0 < _number(nu) < 20 or (2 * nu) % 2 != 1:
            raise ConfigError(f"Matern expected a half-integer nu of at most 19.5 (0.5, 1.5, 2.5, ...), got {nu!r}")
        self.nu = float(nu)
        self.is_steep = self.nu < 1
        self.sigma = _positive("Matern", "sigma", sigma)

    def kappa(self, t: Tensor) -> Tensor:
        return _WithSlope.apply(t, self._value, self._slope)

    def _scaled_chord(self, t: Tensor) -> Tensor:
        return (2 - 2 * t).clamp_(min=0).sqrt_().mul_(math.sqrt(2 * self.nu) / self.sigma)

    def _value(self, t: Tensor) -> Tensor:
        if self.nu < 1:
            t = t.masked_fill(_is_one(t), 1.0)
        return self._of_order(self._scaled_chord(t), int(self.nu))

    def _slope(self, t: Tensor) -> Tensor:
        u = self._scaled_chord(t)
        if self.nu > 1:
            return self._of_order(u, int(self.nu) - 1).mul_(self.nu / (self.nu - 1) / self.sigma**2)
        return torch.exp(-u).div_(u.masked_fill(_is_one(t), torch.inf)).div_(self.sigma**2)

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


class RBFSphere(Kernel):
    r"""The Gaussian kernel restricted to the sphere, the kernel of the paper's experiments (sigma 0.6).

    .. math:: \kappa(t) = \exp\left(\frac{t - 1}{\sigma^2}\right) = \exp\left(-\frac{\|x - y\|^2}{2\sigma^2}\right)

    With ``trainable=True`` the bandwidth ``sigma`` is a ``Parameter`` (appendix "Bandwidths derivatives"), a scalar in
    float64, so that no precision is lost before the network's dtype is known.
    """

    sigma: float | Tensor

    def __init__(self, sigma: float = 0.6, trainable: bool = False) -> None:
        super().__init__()
        sigma = _positive("RBFSphere", "sigma", sigma)
        self.trainable = bool(trainable)
        self.sigma = nn.Parameter(torch.tensor(sigma, dtype=torch.float64)) if self.trainable else sigma

    def kappa(self, t: Tensor) -> Tensor:
        return torch.exp((t - 1) / self.sigma**2)

    def spec(self) -> KernelSpec:
        return KernelSpec("RBFSphere", (("sigma", self.bandwidth), ("trainable", self.trainable)))

    @property
    def bandwidth(self) -> float:
        """|sigma| as a number. Only sigma^2 matters, so training may change the sign of sigma."""
        return abs(_plain(self.sigma))

    def map(self, responses: Tensor, squared_norms: Tensor, inplace: bool = False) -> Tensor:
        if torch.compiler.is_compiling() or responses.dtype not in (torch.float32, torch.float64):
            return super().map(responses, squared_norms)  # the compiler fuses the passes itself
        norms, inverse = safe_norms(squared_norms)
        return _RBFMap.apply(responses, norms, inverse, self.sigma, inplace)

    def random_features(self, responses: Tensor, squared_norms: Tensor, phases: Tensor) -> Tensor:
        norms, inverse = safe_norms(squared_norms)
        return torch.cos(responses * (inverse / self.sigma) + phases) * (norms * 2**0.5)


class _RBFMap(torch.autograd.Function):
    """n exp((r / n - 1) / sigma^2) and its derivatives, in as few passes over memory as possible.

    With gamma = 1 / sigma^2: three passes forward, ``r gamma / n``, ``exp``, ``n e^-gamma``. Backward, with a = grad * out
    and theta = gamma r / n: d/dr = a gamma / n, d/dn = sum_f a (1 - theta) / n, d/dsigma = sum a (gamma - theta) 2 / sigma.
    """

    #: above this gamma, exp(gamma) approaches float32's largest number, and a fourth pass avoids the overflow
    _SPLIT_LIMIT = 40.0

    @staticmethod
    def forward(ctx: Any, responses: Tensor, norms: Tensor, inverse: Tensor, sigma: float | Tensor, inplace: bool) -> Tensor:
        ctx.sigma = float(sigma)
        gamma = ctx.sigma**-2
        theta = torch.mul(responses, inverse * gamma, out=responses if inplace else None)
        _, need_norms, _, need_sigma, _ = ctx.needs_input_grad
        keep_theta = need_norms or need_sigma  # the first layer's norms are those of images and need no gradient
        if gamma < _RBFMap._SPLIT_LIMIT:
            out = torch.exp(theta, out=None if keep_theta else theta).mul_(norms * math.exp(-gamma))
        else:
            out = torch.sub(theta, gamma, out=None if keep_theta else theta).exp_().mul_(norms)
        ctx.save_for_backward(theta if keep_theta else None, out, inverse)
        ctx.gamma, ctx.like = gamma, sigma if isinstance(sigma, Tensor) else None
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        theta, out, inverse = ctx.saved_tensors
        need_responses, need_norms, _, need_sigma, _ = ctx.needs_input_grad
        slope = grad * out
        grad_norms = grad_sigma = None
        if need_norms or need_sigma:
            total = slope.sum(1, keepdim=True)
            weighted = _channel_dot(slope, theta)
            if need_norms:
                grad_norms = (total - weighted) * inverse
            if need_sigma:
                # A zero patch has out = 0 and adds nothing to either sum.
                grad_sigma = ((total.sum() * ctx.gamma - weighted.sum()) * (2 / ctx.sigma)).to(ctx.like)
        grad_responses = slope.mul_(inverse * ctx.gamma) if need_responses else None
        return grad_responses, grad_norms, None, grad_sigma, None


def _channel_dot(a: Tensor, b: Tensor) -> Tensor:
    """``(a * b).sum(1, keepdim=True)``, a few megabytes at a time: allocating a product as large as ``a`` takes longer
    than computing it."""
    rows = max(1, 2**20 // max(1, a[0].numel())) if len(a) else 1
    return torch.cat([(x * y).sum(1, keepdim=True) for x, y in zip(a.split(rows), b.split(rows), strict=True)])


#: the largest bandwidth and, inverted, the smallest: their squares and their inverses are numbers in float32
_WIDEST = 1e12


def _positive(kernel: str, argument: str, value: Any) -> float:
    number = _number(value)
    if not 0 < number < math.inf:
        raise ConfigError(f"{kernel} expected a positive, finite {argument}, got {_short(value)}")
    if not 1 / _WIDEST <= number <= _WIDEST:
        raise ConfigError(f"{kernel} expected {argument} from {1 / _WIDEST:g} to {_WIDEST:g}, got {_short(value)}")
    return number


def _short(value: Any) -> str:
    """For a message, without the digits that an integer may have."""
    return f"an integer of {value.bit_length()} bits" if isinstance(value, int) and abs(value) > 2**64 else repr(value)


def _number(value: Any) -> float:
    """``value`` as a float; NaN if it is not a number."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
