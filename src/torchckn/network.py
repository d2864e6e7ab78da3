r"""A convolutional kernel network: features, their scaling, and a linear head.

.. math:: F_\ell = \Psi_\ell(F_{\ell-1}, W_\ell), \quad \ell = 1, \dots, L, \qquad
          \text{scores} = W_{L+1}\, s(F_L) + c

Paper: section 3.1, "Overall formulation"; section 5.1 for the scaling s of the features. This is the reading of a
:class:`torchckn.graph.Graph` that can be trained. Read next: :mod:`torchckn.exact`, :mod:`torchckn.translation`.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .choices import Centering, Kind, TrainingMethod, Weights, check_choice
from .correspondence import Report
from .errors import ConfigError, DataError, unknown_name
from .graph import Graph, KernelNode, Standardize
from .kernels import RBFSphere
from .nn.base import KernelLayer, sphere_groups
from .nn.checks import reads_now
from .nn.devices import wide_dtype
from .nn.functional import check_finite, checking_layers
from .nn.layers import KernelConv2d, require_same_type
from .nn.normalize import unit_pixels
from .summary import Summary, SummaryRow

#: Makes sums over this process's images into sums over all images: a differentiable all-reduce, which
#: :func:`torchckn.distributed.total` is.
Total = Callable[[Tensor], Tensor]


def of_this_process(part: Tensor) -> Tensor:
    """The sum over all images, if there is one process."""
    return part


class FeatureScaling(nn.Module):
    """Center features and divide them by their average norm, so that a head and its L2 penalty mean the same everywhere.

    In training mode the average norm (and, with ``centering="feature"``, the mean) is the batch's; in eval mode it is the
    one that :meth:`calibrate` took from the training set, 1 (and 0) before that.

    Args:
        features: number of features per image.
        centering: ``"image"`` subtracts each image's mean over its features, as in the paper; ``"feature"`` each
            feature's mean over the images; ``"none"`` nothing; ``"raw"`` nothing, and does not divide by the norm either.

    ``total`` is the one place where several processes add their parts of a batch: ultimate layer reversal, too, takes its sums
    over images from there. :func:`torchckn.distributed.summing` sets it.
    """

    mean: Tensor
    norm: Tensor
    total: Total = staticmethod(of_this_process)

    def __init__(
        self,
        features: int,
        centering: Centering = "image",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_choice("centering", centering, Centering)
        self.centering = centering
        width = features if centering == "feature" else 0
        self.register_buffer("mean", torch.zeros(width, device=device, dtype=dtype))
        self.register_buffer("norm", torch.ones((), device=device, dtype=dtype))

    def forward(self, features: Tensor) -> Tensor:
        mean = self._mean(features) if self.training else self.mean
        centered = self.center(features, mean)
        norm = self._average_norm(centered) if self.training else self.norm
        return centered / norm

    def center(self, features: Tensor, mean: Tensor) -> Tensor:
        """Centred features; ``mean`` is of each feature over the images, and counts with ``centering="feature"`` only."""
        if self.centering == "image":
            return features - features.mean(1, keepdim=True)
        return features - mean if self.centering == "feature" else features

    @torch.no_grad()
    def calibrate(self, features: Tensor) -> None:
        """Store the mean and the average norm of these features, which are those of the training set."""
        if features.ndim != 2 or not (len(features) or self.total is not of_this_process):
            raise DataError(f"calibrate expected features (images, d) of at least one image, got {tuple(features.shape)}")
        wide = wide_dtype(features.device)  # sums over very many images, in any order
        mean = self._mean(features, wide)
        if self.centering == "feature":
            self.mean.copy_(mean)
        self.norm.copy_(self._average_norm(self.center(features, mean), wide))

    def _mean(self, features: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        if self.centering != "feature":
            return self.mean
        return self._mean_over_images(features, dtype).to(features.dtype)

    def _average_norm(self, centered: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """1 where all are zero, so that dividing by it is always possible."""
        if self.centering == "raw":
            return centered.new_ones(())
        norm = self._mean_over_images(torch.linalg.vector_norm(centered, dim=1), dtype)
        return torch.where(norm == 0, 1.0, norm).to(centered.dtype)

    def _mean_over_images(self, values: Tensor, dtype: torch.dtype) -> Tensor:
        """Of (n,) or (n, d), over the images of all processes; sum and number of images in one total.

        In this precision at least: half precision would overflow.
        """
        sums = values.sum(0, dtype=torch.promote_types(values.dtype, dtype))
        both = self.total(torch.cat([sums.flatten(), sums.new_full((1,), len(values))]))
        return both[:-1].view(sums.shape) / both[-1]

    def extra_repr(self) -> str:
        return f"centering={self.centering}"


def _linear_head(
    features: int,
    classes: int,
    generator: torch.Generator | None,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> nn.Linear:
    """``nn.Linear`` with its own distribution of weights, drawn from the caller's generator and from no other."""
    if not isinstance(classes, int) or classes < 1:
        raise ConfigError(f"classes expected an integer >= 1, got {classes!r}")
    head = nn.utils.skip_init(nn.Linear, features, classes, device=device or "cpu", dtype=dtype)
    assert isinstance(head, nn.Linear)
    if head.weight.is_meta:
        return head
    with torch.no_grad():
        for parameter in head.parameters():
            drawn = torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_((2 * drawn - 1) * features**-0.5)
    return head


class Classifier(nn.Module):
    """Features, their scaling, and a linear head: ``head(scaling(features(x)))``. What all training functions work on.

    Subclasses define :meth:`features`: a kernel network (:class:`CKN`), a ConvNet (:class:`torchckn.ScaledConvNet`), or
    your own. What training asks of a network is here, with answers that suit any network but a kernel network.

    Args:
        input_shape: (channels, height, width) of an image.
        features: number of features per image.
        classes: number of scores that the head gives.
        centering: see :class:`FeatureScaling`.
    """

    #: what kind of network this is, for messages and file names
    kind: ClassVar[Kind] = "convnet"
    #: the training method that is used unless another one is given
    default_method: ClassVar[TrainingMethod] = "sgd"
    #: whether its filters are points on spheres, which :class:`torchckn.fit.SphereSGD` keeps there
    on_spheres: ClassVar[bool] = False

    lam: Tensor
    filters_fitted: Tensor

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        features: int,
        classes: int,
        centering: Centering = "image",
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_shape = input_shape
        self.scaling = FeatureScaling(features, centering, device, dtype)
        self.head = _linear_head(features, classes, generator, device, dtype)
        # What has been done to this network goes wherever its state_dict goes: training starts from there.
        #: the penalty that the head was fitted with; -1 until then
        self.register_buffer("lam", torch.tensor(-1.0, dtype=torch.float64, device=device))
        #: the loss that the head was fitted with, if it was fitted in this process
        self.head_loss: str | None = None
        #: whether the filters have been chosen, or are random yet
        self.register_buffer("filters_fitted", torch.tensor(False, device=device))

    def features(self, x: Tensor) -> Tensor:
        """The features of images, before scaling and head: (N, C, H, W) -> (N, d)"""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.scaling(self.features(x)))

    # Images

    def pixels(self, images: Tensor) -> Tensor:
        """Images as this network takes them: bytes as numbers from 0 to 1, in its dtype, on its device."""
        return unit_pixels(images, self.head.weight)

    def checked(self, x: Tensor) -> Tensor:
        """A batch that suits this network, bytes made into numbers from 0 to 1; or an error that says what does not suit."""
        require_shape(x, self.input_shape)
        if x.dtype == torch.uint8:
            return self.pixels(x)
        require_same_type("this network", x, self.head.weight)
        if torch.compiler.is_compiling() or not x.numel():
            return x
        if not reads_now(x):
            check_finite(x)
        else:
            low, high = (float(value) for value in x.detach().aminmax())
            if not math.isfinite(high - low):
                check_finite(x)
            if self.standardizes_pixels and max(-low, high) > _FAR_BEYOND_1:
                warnings.warn(
                    f"this network expected pixels from 0 to 1, got numbers from {low:.3g} to {high:.3g}; pass uint8 images, "
                    "which it scales by itself, or divide by 255",
                    stacklevel=4,
                )
        return x

    @property
    def standardizes_pixels(self) -> bool:
        """Whether the network begins with statistics of pixels that are numbers from 0 to 1."""
        return False

    # Training

    @property
    def needs_filters(self) -> bool:
        """Whether ``fit_filters`` is to be called before training."""
        return False

    def filters_to_watch(self) -> Tensor | None:
        """The first layer's filters, if they can be shown as pictures while training."""
        return None

    def filter_norms(self) -> dict[str, Tensor]:
        """The norms of the filters that are to be of norm 1, by layer."""
        return {}

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Groups of parameters for an optimizer, where they have gradients; all but the head's."""
        head = set(self.head.parameters())
        body = [parameter for parameter in self.parameters() if parameter.requires_grad and parameter not in head]
        return [{"params": body}] if body else []

    @contextmanager
    def training_only(self, names: Sequence[str] | None, bandwidths: bool) -> Iterator[None]:
        """Within this context only the layers of these names have gradients, and RBF bandwidths if asked for."""
        if names is not None or bandwidths:
            raise ConfigError(
                "trainable and bandwidths are for kernel networks; set requires_grad on a ConvNet's parameters"
            )
        yield

    # Saving

    def description(self) -> dict[str, Any] | None:
        """All that is needed to build the network again, as JSON; None if only its own code can build it."""
        return None

    def fingerprint(self) -> str:
        """A digest of what the network is made of, whatever its weights are."""
        return _digest(repr(self))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


#: pixels are between 0 and 1, standardized ones rarely beyond 10
_FAR_BEYOND_1 = 20.0


@contextmanager
def modes_kept(net: nn.Module) -> Iterator[None]:
    """Training and evaluation modes are restored at the end of this context, module by module."""
    before = {module: module.training for module in net.modules()}
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training


def require_shape(x: Tensor, shape: tuple[int, int, int]) -> None:
    """An error unless ``x`` is a batch of images of this shape."""
    if x.ndim != 4 or tuple(x.shape[1:]) != shape:
        raise DataError(
            f"expected images (N, {', '.join(map(str, shape))}), got {tuple(x.shape)}; "
            "a single image needs x[None], grey images a channel dimension"
        )


class CKN(Classifier):
    """The trainable network of a graph: ``head(scaling(features(x)))``. (N, C, H, W) -> (N, classes)

    An ordinary module: its filters, bandwidths and head are parameters from construction on, random until fitted.
    Images are uint8, or numbers as the graph expects them: from 0 to 1 if it begins with preprocessing.

    Args:
        graph: what the network is made of.
        classes: number of scores that the head gives.
        centering: see :class:`FeatureScaling`.
        weights: ``"random-features"`` makes the layers of fixed Gaussian weights instead, whose mean kernel is the same.
        generator: for the random filters and head.

    Example:
        >>> from torchckn.graph import Conv, Dense, Graph
        >>> ckn = CKN(Graph((1, 28, 28), [Conv("conv1", filters=16, kernel_size=(5, 5)), Dense("dense", filters=20)]))
        >>> ckn(torch.rand(8, 1, 28, 28)).shape
        torch.Size([8, 10])
    """

    kind: ClassVar[Kind] = "ckn"
    default_method: ClassVar[TrainingMethod] = "ulr"
    on_spheres: ClassVar[bool] = True

    def __init__(
        self,
        graph: Graph,
        classes: int = 10,
        centering: Centering = "image",
        *,
        weights: Weights = "nystrom",
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if not isinstance(graph, Graph):
            raise ConfigError(
                f"CKN expected a torchckn.Graph, got {type(graph).__name__}; translate(net) makes one from a ConvNet"
            )
        check_choice("weights", weights, Weights)
        if graph.features == 1 and centering == "image":
            raise ConfigError("one feature, centered by its own mean, is zero; use centering='none' or 'feature'")
        super().__init__(graph.input_shape, graph.features, classes, centering, generator, device, dtype)
        self.graph = graph
        self.weights = weights
        #: what became of each operation of the ConvNet that this network was translated from, if it was
        self.report: Report | None = None
        self.layers = nn.ModuleDict()
        self._last_use = {name: node.name for node in graph.nodes for name in node.inputs}
        #: nodes whose work is done inside the layer before them: linear pooling, which goes before a projection
        self.absorbed: dict[str, str] = {}
        for node in graph.nodes:
            shapes = [graph.shapes[name] for name in node.inputs]
            before = node.inputs[0]
            host = self.layers[before] if before in self.layers else None  # noqa: SIM401 - ModuleDict has no get
            alone = len(graph.consumers(before)) == 1
            if node.is_linear_pooling and alone and isinstance(host, KernelConv2d) and host.pool is None:
                host.pool = node.module(*shapes)
                self.absorbed[node.name] = before
            else:
                factory: dict[str, Any] = {"generator": generator, "device": device, "dtype": dtype}
                build = node.module if weights == "nystrom" else node.random_features
                self.layers[node.name] = build(*shapes, **factory)

    def features(self, x: Tensor) -> Tensor:
        """The features of images, before scaling and head: (N, C, H, W) -> (N, d)"""
        return self._run(x)[0].flatten(1)

    def inputs_of(self, name: str, x: Tensor) -> tuple[Tensor, ...]:
        """What the layer called ``name`` gets when the network sees ``x``."""
        return self._run(x, before=name)

    def _run(self, x: Tensor, before: str | None = None) -> tuple[Tensor, ...]:
        """The output of the last node, or the inputs of the node called ``before``."""
        values = {self.graph.input: self.checked(x)}
        stop = None if before is None else self.position_of(before)
        self.run_nodes(values, 0, stop)
        return (values[self.graph.output],) if stop is None else tuple(values[i] for i in self.graph.nodes[stop].inputs)

    def position_of(self, name: str) -> int:
        """The place of the layer called ``name`` in the order of computation."""
        if name not in self.layers:
            raise unknown_name("layer", name, self.layers)
        return [node.name for node in self.graph.nodes].index(name)

    def run_nodes(self, values: dict[str, Tensor], start: int = 0, stop: int | None = None) -> None:
        """Compute the nodes from ``start`` to before ``stop``, in place: ``values`` has the outputs that they need, by name,
        and afterwards those that later nodes need."""
        for node in self.graph.nodes[start:stop]:
            inputs = [values[name] for name in node.inputs]
            values[node.name] = inputs[0] if node.name in self.absorbed else self.layers[node.name](*inputs)
            if not torch.compiler.is_compiling() and checking_layers():
                check_finite(values[node.name], f"what follows layer {node.name!r}")
            for name in node.inputs:
                if self._last_use[name] == node.name:
                    values.pop(name, None)  # free it as early as possible

    def kernel_layers(self) -> dict[str, KernelLayer]:
        """The layers that have filters, by name, in the order of computation."""
        return {name: layer for name, layer in self.layers.items() if isinstance(layer, KernelLayer)}

    @property
    def standardizes_pixels(self) -> bool:
        return isinstance(self.graph.nodes[0], Standardize)

    @property
    def needs_filters(self) -> bool:
        return not bool(self.filters_fitted)

    def filters_to_watch(self) -> Tensor | None:
        return next((layer.weight for layer in self.kernel_layers().values() if layer.init != "identity"), None)

    def filter_norms(self) -> dict[str, Tensor]:
        layers = self.kernel_layers().items()
        return {name: torch.linalg.vector_norm(layer.filter_matrix().detach(), dim=-1) for name, layer in layers}

    def parameter_groups(self) -> list[dict[str, Any]]:
        return sphere_groups(self)

    @contextmanager
    def training_only(self, names: Sequence[str] | None, bandwidths: bool) -> Iterator[None]:
        layers = self.kernel_layers()
        names = list(layers if names is None else names)
        for name in names:
            if name not in layers:
                raise unknown_name("layer", name, layers)
        trained = [layers[name] for name in names if bandwidths and layers[name].init != "identity"]
        kernels = {layer: layer.kernel for layer in trained if type(layer.kernel) is RBFSphere}
        if bandwidths and not kernels:
            raise ConfigError("bandwidths=True expected layers with an RBFSphere kernel, and there is none to train")
        fixed = [p for name, layer in layers.items() if name not in names for p in layer.parameters() if p.requires_grad]
        try:
            for layer, kernel in kernels.items():
                layer.kernel = RBFSphere(kernel.bandwidth, trainable=True).to(layer.weight.device)
            for parameter in fixed:
                parameter.requires_grad_(False)
            yield
        finally:
            for layer, kernel in kernels.items():  # the new bandwidth stays; whether it is trainable is as it was
                assert isinstance(layer.kernel, RBFSphere)
                back = RBFSphere(layer.kernel.bandwidth, trainable=kernel.trainable).to(layer.weight.device)
                layer.kernel = back.train(kernel.training)
            for parameter in fixed:
                parameter.requires_grad_(True)

    def description(self) -> dict[str, Any]:
        for name, layer in self.kernel_layers().items():
            absorbed = [node for node in self.graph.nodes if self.absorbed.get(node.name) == name]
            intended = absorbed[0].module(self.graph.shapes[name]) if absorbed else None
            if repr(getattr(layer, "pool", None)) != repr(intended):
                raise DataError(
                    f"layer {name!r} has another pooling than its graph says, {intended}; build the network with it"
                )
        return {
            "graph": self.current_graph().to_json(),
            "classes": self.head.out_features,
            "centering": self.scaling.centering,
            "weights": self.weights,
            "report": self.report.to_json() if self.report else None,
            "training": self.training,
        }

    def fingerprint(self) -> str:
        return _digest(repr(self.graph.to_json()))

    def normalize_(self) -> CKN:
        """Bring every layer's filters back to the unit sphere, in place."""
        for layer in self.kernel_layers().values():
            layer.normalize_()
        return self

    def current_graph(self) -> Graph:
        """The graph as the network is now: with trained bandwidths, and options that were changed on its layers."""
        layers = self.kernel_layers()
        nodes = [
            node.as_in(layers[node.name]) if isinstance(node, KernelNode) and node.name in layers else node
            for node in self.graph.nodes
        ]
        return Graph(self.graph.input_shape, nodes)

    def summary(self) -> Summary:
        """A table: layer, kernel, filters, output shape, parameters."""
        rows = [SummaryRow("input", "images", "", None, self.graph.input_shape, 0, 0)]
        for node in self.current_graph().nodes:
            module = self.layers[node.name] if node.name in self.layers else nn.Identity()
            parameters = list(module.parameters())
            rows.append(
                SummaryRow(
                    node.name,
                    node.label(),
                    str(getattr(node, "kernel", "")),
                    getattr(node, "filters", None),
                    self.graph.shapes[node.name],
                    sum(p.numel() for p in parameters),
                    sum(p.numel() for p in parameters if p.requires_grad),
                )
            )
        size = sum(p.numel() for p in self.head.parameters())
        trained = sum(p.numel() for p in self.head.parameters() if p.requires_grad)
        rows.append(SummaryRow("head", "linear classifier", "", None, (self.head.out_features,), size, trained))
        return Summary(rows)
