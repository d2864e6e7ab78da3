r"""What the kernel layers share: filters on the sphere, the kernel, and the projection A(W) with its cache.

.. math:: A(W) = (\kappa(W W^T) + \epsilon I)^{-1/2}

Read first: :mod:`torchckn.nn.functional`. Read next: :mod:`torchckn.nn.layers`; for roots that many passes share,
:mod:`torchckn.nn.shared_roots`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..choices import Init, as_integer, as_integers, as_real, check_choice
from ..derivatives import require_plain_autograd
from ..errors import ConfigError, NumericalError
from ..kernels import Kernel, RBFSphere
from ..tracing import is_traced, untraced
from .checks import require
from .devices import reads_are_free, wide_dtype
from .functional import block_count, filter_gram, inverse_root, precomputed_root
from .geometry import draw_normal
from .invsqrt import Spectrum, check_method, resolve_method
from .kept import CachedRoot, contents_of
from .walk import modules_of, parameters_of


class KernelLayer(nn.Module):
    """Base class of the kernel layers: filters, kernel, and the projection A(W) with its cache.

    Subclasses define the shape of ``weight`` and ``forward``.
    """

    weight: nn.Parameter

    def __init__(
        self,
        shape: tuple[int, ...],
        filter_dims: int,
        kernel: Kernel | None,
        eps: float,
        init: Init,
        inverse_sqrt: str,
        root_block: int | None,
        generator: torch.Generator | None,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.kernel = RBFSphere(0.6) if kernel is None else kernel
        if not isinstance(self.kernel, Kernel):
            raise ConfigError(f"kernel expected a kernel such as torchckn.kernels.RBFSphere(0.6), got {kernel!r}")
        check_choice("init", init, Init)
        check_method(inverse_sqrt)
        sizes = as_integers(shape, 1)
        if sizes is None:
            raise ConfigError(f"{type(self).__name__} expected integer sizes >= 1, got filters of shape {shape}")
        self.eps = checked_eps("eps", eps)
        self.init = init
        self.inverse_sqrt = inverse_sqrt
        self.root_block = checked_root_block("root_block", root_block)
        self.filter_dims = filter_dims  # number of trailing dimensions of one filter
        self._cache: CachedRoot | None = None
        self._shared: Tensor | None = None  # the root for all passes within shared_roots.sharing
        self._spectrum = Spectrum()  # of this layer, or of those whose roots are computed together with this one's
        # Drawn on the CPU in float64, so that a seed gives the same filters on every device and in every dtype.
        weight = draw_normal(sizes, generator, device)
        self.weight = nn.Parameter(weight.to(device=device, dtype=dtype or torch.get_default_dtype()))
        self.normalize_()

    @property
    def filters(self) -> int:
        return self.weight.shape[-self.filter_dims - 1]

    def sphere_parameters(self) -> list[nn.Parameter]:
        """The parameters whose filters are on spheres."""
        return [self.weight]

    @property
    def sums_in_units(self) -> bool:
        """Whether it can compute the gradients of its filters and its root as :mod:`torchckn.nn.sums` does."""
        return False

    def filter_matrix(self) -> Tensor:
        """The filters as rows, W of the paper: (f, s), or (regions, f, s)."""
        return self.weight.flatten(-self.filter_dims)

    def factors(self) -> tuple[Tensor, ...]:
        """What :meth:`gram` is computed from, rows of unit norm: the filters, or their factors."""
        return (self.filter_matrix(),)

    def gram(self, *factors: Tensor) -> Tensor:
        """A(W)^-2, the Gram matrix of the filters with eps on its diagonal: (..., f, f)"""
        (rows,) = factors
        return filter_gram(rows, self.kernel, self.eps)

    @torch.no_grad()
    def normalize_(self) -> KernelLayer:
        """Normalize every filter to unit norm, in place; an all-zero filter has no direction and raises an error."""
        for weight in self.sphere_parameters():
            norms = torch.linalg.vector_norm(weight.flatten(-self.filter_dims), dim=-1)
            if norms.is_meta:
                return self
            require(
                (norms > 0) & norms.isfinite(),
                lambda: NumericalError(
                    "expected filters that can be normalized, got a filter that is all zero or not finite; set it to other values"
                ),
            )
            weight.div_(norms.reshape(norms.shape + (1,) * self.filter_dims))
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> KernelLayer:
        old_dtype = self.weight.dtype
        super()._apply(fn, recurse)
        if torch.finfo(self.weight.dtype).eps < torch.finfo(old_dtype).eps:
            self.normalize_()  # unit norm in float32 is off by 1e-8 in float64
        return self

    @torch.no_grad()
    def _set_identity(self) -> None:
        self.weight.copy_(torch.eye(self.filters).reshape(self.weight.shape))
        self.weight.requires_grad_(False)

    def projection(self) -> Tensor:
        """A(W) = (kappa(W W^T) + eps I)^(-1/2): (f, f), or (regions, f, f).

        In training mode it is computed in every call, with its graph. In eval mode it is computed once and cached for as long
        as the filters, the bandwidth and eps do not change; gradients are exact in both modes.
        """
        root = self.own_projection()
        return root.clone() if self._cache is not None and root is self._cache.root else root

    def own_projection(self) -> Tensor:
        """:meth:`projection` for the layer's own use: it may be the cached tensor, which is not to be changed."""
        if self._shared is not None:
            return self._shared
        compiled = torch.compiler.is_compiling()  # where nothing is kept from call to call
        if not compiled:
            require_plain_autograd(type(self).__name__)
        if self.training or compiled:
            spectrum = None if compiled else self._spectrum
            return inverse_root(self._checked_factors(), self.gram, self.inverse_sqrt, self.root_block, spectrum)
        cached = self.cached_root()
        # torch.jit.trace gets a constant: it checks itself without gradients, and has to record the same.
        trained = (p.requires_grad for p in (*self.sphere_parameters(), *self.kernel.parameters()))
        if torch.is_grad_enabled() and not is_traced() and any(trained):
            wide = [factor.to(cached.wide.dtype) for factor in self.factors()]
            return precomputed_root(wide, self.gram, cached.wide, self.root_block).to(self.weight.dtype, copy=True)
        return cached.root

    def batching_key(self) -> object | None:
        """What layers have in common whose roots can be computed together; None for a root that is computed by itself."""
        kernel, device = self.kernel, self.weight.device
        usual = type(self).gram is KernelLayer.gram and self.weight.ndim == self.filter_dims + 1
        method = resolve_method(self.inverse_sqrt, device)[0]
        simple = usual and self.filter_matrix().ndim == 2 and block_count(self.filters, self.root_block) == 1
        if not simple or method != "eigh" or kernel.is_steep or parameters_of(kernel) or not self.training:
            return None
        if not reads_are_free(device):
            return None
        return self.filters, kernel.spec(), self.eps, device, self.weight.dtype

    def cached_root(self) -> CachedRoot:
        """A(W), computed again only after the filters, the kernel or the settings have changed."""
        if is_traced():  # a trace has the root as a constant, not how it was computed or found unchanged
            with untraced():
                return self.cached_root()
        contents, of_kernel = contents_of(self.kernel)
        settings = (contents, self.eps, self.inverse_sqrt, self.root_block)
        tensors: list[Tensor] = [*self.sphere_parameters(), *of_kernel]
        if self._cache is None or not self._cache.is_of(settings, tensors):
            # A tensor made in inference mode could not be used outside of it.
            with torch.inference_mode(False), torch.no_grad():
                wide = [factor.to(wide_dtype(factor.device)) for factor in self._checked_factors()]
                root = inverse_root(wide, self.gram, self.inverse_sqrt, self.root_block)
                own = root.to(self.weight.dtype, copy=True)
                self._cache = CachedRoot(settings, [t.clone() for t in tensors], root, own)
        return self._cache

    def _checked_factors(self) -> tuple[Tensor, ...]:
        """:meth:`factors`, after a check of their norms."""
        factors = self.factors()
        if torch.compiler.is_compiling():
            return factors
        if self.init == "identity":
            weight = self.weight.detach().flatten(1)
            require(
                weight == torch.eye(len(weight), dtype=weight.dtype, device=weight.device),
                lambda: NumericalError(
                    "expected the fixed filters of an identity layer, got changed ones; build the layer with init='kmeans'"
                ),
            )
        for factor in factors:
            self._check_norms(factor.detach())
        return factors

    def _check_norms(self, rows: Tensor) -> None:
        low, high = torch.linalg.vector_norm(rows, dim=-1).aminmax()
        require(
            (low > 0.9) & (high < 1.1),
            lambda: NumericalError(
                f"{type(self).__name__} expected filters of norm 1, got norms from {low.item():.3g} to {high.item():.3g}; "
                "train with torchckn.fit.SphereSGD, or call network.normalize_() (or layer.normalize_()) after each step"
            ),
        )

    def extra_repr(self) -> str:
        blocks = "" if self.root_block is None else f", root_block={self.root_block}"
        return f"{', '.join(map(str, self.weight.shape))}, eps={self.eps:g}, init={self.init}{blocks}"


def checked_eps(what: str, eps: object) -> float:
    """``eps`` as a float; an error unless it can be added to the diagonal of a Gram matrix."""
    number = as_real(eps)
    if not 0 <= number < float("inf"):
        raise ConfigError(f"{what} expected a number >= 0, got {eps!r}; the paper uses 1e-3")
    return number


def checked_root_block(what: str, block: object) -> int | None:
    """``block`` as an int, or None; an error unless it is a number of filters."""
    number = as_integer(block, 1)
    if block is not None and number is None:
        raise ConfigError(f"{what} expected a number of filters >= 1, or None for one root of all filters, got {block!r}")
    return number


def sphere_groups(module: nn.Module) -> list[dict[str, Any]]:
    """Parameter groups of a network's trainable filters (on spheres) and bandwidths, without the head."""
    spheres: dict[int, list[Tensor]] = {}
    for layer in modules_of(module):
        if isinstance(layer, KernelLayer):
            trained = [weight for weight in layer.sphere_parameters() if weight.requires_grad]
            if trained:
                spheres.setdefault(layer.filter_dims, []).extend(trained)
            for parameter in layer.kernel.parameters():
                if parameter.requires_grad:
                    spheres.setdefault(0, []).append(parameter)
    # What several layers share is moved once.
    return [{"params": list(dict.fromkeys(params)), "dims": dims} for dims, params in sorted(spheres.items(), reverse=True)]
