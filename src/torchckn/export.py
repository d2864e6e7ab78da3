r"""Export of a trained network as a plain graph: convolutions, elementwise functions and pooling, without linear algebra.

.. math:: F' = A\, \left[ \kappa(W E N^{-1})\, N^{\text{degree}} \right] P, \qquad A, W \text{ constants}

With fixed filters, the inverse root A(W) is a constant, and multiplying by it is a 1x1 convolution. Standardization, whitening,
feature scaling and head are part of the graph, so its input is images and its output is class probabilities:

================  ===========================================================
:func:`plain`     an ``nn.Module``
:func:`to_torch`  a file for ``torch.export.load``, which needs torch only
:func:`to_onnx`   a file for onnxruntime and other readers of ONNX
================  ===========================================================

Both files are compared with the network before they are written. Read first: :mod:`torchckn.nn.functional`.

Whitening needs the inverse root of each image's covariance, which is not a constant, and ONNX has no eigendecomposition. So it
is computed by Newton's iteration, which consists of matrix products, in float64. The ridge bounds the condition number, and
with it the number of iterations to full precision, which is therefore fixed at export.
"""

from __future__ import annotations

import copy
import importlib
import io
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .errors import ConfigError, DataError, NumericalError, TranslationError
from .files import write_atomically
from .network import CKN, Classifier
from .nn.functional import kernel_conv2d, kernel_linear, kernel_local2d
from .nn.geometry import Pair
from .nn.invsqrt import wide_dtype
from .nn.layers import KernelConv2d, KernelLinear, KernelLocal2d, KernelSum
from .nn.pooling import GaussianPool2d
from .nn.product import KernelProduct, kernel_product
from .nn.whitening import Whitening

#: largest allowed difference from the network's probabilities, as a fraction of the image's largest one
TOLERANCE = 1e-5


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
    _require_network("plain", network)
    if isinstance(network, CKN) and network.weights != "nystrom":
        raise ConfigError(
            f"plain expected a network with weights='nystrom', got weights={network.weights!r}; build it with weights='nystrom'"
        )
    constant = _plain(copy.deepcopy(network).eval())
    assert isinstance(constant, Classifier)
    return Plain(constant, uint8_input).to(network.head.weight.device).eval().requires_grad_(False)


def to_torch(network: Classifier, path: str | os.PathLike[str], *, uint8_input: bool = False) -> Path:
    """Write the network to ``path`` as a program for ``torch.export.load(path).module()``, with any batch size.

    Input and output as in :func:`plain`: images, class probabilities. For the CPU, in the dtype of the network.
    """
    _require_network("to_torch", network)
    path = _file_path("to_torch", path)
    network = copy.deepcopy(network).cpu().eval()
    with _quiet_exporter("torch.export"):
        file = io.BytesIO()
        torch.export.save(_program(network, uint8_input), file)
        written = torch.export.load(io.BytesIO(file.getvalue())).module()
    _compare("torch.export", network, uint8_input, written)
    write_atomically(path, file.getvalue())
    return path


def to_onnx(
    network: Classifier,
    path: str | os.PathLike[str],
    *,
    opset: int = 18,
    uint8_input: bool = False,
    classes: Sequence[str] | None = None,
) -> Path:
    """Write the network to ``path`` as an ONNX model, in float32, from ``images`` (any batch size) to ``probabilities``.

    Before the file is written, onnxruntime (if it is not installed, onnx) runs the model, and its output is compared with the
    network's. Needs ``torchckn[export]``.

    Args:
        network: a CKN or a ScaledConvNet.
        path: of the file; its folder is created if needed.
        opset: version of the ONNX operator set, at least 18.
        uint8_input: images are uint8 from 0 to 255 instead of floats between 0 and 1.
        classes: names of the classes, stored in the model's metadata under ``classes`` as a JSON list.
    """
    _require_network("to_onnx", network)
    path = _file_path("to_onnx", path)
    if not isinstance(opset, int) or opset < 18:
        raise ConfigError(f"opset expected an integer >= 18, got {opset!r}; older versions are not supported")
    count = network.head.out_features
    if classes is not None and (isinstance(classes, str) or len(classes) != count):
        raise ConfigError(f"classes expected a list of {count} names, one per class, got {classes!r}")
    for package in ("onnx", "onnxscript"):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise ConfigError(
                f"to_onnx needs {package}, which is not installed; install it with: pip install 'torchckn[export]'"
            ) from error
    network = copy.deepcopy(network).to("cpu", torch.float32).eval()
    with _quiet_exporter("ONNX"):
        exported = torch.onnx.export(
            _program(network, uint8_input),
            dynamo=True,
            opset_version=opset,
            input_names=["images"],
            output_names=["probabilities"],
            verbose=False,
        )
    assert exported is not None
    model = exported.model_proto
    if opset not in [operators.version for operators in model.opset_import]:
        raise ConfigError(f"the installed onnxscript and onnx cannot write opset {opset}; use a lower opset, 18 by default")
    _tidy(model.graph)
    if classes is not None:
        model.metadata_props.add(key="classes", value=json.dumps([str(name) for name in classes]))
    content = model.SerializeToString()
    _compare("ONNX", network, uint8_input, _onnx_runner(content))
    write_atomically(path, content)
    return path


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
        for name, value in zip(
            ("weight", "second_weight", "root"), (*layer.sphere_parameters(), layer.projection()), strict=True
        ):
            self.register_buffer(name, value.detach().clone())

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
        trace = self.rank * spread + covariance.shape[1] * ridge
        root = _inverse_sqrt(covariance + ridge * identity, trace, self.iterations).to(images.dtype)
        return (root @ patches.flatten(2)).unflatten(2, patches.shape[2:])


def _inverse_sqrt(matrix: Tensor, trace: Tensor, iterations: int) -> Tensor:
    """Algorithm 1 of the paper, without the data-dependent checks of :func:`torchckn.nn.invsqrt.newton`.

    Divided by the trace and not by the Frobenius norm: both scale the spectrum to (0, 1], but the squares of tiny numbers
    underflow.
    """
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    s, t = matrix / trace, identity.expand_as(matrix)
    for _ in range(iterations):
        step = (3 * identity - t @ s) / 2
        s, t = s @ step, step @ t
    return t / trace.sqrt()


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
        size = pool.kernel_size
        weights = GaussianPool2d(1, pool.sigma, size, padding=0).matrix(size)  # (1, size): the window itself
        self.register_buffer("window", (weights.mT @ weights)[None, None])
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


def _program(network: Classifier, uint8_input: bool) -> torch.export.ExportedProgram:
    images = torch.zeros(2, *network.input_shape, dtype=torch.uint8 if uint8_input else network.head.weight.dtype)
    batch = {"images": {0: torch.export.Dim("batch")}}
    with torch.no_grad():
        program = torch.export.export(plain(network, uint8_input=uint8_input), (images,), dynamic_shapes=batch)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # otherwise the file would contain source lines and the paths of their files
    return program


def _tidy(graph: Any) -> None:
    """Name the batch dimension, and remove the exporter's metadata: source lines, intermediate shapes."""
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    for part in (*graph.node, *graph.input, *graph.output, *graph.initializer):
        part.ClearField("metadata_props")
    graph.ClearField("value_info")


def _onnx_runner(content: bytes) -> Callable[[Tensor], Tensor]:
    try:
        session = importlib.import_module("onnxruntime").InferenceSession(content, providers=["CPUExecutionProvider"])
    except ImportError:
        session = importlib.import_module("onnx.reference").ReferenceEvaluator(content)
    return lambda images: torch.from_numpy(session.run(["probabilities"], {"images": images.numpy()})[0])


@torch.no_grad()
def _compare(what: str, network: Classifier, uint8_input: bool, run: Callable[[Tensor], Tensor]) -> None:
    """Run both on random images, on a single one and on several, and raise an error if the results differ."""
    noise = torch.rand(3, *network.input_shape, generator=torch.Generator().manual_seed(0))
    pixels = (255 * noise).to(torch.uint8) if uint8_input else noise.to(network.head.weight.dtype)
    expected = _probabilities(network, pixels)
    # With large scores, float32 rounding exceeds the tolerance. The network in float64 shows how much of the error is rounding.
    rounding = _difference(_probabilities(copy.deepcopy(network).double(), pixels), expected)
    allowed = max(TOLERANCE, 10 * rounding)
    for images, probabilities in ((pixels[:1], expected[:1]), (pixels, expected)):
        difference = _difference(run(images), probabilities)
        if not difference <= allowed:
            raise NumericalError(
                f"expected the {what} program to differ from the network by at most {allowed:.0e} of an image's largest "
                f"probability, got {difference:.1e}; nothing was written. Check for modules that behave differently when exported"
            )


def _probabilities(network: Classifier, images: Tensor) -> Tensor:
    return torch.softmax(network(network.pixels(images)), 1)


def _difference(actual: Tensor, expected: Tensor) -> float:
    """The largest difference, as a fraction of the image's largest probability."""
    return ((actual - expected).abs() / expected.amax(1, keepdim=True)).max().item()


def _require_network(function: str, network: object) -> None:
    if not isinstance(network, Classifier):
        raise DataError(
            f"{function} expected a torchckn.CKN or a torchckn.ScaledConvNet, got {type(network).__name__}; "
            "torchckn.translate makes a CKN from a ConvNet, and ScaledConvNet(net) wraps the ConvNet itself"
        )


def _file_path(function: str, path: str | os.PathLike[str]) -> Path:
    if Path(path).is_dir():
        raise DataError(f"{function} expected the path of a file, got the folder {path}; add a file name")
    return Path(path)


@contextmanager
def _quiet_exporter(what: str) -> Iterator[None]:
    """Run torch's exporters without their log messages and warnings, and convert their errors."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except RuntimeError as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TranslationError(
            f"this network cannot be exported for {what}: {reason}; replace the module that causes it, usually a custom module "
            "whose forward pass depends on the values of its input"
        ) from error
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
