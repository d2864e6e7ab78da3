r"""Per-image patch whitening, the preprocessing of the paper's CIFAR-10 experiments.

.. math:: \tilde E = (C + \delta I)^{-1/2} (E - \bar E), \qquad C = \tfrac1p (E - \bar E)(E - \bar E)^T

Paper: section 5.1 ("standardized channel-wise and then ZCA whitened on a per-image basis"). E holds the 3x3 patches of one
image, each with its mean subtracted channel by channel; C is that image's own patch covariance. A whitened image is the
(9 C, H, W) tensor of its patches, on which the first kernel layer has 1x1 filters. Read next: :mod:`torchckn.network`.

Subtracting the means removes one direction per channel, so C is always singular; ``delta = eps * trace(C) / rank`` keeps the
root finite, and the removed directions contain nothing that it could amplify.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..choices import as_integer, as_real
from ..errors import ConfigError, DataError
from .checks import check_finite
from .devices import own_precision, wide_dtype
from .geometry import Pair, pair
from .invsqrt import inverse_sqrt
from .layers import require_images
from .walk import modules_of


def whiten(images: Tensor, patch_size: int | Pair = 3, eps: float = 1e-3, root: int = 2) -> Tensor:
    """Images (N, C, H, W) -> their whitened patches (N, C kh kw, H, W); an all-zero image stays zero.

    Batched, differentiable, in the dtype of the images; the root is computed in float64. ``root=4`` whitens by half, with
    C^(-1/4), which is not differentiable at repeated eigenvalues.
    """
    return whiten_by(images, whitening_matrices(images, patch_size, eps, root), patch_size)


def whitening_matrices(images: Tensor, patch_size: int | Pair = 3, eps: float = 1e-3, root: int = 2) -> Tensor:
    """[A Q, -A Q m] of each image, with A = (C + delta I)^(-1/root): images (N, C, H, W) -> (N, s, s + 1), s = C kh kw.

    Q subtracts each channel's mean from a patch, and m is the mean patch. Both are linear maps of the patches, so they are
    applied to the covariance and to the root, which are small, instead of to the patches: C = Q (E E^T / p - m m^T) Q, and the
    whitened patches are (A Q) E - (A Q) m. With B an orthonormal basis of what Q leaves, Q = B B^T, and
    A Q = B (B^T C B + delta I)^(-1/root) B^T has a smaller root.
    """
    _require_images(images)
    size = pair("patch_size", patch_size)
    basis = _centered_basis(images.shape[1], size[0] * size[1]).to(images.device, wide_dtype(images.device))  # (s, rank)
    # A few images at a time: patches in float64 are 18 times as large as the image, and should fit into the CPU cache.
    return torch.cat([_matrices(some, size, basis, eps, root) for some in images.split(_CHUNK)])


_CHUNK = 64


def _matrices(images: Tensor, size: Pair, basis: Tensor, eps: float, root: int) -> Tensor:
    if (
        len(images) == 1
    ):  # threads share the work on one matrix otherwise than on several: an image would depend on its batch
        return _matrices(images.expand(2, -1, -1, -1), size, basis, eps, root)[:1]
    # float64, because directions of little variance matter, and differ from those of much by many orders of magnitude
    patches = _patches(images.to(basis.dtype), size)
    mean = patches.mean(2, keepdim=True)
    covariance = basis.T @ (patches @ patches.mT / patches.shape[2] - mean @ mean.mT) @ basis  # (N, rank, rank)
    check_finite(covariance)
    ridge = eps * covariance.diagonal(dim1=1, dim2=2).sum(1) / max(1, basis.shape[1])
    ridge = ridge.clamp(min=torch.finfo(images.dtype).tiny)[:, None, None]
    identity = torch.eye(basis.shape[1], dtype=basis.dtype, device=basis.device)
    whitener = basis @ _inverse_root(covariance + ridge * identity, root) @ basis.T
    return torch.cat([whitener, -whitener @ mean], 2).to(images.dtype)


def whiten_by(images: Tensor, matrices: Tensor, patch_size: int | Pair = 3) -> Tensor:
    """The patches of images (N, C, H, W), multiplied by the :func:`whitening_matrices` of each image: (N, C kh kw, H, W)

    The result is channels last in memory, as the layer after it has it.
    """
    patches = _patches(images, pair("patch_size", patch_size))
    whitener, shift = matrices[..., :-1], matrices[..., -1:]
    with own_precision(images.device):  # the norms of patches are computed of these numbers
        columns = torch.baddbmm(shift.mT, patches.mT, whitener.mT)  # (N, H W, s)
    return columns.unflatten(1, images.shape[2:]).permute(0, 3, 1, 2)


def _patches(images: Tensor, size: Pair) -> Tensor:
    """The patches around all pixels, zero beyond the border: (N, C, H, W) -> (N, C kh kw, H W)"""
    rows, columns = size
    # An even window has no center: it extends one pixel further up and to the left.
    padded = F.pad(images, (columns // 2, (columns - 1) // 2, rows // 2, (rows - 1) // 2))
    view = padded.unfold(2, rows, 1).unfold(3, columns, 1)  # (N, C, H, W, kh, kw)
    return view.permute(0, 1, 4, 5, 2, 3).flatten(4).flatten(1, 3)  # F.unfold, but several times faster


def _centered_basis(channels: int, area: int) -> Tensor:
    """Orthonormal columns that span the patches whose mean is zero in every channel: (channels area, channels (area - 1))"""
    # Helmert: column k is 1, ..., 1, -k, 0, ..., 0 with k ones, normalized.
    k = torch.arange(1.0, area, dtype=torch.float64)
    block = torch.tril(torch.ones(area - 1, area, dtype=torch.float64))
    block[:, 1:].diagonal().copy_(-k)
    block = (block / (k * (k + 1)).sqrt()[:, None]).T
    return torch.block_diag(*[block] * channels)


def _inverse_root(covariance: Tensor, root: int) -> Tensor:
    """C^(-1/root)"""
    if root == 2:
        return inverse_sqrt(covariance, "eigh")
    values, vectors = torch.linalg.eigh(covariance)
    return (vectors * values.pow(-1 / root)[..., None, :]) @ vectors.mT


def _require_images(images: Tensor) -> None:
    if images.ndim != 4 or not images.is_floating_point():
        raise DataError(f"whiten expected floating-point images (N, C, H, W), got {tuple(images.shape)} of {images.dtype}")


#: bytes of whitening matrices that are kept while training: those of 170,000 color images and 3x3 patches
KEPT = 2**29


#: bytes of whitened images that are kept within a step: those of 1,200 color images of 32x32 pixels and 3x3 patches
KEPT_IMAGES = 2**27


def digests_of(images: Tensor) -> list[bytes]:
    """One of each image's pixels."""
    rows = images.detach().contiguous().flatten(1).view(torch.uint8).numpy()
    return [hashlib.sha256(row.data).digest() for row in rows]


class KeptMatrices:
    """The whitening matrices of images, computed once per image, found again by a digest of its pixels; at most ``memory`` bytes.

    An image that differs in a single bit has another digest, so what is found is never that of another image. Images that come
    when the memory is full, or that have another shape or dtype than the first ones, are computed every time.
    """

    def __init__(self, memory: int = KEPT) -> None:
        self.memory = memory
        self._like: tuple[torch.Size, torch.dtype] | None = None
        self._places: dict[bytes, int] = {}
        self._matrices = torch.empty(0)  # (places, s, s + 1), of which the first len(_places) are in use

    def __len__(self) -> int:
        return len(self._places)

    def __deepcopy__(self, memo: dict[int, Any]) -> KeptMatrices:
        return self  # a copy of a network sees the same images, and would compute the same again

    def of(self, images: Tensor, digests: list[bytes], compute: Callable[[Tensor], Tensor]) -> Tensor:
        """The matrices (N, s, s + 1) of images with these digests; ``compute`` gives those that are not here yet."""
        if self._like is None and len(images):
            self._allocate(images, compute)
        if self._like != (images.shape[1:], images.dtype):
            return compute(images)
        new = [i for i, digest in enumerate(digests) if digest not in self._places]
        result = self._matrices[[self._places.get(digest, 0) for digest in digests]]
        if new:
            result[new] = compute(images[new])
            for i in new:
                self._keep(digests[i], result[i])
        return result

    def _allocate(self, images: Tensor, compute: Callable[[Tensor], Tensor]) -> None:
        one = compute(images[:1])[0]
        places = self.memory // (one.numel() * one.element_size())
        self._matrices = one.new_empty(max(1, places), *one.shape)  # takes no memory until it is written to
        self._like = images.shape[1:], images.dtype

    def _keep(self, digest: bytes, matrix: Tensor) -> None:
        if digest not in self._places and (len(self) + 1) * matrix.numel() * matrix.element_size() <= self.memory:
            self._matrices[len(self)] = matrix
            self._places[digest] = len(self)


class Whitening(nn.Module):
    """:func:`whiten` as a module. (N, C, H, W) -> (N, C kh kw, H, W)"""

    def __init__(self, in_channels: int, patch_size: int | Pair = 3, eps: float = 1e-3, root: int = 2) -> None:
        super().__init__()
        self.eps = as_real(eps)
        if not self.eps > 0:
            raise ConfigError(f"Whitening expected eps > 0 (a patch covariance is singular), got {eps!r}")
        self.in_channels = in_channels
        self.patch_size = pair("patch_size", patch_size)
        if (number := as_integer(root, 1)) is None:
            raise ConfigError(f"Whitening expected an integer root >= 1, got {root!r}; use 2 to whiten")
        self.root = number
        self._kept: KeptMatrices | None = None
        self._whitened: dict[object, Tensor] | None = None  # batches of this step, if it keeps them

    def forward(self, images: Tensor) -> Tensor:
        require_images("Whitening", images, self.in_channels, images)
        _require_images(images)
        differentiates = images.requires_grad and torch.is_grad_enabled()
        if self._kept is None or differentiates or images.device.type != "cpu" or torch.compiler.is_compiling():
            return whiten_by(images, self._matrices(images), self.patch_size)
        digests = digests_of(images)
        key = images.shape, images.dtype, b"".join(digests)
        if self._whitened is not None and key in self._whitened:
            return self._whitened[key]
        whitened = whiten_by(images, self._kept.of(images, digests, self._matrices), self.patch_size)
        if self._whitened is None or whitened.is_inference():  # which could not be used for gradients
            return whitened
        if sum(t.nbytes for t in (*self._whitened.values(), whitened)) <= KEPT_IMAGES:
            self._whitened[key] = whitened
        return whitened

    def _matrices(self, images: Tensor) -> Tensor:
        return whitening_matrices(images, self.patch_size, self.eps, self.root)

    @contextmanager
    def keeping(self, memory: int = KEPT) -> Iterator[KeptMatrices]:
        """Within this context the matrices of an image are computed once, however often it is seen, on a CPU and without
        gradients. ``eps``, ``root`` and ``patch_size`` are not to change within it."""
        self._kept = KeptMatrices(memory)
        try:
            yield self._kept
        finally:
            self._kept = None

    @contextmanager
    def keeping_images(self) -> Iterator[None]:
        """Within this context, that of a step, a batch that is seen again is not whitened again, where matrices are kept."""
        self._whitened = {}
        try:
            yield
        finally:
            self._whitened = None

    def extra_repr(self) -> str:
        root = "" if self.root == 2 else f", root={self.root}"
        return f"{self.in_channels}, patch_size={self.patch_size}, eps={self.eps:g}{root}"


def every_whitening(net: nn.Module, keeping: Callable[[Whitening], AbstractContextManager[Any]]) -> ExitStack:
    """``Whitening.keeping`` or ``Whitening.keeping_images``, whichever is given, for every :class:`Whitening` of a network."""
    stack = ExitStack()
    for module in modules_of(net):
        if isinstance(module, Whitening):
            stack.enter_context(keeping(module))
    return stack
