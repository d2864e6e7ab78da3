from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torchckn
from torchckn.errors import ConfigError
from torchckn.graph import (
    AdaptiveAveragePool,
    AsImage,
    AveragePool,
    Broadcast,
    Conv,
    Dense,
    DirectSum,
    Flatten,
    GaussianPool,
    Graph,
    KernelNode,
    Local,
    MaxPool,
    Node,
    Normalize,
    Pad,
    Product,
    SelectChannels,
    ShuffleChannels,
    SpaceToDepth,
    Standardize,
    Upsample,
    Whiten,
    Window,
)
from torchckn.graph.preprocessing import Preprocessing
from torchckn.kernels import ArcCosine, Linear, RBFSphere
from torchckn.nn import GaussianPool2d, KernelLinear, Whitening


def every_operation() -> Graph:
    return Graph(
        (3, 16, 16),
        [
            SelectChannels("chosen", channels=(0, 2, 1)),
            Whiten("white"),
            Conv("first", filters=6, kernel=RBFSphere(0.5, trainable=True)),
            Dense("gate", filters=4, inputs=("white",)),
            Broadcast("copies", size=(16, 16)),
            Product("gated", filters=6, inputs=("first", "copies")),
            GaussianPool("blur", stride=2),
            Conv("left", filters=5, kernel_size=(3, 3), padding=(1, 1), kernel=ArcCosine(1)),
            Conv("right", filters=4, kernel_size=(3, 1), padding=(2, 0), dilation=(2, 1), kernel=Linear(), inputs=("blur",)),
            DirectSum("sum", inputs=("left", "right", "blur")),
            Conv("same", filters=15, init="identity", kernel=ArcCosine(0), trainable=False),
            AveragePool("average", kernel_size=(2, 2), stride=(2, 2)),
            Normalize("normal"),
            Pad("border", padding=(1, 0, 0, 1)),
            ShuffleChannels("shuffled", order=(0, 2, 1, 3)),
            Conv("pairs", filters=6, groups=3, kernel_size=(2, 2)),
            MaxPool("largest", kernel_size=(2, 2), stride=(1, 1)),
            Local("local", filters=3, kernel_size=(2, 2), regions=(2, 1)),
            AdaptiveAveragePool("mean", output_size=(2, 1)),
            Upsample("larger", output_size=(4, 4), mode="bilinear"),
            Window("window", window=((0.5, 0.5), (0.25, 0.25)), padding=(1, 1), stride=(1, 1)),
            Pad("mirror", padding=(1, 1, -1, 1), mode="reflect"),
            SpaceToDepth("blocks", block=1),
            Normalize("whole", over="image"),
            Flatten("flat"),
            Dense("dense", filters=7, eps=0.01, inverse_sqrt="newton"),
            AsImage("pixel"),
        ],
    )


def test_shapes_are_those_that_the_network_gives() -> None:
    graph = every_operation()
    ckn = torchckn.CKN(graph)
    seen: dict[str, tuple[int, ...]] = {}
    for name, layer in ckn.layers.items():
        layer.register_forward_hook(lambda _m, _i, out, name=name: seen.__setitem__(name, tuple(out.shape[1:])))
    features = ckn.features(torch.rand(2, 3, 16, 16))
    assert features.shape == (2, graph.features) == (2, 7)
    for name, shape in seen.items():
        absorbed = [node for node, host in ckn.absorbed.items() if host == name]
        assert shape == graph.shapes[absorbed[0] if absorbed else name]
    assert ckn.absorbed == {"average": "same"}


def test_a_graph_is_rebuilt_from_its_json() -> None:
    graph = every_operation()
    text = json.dumps(graph.to_json())
    assert Graph.from_json(json.loads(text)) == graph
    assert hash(graph) == hash(every_operation())


def test_the_default_input_of_a_node_is_the_previous_node(small_graph: Graph) -> None:
    assert [node.inputs for node in small_graph.nodes] == [("input",), ("conv",), ("pool",)]


def test_graphs_and_nodes_cannot_be_changed(small_graph: Graph) -> None:
    with pytest.raises(AttributeError):
        small_graph.nodes = ()  # type: ignore[misc]
    with pytest.raises(AttributeError):
        small_graph.nodes[0].name = "other"  # type: ignore[misc]


def test_a_new_operation_is_one_class() -> None:
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Flip(Node):
        def output_shape(self, *shapes: tuple[int, ...]) -> tuple[int, ...]:
            return shapes[0]

        def module(self, *shapes: tuple[int, ...], **factory: Any) -> nn.Module:
            class Flipped(nn.Module):
                def forward(self, x: torch.Tensor) -> torch.Tensor:
                    return x.flip(-1)

            return Flipped()

        def exact(self, grams: Any, shapes: Any) -> Any:
            return grams[0].linear(self.module())

    graph = Graph((1, 6, 6), [Conv("conv", filters=9, kernel_size=(3, 3), kernel=Linear(), eps=1e-12), Flip("flip")])
    assert Graph.from_json(json.loads(json.dumps(graph.to_json()))) == graph
    generator = torch.Generator().manual_seed(0)  # some random filters are nearly dependent, where eps shows
    ckn, x = torchckn.CKN(graph, generator=generator, dtype=torch.float64), torch.rand(2, 1, 6, 6, dtype=torch.float64)
    features = ckn.features(x)
    torch.testing.assert_close(features @ features.T, torchckn.exact_kernel(ckn, x), rtol=1e-7, atol=1e-7)
    assert "Flip" in str(ckn.summary())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: Graph((28, 28), [Conv("c", filters=1)]),
            r"input_shape expected \(channels, height, width\), got \(28, 28\)",
        ),
        (lambda: Graph((1, 8, 8), []), "at least one node, got none"),
        (lambda: Graph((1, 8, 8), [Conv("c")]), "node 'c' expected at least one filter, got filters=0"),
        (lambda: Graph((1, 8, 8), [Conv("c", filters=1, kernel="rbf")]), "node 'c' expected a kernel .* got 'rbf'"),
        (lambda: Graph((1, 8, 8), [Conv("c", filters=1, stride=0)]), "stride of node 'c' expected an integer >= 1"),
        (lambda: Graph((1, 8, 8), [Conv("c", filters=1, kernel_size=(9, 9))]), "at least one .9, 9. window, got 8x8"),
        (
            lambda: Graph((1, 8, 8), [Conv("c", filters=1), Conv("c", filters=1)]),
            "new node name without dots, got 'c', which is already used",
        ),
        (lambda: Graph((1, 8, 8), [Conv("a.b", filters=1)]), "new node name without dots, got 'a.b'"),
        (lambda: Graph((1, 8, 8), [Conv("items", filters=1)]), "got 'items', which is already used, reserved or not valid"),
        (
            lambda: Graph((1, 8, 8), [Conv("c", filters=1, inputs=("x",))]),
            r"'c' expected earlier nodes as inputs, got \['x'\]",
        ),
        (lambda: Graph((1, 8, 8), [Dense("d", filters=1), Conv("c", filters=1)]), r"'c' expected an image .* got \(1,\)"),
        (
            lambda: Graph((1, 8, 8), [Conv("a", filters=1), Conv("b", filters=1, inputs=("input",))]),
            r"got unused nodes \['a'\]; remove them",
        ),
        (
            lambda: Graph((1, 8, 8), [Conv("a", filters=1, kernel_size=(3, 3)), DirectSum("s", inputs=("a", "input"))]),
            "'s' expected inputs that differ in their channels only",
        ),
        (lambda: Graph((1, 8, 8), [Conv("a", filters=1, inputs=("input", "input"))]), "'a' expected one input, got 2"),
        (
            lambda: Graph((1, 8, 8), [Conv("a", filters=1), Whiten("w")]),
            "'w' acts on pixels, but its input is a kernel layer",
        ),
        (
            lambda: Graph((1, 8, 8), [SelectChannels("s", channels=(1,))]),
            r"'s' expected channels from 0 to 0, got \(1,\)",
        ),
        (
            lambda: Graph((3, 8, 8), [ShuffleChannels("s", order=(1, 0, 1))]),
            r"'s' expected a permutation such as .*, got \(1, 0, 1\)",
        ),
        (
            lambda: Graph((1, 8, 8), [SpaceToDepth("s", block=3)]),
            "'s' expected a block that divides 8x8, got 3",
        ),
        (lambda: Graph((1, 8, 8), [AsImage("i")]), r"'i' expected a vector, got shape \(1, 8, 8\)"),
        (lambda: Window("w", window=((1.0,), (1.0, 2.0))), "'w' expected a window of numbers, with rows of one length"),
        (lambda: Window("w", window=((1.0, 2.0),), dilation=(2, 2)), "'w' expected dilation 1, got .2, 2.; put zeros"),
        (lambda: Upsample("u", output_size=(2, 2), mode="area"), "unknown mode of node 'u' 'area'"),
        (lambda: Pad("p", mode="constant"), "unknown mode of node 'p' 'constant'"),
        (lambda: Normalize("n", over="rows"), "unknown over of node 'n' 'rows'"),
        (lambda: Graph.from_json({"nodes": []}), "expected a graph written by Graph.to_json"),
        (lambda: Graph.from_json([1, 2]), "expected a graph written by Graph.to_json"),
        (lambda: Node.from_json({"op": "Convolution", "name": "c"}), "unknown operation 'Convolution'"),
        (lambda: Node.from_json({"op": "Conv", "name": "c", "filter": 3}), "Conv cannot be built from .*filter"),
    ],
)
def test_bad_graphs_are_refused_with_a_reason(build: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build()


def test_average_pooling_has_no_dilation() -> None:
    with pytest.raises(ConfigError, match="because average pooling has no dilation, got"):
        Graph((1, 8, 8), [AveragePool("p", kernel_size=(2, 2), dilation=(2, 2))])


def test_the_number_of_filters_can_be_changed_everywhere_at_once() -> None:
    wider = every_operation().with_filters(12)
    filters = {node.name: node.filters for node in wider.nodes if isinstance(node, KernelNode)}
    assert filters.pop("same") == 12 + 12 + 12  # an identity layer has as many filters as input channels
    assert set(filters.values()) == {12}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Conv("c", filters=1, eps=-1), "eps of node 'c' expected a number >= 0, got -1"),
        (lambda: Conv("c", filters=1, init="foo"), "unknown init of node 'c' 'foo'"),
        (lambda: Conv("c", filters=1, inverse_sqrt="foo"), "unknown inverse square root method 'foo'"),
        (
            lambda: Graph((2, 8, 8), [Conv("c", filters=3, init="identity")]),
            "expected 2 filters, as an identity on 2 channels, got 3",
        ),
        (
            lambda: Graph((2, 8, 8), [Conv("c", filters=2, init="identity", kernel_size=3)]),
            "expected 1x1 filters, stride 1, .* got 3x3, groups=1",
        ),
        (lambda: Graph((2, 8, 8), [Conv("c", filters=3, groups=2)]), "divides 2 channels and 3 filters, got 2"),
        (
            lambda: Graph((2, 8, 8), [Local("l", filters=3, regions=9)]),
            r"regions as output positions, \(8, 8\), got \(9, 9\)",
        ),
        (
            lambda: Graph((1, 8, 8), [DirectSum("s", weights=(1.0, 2.0), inputs=("input",))]),
            r"'s' expected one weight per input, 1 in total, got \(1.0, 2.0\)",
        ),
        (
            lambda: Graph((1, 8, 8), [AveragePool("p", kernel_size=9)]),
            r"node 'p' cannot be applied to an input of shape \(1, 8, 8\)",
        ),
        (
            lambda: Graph((3, 8, 8), [Standardize("s", mean=(0.5,), std=(0.0,))]),
            r"'s' expected a mean and a positive std for each of 3 channels, got mean \(0.5,\) and std \(0.0,\)",
        ),
        (
            lambda: Preprocessing((0.5,), (0.2,)).output_shape((3, 8, 8)),
            "this preprocessing expected images of 1 channels, got 3",
        ),
        (lambda: Graph((2, 8, 8), [nn.Conv2d(1, 1, 1)]), "nodes such as graph.Conv.*, got Conv2d"),
        (
            lambda: Graph((2, 8, 8), [Conv("training", filters=3)]),
            "got 'training', which is already used, reserved or not valid",
        ),
        (lambda: Graph((2, 8, 8), [Conv(1, filters=3)]), "got 1, which is already used, reserved or not valid"),
        (lambda: torchckn.CKN("x"), "CKN expected a torchckn.Graph, got str"),
        (
            lambda: torchckn.exact_kernel(nn.Identity(), torch.zeros(1)),
            "expected a torchckn.CKN or a torchckn.Graph, got Identity",
        ),
    ],
)
def test_a_graph_is_validated_when_it_is_made(build: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build()


@pytest.mark.parametrize("method", ["output_shape", "module", "exact"])
def test_the_error_for_an_unfinished_operation_names_the_missing_method(method: str) -> None:
    with pytest.raises(TypeError, match=f"Node must define {method}"):
        getattr(Node("n"), method)(*([[], []] if method == "exact" else []))


def test_an_integer_stands_for_a_pair_of_equal_ones() -> None:
    graph = Graph(
        (1, 12, 12),
        [
            Whiten("w", patch_size=3),
            Conv("c", filters=2, kernel_size=3),
            AveragePool("p", kernel_size=2),
            Local("l", filters=2, kernel_size=2, regions=2, inputs="p"),
            AdaptiveAveragePool("a", output_size=2),
        ],
    )
    assert graph.shapes["p"] == (2, 5, 5)  # the default stride is the window size, as in torch
    assert torchckn.CKN(graph).features(torch.rand(1, 1, 12, 12)).shape == (1, 8)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_real_numbers_of_numpy_are_those_of_python(kind: Any) -> None:
    half = kind(0.5)
    graph = Graph((1, 9, 9), [Whiten("whiten", eps=half), Conv("conv", filters=2, eps=half)])
    assert Graph.from_json(json.loads(json.dumps(graph.to_json()))) == graph
    assert (KernelLinear(2, 2, eps=half).eps, GaussianPool2d(2, sigma=half).sigma, Whitening(1, eps=half).eps) == (0.5,) * 3
    for wrong in (True, 10**400):
        with pytest.raises(ConfigError, match=f"eps expected a number >= 0, got {wrong}"):
            KernelLinear(2, 2, eps=wrong)


def test_integers_of_numpy_are_those_of_python() -> None:
    two, three, four = np.int64(2), np.int32(3), np.uint8(4)
    nodes = [
        Conv("conv", filters=four, kernel_size=three, stride=(two, two), groups=two, root_block=two),
        Pad("pad", padding=(two, two, np.int64(0), np.int64(-1))),
        Dense("dense", filters=three),
    ]
    graph = Graph(np.array([2, 9, 9]), nodes)  # type: ignore[arg-type]
    assert json.dumps(graph.to_json()) == json.dumps(Graph.from_json(graph.to_json()).to_json())
    assert graph.shapes["conv"] == (4, 4, 4)
    assert torchckn.CKN(graph, classes=three)(torch.rand(2, 2, 9, 9)).shape == (2, 3)


@pytest.mark.parametrize("filters", [True, np.bool_(True), np.float64(4), "4", 4.0])
def test_filters_are_an_integer(filters: Any) -> None:
    with pytest.raises(ConfigError, match="at least one filter"):
        Conv("conv", filters=filters)
