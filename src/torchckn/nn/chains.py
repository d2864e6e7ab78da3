"""Convolutional layers one after the other in a single call of compiled code: for few images, without gradients.

For one image, most of the time of a layer is Python and the start of operations, so a chain of layers is as fast as one.
Read first: :mod:`torchckn.nn.fused`, a layer by itself. Read next: :mod:`torchckn.network.ckn`, which finds the chains.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Module, ModuleDict

from ..derivatives import is_transformed
from ..tracing import is_recorded
from . import native
from .devices import is_mixed
from .direct import Geometry, Patches, integers, patches_of
from .functional import block_count
from .fused import applies, floats, require_window, window_of
from .kept import CachedRoot
from .layers import KernelConv2d
from .walk import must_be_called

#: images up to which a chain is faster than its layers
FEW_IMAGES = 4
#: filters of a layer up to which a chain is faster: beyond, libraries for matrices are, by 1.1 to 2 times with 256 filters, and
#: by 20 with 2048 (measured with 1 and 4 images of 8x8 to 28x28 pixels, 1x1 and 3x3 filters)
WIDEST = 128
#: stands for the size of maps where it is not known yet
_ANY = (0, 0)


class _Layer(ctypes.Structure):
    """``Layer`` of ``native/layer.cpp``."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("patches", "map", "packed", "numbers", "root")),
        ("kind", ctypes.c_long),
    ]


class Prepared(NamedTuple):
    """All that one call of compiled code needs. It never changes, so threads may share it."""

    shape: torch.Size
    """of the images, channels last"""
    settings: list[object]
    """of the layers: their geometry"""
    roots: list[CachedRoot]
    """of the layers: new ones whenever filters, kernel or eps have changed"""
    call: ctypes.Array[_Layer]
    kept: list[object]
    """what the pointers in ``call`` point to"""
    output: tuple[int, int, int]

    def is_for(self, shape: torch.Size, settings: list[object], roots: list[CachedRoot]) -> bool:
        """Whether it is that of the layers as they are now."""
        return (
            self.shape == shape and self.settings == settings and all(a is b for a, b in zip(roots, self.roots, strict=True))
        )


class Chain:
    """Layers of which each gets what the one before it gives, and nobody else does. Copies are empty of what was prepared."""

    def __init__(self) -> None:
        self.names: list[str] = []
        """of the layers"""
        self.nodes = 0
        """of the graph, the pooling within these layers included"""
        self._prepared: Prepared | None = None

    def __getstate__(self) -> tuple[list[str], int]:
        return self.names, self.nodes

    def __setstate__(self, state: tuple[list[str], int]) -> None:
        self.names, self.nodes = state
        self._prepared = None

    def takes(self, x: Tensor, layers: ModuleDict) -> bool:
        """Whether these images can go through the chain: few, without a gradient, and compiled code has all of the layers."""
        if is_recorded() or torch.is_grad_enabled() or is_transformed():
            return False
        if x.ndim != 4 or x.shape[0] > FEW_IMAGES or is_mixed(x.device):
            return False
        channels = x.shape[1]
        for name in self.names:
            layer = layers[name]
            if not _is_ready(layer, channels):
                return False
            channels = layer.filters  # type: ignore[assignment]
        return applies(x, layers[self.names[0]].kernel, 1)  # type: ignore[arg-type]

    def __call__(self, x: Tensor, layers: ModuleDict) -> Tensor:
        """The output of the last layer: (N, C, H, W) -> (N, f, H', W'), channels last."""
        x = x.permute(0, 2, 3, 1).contiguous()
        found: list[KernelConv2d] = [layers[name] for name in self.names]  # type: ignore[misc]
        roots = [layer.cached_root() for layer in found]
        settings = [_settings(layer) for layer in found]
        # Another thread may prepare for other images meanwhile: this call has its own, which it keeps alive.
        prepared = self._prepared
        if prepared is None or not prepared.is_for(x.shape, settings, roots):
            prepared = self._prepared = _prepare(x.shape, found, settings, roots)
        out = x.new_empty(x.shape[0], *prepared.output)
        native.call("chain", prepared.call, len(prepared.call), x.data_ptr(), out.data_ptr())
        return out.permute(0, 3, 1, 2)


def _settings(layer: KernelConv2d) -> object:
    """What a layer does with its input, but for the filters and their root."""
    return layer.stride, layer.padding, layer.dilation, window_of(layer.pool, _ANY), layer.init == "identity"


def _prepare(
    images_shape: torch.Size, layers: list[KernelConv2d], settings: list[object], roots: list[CachedRoot]
) -> Prepared:
    images, height, width, channels = images_shape
    kept: list[object] = []
    call = (_Layer * len(layers))()
    for i, (layer, cached) in enumerate(zip(layers, roots, strict=True)):
        weight, root = layer.weight.detach(), cached.root.contiguous()
        shape, size = torch.Size((images, channels, height, width)), (weight.shape[2], weight.shape[3])
        patches = patches_of(shape, size, Geometry(layer.stride, layer.padding, layer.dilation))
        window, description = window_of(layer.pool, patches.output), layer.kernel.native()
        assert window is not None
        assert description is not None
        require_window(patches.output, window)
        kernel_numbers = floats(*description[1])
        map_ = integers(images, *patches.output, layer.filters, *window, layer.kernel.degree, layer.has_uniform_root)
        packed = None if layer.init == "identity" else _packed(weight, patches)
        kept += [patches.numbers, map_, kernel_numbers, packed, root]
        call[i] = _Layer(
            ctypes.addressof(patches.numbers),
            ctypes.addressof(map_),
            native.address(packed),
            ctypes.addressof(kernel_numbers),
            root.data_ptr(),
            native.KERNELS.index(description[0]),
        )
        channels, height, width = layer.filters, *(n // w for n, w in zip(patches.output, window, strict=True))
    return Prepared(images_shape, settings, roots, call, kept, (height, width, channels))


def is_for_chains(layer: Module) -> bool:
    """Whether compiled code can have all of this layer, and is faster."""
    if type(layer) is not KernelConv2d or layer.groups != 1 or window_of(layer.pool, _ANY) is None:
        return False
    return layer.filters <= WIDEST and block_count(layer.filters, layer.root_block) == 1


def _is_ready(layer: Module, channels: int) -> bool:
    """Whether this layer can be in a chain as it is now, takes this many channels, and nobody watches it."""
    if not is_for_chains(layer) or layer.training or must_be_called(layer):
        return False
    assert isinstance(layer, KernelConv2d)
    weight = layer.weight
    if layer.init == "identity" and (layer.stride, layer.padding) != ((1, 1), (0, 0)):
        return False
    if weight.dtype != torch.float32 or weight.shape[1] != channels:
        return False
    return layer._shared is None and layer.kernel.native() is not None


def _packed(weight: Tensor, patches: Patches) -> Tensor:
    """Filters (f, C, kh, kw) as compiled code has them."""
    library = native.library()
    assert library is not None
    weight = weight.contiguous()
    packed = weight.new_zeros(library.packed_size(patches.numbers, weight.shape[0]))
    native.call("pack", patches.numbers, weight.data_ptr(), packed.data_ptr(), weight.shape[0])
    return packed
