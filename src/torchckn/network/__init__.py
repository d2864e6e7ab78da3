r"""A convolutional kernel network: features, their scaling, and a linear head.

.. math:: F_\ell = \Psi_\ell(F_{\ell-1}, W_\ell), \quad \ell = 1, \dots, L, \qquad
          \text{scores} = W_{L+1}\, s(F_L) + c

Paper: section 3.1, "Overall formulation"; section 5.1 for the scaling s of the features. ``scaling.py`` has the scaling,
``classifier.py`` what all training works on, ``ckn.py`` the reading of a :class:`torchckn.graph.Graph` that can be trained.
Read next: :mod:`torchckn.exact`, :mod:`torchckn.translation`.
"""

from .ckn import CKN
from .classifier import Classifier, modes_kept
from .scaling import FeatureScaling, Total, of_this_process

__all__ = ["CKN", "Classifier", "FeatureScaling", "Total", "modes_kept", "of_this_process"]
