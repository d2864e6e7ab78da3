r"""The description of a kernel network: which operation, on what, of which size. Frozen, validated once, read by all.

A :class:`Graph` is an input shape and a list of nodes in the order of computation. A node is a frozen dataclass whose
methods are its readings:

=====================  ===================================================================================
``output_shape``       the shape it gives, from the shapes it gets
``module``             the Nystrom layer, filters random yet  (:class:`torchckn.CKN` puts these together)
``random_features``    the ConvNet layer with Gaussian weights whose kernel ``module`` approximates
``exact``              the un-approximated kernel             (:func:`torchckn.exact_kernel` runs through these)
``label``              a few words for tables and drawings
=====================  ===================================================================================

A new operation is one subclass of :class:`Node` with these methods (see ``operations.py``): it is then saved, loaded and
summed up like the others.
Paper: section 3 (what networks are made of). Read next: :mod:`torchckn.network`.

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

__all__ = [
    "AdaptiveAveragePool",
    "AveragePool",
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
    "Shape",
    "Standardize",
    "Whiten",
]
