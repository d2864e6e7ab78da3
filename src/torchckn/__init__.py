"""torchckn: give it a ConvNet, and it gives back the kernel network that the ConvNet was approximating.

The reading order is that of the paper, *Kernel-based Translations of Convolutional Networks* (Jones, Roulet, Harchaoui):
``kernels`` -> ``nn.invsqrt`` -> ``nn.functional`` -> ``nn.layers`` -> ``graph`` -> ``nn.network`` -> ``exact`` -> ``translate``
-> ``fit`` -> ``runs``.

Names are imported when they are first used, so that the command line need not wait for torch to say what it can do.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what follows, as type checkers and editors understand it
    from . import data as data
    from . import errors as errors
    from . import export as export
    from . import fit as fit
    from . import graph as graph
    from . import kernels as kernels
    from . import nn as nn
    from . import report as report
    from . import zoo as zoo
    from .compare import compare_kernels as compare_kernels
    from .convnet import ScaledConvNet as ScaledConvNet
    from .errors import CKNError as CKNError
    from .errors import ConfigError as ConfigError
    from .errors import DataError as DataError
    from .errors import NotFittedError as NotFittedError
    from .errors import NumericalError as NumericalError
    from .errors import TranslationError as TranslationError
    from .exact import exact_kernel as exact_kernel
    from .fit import evaluate as evaluate
    from .fit import fit_filters as fit_filters
    from .fit import fit_head as fit_head
    from .fit import train as train
    from .graph import Graph as Graph
    from .nn.invsqrt import inverse_sqrt as inverse_sqrt
    from .nn.network import CKN as CKN
    from .storage import load as load
    from .storage import save as save
    from .translate import translate as translate

__version__ = "0.1.0"

#: every public name, and the module that has it
_HOME = {
    # The layer
    "inverse_sqrt": "nn.invsqrt",
    # The network and its readings
    "CKN": "nn.network",
    "Graph": "graph",
    "ScaledConvNet": "convnet",
    "compare_kernels": "compare",
    "exact_kernel": "exact",
    # From ConvNet to CKN
    "translate": "translate",
    # Training
    "evaluate": "fit",
    "fit_filters": "fit",
    "fit_head": "fit",
    "train": "fit",
    # Keeping it
    "load": "storage",
    "save": "storage",
    # What can go wrong
    "CKNError": "errors",
    "ConfigError": "errors",
    "DataError": "errors",
    "NotFittedError": "errors",
    "NumericalError": "errors",
    "TranslationError": "errors",
}
_MODULES = ("data", "errors", "export", "fit", "graph", "kernels", "nn", "plots", "report", "runs", "sklearn", "zoo")

__all__ = ["data", "errors", "export", "fit", "graph", "kernels", "nn", "report", "zoo", *_HOME]


class _Package(types.ModuleType):
    """This package: names on first use, and ``translate`` the function, of which the sub-package of that name is the home."""

    def __getattr__(self, name: str) -> Any:
        if name in _MODULES:
            return importlib.import_module(f"{__name__}.{name}")
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
        self.__dict__[name] = value
        return value

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *__all__})

    @property
    def translate(self) -> Any:
        return importlib.import_module(f"{__name__}.translate").translate

    @translate.setter
    def translate(self, module: types.ModuleType) -> None:
        """Importing the sub-package would put it in the function's place."""


sys.modules[__name__].__class__ = _Package
