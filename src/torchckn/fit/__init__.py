"""Training: filters without labels, layer by layer. Reading order: kmeans, filters."""

from .filters import fit_filters
from .kmeans import spherical_kmeans

__all__ = ["fit_filters", "spherical_kmeans"]
