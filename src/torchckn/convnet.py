"""A ConvNet with the same feature scaling and linear head as its kernel counterpart.

Paper: section 5.1: "the output features are normalized in the same way as for the CKNs". With this wrapper, CKNs
and ConvNets are trained by the same training loop.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .choices import Centering
from .errors import DataError, TranslationError
from .graph import Graph
from .graph.preprocessing import Preprocessing
from .network import CKN, Classifier
from .nn.normalize import Standardization


class ScaledConvNet(Classifier):
    """A ConvNet with feature scaling before its last linear layer: ``head(scaling(body(preprocessing(x))))``.

    Args:
        net: any ConvNet whose last layer is an ``nn.Linear``; it is copied.
        input_shape: (channels, height, width) of an image; optional for networks of the zoo without preprocessing.
        preprocessing: of the pixels, as in :func:`torchckn.translate`.
        centering: see :class:`torchckn.network.FeatureScaling`.

    Example:
        >>> from torchckn import zoo
        >>> net = ScaledConvNet(zoo.build("lenet5", filters=8, bias=False))
        >>> net.initialize_(std=0.2)(torch.rand(2, 1, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        net: nn.Module,
        input_shape: Sequence[int] | None = None,
        preprocessing: Preprocessing | None = None,
        centering: Centering = "image",
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        shape = getattr(net, "input_shape", None) if input_shape is None else input_shape
        if shape is None or len(shape) != 3:
            raise DataError(f"ScaledConvNet expected input_shape=(channels, height, width), got {input_shape!r}")
        shape = (int(shape[0]), int(shape[1]), int(shape[2]))
        modules = _modules(preprocessing, shape)
        body, head = _without_head(net, modules, shape)
        super().__init__(
            shape, head.in_features, head.out_features, centering, generator, head.weight.device, head.weight.dtype
        )
        self.body = body
        self.preprocessing = modules.to(head.weight)
        self.train(net.training)

    def features(self, x: Tensor) -> Tensor:
        return self.body(self.preprocessing(self.checked(x))).flatten(1)

    @property
    def pixel_statistics(self) -> tuple[Sequence[float], Sequence[float]] | None:
        first = next(iter(self.preprocessing), None)
        return (first.mean, first.std) if isinstance(first, Standardization) else None

    @torch.no_grad()
    def initialize_(self, std: float | None, generator: torch.Generator | None = None) -> ScaledConvNet:
        """Draw all filters from a normal distribution, as in the paper: std 0.2 for the LeNets, 0.3 for All-CNN-C.

        Args:
            std: the standard deviation; None: sqrt(2 / n) for filters of n weights (He et al., 2015).
        """
        for name, parameter in self.body.named_parameters():
            if parameter.ndim > 1:
                drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.copy_((math.sqrt(2 / parameter[0].numel()) if std is None else std) * drawn)
            elif name.endswith("bias"):
                parameter.zero_()
        self.filters_fitted.fill_(True)
        return self


@torch.no_grad()
def _without_head(net: nn.Module, preprocessing: nn.Module, shape: tuple[int, int, int]) -> tuple[nn.Module, nn.Linear]:
    """A copy of the network with its last linear layer replaced by the identity, and that layer."""
    body = copy.deepcopy(net).eval()
    outputs: dict[str, Tensor] = {}
    calls: Counter[str] = Counter()

    def note(name: str, output: Tensor) -> None:
        outputs[name] = output
        calls[name] += 1

    for name, module in body.named_modules():
        if name and isinstance(module, nn.Linear):
            module.register_forward_hook(lambda _, __, output, name=name: note(name, output))
    example = next(body.parameters(), torch.zeros(()))
    try:
        scores = body(preprocessing(torch.zeros(2, *shape)).to(example))
    except Exception as error:  # of a user's code
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise DataError(
            f"{type(net).__name__} does not run on images of shape {shape}: {reason}; check that input_shape, without the batch, "
            "is the one that the network was made for"
        ) from error
    heads = [name for name, output in outputs.items() if output is scores]
    if not heads:
        raise TranslationError(
            f"expected a ConvNet whose output is that of an nn.Linear, its classifier, got {type(net).__name__}; "
            "make an nn.Linear the last layer, with nothing after it"
        )
    if calls[heads[-1]] > 1:
        raise TranslationError(
            f"expected a classifier that is used once, got {heads[-1]!r} of {type(net).__name__}, which is used "
            f"{calls[heads[-1]]} times; make another nn.Linear the last layer"
        )
    body = copy.deepcopy(net)
    head = body.get_submodule(heads[-1])
    assert isinstance(head, nn.Linear)
    body.set_submodule(heads[-1], nn.Identity())
    return body, head


def _modules(preprocessing: Preprocessing | None, shape: tuple[int, int, int]) -> nn.Sequential:
    if preprocessing is None:
        return nn.Sequential()
    ckn = CKN(Graph(shape, preprocessing.nodes()), generator=torch.Generator())
    return nn.Sequential(*ckn.layers.values())
