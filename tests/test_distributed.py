"""Several processes: the same numbers as one, whatever their number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import torchckn
from torchckn import ConfigError, DataError, distributed
from torchckn.fit import kmeans
from torchckn.fit.classifier import fit_classifier
from torchckn.fit.methods import METHODS, MethodOptions
from torchckn.fit.ulr import reduced_objective
from torchckn.network import FeatureScaling

from .processes import Processes
from .training import convnet, digits, network, trained

COUNTS = (2, 3, 4)
TOLERANCES = {torch.float32: 1e-6, torch.float64: 1e-12}


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Processes]]:
    groups = {count: Processes(count, tmp_path_factory.mktemp(f"group{count}")) for count in COUNTS}
    yield groups
    for group in groups.values():
        group.close()


def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The largest difference, relative to the largest entry of its tensor."""
    assert one.keys() == other.keys()
    pairs = [(one[name].double(), other[name].double()) for name in one if one[name].numel()]
    return max(float((a - b).abs().max() / a.abs().max().clamp(min=1e-300)) for a, b in pairs)


def require_equal(one: dict[str, Tensor], others: list[dict[str, Tensor]], tolerance: float) -> None:
    assert distance(one, others[0]) <= tolerance
    for other in others[1:]:
        assert all(torch.equal(other[name], others[0][name]) for name in other), "processes have different numbers"


# Sums


def sums() -> dict[str, Any]:
    here, processes = distributed.rank(), distributed.world()
    part = torch.tensor([1.0 + here, 2.0], dtype=torch.float64, requires_grad=True)
    whole = distributed.total(part)
    (whole.square().sum() * (1 + here)).backward()
    parameter = nn.Parameter(torch.zeros(3))
    parameter.grad = torch.full((3,), float(here + 1))
    number = distributed.sum_gradients([parameter], 10.0)
    return {
        "total": whole.detach(),
        "gradient": part.grad,
        "summed": parameter.grad,
        "number": number[0],
        "numbers": distributed.total_of_numbers(1.0, here),
        "largest": distributed.largest(here),
        "rows": distributed.gathered(torch.arange(here * 10, here * 10 + here)),
        "shares": distributed.share(10),
        "first": distributed.from_first(lambda: f"of {here}"),
        "processes": processes,
    }


@pytest.mark.parametrize("count", COUNTS)
def test_sums_and_their_gradients_are_over_all_processes(groups: dict[int, Processes], count: int) -> None:
    answers = groups[count](sums)
    every = sum(range(1, count + 1))
    for answer in answers:
        assert answer["total"].tolist() == [every, 2 * count]
        # every process's objective has every part: sum_r (1 + r) * 2 * total
        assert answer["gradient"].tolist() == [every * 2 * every, every * 2 * 2 * count]
        assert answer["summed"].tolist() == [every] * 3
        assert answer["number"] == 10 * count
        assert answer["numbers"] == [count, every - count]
        assert answer["largest"] == count - 1
        assert answer["rows"].tolist() == [10 * r + i for r in range(count) for i in range(r)]
        assert answer["first"] == "of 0"
    assert [i for answer in answers for i in range(10)[answer["shares"]]] == list(range(10))


def test_one_process_does_not_even_copy() -> None:
    part = torch.ones(3)
    assert distributed.total(part) is part
    assert distributed.gathered(part) is part
    assert distributed.totals(part)[0] is part
    net = network()
    with distributed.summing(net):
        assert "total" not in vars(net.scaling)


# Steps


def steps(method: str, dtype: torch.dtype, batch: int, options: dict[str, Any], count: int = 4) -> dict[str, Tensor]:
    """Some steps by hand, each process on its share of every batch."""
    net: Any = convnet().to(dtype) if method == "sgd" else network(dtype=dtype)
    images, labels = digits()[0]
    one = METHODS[method](net, MethodOptions(lam=2**-8, momentum=0.5, **options))
    results = []
    for i in range(count):
        index = torch.arange(i * batch, (i + 1) * batch)[distributed.share(batch)]
        results.append(one.step(images[index].to(dtype), labels[index], lr=2**-6))
    results.append((one.loss(images[index].to(dtype), labels[index]), 0.0))
    return net.state_dict() | {"results": torch.tensor(results, dtype=torch.float64)}


METHOD_OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("ulr", {"hessian": "full"}),
    ("ulr", {"hessian": "diag"}),
    ("ulr", {"hessian": "cg"}),
    ("ulr", {"loss": "square"}),
    ("ulr", {"head_update": "reuse", "chunk": 7}),
    ("sgo", {}),
    ("sgo", {"loss": "square"}),
    ("sgo-ball", {"radius": 1.0}),
    ("sgd", {}),
]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(("method", "options"), METHOD_OPTIONS, ids=lambda value: str(value))
def test_steps_of_every_method_are_those_of_one_process(
    groups: dict[int, Processes], method: str, options: dict[str, Any], count: int
) -> None:
    for dtype, tolerance in TOLERANCES.items():
        batch = 46  # no multiple of 3 or 4: the shares are unequal
        require_equal(
            steps(method, dtype, batch, options), groups[count](steps, method, dtype, batch, options), tolerance
        )


def reduced(n: int, d: int, classes: int, loss: Any, hessian: Any, centering: Any, bias: bool, seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=g, dtype=torch.float64)
    y = torch.randint(classes, (n,), generator=g)
    head = nn.Linear(d, classes, bias=bias, dtype=torch.float64)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=g, dtype=torch.float64))
    mine = distributed.share(n)
    part = x[mine].requires_grad_()
    scaling = FeatureScaling(d, centering, dtype=torch.float64)
    scaling.total = distributed.total
    value, eta = reduced_objective(scaling(part), y[mine], head, 2**-6, 2**-4, loss, hessian, total=distributed.total)
    value.backward()
    assert part.grad is not None
    return {"value": distributed.total(value.detach()), "eta": eta, "gradient": distributed.gathered(part.grad)}


@settings(max_examples=25)
@given(
    st.integers(4, 30),
    st.integers(2, 12),
    st.integers(2, 4),
    st.sampled_from(["multinomial", "square"]),
    st.sampled_from(["full", "diag", "cg"]),
    st.sampled_from(["image", "feature", "none"]),
    st.booleans(),
    st.integers(0, 10**6),
)
def test_the_reduced_objective_is_that_of_one_process(groups: dict[int, Processes], *case: Any) -> None:
    one = reduced(*case)
    for group in groups.values():
        require_equal(one, group(reduced, *case), 1e-11 if case[4] == "cg" else 1e-12)


def through_ddp() -> dict[str, Tensor]:
    """The gradient of the mean loss of a ConvNet in a loop of one's own."""
    net = convnet().double()
    images, labels = digits()[0]
    mine = distributed.share(48)
    with distributed.summing(net):
        wrapped = DistributedDataParallel(net) if distributed.world() > 1 else net
        F.cross_entropy(wrapped(images[:48].double()[mine]), labels[:48][mine]).backward()
    return {name: p.grad for name, p in net.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("count", [2, 4])  # which divide the batch: DDP averages the processes' means
def test_distributed_data_parallel_gives_the_gradient_of_one_process(groups: dict[int, Processes], count: int) -> None:
    require_equal(through_ddp(), groups[count](through_ddp), 1e-12)


# Whole trainings


def whole(dtype: torch.dtype, as_what: str = "pair", **options: Any) -> dict[str, Tensor]:
    net = network(dtype=dtype)
    parts = [(images.to(dtype), labels) for images, labels in digits(640)]
    if as_what == "dataset":
        parts = [TensorDataset(*part) for part in parts]  # type: ignore[misc]
    elif as_what == "loader":
        parts = [DataLoader(TensorDataset(*part), 50) for part in parts]  # type: ignore[misc]
    arguments: dict[str, Any] = {"steps": 3, "lr": 2**-6, "batch_size": 50, "lambdas": [2.0**-6, 2.0**-9], "patches": 300}
    result = torchckn.train(net, *parts, generator=torch.Generator().manual_seed(0), **arguments | options)
    evaluation = torchckn.evaluate(net, parts[1])
    numbers = [[record["loss"], record["accuracy"], record["lr"]] for record in result.history[1:]]
    return net.state_dict() | {
        "history": torch.tensor(numbers, dtype=torch.float64),
        "evaluation": torch.tensor([evaluation.accuracy, evaluation.loss, evaluation.images], dtype=torch.float64),
        "predictions": evaluation.predictions,
    }


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_filters_head_and_training_are_those_of_one_process(
    groups: dict[int, Processes], dtype: torch.dtype, count: int
) -> None:
    require_equal(whole(dtype), groups[count](whole, dtype), 10 * TOLERANCES[dtype])
