"""Training. Without labels: kmeans, filters, features, classifier, head; with labels: ulr, chunks, sphere, stepsize, methods,
order, loop, trainer. That is also the reading order."""

from .classifier import HeadFit
from .features import Evaluation, evaluate, extract_features
from .filters import fit_filters
from .head import fit_head
from .kmeans import spherical_kmeans
from .loop import TrainResult
from .sphere import SphereSGD
from .trainer import train
from .ulr import reduced_objective

__all__ = [
    "Evaluation",
    "HeadFit",
    "SphereSGD",
    "TrainResult",
    "evaluate",
    "extract_features",
    "fit_filters",
    "fit_head",
    "reduced_objective",
    "spherical_kmeans",
    "train",
]
