"""Several processes: the same numbers as one, whatever their number."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from benchmarks.scale import SUMS, bytes_per_step, counted_bytes
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from torchckn import distributed
from torchckn.fit.methods import METHODS, MethodOptions
from torchckn.fit.ulr import reduced_objective
from torchckn.network import FeatureScaling

from .processes import COUNTS, TOLERANCES, Processes, require_equal
from .training import convnet, digits, network

# Sums


def sums() -> dict[str, Any]:
    here, processes = distributed.rank(), distributed.world()
    part = torch.tensor([1.0 + here, 2.0], dtype=torch.float64, requires_grad=True)
    whole = distributed.total(part)
    (whole.square().sum() * (1 + here)).backward()
    parameter = nn.Parameter(torch.zeros(3))
    (distributed.common(parameter).sum() * (1 + here)).backward()
    return {
        "total": whole.detach(),
        "gradient": part.grad,
        "summed": parameter.grad,
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


def steps(method: str, dtype: torch.dtype, batch: int, options: dict[str, Any]) -> dict[str, Tensor]:
    """Two steps by hand, the second with momentum, each process on its share of every batch, in whole chunks."""
    chunk = options.get("chunk", 4)
    net: Any = convnet().to(dtype) if method == "sgd" else network(dtype=dtype)
    images, labels = digits()[0]
    one = METHODS[method](net, MethodOptions(lam=2**-8, momentum=0.5, **{"chunk": chunk, **options}))
    results = []
    for i in range(2):
        index = torch.arange(i * batch, (i + 1) * batch)[distributed.share(batch, chunk)]
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


@pytest.mark.parametrize(("method", "options"), METHOD_OPTIONS, ids=lambda value: str(value))
def test_steps_of_every_method_are_those_of_one_process(
    groups: dict[int, Processes], method: str, options: dict[str, Any]
) -> None:
    for dtype in TOLERANCES:
        batch = 46  # no multiple of 3 or 4: the shares are unequal
        one = steps(method, dtype, batch, options)
        for group in groups.values():
            others = group(steps, method, dtype, batch, options)
            require_equal(one, others, dtype)
            if dtype == torch.float32:  # sums in double precision are rounded once, so their order does not matter
                assert all(torch.equal(others[0][name], value) for name, value in one.items() if name != "results")


def shares(count: int, unit: int) -> slice:
    return distributed.share(count, unit)


@pytest.mark.parametrize(
    ("count", "unit", "expected"),
    [
        (46, 4, [16, 16, 14]),
        (46, 7, [14, 14, 18]),
        (46, 12, [15, 15, 16]),
        (46, 46, [15, 15, 16]),
        (9, 4, [3, 3, 3]),
        (2, 1, [0, 1, 1]),
    ],
)
def test_shares_are_of_whole_units_unless_they_were_too_unequal(
    groups: dict[int, Processes], count: int, unit: int, expected: list[int]
) -> None:
    slices = groups[3](shares, count, unit)
    assert [i for part in slices for i in range(count)[part]] == list(range(count))
    assert [part.stop - part.start for part in slices] == expected


def test_a_batch_of_fewer_images_than_features_is_solved_by_all_processes(groups: dict[int, Processes]) -> None:
    case = ("ulr", torch.float64, 11, {"loss": "square", "chunk": 1})  # and 12 features
    one = steps(*case)
    for group in groups.values():
        require_equal(one, group(steps, *case))


def reduced(
    n: int, d: int, classes: int, loss: Any, hessian: Any, centering: Any, bias: bool, seed: int
) -> dict[str, Tensor]:
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


@settings(max_examples=15)
@given(
    case=st.fixed_dictionaries(
        {
            "n": st.integers(4, 30),
            "d": st.integers(2, 12),
            "classes": st.integers(2, 4),
            "loss": st.sampled_from(["multinomial", "square"]),
            "hessian": st.sampled_from(["full", "diag", "cg"]),
            "centering": st.sampled_from(["image", "feature", "none"]),
            "bias": st.booleans(),
            "seed": st.integers(0, 10**6),
        }
    )
)
def test_the_reduced_objective_is_that_of_one_process(groups: dict[int, Processes], case: dict[str, Any]) -> None:
    one = reduced(**case)
    for group in groups.values():
        require_equal(one, group(reduced, **case))


def traffic(options: dict[str, Any]) -> tuple[int, int, int]:
    """Bytes that were added up in a step, those by the formula, and in how many sums."""
    net = network()
    images, labels = digits()[0]
    method = METHODS["ulr"](net, MethodOptions(lam=2**-8, **options))
    mine = distributed.share(46)
    with counted_bytes() as sent:
        method.step(images[:46][mine], labels[:46][mine], 2**-6)
    return sum(sent), bytes_per_step(net, options["hessian"], options.get("head_update") != "reuse"), len(sent)


@pytest.mark.parametrize(
    "options", [{"hessian": "full"}, {"hessian": "diag"}, {"hessian": "full", "head_update": "reuse"}], ids=str
)
def test_as_many_bytes_travel_in_a_step_as_the_formula_says(groups: dict[int, Processes], options: dict[str, Any]) -> None:
    for sent, expected, sums in groups[2](traffic, options):
        assert sent == expected
        assert sums == SUMS - 2 * (options.get("head_update") == "reuse")


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
    require_equal(through_ddp(), groups[count](through_ddp))
