r"""The network of a graph, which can be trained.

.. math:: F_\ell = \Psi_\ell(F_{\ell-1}, W_\ell), \quad \ell = 1, \dots, L

Read first: :mod:`torchckn.graph`, :mod:`torchckn.network.classifier`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..choices import Centering, Kind, TrainingMethod, Weights, check_choice
from ..correspondence import Report
from ..errors import ConfigError, DataError, unknown_name
from ..graph import Graph, KernelNode, Standardize
from ..kernels import RBFSphere
from ..nn.base import KernelLayer, sphere_groups
from ..nn.chains import Chain, is_for_chains
from ..nn.checks import check_finite, checking_layers
from ..nn.layers import KernelConv2d
from ..summary import Summary, SummaryRow
from .classifier import Classifier, digest


class CKN(Classifier):
    """The trainable network of a graph: ``head(scaling(features(x)))``. (N, C, H, W) -> (N, classes)

    An ordinary module: its filters, bandwidths and head are parameters from construction on, random until fitted.
    Images are uint8, or numbers as the graph expects them: from 0 to 1 if it begins with preprocessing.

    Args:
        graph: what the network is made of.
        classes: number of scores that the head gives.
        centering: see :class:`torchckn.network.FeatureScaling`.
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
        self._chains = self._find_chains()

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
        stop = len(self.graph.nodes) if stop is None else stop
        while start < stop:
            first, node = self.graph.nodes[start], self.graph.nodes[start]
            inputs = [values[name] for name in first.inputs]
            chain = self._chains.get(start)
            checking = checking_layers()
            if chain is not None and start + chain.nodes <= stop and not checking and chain.takes(inputs[0], self.layers):
                start += chain.nodes
                node = self.graph.nodes[start - 1]
                values[node.name] = chain(inputs[0], self.layers)
            else:
                start += 1
                values[node.name] = inputs[0] if node.name in self.absorbed else self.layers[node.name](*inputs)
            if checking:
                check_finite(values[node.name], f"what follows layer {node.name!r}")
            for name in first.inputs:
                if self._last_use[name] == first.name:
                    values.pop(name, None)  # free it as early as possible

    def _find_chains(self) -> dict[int, Chain]:
        """Convolutional layers that follow each other, by the place of the first one; compiled code may take them together."""
        chains: dict[int, Chain] = {}
        current: Chain | None = None
        for place, node in enumerate(self.graph.nodes):
            before = self.graph.nodes[place - 1].name if place else self.graph.input
            follows = current is not None and node.inputs == (before,) and len(self.graph.consumers(before)) == 1
            absorbed = node.name in self.absorbed
            if not absorbed and not is_for_chains(self.layers[node.name]):
                current = None
                continue
            if not follows or current is None:
                if absorbed or len(node.inputs) > 1:
                    current = None
                    continue
                current = chains[place] = Chain()
            current.nodes += 1
            if not absorbed:
                current.names.append(node.name)
        return chains

    def kernel_layers(self) -> dict[str, KernelLayer]:
        """The layers that have filters, by name, in the order of computation."""
        return {name: layer for name, layer in self.layers.items() if isinstance(layer, KernelLayer)}

    @property
    def pixel_statistics(self) -> tuple[Sequence[float], Sequence[float]] | None:
        first = self.graph.nodes[0]
        return (first.mean, first.std) if isinstance(first, Standardize) else None

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
        trained = [layer for name, layer in layers.items() if bandwidths and name in names and layer.weight.requires_grad]
        kernels = {layer: layer.kernel for layer in trained if type(layer.kernel) is RBFSphere and layer.init != "identity"}
        if bandwidths and not kernels:
            raise ConfigError(
                "bandwidths=True expected trainable layers with an RBFSphere kernel, and there are none; layers whose filters "
                "are fixed keep their bandwidths"
            )
        fixed = [p for name, layer in layers.items() if name not in names for p in layer.parameters() if p.requires_grad]
        try:
            for layer, kernel in kernels.items():
                layer.kernel = RBFSphere(kernel.bandwidth, trainable=True).to(layer.weight.device)
                layer.kernel.trainable = kernel.trainable  # a network that is saved now says what it will be afterwards
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
        return digest(repr(self.graph.to_json()))

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
