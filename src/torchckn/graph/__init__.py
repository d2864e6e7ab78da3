r"""The description of a kernel network: its operations, their inputs and sizes. Immutable, and validated when it is built.

A :class:`Graph` is an input shape and a list of nodes in the order of computation. A node is a frozen dataclass with
these methods:

=====================  ===================================================================================
``output_shape``       the shape of its output, from the shapes of its inputs
``module``             the Nystrom layer, with random filters (:class:`torchckn.CKN` combines them to a network)
``random_features``    the ConvNet layer with Gaussian weights whose kernel ``module`` approximates
``exact``              the exact kernel                       (:func:`torchckn.exact_kernel` applies them in order)
``label``              a short name for tables and drawings
=====================  ===================================================================================

To add an operation, write a subclass of :class:`Node` with these methods (see ``operations.py``): saving, loading and
summaries then work for it as well.
Paper: section 3 (the operations of a network). Read next: :mod:`torchckn.network`.

Example:
    >>> from torchckn.graph import AveragePool, Conv, Dense, Graph
    >>> from torchckn.kernels import ArcCosine, RBFSphere
    >>> graph = Graph((1, 28, 28), [
    ...     Conv("conv1", filters=32, kernel_size=(5, 5), kernel=RBFSphere(0.6)),
    ...     AveragePool("pool1", kernel_size=(2, 2), stride=(2, 2)),
    ...     Dense("dense", filters=64, kernel=ArcCosine(1)),
    ... ])
    >>> graph.shapes["pool1"]
    (32, 12, 12)
"""

from .graph import Graph
from .layers import Conv, Dense, KernelNode, Local
from .node import Node, Shape
from .operations import (
    AdaptiveAveragePool,
    AveragePool,
    DirectSum,
    Flatten,
    GaussianPool,
    MaxPool,
    Normalize,
    Pad,
    Standardize,
    Whiten,
)
from .product import Broadcast, Product
from .resampling import AsImage, SelectChannels, ShuffleChannels, SpaceToDepth, Upsample, Window

__all__ = [
    "AdaptiveAveragePool",
    "AsImage",
    "AveragePool",
    "Broadcast",
    "Conv",
    "Dense",
    "DirectSum",
    "Flatten",
    "GaussianPool",
    "Graph",
    "KernelNode",
    "Local",
    "MaxPool",
    "Node",
    "Normalize",
    "Pad",
    "Product",
    "SelectChannels",
    "Shape",
    "ShuffleChannels",
    "SpaceToDepth",
    "Standardize",
    "Upsample",
    "Whiten",
    "Window",
]
