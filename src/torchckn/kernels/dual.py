r"""Every activation its own kernel: infinitely many Gaussian units with that activation.

.. math:: \kappa(t) = \sum_k \hat a_k^2\, t^k, \qquad
          \hat a_k^2 = a_k^2 \Big/ \sum_j a_j^2, \quad a_k = E_{z \sim \mathcal N(0, 1)}[a(s z)\, h_k(z)]

Daniely, Frostig and Singer (2016), "Toward deeper understanding of neural networks", section 4: the dual activation. With
Gaussian w, ``E[a(<w, x>) a(<w, y>)]`` is proportional to ``kappa(<x, y> / s^2)`` for all x and y of norm s. The coefficients
are squares, so the kernel is positive definite by construction; :mod:`torchckn.kernels.hermite` computes them once.

**Norms.** ReLU is homogeneous: twice the input gives twice the output, so its kernel grows like |x| |y|. Most activations are
not, and their kernels have no such form. Here they are taken on the sphere of radius ``scale`` and continued by a power of the
norms, as for ``RBFSphere``: ``k(x, y) = (|x| |y|)^degree kappa(t)``, the kernel of ``|x|^degree a(s <w, x> / |x|)``. ``degree``
is by default the integer nearest to the growth of the activation around that radius, 0 for tanh and 1 for GELU. In a network
whose patches all have one norm, nothing is lost by that. Read next: :mod:`torchckn.nn.invsqrt`.
"""

from __future__ import annotations

import functools
import math
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..choices import as_integer
from ..errors import ConfigError, unknown_name
from ..tracing import is_eager
from .activations import ACTIVATIONS
from .base import Kernel, KernelSpec, as_number, positive, safe_norms, short, with_slope
from .hermite import Expansion, Function, expand, growth

#: limits of what a file may have
_MOST_POWERS, _LONGEST_NAME = 1024, 100
#: numbers that Horner's scheme works on at a time: they stay in the cache of a core
_BLOCK = 2**17


@dataclass(frozen=True)
class InMemory:
    """A function that copies share and pickles leave out, as files do: many functions, such as lambdas, cannot be pickled."""

    function: Function

    def __call__(self, u: Tensor) -> Tensor:
        return self.function(u)

    def __deepcopy__(self, memo: object) -> InMemory:
        return self

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()


class Dual(Kernel):
    """The kernel of infinitely many Gaussian units with the given activation (see the module's text).

    Args:
        activation: a name (``"tanh"``, ``"gelu"``, ``"silu"``, ...; ``torchckn.kernels.ACTIVATIONS`` has all), or any
            elementwise function of a tensor.
        scale: the standard deviation of the pre-activations, which acts as a bandwidth: the larger it is, the more a tanh is
            like a step function. The default of 1 is what standardized inputs and the usual initializations give.
        degree: the power of the norms; by default the integer nearest to the activation's own growth at that scale.
        tolerance: powers are left out if all of them together change kappa by at most this.
        highest: the highest power, whatever the tolerance. Activations with kinks need many; ``error`` says what is left out.
        coefficients: of the powers of t, if they are known: from a saved model.
        name: of a function, for tables and files; by default its own.

    What is left out is added to the highest even and odd powers, so that kappa(1) = 1 and kappa(-1) is right. A pickle leaves out
    a function that cannot be pickled, such as a lambda, as files do: its coefficients are all that the kernel needs.

    Example:
        >>> kernel = Dual("tanh")
        >>> kernel, round(kernel.kappa(torch.tensor(0.5)).item(), 4)
        (Dual(tanh, scale=1, degree=0), 0.4726)
        >>> Dual(lambda u: u * torch.sigmoid(1.7 * u)).degree
        1
    """

    is_pointwise = True

    def __init__(
        self,
        activation: str | Function,
        scale: float = 1.0,
        degree: int | None = None,
        *,
        tolerance: float = 1e-6,
        highest: int = 64,
        coefficients: Sequence[float] | None = None,
        name: str = "",
    ) -> None:
        super().__init__()
        self.scale = positive("Dual", "scale", scale)
        #: the activation's name, and the function, if it is known
        self.activation, self.function = _identify(activation, name, coefficients is not None)
        #: kappa differs from the activation's by at most this; None if the coefficients were given
        self.error: float | None = None
        if coefficients is None:
            if not 0 < as_number(tolerance) < 1:
                raise ConfigError(f"Dual expected a tolerance between 0 and 1, got {tolerance!r}")
            if (most := as_integer(highest, 1)) is None or most > _MOST_POWERS:
                raise ConfigError(f"Dual expected a highest power from 1 to {_MOST_POWERS}, got {short(highest)}")
            assert self.function is not None
            coefficients, self.error = _truncated(_expansion(self.function, self.scale, most), tolerance)
        self.coefficients = _checked(coefficients)
        if degree is None:
            if self.function is None:
                raise ConfigError(f"Dual expected a degree with the coefficients of {self.activation!r}, got None")
            degree = max(0, round(_growth(self.function, self.scale)))
        if (power := as_integer(degree, 0)) is None or power > 8:
            raise ConfigError(f"Dual expected a degree from 0 to 8, got {short(degree)}")
        self.degree = power

    @property
    def is_homogeneous(self) -> bool:
        """Whether c times the input gives c^degree times the output, as for ReLU, so that the scale does not matter."""
        if self.function is None:
            return False
        u = torch.linspace(-8, 8, 321, dtype=torch.float64)
        with torch.no_grad():
            values = [self.function(c * u) / c**self.degree for c in (1, 2, 3)]
        return all(torch.allclose(values[0], other, rtol=1e-12, atol=1e-12) for other in values[1:])

    def kappa(self, t: Tensor) -> Tensor:
        # The compiler differentiates a polynomial itself.
        return with_slope(t, self._value, self._slope) if is_eager() else self._value(t)

    def random_features(self, responses: Tensor, squared_norms: Tensor, phases: Tensor) -> Tensor:
        if self.function is None:
            raise ConfigError(
                f"Dual({self.activation!r}) was loaded from a file or a pickle without its function; set "
                "kernel.function to the activation to compute its random features"
            )
        norms, inverse = safe_norms(squared_norms)
        size = _expansion(self.function, self.scale, 1).mean_square ** 0.5
        values = self.function(responses * (inverse * self.scale)) / size
        return values * norms**self.degree if self.degree else values

    def __getstate__(self) -> dict[str, Any]:
        try:
            pickle.dumps(self.function)
        except (pickle.PicklingError, AttributeError, TypeError):  # all of which pickle raises for it
            assert self.function is not None
            return self.__dict__ | {"function": InMemory(self.function)}
        return self.__dict__

    def spec(self) -> KernelSpec:
        function = self.function
        if self.activation in ACTIVATIONS:
            function = None
        elif function is not None and not isinstance(function, InMemory):
            function = InMemory(function)
        return KernelSpec(
            "Dual",
            (
                ("activation", self.activation),
                ("scale", self.scale),
                ("degree", self.degree),
                ("coefficients", self.coefficients),
            ),
            function,
        )

    def extra_repr(self) -> str:
        return f"{self.activation}, scale={self.scale:g}, degree={self.degree}"

    def _value(self, t: Tensor) -> Tensor:
        return _polynomial(t, self.coefficients)

    def _slope(self, t: Tensor) -> Tensor:
        return _polynomial(t, tuple(k * c for k, c in enumerate(self.coefficients))[1:])


def _polynomial(t: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    """The sum of c_k t^k by Horner's scheme over the powers that occur, a part of ``t`` that fits into the cache at a time."""
    powers = [k for k, c in enumerate(coefficients) if c] or [0]
    gaps = [high - low for low, high in zip([0, *powers], powers, strict=False)]
    constants = [coefficients[k] for k in powers]
    # A compiler fuses the passes itself, other devices have no such cache, and a trace has a gradient of its own.
    if not is_eager() or t.device.type != "cpu":
        total = torch.full_like(t, constants[-1])
        for i in range(len(powers) - 1, 0, -1):
            total = total * t ** gaps[i] + constants[i - 1]
        return total * t ** gaps[0] if gaps[0] else total
    out = torch.empty_like(t)
    scalars = torch.tensor(constants, dtype=t.dtype, device=t.device).unbind()
    rows = max(1, _BLOCK // max(1, t[0].numel())) if t.ndim and len(t) else 1
    parts = zip(t.split(rows), out.split(rows), strict=True) if t.ndim else [(t, out)]
    for some, total in parts:
        # An odd or an even function has gaps of 2, and half as many passes.
        factors = {gap: some if gap == 1 else some**gap for gap in set(gaps) - {0}}
        total.fill_(constants[-1])
        for i in range(len(powers) - 1, 0, -1):
            torch.addcmul(scalars[i - 1], total, factors[gaps[i]], out=total)
        if gaps[0]:
            total.mul_(factors[gaps[0]])
    return out


def _expansion(function: Function, scale: float, highest: int) -> Expansion:
    return (_kept_expansion if function in _FIXED else expand)(function, scale, highest)


def _growth(function: Function, scale: float) -> float:
    return (_kept_growth if function in _FIXED else growth)(function, scale)


#: functions that are the same in every call; others may be of a module whose settings or parameters change
_FIXED = frozenset(ACTIVATIONS.values())
_kept_expansion = functools.lru_cache(maxsize=256)(expand)
_kept_growth = functools.lru_cache(maxsize=256)(growth)


def _truncated(expansion: Expansion, tolerance: float) -> tuple[list[float], float]:
    """The coefficients up to the power that the tolerance needs, and the sum of those that are left out."""
    left = [expansion.even, expansion.odd]
    kept: list[float] = []
    for k, part in enumerate(expansion.parts):
        part = min(part, max(left[k % 2], 0.0))
        kept.append(part)
        left[k % 2] -= part
        if k and max(left[0], 0.0) + max(left[1], 0.0) <= tolerance:
            break
    remainder = [max(rest, 0.0) for rest in left]
    for k in (len(kept) - 2, len(kept) - 1):
        kept[k] += remainder[k % 2]
    total = math.fsum(kept)
    return [c / total for c in kept], sum(remainder)


def _identify(activation: Any, label: str, has_coefficients: bool) -> tuple[str, Function | None]:
    """The name of an activation and its function; None for a name that is not ours, which coefficients may have."""
    if isinstance(activation, str):
        if activation not in ACTIVATIONS and not has_coefficients:
            remedy = "Or pass the function itself, such as torch.tanh."
            raise unknown_name("activation", activation, ACTIVATIONS, remedy)
        if not activation or len(activation) > _LONGEST_NAME or not activation.isprintable():
            raise ConfigError(f"Dual expected the name of an activation, got {activation[:30]!r}")
        return activation, ACTIVATIONS.get(activation)
    if not callable(activation):
        raise ConfigError(f"Dual expected an activation, by name or as a function, got {activation!r}")
    function = activation.forward if isinstance(activation, nn.Module) else activation  # not a part of the kernel's state
    own = getattr(activation, "__name__", type(activation).__name__)
    return _name(function, label or own), function


def _name(function: Function, own: str) -> str:
    """The name of the activation that a function is, if it is one of ours, and otherwise its own."""
    grid = torch.linspace(-8, 8, 321, dtype=torch.float64)
    with torch.no_grad():
        values = function(grid.clone())
        for name, ours in ACTIVATIONS.items():
            if (
                isinstance(values, Tensor)
                and values.shape == grid.shape
                and torch.allclose(values, ours(grid), 1e-12, 1e-12)
            ):
                return name
    return (f"own {own}" if own in ACTIVATIONS else own)[:_LONGEST_NAME]


def _checked(coefficients: Any) -> tuple[float, ...]:
    """Coefficients that make a kernel: not negative, with sum 1."""
    if not isinstance(coefficients, (list, tuple)) or not 1 <= len(coefficients) <= _MOST_POWERS + 1:
        raise ConfigError(f"Dual expected a list of 1 to {_MOST_POWERS + 1} coefficients, got {type(coefficients).__name__}")
    numbers = tuple(as_number(c) for c in coefficients)
    if not all(0 <= c <= 1 for c in numbers) or abs(math.fsum(numbers) - 1) > 1e-9:
        raise ConfigError(
            "Dual expected coefficients that are not negative and sum to 1, as of a positive definite kernel, got "
            f"{', '.join(f'{c:g}' for c in numbers[:4])}, ..."
        )
    return numbers
