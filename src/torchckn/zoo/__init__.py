"""ConvNets, as published. :func:`torchckn.translate` makes their kernel counterparts.

Paper: appendix "Mathematical description of ConvNets" for LeNet-1, LeNet-5 and All-CNN-C. ``filters=None`` gives the original
widths, ``filters=f`` gives every layer but the last f filters. Every network has the ``input_shape`` of its usual images.

Example:
    >>> from torchckn import zoo
    >>> zoo.names()
    ['alexnet', 'allcnn', 'lenet1', 'lenet5', 'nin', 'resnet20', 'vgg11']
    >>> net = zoo.build("lenet5", filters=32)
    >>> net.input_shape
    (1, 32, 32)
"""

from __future__ import annotations

import inspect
from typing import Any

from ..errors import ConfigError, unknown_name
from .alexnet import AlexNet
from .allcnn import AllCNN
from .base import ConvNet
from .lenet import LeNet1, LeNet5
from .modules import ChannelScale, LocallyConnected2d, MaskedConv2d, ScaledTanh, Subsample
from .nin import NetworkInNetwork
from .resnet import ResNet20
from .vgg import VGG11

#: all architectures by name; to add one, write a subclass of ConvNet and add a line here
ARCHITECTURES: dict[str, type[ConvNet]] = {
    "alexnet": AlexNet,
    "allcnn": AllCNN,
    "lenet1": LeNet1,
    "lenet5": LeNet5,
    "nin": NetworkInNetwork,
    "resnet20": ResNet20,
    "vgg11": VGG11,
}


def names() -> list[str]:
    """The valid names for :func:`build`."""
    return sorted(ARCHITECTURES)


def build(name: str, filters: int | None = None, **options: Any) -> ConvNet:
    """A ConvNet by name. ``options`` are arguments of its class, such as ``classes`` and ``bias``: see ``help(zoo.LeNet5)``."""
    if name not in ARCHITECTURES:
        raise unknown_name("architecture", name, ARCHITECTURES)
    architecture = ARCHITECTURES[name]
    valid_options = list(inspect.signature(architecture).parameters)
    for option in options:
        if option not in valid_options:
            raise unknown_name(f"option of {name}", option, valid_options)
    if filters is not None and (not isinstance(filters, int) or filters < 1):
        raise ConfigError(f"filters expected an integer >= 1, or None for the original widths, got {filters!r}")
    return architecture(filters=filters, **options)


__all__ = [
    "ARCHITECTURES",
    "VGG11",
    "AlexNet",
    "AllCNN",
    "ChannelScale",
    "ConvNet",
    "LeNet1",
    "LeNet5",
    "LocallyConnected2d",
    "MaskedConv2d",
    "NetworkInNetwork",
    "ResNet20",
    "ScaledTanh",
    "Subsample",
    "build",
    "names",
]
