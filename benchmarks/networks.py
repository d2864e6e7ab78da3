"""The benchmarked architectures, each as a kernel network, as a plain transcription of the paper, and as a plain ConvNet."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

import torchckn
from torchckn.graph import AdaptiveAveragePool, AveragePool, Conv, Graph, Node
from torchckn.kernels import RBFSphere

from .measure import placed
from .reference import ReferenceConv


class LayerShape(NamedTuple):
    size: int
    stride: int = 1
    padding: int = 0
    pool: int = 1
    identity: bool = False


#: LeNet-1 and LeNet-5 (appendix): convolution and pooling, then the nonlinearity on 1x1 patches; the last two are fully connected
LENET1 = ((1, 28, 28), [LayerShape(5, pool=2), LayerShape(1, identity=True)] * 2)
LENET5 = ((1, 32, 32), [LayerShape(5, pool=2), LayerShape(1, identity=True)] * 2 + [LayerShape(5), LayerShape(1)])
#: All-CNN-C (appendix), before its global average pooling
ALLCNN = (
    (3, 32, 32),
    [LayerShape(3, 1, 1), LayerShape(3, 1, 1), LayerShape(3, 2)] * 2 + [LayerShape(3, 1, 1), LayerShape(1), LayerShape(1)],
)
SHAPES: dict[str, tuple[tuple[int, int, int], list[LayerShape]]] = {
    "LeNet-1": LENET1,
    "LeNet-5": LENET5,
    "All-CNN-C": ALLCNN,
}


def kernel_network(name: str, filters: int) -> torchckn.CKN:
    shape, layers = SHAPES[name]
    nodes: list[Node] = []
    for i, layer in enumerate(layers):
        size, stride, padding = (layer.size,) * 2, (layer.stride,) * 2, (layer.padding,) * 2
        init = "identity" if layer.identity else "kmeans"
        nodes.append(
            Conv(
                f"layer{i + 1}",
                filters=filters,
                kernel_size=size,
                stride=stride,
                padding=padding,
                kernel=RBFSphere(0.6),
                init=init,  # type: ignore[arg-type]
            )
        )
        if layer.pool > 1:
            nodes.append(AveragePool(f"pool{i + 1}", kernel_size=(layer.pool,) * 2, stride=(layer.pool,) * 2))
    if name == "All-CNN-C":
        nodes.append(AdaptiveAveragePool("pool"))
    with torch.device("cpu"):
        network = torchckn.CKN(Graph(shape, nodes))
    placed(network)
    return network


class Classifier(nn.Module):
    """Layers, a global average for All-CNN-C, and a linear head: shared by the baselines."""

    def __init__(self, name: str, layers: list[nn.Module], filters: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.averages = name == "All-CNN-C"
        self.head = nn.Linear(16 * filters if name == "LeNet-1" else filters, 10)

    def features(self, x: Tensor) -> Tensor:
        maps = self.layers(x)
        return maps.mean((2, 3)) if self.averages else maps.flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def reference_network(name: str, filters: int) -> nn.Module:
    (channels, _, _), layers = SHAPES[name]
    modules: list[nn.Module] = []
    for layer in layers:
        module = ReferenceConv(channels, filters, layer.size, layer.stride, layer.padding, layer.pool, 0.6, 1e-3)
        if layer.identity:
            module.weight = nn.Parameter(torch.eye(filters), requires_grad=False)
        modules.append(module)
        channels = filters
    return placed(Classifier(name, modules, filters))


def convnet(name: str, filters: int, layout: torch.memory_format = torch.contiguous_format) -> nn.Module:
    """A plain ConvNet of the same widths: convolution, pooling, ReLU; an identity layer is only the ReLU."""
    (channels, _, _), layers = SHAPES[name]
    modules: list[nn.Module] = []
    for layer in layers:
        if not layer.identity:
            modules.append(nn.Conv2d(channels, filters, layer.size, layer.stride, layer.padding, bias=False))
        if layer.pool > 1:
            modules.append(nn.AvgPool2d(layer.pool))
        else:
            modules.append(nn.ReLU())
        channels = filters
    return placed(Classifier(name, modules, filters)).to(memory_format=layout)  # type: ignore[call-overload]
