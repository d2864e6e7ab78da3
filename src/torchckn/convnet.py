"""A ConvNet trained as its kernel counterpart is: scaled features, then a linear head.

Paper: section 5.1: "the output features are normalized in the same way as for the CKNs". With this wrapper both sides of every
comparison go through the same training loop.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .data.preprocessing import Preprocessing
from .errors import DataError, TranslationError
from .graph import Graph
from .nn.network import CKN, Centring, Classifier


class ScaledConvNet(Classifier):
    """A ConvNet whose last linear layer sees scaled features: ``head(scaling(body(preprocessing(x))))``.

    Args:
        net: any ConvNet that ends in an ``nn.Linear``; it is copied.
        input_shape: (channels, height, width) of an image; may be left out for networks of the zoo without preprocessing.
        preprocessing: what is done to pixels first, as in :func:`torchckn.translate`.
        centring: see :class:`torchckn.nn.network.FeatureScaling`.

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
        centring: Centring = "image",
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        shape = getattr(net, "input_shape", None) if input_shape is None else input_shape
        if shape is None or len(shape) != 3:
            raise DataError(f"ScaledConvNet expects input_shape=(channels, height, width), came {input_shape!r}")
        body, head = _without_head(net)
        super().__init__(head.in_features, head.out_features, centring, generator, head.weight.device, head.weight.dtype)
        self.input_shape = (int(shape[0]), int(shape[1]), int(shape[2]))
        self.body = body
        self.preprocessing: nn.Sequential = _modules(preprocessing, self.input_shape)
        self.train(net.training)

    def features(self, x: Tensor) -> Tensor:
        return self.body(self.preprocessing(x)).flatten(1)

    @torch.no_grad()
    def initialize_(self, std: float, generator: torch.Generator | None = None) -> ScaledConvNet:
        """Draw all filters from a normal distribution, as the paper does: std 0.2 for the LeNets, 0.3 for All-CNN-C."""
        for name, parameter in self.body.named_parameters():
            if parameter.ndim > 1:
                drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.copy_(std * drawn)
            elif name.endswith("bias"):
                parameter.zero_()
        self.filters_fitted.fill_(True)
        return self


def _without_head(net: nn.Module) -> tuple[nn.Module, nn.Linear]:
    """A copy of the network whose last linear layer lets everything through, and that layer."""
    body = copy.deepcopy(net)
    found = [name for name, module in body.named_modules() if isinstance(module, nn.Linear)]
    if not found or not found[-1]:
        raise TranslationError(
            f"{type(net).__name__} has no nn.Linear at its end, where a ConvNet's classifier is expected; add one"
        )
    head = body.get_submodule(found[-1])
    assert isinstance(head, nn.Linear)
    body.set_submodule(found[-1], nn.Identity())
    return body, head


def _modules(preprocessing: Preprocessing | None, shape: tuple[int, int, int]) -> nn.Sequential:
    if preprocessing is None:
        return nn.Sequential()
    nodes = preprocessing.nodes()
    return nn.Sequential(*CKN(Graph(shape, nodes)).layers.values())
