"""Random graphs of all operations: what is built is saved, loaded and gives equal bits; what is refused is refused by name."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torchckn
from torchckn import ConfigError
from torchckn.graph import (
    AdaptiveAveragePool,
    AveragePool,
    Conv,
    Dense,
    DirectSum,
    Flatten,
    GaussianPool,
    Graph,
    Local,
    MaxPool,
    Node,
    Normalize,
    Pad,
    Standardize,
    Whiten,
)
from torchckn.kernels import ArcCosine, Kernel, Linear, Matern, Polynomial, RBFSphere

KERNELS: st.SearchStrategy[Kernel] = st.one_of(
    st.builds(RBFSphere, st.floats(0.1, 3), st.booleans()),
    st.builds(ArcCosine, st.integers(0, 2)),
    st.builds(Linear),
    st.builds(Polynomial, st.integers(1, 3), st.floats(0, 2)),
    st.builds(Matern, st.sampled_from([0.5, 1.5, 2.5]), st.floats(0.2, 3)),
)
SIZES = st.integers(1, 3)
PAIRS = st.tuples(SIZES, SIZES)


@st.composite
def nodes(draw: st.DrawFn, name: str, shape: tuple[int, ...], first: bool) -> Node:
    """A node that may follow an output of this shape; whether it fits is for the graph to say."""
    window: dict[str, Any] = {
        "kernel_size": draw(PAIRS),
        "stride": draw(PAIRS),
        "padding": draw(st.tuples(*[st.integers(0, 2)] * 2)),
    }
    layer: dict[str, Any] = {
        "filters": draw(st.integers(1, 6)),
        "kernel": draw(KERNELS),
        "eps": draw(st.sampled_from([1e-3, 0.1])),
    }
    layer |= {"inverse_sqrt": draw(st.sampled_from(["auto", "eigh", "newton:30"])), "trainable": draw(st.booleans())}
    channels = shape[0]
    identity = layer | {"filters": channels, "init": "identity"}
    choices: list[Node] = [Dense(name, **layer), Flatten(name), DirectSum(name, weights=draw(st.none() | st.just((0.5,))))]
    if len(shape) == 3:
        choices += [
            Conv(name, **layer, **window, dilation=draw(st.sampled_from([(1, 1), (2, 1)])), groups=draw(SIZES)),
            Conv(name, **identity),
            Local(name, **layer, **window, regions=draw(st.none() | PAIRS)),
            AveragePool(name, **window, ceil_mode=draw(st.booleans()), count_include_pad=draw(st.booleans())),
            MaxPool(name, **window, ceil_mode=draw(st.booleans())),
            AdaptiveAveragePool(name, output_size=draw(PAIRS)),
            GaussianPool(name, stride=draw(SIZES), sigma=draw(st.none() | st.floats(0.3, 3))),
            Pad(name, padding=draw(st.tuples(*[st.integers(-1, 2)] * 4))),
            Normalize(name),
        ]
        if first:
            mean = draw(st.lists(st.floats(-1, 1), min_size=channels, max_size=channels))
            choices += [Standardize(name, mean=tuple(mean), std=(0.5,) * channels), Whiten(name)]
    return draw(st.sampled_from(choices))


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Graph, int]:
    """A graph, grown node by node with now and then a branch; and how many nodes were refused, by name, on the way."""
    shape = (draw(SIZES), draw(st.integers(1, 9)), draw(st.integers(1, 9)))
    graph: Graph | None = None
    refused = 0
    for i in range(draw(st.integers(1, 6))):
        before = () if graph is None else graph.nodes
        last = shape if graph is None else graph.shapes[graph.output]
        new = [draw(nodes(f"n{i}", last, first=graph is None))]
        if before and draw(st.integers(0, 3)) == 0:  # beside the last node, and summed with it
            branch = dataclasses.replace(new[0], inputs=before[-1].inputs)
            new = [branch, DirectSum(f"s{i}", inputs=(before[-1].name, branch.name))]
        try:
            graph = Graph(shape, [*before, *new])
        except ConfigError as error:
            if not any(repr(node.name) in str(error) for node in new):
                raise AssertionError(f"no name of a node in {error}") from error
            refused += 1
    return graph or Graph(shape, [Flatten("flat")]), refused


@settings(max_examples=60)
@given(graphs())
def test_what_is_built_is_saved_loaded_and_gives_equal_bits(drawn: tuple[Graph, int]) -> None:
    graph, _ = drawn
    assert Graph.from_json(json.loads(json.dumps(graph.to_json()))) == graph
    ckn = torchckn.CKN(graph, 3, "feature", generator=torch.Generator().manual_seed(0)).eval()
    x = torch.rand(2, *graph.input_shape, generator=torch.Generator().manual_seed(1))
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        again = torchckn.load(torchckn.save(ckn, Path(folder) / "model"))
        features = ckn.features(x)
        assert features.shape == (2, graph.features)
        assert torch.equal(again.features(x), features)
        assert torch.equal(again(x), ckn(x))
        assert again.graph == ckn.current_graph()


#: what fields of nodes are not, by kind of node
WRONG: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(
        [None, "", "x", -1, 0, 2**70, 10**400, 1e308, float("nan"), float("inf"), (), (1,), (0, 0), (-1, -1), (1, 1, 1)]
    ),
    st.sampled_from(
        [{}, {"name": "x"}, {"name": "RBFSphere", "sigma": 10**400}, [[1]], (2**40, 2**40), (2**40,) * 4, True, 0.5]
    ),
)


@settings(max_examples=100)
@given(graphs(), st.data())
def test_a_graph_with_a_wrong_entry_is_refused_by_name_or_works(drawn: tuple[Graph, int], data: st.DataObject) -> None:
    plain = json.loads(json.dumps(drawn[0].to_json()))
    node = data.draw(st.sampled_from(plain["nodes"]))
    node[data.draw(st.sampled_from(sorted(node)))] = data.draw(WRONG)
    try:
        graph = Graph.from_json(plain)
        ckn = torchckn.CKN(graph, 3, "feature", device="meta")
    except ConfigError:
        return
    assert ckn.graph == graph
