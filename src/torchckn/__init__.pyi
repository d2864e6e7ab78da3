# The facade: every public name, once. Read at run time by lazy_loader, and by type checkers and editors.

__version__: str

# The layer
# Training
from . import data as data

# What can go wrong
from . import errors as errors

# Saving, looking at it, taking it elsewhere
from . import export as export
from . import fit as fit

# The network and its readings
from . import graph as graph
from . import kernels as kernels
from . import nn as nn
from . import plots as plots
from . import report as report
from . import runs as runs
from . import sklearn as sklearn

# From ConvNet to CKN
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
from .fit.callbacks import Callback as Callback
from .fit.config import TrainConfig as TrainConfig
from .fit.features import evaluate as evaluate
from .fit.filters import fit_filters as fit_filters
from .fit.head import fit_head as fit_head
from .graph import Graph as Graph
from .network import CKN as CKN
from .network import Classifier as Classifier
from .network import FeatureScaling as FeatureScaling
from .nn.invsqrt import inverse_sqrt as inverse_sqrt
from .runs.trainer import train as train
from .storage import load as load
from .storage import save as save
from .translation import translate as translate
