"""The kernel layers, as modules. Reading order: invsqrt, functional, pooling, layers, whitening."""

from .layers import KernelConv2d, KernelLayer, KernelLinear, KernelLocal2d, KernelSum, sphere_groups
from .pooling import GaussianPool2d
from .whitening import Whitening, whiten

__all__ = [
    "GaussianPool2d",
    "KernelConv2d",
    "KernelLayer",
    "KernelLinear",
    "KernelLocal2d",
    "KernelSum",
    "Whitening",
    "sphere_groups",
    "whiten",
]
