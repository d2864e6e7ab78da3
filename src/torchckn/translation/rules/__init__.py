"""The correspondence between ConvNets and CKNs, one small function per rule.

Paper: table 1 and section 3.2; where the table leaves something open, the rule's reasons say what was decided. A rule is
registered for module classes, functions and names of tensor methods, gets a :class:`~torchckn.translation.builder.Step` and
returns the :class:`~torchckn.translation.builder.Value` that the operation has become.

Example:
    A rule for a module of your own:

    >>> import torchckn
    >>> from torch import nn
    >>> class Blur(nn.AvgPool2d):
    ...     def forward(self, x):
    ...         return super().forward(x)
    >>> @torchckn.translate.rule(Blur)
    ... def blur(step):
    ...     return step.emit(torchckn.graph.GaussianPool(step.name, stride=2), "inexact", "a Gaussian blurs as well")
"""

from . import activations, layers, maxima, norms, pooling, positions, products, shapes, softmax, sums  # noqa: F401 - registers the rules
from .refusals import reason_against
from .registry import RULES, Rule, rule

__all__ = ["RULES", "Rule", "reason_against", "rule"]
