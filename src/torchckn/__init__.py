"""torchckn: give it a ConvNet, and it gives back the kernel network that the ConvNet was approximating.

The reading order is that of the paper, *Kernel-based Translations of Convolutional Networks* (Jones, Roulet, Harchaoui):
``kernels`` -> ``nn.invsqrt`` -> ``nn.functional`` -> ``nn.layers`` -> ``graph`` -> ``nn.network`` -> ``exact``.
"""

__version__ = "0.1.0"

# The layer
from . import data, errors, graph, kernels, nn, zoo

# The network and its readings
from .convnet import ScaledConvNet
from .errors import CKNError, ConfigError, DataError, NotFittedError, NumericalError, TranslationError
from .exact import exact_kernel
from .graph import Graph
from .nn.invsqrt import inverse_sqrt
from .nn.network import CKN

# Keeping it
from .storage import load, save

# From ConvNet to CKN
from .translate import translate

# Training
from .fit import evaluate, fit_filters, fit_head, train  # isort: skip
from .compare import compare_kernels  # isort: skip

__all__ = [
    "CKN",
    "CKNError",
    "ConfigError",
    "DataError",
    "Graph",
    "NotFittedError",
    "NumericalError",
    "ScaledConvNet",
    "TranslationError",
    "compare_kernels",
    "data",
    "errors",
    "evaluate",
    "exact_kernel",
    "fit_filters",
    "fit_head",
    "graph",
    "inverse_sqrt",
    "kernels",
    "load",
    "nn",
    "save",
    "train",
    "translate",
    "zoo",
]
