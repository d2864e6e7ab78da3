# The facade: every public name, once. Read at run time by lazy_loader, and by type checkers and editors.
# isort: off

__version__: str

# The layer
from . import kernels as kernels
from . import nn as nn
from .nn.invsqrt import inverse_sqrt as inverse_sqrt

# The network and its readings
from . import graph as graph
from .graph import Graph as Graph
from .network import CKN as CKN
from .network import Classifier as Classifier
from .network import FeatureScaling as FeatureScaling
from .convnet import ScaledConvNet as ScaledConvNet
from .exact import exact_kernel as exact_kernel
from .compare import compare_kernels as compare_kernels

# From ConvNet to CKN
from . import zoo as zoo
from .translation import translate as translate

# Training
from . import data as data
from . import distributed as distributed
from . import fit as fit
from .fit.config import TrainConfig as TrainConfig
from .fit.callbacks import Callback as Callback
from .fit.filters import fit_filters as fit_filters
from .fit.head import fit_head as fit_head
from .fit.features import evaluate as evaluate
from . import runs as runs
from .runs.trainer import train as train

# Saving, looking at it, taking it elsewhere
from .storage import load as load
from .storage import save as save
from . import export as export
from . import plots as plots
from . import report as report
from . import sklearn as sklearn

# What can go wrong
from . import errors as errors
from .errors import CKNError as CKNError
from .errors import ChanceWarning as ChanceWarning
from .errors import ConfigError as ConfigError
from .errors import DataError as DataError
from .errors import NotFittedError as NotFittedError
from .errors import NumericalError as NumericalError
from .errors import TranslationError as TranslationError
