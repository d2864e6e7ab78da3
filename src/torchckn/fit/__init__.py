"""Training: filters without labels, then a classifier on the features. Reading order: kmeans, filters, features, head."""

from .features import Evaluation, evaluate, extract_features
from .filters import fit_filters
from .head import HeadFit, fit_head
from .kmeans import spherical_kmeans

__all__ = ["Evaluation", "HeadFit", "evaluate", "extract_features", "fit_filters", "fit_head", "spherical_kmeans"]
