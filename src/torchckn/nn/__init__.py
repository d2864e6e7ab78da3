"""The kernel layers, as modules. Reading order: invsqrt, functional, pooling, base, layers, product, whitening."""

from .base import KernelLayer, sphere_groups
from .layers import KernelConv2d, KernelLinear, KernelLocal2d, KernelSum
from .pooling import GaussianPool2d
from .product import KernelProduct
from .whitening import Whitening, whiten

__all__ = [
    "GaussianPool2d",
    "KernelConv2d",
    "KernelLayer",
    "KernelLinear",
    "KernelLocal2d",
    "KernelProduct",
    "KernelSum",
    "Whitening",
    "sphere_groups",
    "whiten",
]
