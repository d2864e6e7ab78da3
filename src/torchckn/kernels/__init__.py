r"""Dot-product kernels on the sphere: the counterpart of a ConvNet's nonlinearity.

.. math::  k(x, y) = (\|x\| \|y\|)^{\text{degree}} \; \kappa\!\left(\frac{\langle x, y\rangle}{\|x\|\|y\|}\right),
           \qquad \kappa(1) = 1

Paper: section 3.1, "Overall formulation" (the form), section 3.2 and table 1 (which activation corresponds to
which kernel), appendix "CKN gradient" (derivatives). Read next: :mod:`torchckn.nn.invsqrt`.

=====================  =====================================================  ======  =======================
kernel                 kappa(t), theta = arccos t                              degree  counterpart of
=====================  =====================================================  ======  =======================
``Linear()``           t                                                      1       no nonlinearity
``ArcCosine(0)``       1 - theta / pi                                         0       step function
``ArcCosine(1)``       (sin theta + (pi - theta) t) / pi                      1       ReLU
``ArcCosine(2)``       (3 sin theta t + (pi - theta)(1 + 2 t^2)) / (3 pi)     2       squared ReLU
``RBFSphere(sigma)``   exp((t - 1) / sigma^2)                                 1       smooth, ReLU-like
``Polynomial(d, c)``   ((t + c) / (1 + c))^d                                  d       power d
``Matern(nu, sigma)``  Matern function of the chord sqrt(2 - 2 t)             1       (rougher RBF)
``Dual(activation)``   sum of a_k^2 t^k, a_k its Hermite coefficients         0 or 1  any activation
=====================  =====================================================  ======  =======================

To add a kernel, write a subclass of :class:`Kernel` with one method, ``kappa``; see CONTRIBUTING.
"""

from .activations import ACTIVATIONS
from .base import Kernel, KernelSpec, names, safe_norms
from .closed_forms import ArcCosine, Linear, Matern, Polynomial
from .dual import Dual
from .rbf import RBFSphere
from .text import parse

__all__ = [
    "ACTIVATIONS",
    "ArcCosine",
    "Dual",
    "Kernel",
    "KernelSpec",
    "Linear",
    "Matern",
    "Polynomial",
    "RBFSphere",
    "names",
    "parse",
    "safe_norms",
]
