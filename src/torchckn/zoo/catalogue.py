"""The networks of the zoo by name. Needs no torch: it is loaded when a network is built."""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

from ..choices import as_integer
from ..errors import ConfigError, unknown_name

if TYPE_CHECKING:
    from .base import ConvNet


class Architecture(NamedTuple):
    """Where a network is, and what it is."""

    module: str
    name: str
    input_shape: tuple[int, int, int]
    """(channels, height, width) of its usual images"""
    description: str

    def load(self) -> type[ConvNet]:
        """The class of the network."""
        return getattr(importlib.import_module(f".{self.module}", __package__), self.name)


#: all architectures by name; to add one, write a subclass of ConvNet in a file of its own and add a line here
ARCHITECTURES: dict[str, Architecture] = {
    "alexnet": Architecture("alexnet", "AlexNet", (3, 227, 227), "AlexNet (Krizhevsky et al., 2012)."),
    "allcnn": Architecture("allcnn", "AllCNN", (3, 32, 32), "All-CNN-C (Springenberg et al., 2014): convolutions only."),
    "convnext-atto": Architecture(
        "convnext", "ConvNeXtAtto", (3, 224, 224), "ConvNeXt (Liu et al., 2022), atto: channels last, LayerNorm."
    ),
    "densenet": Architecture("densenet", "DenseNet", (3, 32, 32), "DenseNet-BC-100 (Huang et al., 2017), for 32x32 images."),
    "efficientnet-b0": Architecture(
        "efficientnet", "EfficientNetB0", (3, 224, 224), "EfficientNet-B0 (Tan and Le, 2019): gated inverted residuals."
    ),
    "lenet1": Architecture("lenet", "LeNet1", (1, 28, 28), "LeNet-1 (LeCun et al., 1995): 4 and 12 filters."),
    "lenet5": Architecture("lenet", "LeNet5", (1, 32, 32), "LeNet-5 (LeCun et al., 1998): 6, 16, 120 and 84 filters."),
    "mobilenetv2": Architecture(
        "mobilenet", "MobileNetV2", (3, 224, 224), "MobileNetV2 (Sandler et al., 2018): inverted residuals."
    ),
    "nin": Architecture("nin", "NetworkInNetwork", (3, 32, 32), "Network in Network (Lin et al., 2013)."),
    "resnet20": Architecture("resnet", "ResNet20", (3, 32, 32), "ResNet-20 (He et al., 2015), for 32x32 images."),
    "seresnet50": Architecture(
        "seresnet", "SEResNet50", (3, 224, 224), "SE-ResNet-50 (Hu et al., 2018): squeeze and excitation."
    ),
    "vgg11": Architecture("vgg", "VGG11", (3, 32, 32), "VGG-11 (Simonyan and Zisserman, 2014), for 32x32 images."),
    "wideresnet": Architecture(
        "wideresnet", "WideResNet", (3, 32, 32), "WRN-28-10 (Zagoruyko and Komodakis, 2016), for 32x32 images."
    ),
}


def names() -> list[str]:
    """The valid names for :func:`build`."""
    return sorted(ARCHITECTURES)


def build(name: str, filters: int | None = None, **options: Any) -> ConvNet:
    """A ConvNet by name. ``options`` are arguments of its class, such as ``classes`` and ``bias``: see ``help(zoo.LeNet5)``."""
    if name not in ARCHITECTURES:
        raise unknown_name("architecture", name, ARCHITECTURES)
    architecture = ARCHITECTURES[name].load()
    valid_options = list(inspect.signature(architecture).parameters)
    for option in options:
        if option not in valid_options:
            raise unknown_name(f"option of {name}", option, valid_options)
    widths = as_integer(filters, 1)
    if filters is not None and widths is None:
        raise ConfigError(f"filters expected an integer >= 1, or None for the original widths, got {filters!r}")
    return architecture(filters=widths, **options)
