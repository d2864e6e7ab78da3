"""A trained network as a module of ordinary operations: what each layer becomes when its filters are constants."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ConfigError, DataError, TranslationError
from ..network import CKN, Classifier
from ..nn.devices import wide_dtype
from ..nn.functional import kernel_conv2d, kernel_linear, kernel_local2d
from ..nn.geometry import Pair
from ..nn.invsqrt import newton_iterations
from ..nn.layers import KernelConv2d, KernelLinear, KernelLocal2d, KernelSum
from ..nn.pooling import GaussianPool2d
from ..nn.product import KernelProduct, kernel_product
from ..nn.whitening import Whitening


class Plain(nn.Module):
    """Images to class probabilities, with constants instead of parameters: see :func:`plain`. (N, C, H, W) -> (N, classes)"""

    def __init__(self, network: Classifier, uint8_input: bool) -> None:
        super().__init__()
        self.network = network
        self.uint8_input = uint8_input

    def forward(self, images: Tensor) -> Tensor:
        if (images.dtype == torch.uint8) != self.uint8_input:
            expected = "uint8 images from 0 to 255" if self.uint8_input else "floating-point images from 0 to 1"
            raise DataError(f"this network expected {expected}, got {images.dtype}; see uint8_input of plain()")
        return torch.softmax(self.network(self.network.pixels(images)), 1)


@torch.no_grad()
def plain(network: Classifier, *, uint8_input: bool = False) -> Plain:
    """The network in eval mode as a module of ordinary operations that returns class probabilities.

    It is a copy: training the network further does not change it. It takes pixels between 0 and 1, or with ``uint8_input``
    uint8 images, which it divides by 255.

    Example:
        >>> import torchckn
        >>> ckn = torchckn.translate(torchckn.zoo.build("lenet1", filters=4))
        >>> torchckn.export.plain(ckn)(torch.rand(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """
    require_network("plain", network)
    if isinstance(network, CKN) and network.weights != "nystrom":
        raise ConfigError(
            f"plain expected a network with weights='nystrom', got weights={network.weights!r}; build it with weights='nystrom'"
        )
    constant = _plain(copy.deepcopy(network).eval())
    assert isinstance(constant, Classifier)
    return Plain(constant, uint8_input).to(network.head.weight.device).eval().requires_grad_(False)


def require_network(function: str, network: object) -> None:
    if not isinstance(network, Classifier):
        raise DataError(
            f"{function} expected a torchckn.CKN or a torchckn.ScaledConvNet, got {type(network).__name__}; "
            "torchckn.translate makes a CKN from a ConvNet, and ScaledConvNet(net) wraps the ConvNet itself"
        )


class _Layer(nn.Module):
    """A kernel layer whose projection A(W) is a constant."""

    weight: Tensor
    root: Tensor

    def __init__(self, layer: KernelConv2d | KernelLinear | KernelLocal2d) -> None:
        super().__init__()
        self.kernel = layer.kernel
        self.register_buffer("weight", layer.weight.detach().clone())
        self.register_buffer("root", layer.projection())


class _Conv(_Layer):
    def __init__(self, layer: KernelConv2d) -> None:
        super().__init__(layer)
        self.is_identity = layer.init == "identity"
        self.pool = None if layer.pool is None else _plain(layer.pool)
        self.geometry = {name: getattr(layer, name) for name in ("stride", "padding", "dilation", "groups")}

    def forward(self, x: Tensor) -> Tensor:
        weight = None if self.is_identity else self.weight
        return kernel_conv2d(x, weight, self.root, self.kernel, pool=self.pool, **self.geometry)


class _Dense(_Layer):
    def forward(self, x: Tensor) -> Tensor:
        return kernel_linear(x.flatten(1), self.weight, self.root, self.kernel)


class _Local(_Layer):
    region_of: Tensor

    def __init__(self, layer: KernelLocal2d) -> None:
        super().__init__(layer)
        self.weight = layer.filter_matrix().detach().clone()
        self.register_buffer("region_of", layer.region_of)
        self.patches = _Patches(layer.in_channels, layer.kernel_size, layer.stride, layer.padding, layer.dilation)
        self.output_size = layer.output_size
        self.pool = nn.Identity() if layer.pool is None else _plain(layer.pool)

    def forward(self, x: Tensor) -> Tensor:
        features = kernel_local2d(self.patches(x).flatten(2), self.weight, self.root, self.kernel, self.region_of)
        return self.pool(features.unflatten(2, self.output_size))


class _Product(nn.Module):
    weight: Tensor
    second_weight: Tensor
    root: Tensor

    def __init__(self, layer: KernelProduct) -> None:
        super().__init__()
        self.register_buffer("weight", layer.weight.detach().clone())
        self.register_buffer("second_weight", layer.second_weight.detach().clone())
        self.register_buffer("root", layer.projection())

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return kernel_product(first, second, self.weight, self.second_weight, self.root)


class _Patches(nn.Module):
    """``F.unfold``, which ONNX does not support, as a convolution with one-hot filters. (N, C, H, W) -> (N, C kh kw, H', W')"""

    weight: Tensor

    def __init__(self, channels: int, size: Pair, stride: Pair = (1, 1), padding: Pair = (0, 0), dilation: Pair = (1, 1)):
        super().__init__()
        one_hot = torch.eye(size[0] * size[1]).reshape(-1, 1, *size)
        self.register_buffer("weight", one_hot.repeat(channels, 1, 1, 1))
        self.geometry = stride, padding, dilation, channels

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight.to(x.dtype), None, *self.geometry)


class _Whitening(nn.Module):
    """:func:`torchckn.nn.whitening.whiten` with Newton's iteration in place of the eigendecomposition."""

    def __init__(self, layer: Whitening) -> None:
        super().__init__()
        if layer.root != 2:
            raise TranslationError(
                f"export expected whitening by the inverse square root, got root={layer.root}; use root=2"
            )
        rows, columns = layer.patch_size
        self.eps, self.window = layer.eps, rows * columns
        self.margins = (columns // 2, (columns - 1) // 2, rows // 2, (rows - 1) // 2)
        self.patches = _Patches(layer.in_channels, layer.patch_size)
        self.rank = max(1, layer.in_channels * (self.window - 1))
        # In units of trace(C) / rank, every eigenvalue is at least eps, and their sum is rank + eps s.
        self.iterations = _iterations(self.eps / (self.rank + self.eps * layer.in_channels * self.window))

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(F.pad(images, self.margins))  # (N, s, H, W)
        per_channel = patches.unflatten(1, (-1, self.window))
        patches = (per_channel - per_channel.mean(2, keepdim=True)).flatten(1, 2)
        patches = patches - patches.mean((2, 3), keepdim=True)
        wide = patches.flatten(2).to(wide_dtype(images.device))  # (N, s, H W)
        covariance = wide @ wide.mT / wide.shape[2]  # (N, s, s)
        spread = wide.square().sum((1, 2), keepdim=True) / (wide.shape[2] * self.rank)  # trace / rank
        ridge = (self.eps * spread).clamp(min=torch.finfo(images.dtype).tiny)
        identity = torch.eye(covariance.shape[1], dtype=wide.dtype, device=wide.device)
        # Divided by the trace and not by the Frobenius norm, as in `newton`: squares of tiny numbers underflow.
        trace = self.rank * spread + covariance.shape[1] * ridge
        root, _ = newton_iterations(covariance + ridge * identity, trace, self.iterations)
        return (root.to(images.dtype) @ patches.flatten(2)).unflatten(2, patches.shape[2:])


def _iterations(smallest: float) -> int:
    """Number of iterations until all eigenvalues of T S are 1, starting from at least ``smallest`` and at most 1."""
    count = 0
    while 1 - smallest > 1e-12:
        smallest *= ((3 - smallest) / 2) ** 2  # acts on each eigenvalue separately; the smallest one stays the smallest
        count += 1
    return count


class _GaussianPool(nn.Module):
    """:class:`GaussianPool2d` as a convolution, the same for every channel."""

    window: Tensor

    def __init__(self, pool: GaussianPool2d) -> None:
        super().__init__()
        window = pool.window()
        self.register_buffer("window", torch.outer(window, window)[None, None])
        self.stride, self.padding = pool.stride, pool.padding

    def forward(self, x: Tensor) -> Tensor:
        pooled = F.conv2d(x.flatten(0, 1)[:, None], self.window.to(x.dtype), None, self.stride, self.padding)
        return pooled.unflatten(0, (-1, x.shape[1])).squeeze(2)


class _Sum(nn.Module):
    """:class:`KernelSum` without its checks, which compare batch sizes that are not known at export."""

    def __init__(self, layer: KernelSum) -> None:
        super().__init__()
        self.weights = layer.weights

    def forward(self, *branches: Tensor) -> Tensor:
        weights = self.weights or (1.0,) * len(branches)
        return torch.cat([branch if w == 1 else w * branch for branch, w in zip(branches, weights, strict=True)], 1)


#: modules that compute a constant or use operations that ONNX does not have, with their replacements
_PLAIN: dict[type[nn.Module], Callable[..., nn.Module]] = {
    GaussianPool2d: _GaussianPool,
    KernelConv2d: _Conv,
    KernelLinear: _Dense,
    KernelLocal2d: _Local,
    KernelProduct: _Product,
    KernelSum: _Sum,
    Whitening: _Whitening,
}


def _plain(module: nn.Module) -> nn.Module:
    """The replacement of the module; a module without one stays, with its children replaced."""
    for kind, build in _PLAIN.items():
        if isinstance(module, kind):
            return build(module)
    for name, child in module.named_children():
        setattr(module, name, _plain(child))
    return module
