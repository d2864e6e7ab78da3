"""What every kernel has: kappa, the map of a layer, its description as plain data, and a registry by name.

Read first: :mod:`torchckn.kernels`, the table of kernels. Read next: :mod:`torchckn.kernels.closed_forms`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..derivatives import first_only
from ..errors import ConfigError, DataError, unknown_name
from ..tracing import is_traced

#: kernels of this package keep their names
_PACKAGE = __package__ + "."


def safe_norms(squared: Tensor) -> tuple[Tensor, Tensor]:
    """Norms and their inverses from squared norms; both are 0, with zero gradient, for a zero vector."""
    zero = squared <= torch.finfo(squared.dtype).tiny  # not `~(squared > tiny)`: a NaN must stay a NaN
    norms = squared.masked_fill(zero, 1.0).sqrt()
    return norms.masked_fill(zero, 0.0), norms.reciprocal().masked_fill(zero, 0.0)


def require_tensor(what: str, value: object) -> None:
    """An error unless ``value`` is a tensor."""
    if not isinstance(value, Tensor):
        kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        remedy = "torch.from_numpy(x)" if kind == "numpy.ndarray" else "torch.as_tensor(x)"
        raise DataError(f"{what} expected a torch.Tensor, got {kind}; use {remedy}")


#: methods that a kernel may write by hand, and what they are valid for: a subclass that changes any of it, by itself or by
#: another base class, does not inherit them
_VALID_FOR = {
    "map": {"kappa", "degree"},
    "native": {"kappa", "degree", "map"},
    "trained_number": {"kappa", "native"},
    "number_gradient": {"kappa", "native"},
    "random_features": {"kappa"},
}


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
    #: the activation that it is made of, if it is known (:class:`torchckn.kernels.Dual`)
    function: Callable[[Tensor], Tensor] | None

    _registry: ClassVar[dict[str, type[Kernel]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        registered = Kernel._registry.get(cls.__name__)
        if registered is not None and registered.__module__.startswith(_PACKAGE) and not cls.__module__.startswith(_PACKAGE):
            raise ConfigError(
                f"expected a new class name for a kernel, got {cls.__name__}, which torchckn already has; choose another "
                "name, because saved models refer to kernels by name"
            )
        Kernel._registry[cls.__name__] = cls
        for method, of in _VALID_FOR.items():
            home, others = cls._home_of(method), [cls._home_of(other) for other in of]
            known = home.__mro__ if issubclass(home, Kernel) else cls.__mro__[cls.__mro__.index(home) :]
            if any(other not in known for other in others):
                setattr(cls, method, getattr(Kernel, method))

    @classmethod
    def _home_of(cls, name: str) -> type:
        """The first class, in the order of inheritance, that defines ``name``."""
        return next(base for base in cls.__mro__ if name in vars(base))

    def kappa(self, t: Tensor) -> Tensor:
        """Elementwise kappa of cosines ``t``: differentiable, value and gradient finite on all of [-1, 1]."""
        raise TypeError(f"{type(self).__name__} must define kappa(t): the kernel as a function of the cosine")

    def gram(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """Kernel values of the rows of ``x`` (n, d) against the rows of ``y`` (m, d), norms included: (n, m)."""
        y = x if y is None else y
        require_tensor("gram", x)
        require_tensor("gram", y)
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
        norms, inverse = (part.to(responses.dtype) for part in safe_norms(squared_norms))
        values = self.kappa(_at_most_one(responses * inverse))
        return values * norms**self.degree if self.degree else values

    def native(self) -> tuple[str, tuple[float, ...]] | None:
        """Its name among :data:`torchckn.nn.native.KERNELS`, with its numbers; None if it has no compiled code."""
        return None

    def trained_number(self) -> Tensor | None:
        """The first number of :meth:`native`, a scalar with its graph, if it depends on a parameter; else None."""
        return None

    def number_gradient(self, number: float, values: Tensor, slopes: Tensor) -> Tensor:
        """The gradient of the :meth:`trained_number`, from the sums of g kappa(t) and of g t kappa'(t) over all cosines t, where
        g is the gradient of kappa(t)."""
        raise TypeError(f"{type(self).__name__} must define number_gradient, as its trained_number is a tensor")

    def random_features(self, responses: Tensor, squared_norms: Tensor, phases: Tensor) -> Tensor:
        """Activations whose mean product over Gaussian w is the kernel (first proposition of the paper).

        Args:
            responses: <w, x> for w with independent standard normal entries, (N, f, ...)
            squared_norms: |x|^2, (N, 1, ...)
            phases: one number per filter, uniform on [0, 2 pi), broadcastable to ``responses``
        """
        raise ConfigError(
            f"{type(self).__name__} has no random features; use Linear, ArcCosine, RBFSphere, Polynomial or Dual"
        )

    def spec(self) -> KernelSpec:
        """This kernel as plain data: its class name and its constructor arguments."""
        parameters = list(inspect.signature(type(self).__init__).parameters.values())[1:]
        names = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        missing = [name for name in names if not hasattr(self, name)]
        if missing:
            raise ConfigError(f"{type(self).__name__} must store its arguments {missing} as attributes of the same names")
        values = ((name, getattr(self, name)) for name in names)
        return KernelSpec(type(self).__name__, tuple((n, plain(v)) for n, v in values))

    def extra_repr(self) -> str:
        try:
            return ", ".join(f"{name}={value}" for name, value in self.spec().arguments)
        except ConfigError:
            return ""


def _at_most_one(cosines: Tensor) -> Tensor:
    """In half precision, where products of a filter and a patch are rounded and may be larger than the norm of the patch, the
    nearest number of [-1, 1], with the gradient of the cosine."""
    if cosines.dtype not in (torch.float16, torch.bfloat16):
        return cosines
    rounded = cosines.detach()
    return cosines + (rounded.clamp(-1, 1) - rounded)


def plain(value: Any) -> Any:
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
    #: of an activation that has no name among ours, as long as it is in memory: files have no functions
    function: Callable[[Tensor], Tensor] | None = field(default=None, compare=False, repr=False)

    def build(self) -> Kernel:
        if self.name not in Kernel._registry:
            remedy = "Import your own kernel before you load a model that uses it."
            raise unknown_name("kernel", self.name, Kernel._registry, remedy)
        try:
            kernel = Kernel._registry[self.name](**dict(self.arguments))
        except TypeError as error:
            raise ConfigError(f"kernel {self.name} cannot be built from {dict(self.arguments)}: {error}") from error
        if self.function is not None:
            kernel.function = self.function
        return kernel

    def __str__(self) -> str:
        values = (value for name, value in self.arguments if name != "trainable" and not isinstance(value, tuple))
        trained = ", trained" if dict(self.arguments).get("trainable") else ""
        return f"{self.name}({', '.join(f'{v:g}' if isinstance(v, float) else str(v) for v in values)}{trained})"


def names() -> list[str]:
    """The names of all registered kernels, user-defined ones included."""
    return sorted(Kernel._registry)


class WithSlope(torch.autograd.Function):
    """value(t) with the hand-written derivative slope(t), because autograd gives inf * 0 at |t| = 1."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, value: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(t)
        ctx.slope = slope
        return value(t)

    @staticmethod
    @first_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (t,) = ctx.saved_tensors
        return grad * ctx.slope(t), None, None


def with_slope(t: Tensor, value: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor]) -> Tensor:
    """value(t), whose derivative is slope(t)."""
    return value(t) if is_traced() else WithSlope.apply(t, value, slope)


def is_one(t: Tensor) -> Tensor:
    """Where a cosine is 1 up to the rounding error of an inner product.

    Kernels with an unbounded slope at 1 amplify that error to its square root, so they treat such a cosine as exactly 1.
    (The limit of 1e-3 is for float16 and bfloat16.)
    """
    return t >= 1 - min(32 * torch.finfo(t.dtype).eps, 1e-3)  # in bfloat16, 1 - 1e-3 is 1


#: the largest bandwidth and, inverted, the smallest: their squares and their inverses are numbers in float32
WIDEST = 1e12


def positive(kernel: str, argument: str, value: Any) -> float:
    number = as_number(value)
    if not 0 < number < math.inf:
        raise ConfigError(f"{kernel} expected a positive, finite {argument}, got {short(value)}")
    if not 1 / WIDEST <= number <= WIDEST:
        raise ConfigError(f"{kernel} expected {argument} from {1 / WIDEST:g} to {WIDEST:g}, got {short(value)}")
    return number


def short(value: Any) -> str:
    """For a message, without the digits that an integer may have."""
    return f"an integer of {value.bit_length()} bits" if isinstance(value, int) and abs(value) > 2**64 else repr(value)


def as_number(value: Any) -> float:
    """``value`` as a float; NaN if it is not a number."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
