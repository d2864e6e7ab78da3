r"""Export of a trained network as a plain graph: convolutions, elementwise functions and pooling, without linear algebra.

.. math:: F' = A\, \left[ \kappa(W E N^{-1})\, N^{\text{degree}} \right] P, \qquad A, W \text{ constants}

With fixed filters, the inverse root A(W) is a constant, and multiplying by it is a 1x1 convolution. Standardization, whitening,
feature scaling and head are part of the graph, so its input is images and its output is class probabilities:

================  ===========================================================
:func:`plain`     an ``nn.Module``
:func:`to_torch`  a file for ``torch.export.load``, which needs torch only
:func:`to_onnx`   a file for onnxruntime and other readers of ONNX
================  ===========================================================

Both files are compared with the network before they are written. ``modules.py`` has what each layer becomes, ``files.py``
writes the files. Read first: :mod:`torchckn.nn.functional`.

Whitening needs the inverse root of each image's covariance, which is not a constant, and ONNX has no eigendecomposition. So it
is computed by Newton's iteration, which consists of matrix products, in float64. The ridge bounds the condition number, and
with it the number of iterations to full precision, which is therefore fixed at export.
"""

from .files import TOLERANCE, to_onnx, to_torch
from .modules import Plain, plain

__all__ = ["TOLERANCE", "Plain", "plain", "to_onnx", "to_torch"]
