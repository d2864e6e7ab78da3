"""The Gaussian kernel on the sphere, and its map in as few passes over memory as possible."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..derivatives import first_only
from ..tracing import is_eager
from .base import Kernel, KernelSpec, plain, positive, safe_norms

#: bandwidths between which compiled code has their gradient; its rounding error grows like sigma^2, and a tiny one has hardly any
_TRAINED = (0.1, 2.0)


#: the name of a bandwidth in a ``state_dict``, unless it is a trainable parameter
FIXED = "fixed_sigma"


class RBFSphere(Kernel):
    r"""The Gaussian kernel restricted to the sphere, the kernel of the paper's experiments (sigma 0.6).

    .. math:: \kappa(t) = \exp\left(\frac{t - 1}{\sigma^2}\right) = \exp\left(-\frac{\|x - y\|^2}{2\sigma^2}\right)

    With ``trainable=True`` the bandwidth ``sigma`` is a ``Parameter`` (appendix "Bandwidths derivatives"), a scalar in
    float64, so that no precision is lost before the network's dtype is known.
    """

    sigma: float | Tensor

    def __init__(self, sigma: float = 0.6, trainable: bool = False) -> None:
        super().__init__()
        sigma = positive("RBFSphere", "sigma", sigma)
        self.trainable = bool(trainable)
        self.sigma = nn.Parameter(torch.tensor(sigma, dtype=torch.float64)) if self.trainable else sigma

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        # A fixed bandwidth may have been trained before, so it is part of the state as well; while it is trained, it is a
        # parameter, and its name in the state stays the same.
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if not self.trainable:
            sigma = destination.pop(prefix + "sigma", None)
            destination[prefix + FIXED] = torch.tensor(self.sigma, dtype=torch.float64) if sigma is None else sigma

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        metadata: Any,
        strict: bool,
        missing: list[str],
        unexpected: list[str],
        errors: list[str],
    ) -> None:
        """The bandwidth, whether it was trained or fixed there. Older files have none where it was fixed."""
        names = (prefix + FIXED, prefix + "sigma")
        sigma = next((state_dict[name] for name in names if name in state_dict), None)
        known = {name: value for name, value in state_dict.items() if name not in names}
        if isinstance(self.sigma, Tensor) and sigma is not None:
            known[prefix + "sigma"] = sigma
        elif sigma is not None and not sigma.is_meta:
            if sigma.numel() != 1 or not 0 < abs(float(sigma)) < math.inf:
                errors.append(f"{prefix}sigma expected a positive number, got {sigma.tolist()}")
            else:
                self.sigma = abs(float(sigma))
        super()._load_from_state_dict(known, prefix, metadata, strict, missing, unexpected, errors)

    def kappa(self, t: Tensor) -> Tensor:
        return torch.exp((t - 1) / self.sigma**2)

    def spec(self) -> KernelSpec:
        return KernelSpec("RBFSphere", (("sigma", self.bandwidth), ("trainable", self.trainable)))

    @property
    def bandwidth(self) -> float:
        """|sigma| as a number. Only sigma^2 matters, so training may change the sign of sigma."""
        return abs(plain(self.sigma))

    def map(self, responses: Tensor, squared_norms: Tensor, inplace: bool = False) -> Tensor:
        if not is_eager() or responses.dtype not in (torch.float32, torch.float64):
            return super().map(responses, squared_norms)  # the compiler fuses the passes itself
        if self.degree != 1:  # of a kernel that is derived from this one
            return super().map(responses, squared_norms)
        if isinstance(self.sigma, Tensor) and self.sigma.device.type != "cpu":
            return super().map(responses, squared_norms)  # below, a trained bandwidth is read by the host
        return _RBFMap.apply(responses, squared_norms, self.sigma, inplace)

    def native(self) -> tuple[str, tuple[float, ...]] | None:
        if isinstance(self.sigma, Tensor):
            if type(self.sigma) is not nn.Parameter or self.sigma.device.type != "cpu":
                return None  # a bandwidth that the host cannot read, or that only traces
            if self.sigma.requires_grad and not _TRAINED[0] <= self.bandwidth <= _TRAINED[1]:
                return None
        # With a tiny bandwidth, the rounding of a cosine next to 1 would overflow in compiled code.
        return None if self.bandwidth < 1e-3 else ("rbf", (self.bandwidth**-2,))

    def trained_number(self) -> Tensor | None:
        if not isinstance(self.sigma, Tensor) or not self.sigma.requires_grad:
            return None
        return self.sigma.float() ** -2  # so that sums of gradients in double precision are exact

    def number_gradient(self, number: float, values: Tensor, slopes: Tensor) -> Tensor:
        # kappa = exp(number (t - 1)), kappa' = number kappa, and d kappa / d number = (t - 1) kappa
        return slopes / number - values

    def random_features(self, responses: Tensor, squared_norms: Tensor, phases: Tensor) -> Tensor:
        norms, inverse = safe_norms(squared_norms)
        return torch.cos(responses * (inverse / self.sigma) + phases) * (norms * 2**0.5)


class _RBFMap(torch.autograd.Function):
    """n exp((r / n - 1) / sigma^2) and its derivatives, in as few passes over memory as possible.

    With gamma = 1 / sigma^2: three passes forward, ``r gamma / n``, ``exp``, ``n e^-gamma``. Backward, with a = grad * out and
    theta = gamma r / n: d/dr = a gamma / n, d/dn^2 = sum_f a (1 - theta) / (2 n^2),
    d/dsigma = sum a (gamma - theta) 2 / sigma.
    """

    #: above this gamma, exp(gamma) approaches float32's largest number, and a fourth pass avoids the overflow
    _SPLIT_LIMIT = 40.0

    @staticmethod
    def forward(ctx: Any, responses: Tensor, squares: Tensor, sigma: float | Tensor, inplace: bool) -> Tensor:
        ctx.sigma = float(sigma)
        gamma = ctx.sigma**-2
        norms, inverse = safe_norms(squares)
        theta = torch.mul(responses, inverse * gamma, out=responses if inplace else None)
        _, need_squares, need_sigma, _ = ctx.needs_input_grad
        keep_theta = need_squares or need_sigma  # the first layer's norms are those of images and need no gradient
        if gamma < _RBFMap._SPLIT_LIMIT:
            out = torch.exp(theta, out=None if keep_theta else theta).mul_(norms.mul_(math.exp(-gamma)))
        else:
            out = torch.sub(theta, gamma, out=None if keep_theta else theta).exp_().mul_(norms)
        ctx.save_for_backward(theta if keep_theta else None, out, inverse)
        ctx.gamma, ctx.like = gamma, sigma if isinstance(sigma, Tensor) else None
        return out

    @staticmethod
    @first_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        theta, out, inverse = ctx.saved_tensors
        need_responses, need_squares, need_sigma, _ = ctx.needs_input_grad
        slope = grad * out
        of_squares = of_sigma = None
        if need_squares or need_sigma:
            total = slope.sum(1, keepdim=True)
            weighted = _channel_dot(slope, theta)
            if need_squares:
                of_squares = (total - weighted).mul_(inverse).mul_(inverse).div_(2)
            if need_sigma:
                # A zero patch has out = 0 and adds nothing to either sum.
                of_sigma = ((total.sum() * ctx.gamma - weighted.sum()) * (2 / ctx.sigma)).to(ctx.like)
        of_responses = slope.mul_(inverse * ctx.gamma) if need_responses else None
        return of_responses, of_squares, of_sigma, None


def _channel_dot(a: Tensor, b: Tensor) -> Tensor:
    """``(a * b).sum(1, keepdim=True)``, a few megabytes at a time: allocating a product as large as ``a`` takes longer
    than computing it."""
    rows = max(1, 2**20 // max(1, a[0].numel())) if len(a) else 1
    if rows >= len(a):
        return (a * b).sum(1, keepdim=True)
    return torch.cat([(x * y).sum(1, keepdim=True) for x, y in zip(a.split(rows), b.split(rows), strict=True)])
