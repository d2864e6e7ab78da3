r"""A convolutional kernel network: features, their scaling, and a linear head.

.. math:: F_\ell = \Psi_\ell(F_{\ell-1}, W_\ell), \quad \ell = 1, \dots, L, \qquad
          \text{scores} = W_{L+1}\, s(F_L) + c

Paper: section 3.1, "Overall formulation"; section 5.1 for the scaling s of the features. This is the reading of a
:class:`torchckn.graph.Graph` that can be trained. Read next: :mod:`torchckn.exact`, :mod:`torchckn.translate`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn

from ..errors import ConfigError, DataError, unknown_name
from ..graph import Graph, KernelNode
from ..summary import Summary, SummaryRow
from .functional import check_finite
from .layers import KernelConv2d, KernelLayer, require_same_type

if TYPE_CHECKING:
    from ..translate.report import Report

Centring = Literal["image", "feature", "none"]
Weights = Literal["nystrom", "random-features"]

#: Makes sums over this process's images into sums over all images: a differentiable all-reduce, such as
#: ``torch.distributed.nn.functional.all_reduce``.
Total = Callable[[Tensor], Tensor]


def of_this_process(part: Tensor) -> Tensor:
    """The sum over all images, if there is one process."""
    return part


class FeatureScaling(nn.Module):
    """Centre features and divide them by their average norm, so that a head and its penalty mean the same everywhere.

    In training mode the average norm (and, with ``centring="feature"``, the mean) is the batch's; in eval mode it is the
    one that :meth:`calibrate` took from the training set, 1 (and 0) before that.

    Args:
        features: how many features an image has.
        centring: ``"image"`` subtracts each image's mean over its features, as in the paper; ``"feature"`` each
            feature's mean over the images; ``"none"`` nothing.

    ``total`` is the one place where several processes add their parts of a batch: ultimate layer reversal, too, takes its sums
    over images from there. (Losses that are means over a batch, as in stochastic gradients, are averaged as DDP does it.)
    """

    mean: Tensor
    norm: Tensor
    total: Total = staticmethod(of_this_process)

    def __init__(
        self,
        features: int,
        centring: Centring = "image",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if centring not in get_args(Centring):
            raise unknown_name("centring", centring, get_args(Centring))
        self.centring = centring
        width = features if centring == "feature" else 0
        self.register_buffer("mean", torch.zeros(width, device=device, dtype=dtype))
        self.register_buffer("norm", torch.ones((), device=device, dtype=dtype))

    def forward(self, features: Tensor) -> Tensor:
        mean = self._mean(features) if self.training else self.mean
        centred = self.centre(features, mean)
        norm = self._average_norm(centred) if self.training else self.norm
        return centred / norm

    def centre(self, features: Tensor, mean: Tensor) -> Tensor:
        """Centred features; ``mean`` is of each feature over the images, and counts with ``centring="feature"`` only."""
        if self.centring == "image":
            return features - features.mean(1, keepdim=True)
        return features - mean if self.centring == "feature" else features

    @torch.no_grad()
    def calibrate(self, features: Tensor) -> None:
        """Remember the mean and the average norm of these features: those of the training set."""
        if features.ndim != 2 or not len(features):
            raise DataError(f"calibrate expects features (images, d) of at least one image, came {tuple(features.shape)}")
        mean = self._mean(features)
        if self.centring == "feature":
            self.mean.copy_(mean)
        self.norm.copy_(self._average_norm(self.centre(features, mean)))

    def _mean(self, features: Tensor) -> Tensor:
        if self.centring != "feature":
            return self.mean
        return (self.total(_sum(features)) / self._images(features)).to(features.dtype)

    def _average_norm(self, centred: Tensor) -> Tensor:
        """1 where all are zero, so that dividing by it is always possible."""
        norms = torch.linalg.vector_norm(centred, dim=1)
        norm = self.total(_sum(norms)) / self._images(centred)
        return torch.where(norm == 0, 1.0, norm).to(centred.dtype)

    def _images(self, features: Tensor) -> Tensor:
        return self.total(_sum(features.new_ones(len(features))))

    def extra_repr(self) -> str:
        return f"centring={self.centring}"


def _sum(per_image: Tensor) -> Tensor:
    """Over images, in single precision at least: half precision would overflow."""
    return per_image.sum(0, dtype=torch.promote_types(per_image.dtype, torch.float32))


def _linear_head(
    features: int,
    classes: int,
    generator: torch.Generator | None,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> nn.Linear:
    """``nn.Linear`` with its own distribution of weights, drawn from the caller's generator and from no other."""
    if not isinstance(classes, int) or classes < 1:
        raise ConfigError(f"classes expects a whole number of at least 1, came {classes!r}")
    head = nn.utils.skip_init(nn.Linear, features, classes, device=device or "cpu", dtype=dtype)
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        for parameter in head.parameters():
            drawn = torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_((2 * drawn - 1) * features**-0.5)
    return head


class Classifier(nn.Module):
    """Features, their scaling, and a linear head: ``head(scaling(features(x)))``. What all training functions work on.

    Subclasses define :meth:`features`: a kernel network (:class:`CKN`), a ConvNet (:class:`torchckn.ScaledConvNet`), or
    one's own.
    """

    lam: Tensor
    filters_fitted: Tensor

    def __init__(
        self,
        features: int,
        classes: int,
        centring: Centring,
        generator: torch.Generator | None,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.scaling = FeatureScaling(features, centring, device, dtype)
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


@contextmanager
def modes_kept(net: nn.Module) -> Iterator[None]:
    """Whatever is done to training and evaluation modes within this context is undone at its end, module by module."""
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
            f"this network expects images (N, {', '.join(map(str, shape))}), came {tuple(x.shape)}; "
            "a single image needs x[None], grey images a channel dimension"
        )


class CKN(Classifier):
    """The trainable network of a graph: ``head(scaling(features(x)))``. (N, C, H, W) -> (N, classes)

    An ordinary module: its filters, bandwidths and head are parameters from construction on, random until fitted.

    Args:
        graph: what the network is made of.
        classes: how many scores the head gives.
        centring: see :class:`FeatureScaling`.
        weights: ``"random-features"`` makes the layers of fixed Gaussian weights instead, whose mean kernel is the same.
        generator: for the random filters and head.

    Example:
        >>> from torchckn.graph import Conv, Dense, Graph
        >>> ckn = CKN(Graph((1, 28, 28), [Conv("conv1", filters=16, kernel_size=(5, 5)), Dense("dense", filters=20)]))
        >>> ckn(torch.rand(8, 1, 28, 28)).shape
        torch.Size([8, 10])
    """

    def __init__(
        self,
        graph: Graph,
        classes: int = 10,
        centring: Centring = "image",
        *,
        weights: Weights = "nystrom",
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if not isinstance(graph, Graph):
            raise ConfigError(
                f"CKN expects a torchckn.Graph, came {type(graph).__name__}; translate(net) makes one from a ConvNet"
            )
        if weights not in get_args(Weights):
            raise unknown_name("weights", weights, get_args(Weights))
        if graph.features == 1 and centring == "image":
            raise ConfigError("one feature, centred by its own mean, is zero; use centring='none' or 'feature'")
        super().__init__(graph.features, classes, centring, generator, device, dtype)
        self.graph = graph
        self.weights = weights
        #: what became of each operation of the ConvNet that this network was translated from, if it was
        self.report: Report | None = None
        self.layers = nn.ModuleDict()
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

    def _check(self, x: Tensor) -> None:
        require_shape(x, self.graph.input_shape)
        require_same_type("this network", x, self.head.weight)
        check_finite(x)

    def inputs_of(self, name: str, x: Tensor) -> tuple[Tensor, ...]:
        """What the layer called ``name`` gets when the network sees ``x``."""
        if name not in self.layers:
            raise unknown_name("layer", name, self.layers)
        return self._run(x, before=name)

    def _run(self, x: Tensor, before: str | None = None) -> tuple[Tensor, ...]:
        """The output of the last node, or the inputs of the node called ``before``."""
        self._check(x)
        values = {self.graph.input: x}
        last_use = {name: node.name for node in self.graph.nodes for name in node.inputs}
        for node in self.graph.nodes:
            inputs = [values[name] for name in node.inputs]
            if node.name == before:
                return tuple(inputs)
            values[node.name] = inputs[0] if node.name in self.absorbed else self.layers[node.name](*inputs)
            for name in node.inputs:
                if last_use[name] == node.name:
                    values.pop(name, None)  # free as soon as may be
        return (values[self.graph.output],)

    def kernel_layers(self) -> dict[str, KernelLayer]:
        """The layers that have filters, by name, in the order of computation."""
        return {name: layer for name, layer in self.layers.items() if isinstance(layer, KernelLayer)}

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
