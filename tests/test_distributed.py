"""Several processes: the same numbers as one, whatever their number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from benchmarks.scale import SUMS, bytes_per_step, counted_bytes
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import torchckn
from torchckn import ConfigError, DataError, distributed
from torchckn.fit.config import PRESETS
from torchckn.fit.methods import METHODS, MethodOptions
from torchckn.fit.schedules import Search
from torchckn.fit.ulr import reduced_objective
from torchckn.network import FeatureScaling

from .processes import Processes
from .training import convnet, digits, mnist_mini, network, trained

COUNTS = (2, 3, 4)
#: for whole trainings: 2 divides most numbers, 3 does not
FEW = (2, 3)
TOLERANCES = {torch.float32: 1e-6, torch.float64: 1e-12}


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Processes]]:
    mnist_mini()  # loaded once, before the processes are forked
    import torch._dynamo  # noqa: F401 (so is what the first sum imports, which takes seconds)

    groups = {count: Processes(count, tmp_path_factory.mktemp(f"group{count}")) for count in COUNTS}
    yield groups
    for group in groups.values():
        group.close()


def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The largest difference, relative to the largest entry of its tensor."""
    assert one.keys() == other.keys()
    pairs = [(one[name].double(), other[name].double()) for name in one if one[name].numel()]
    return max(float((a - b).abs().max() / a.abs().max().clamp(min=1e-300)) for a, b in pairs)


def require_equal(one: dict[str, Tensor], others: list[dict[str, Tensor]], dtype: torch.dtype = torch.float64) -> None:
    assert distance(one, others[0]) <= TOLERANCES[dtype]
    for other in others[1:]:
        assert all(torch.equal(other[name], others[0][name]) for name in other), "processes have different numbers"


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
    [(46, 4, [16, 16, 14]), (46, 7, [14, 14, 18]), (46, 12, [15, 15, 16]), (46, 46, [15, 15, 16]), (2, 1, [0, 1, 1])],
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


# Whole trainings


def whole(dtype: torch.dtype, as_what: str = "pair", **options: Any) -> dict[str, Tensor]:
    net = network(dtype=dtype)
    parts = [(images.to(dtype), labels) for images, labels in digits(640)]
    if as_what == "dataset":
        parts = [TensorDataset(*part) for part in parts]  # type: ignore[misc]
    elif as_what == "loader":
        parts = [DataLoader(TensorDataset(*part), 50) for part in parts]  # type: ignore[misc]
    elif as_what == "shuffling loader":
        order = torch.Generator().manual_seed(5)
        parts[0] = DataLoader(TensorDataset(*parts[0]), 50, shuffle=True, generator=order)  # type: ignore[call-overload]
    arguments: dict[str, Any] = {
        "steps": 3,
        "lr": 2**-6,
        "batch_size": 20,
        "chunk": 4,  # five of them: the shares of two, three and four processes are unequal
        "lambdas": [2.0**-6, 2.0**-9],
        "patches": 300,
        "folds": 2,
        "final_head": False,
    }
    result = torchckn.train(net, *parts, generator=torch.Generator().manual_seed(0), **arguments | options)
    evaluation = torchckn.evaluate(net, parts[1])
    numbers = [[record["loss"], record["accuracy"], record["lr"]] for record in result.history[1:]]
    return net.state_dict() | {
        "history": torch.tensor(numbers, dtype=torch.float64),
        "evaluation": torch.tensor([evaluation.accuracy, evaluation.loss, evaluation.images], dtype=torch.float64),
        "predictions": evaluation.predictions,
    }


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_filters_training_and_final_classifier_are_those_of_one_process(
    groups: dict[int, Processes], dtype: torch.dtype
) -> None:
    one = whole(dtype, final_head=True)
    for group in groups.values():
        others = group(whole, dtype, final_head=True)
        assert all(torch.equal(one["predictions"], other["predictions"]) for other in others)
        require_equal(one, others, dtype)


#: the options of the presets, fewer of everything
PRESET: dict[str, Any] = PRESETS["fast"] | {"patches": 300, "steps": 3, "start_images": 200}


@pytest.mark.parametrize(("as_what", "folds"), [("pair", 2), ("pair", 0), ("dataset", 0), ("loader", 0)])
def test_a_first_classifier_on_some_images_is_that_of_one_process(
    groups: dict[int, Processes], as_what: str, folds: int
) -> None:
    options = PRESET | {"as_what": as_what, "folds": folds}
    one = whole(torch.float64, **options)
    for count in FEW:
        require_equal(one, groups[count](whole, torch.float64, **options))


@pytest.mark.parametrize("start_images", [600, 5000])  # of several units of features; and more than there are
def test_start_images_are_used_once_each_whatever_the_number_of_processes(
    groups: dict[int, Processes], start_images: int
) -> None:
    options = {"start_images": start_images, "folds": 0}
    one = whole(torch.float64, **options)
    for count in FEW:
        require_equal(one, groups[count](whole, torch.float64, **options))


@pytest.mark.parametrize(
    "options",
    [
        {"lr": Search(first=(2.0**-7, 2.0**-5), tries=2), "steps": 1},
        pytest.param({"lr": "search"}, marks=pytest.mark.slow),
        {"rollback": True, "steps": 6, "batch_size": 128, "chunk": 32},  # more steps than an epoch has
        {"loss": "square"},
        {"as_what": "dataset"},
        {"as_what": "loader"},
        {"as_what": "shuffling loader"},
    ],
    ids=str,
)
def test_search_roll_back_and_data_of_all_kinds_are_those_of_one_process(
    groups: dict[int, Processes], options: dict[str, Any]
) -> None:
    one = whole(torch.float64, **options)
    for count in FEW:
        require_equal(one, groups[count](whole, torch.float64, **options))


def last_batch_of(images: int) -> dict[str, Tensor]:
    """Three steps on a DataLoader whose second and last batch has so many images."""
    net, (train_data, _) = network(dtype=torch.float64), digits()
    loader = DataLoader(TensorDataset(train_data[0][: 48 + images].double(), train_data[1][: 48 + images]), 48)
    options: dict[str, Any] = {"lam": 2**-8, "steps": 3, "batch_size": 48, "lr": 2**-6, "patches": 100, "final_head": False}
    torchckn.train(net, loader, generator=torch.Generator().manual_seed(0), **options)
    return net.state_dict()


def test_a_batch_of_fewer_images_than_processes_is_left_out_by_all(groups: dict[int, Processes]) -> None:
    for group in groups.values():
        answers = group(last_batch_of, 1)
        for other in answers[1:]:
            assert all(torch.equal(other[name], answers[0][name]) for name in other)
    one = last_batch_of(2)  # enough for two processes
    require_equal(one, groups[2](last_batch_of, 2))


def test_before_the_first_step_everything_is_equal_bit_for_bit(groups: dict[int, Processes]) -> None:
    options = {"steps": 0}
    one = whole(torch.float32, **options)
    for count in FEW:
        for other in groups[count](whole, torch.float32, **options):
            assert all(torch.equal(one[name], other[name]) for name in one)


def head_fit(search: str) -> list[float]:
    net, (train_data, valid_data) = network(), digits(640)
    fit = torchckn.fit_head(net, train_data, valid_data, search=search, lambdas=[2.0**-i for i in range(6, 14)])  # type: ignore[arg-type]
    return [fit.lam, fit.accuracy or 0, *(value for score in fit.curve for value in (score.lam, score.accuracy, score.loss))]


def test_the_penalty_is_chosen_by_the_images_of_all_processes(groups: dict[int, Processes]) -> None:
    one = head_fit("path")
    for count in FEW:
        for other in groups[count](head_fit, "path"):
            assert other == pytest.approx(one, rel=1e-6)


# Runs and errors


def run_in(folder: str, steps: int, resume: bool) -> dict[str, Tensor]:
    options = {"run_dir": folder, "resume": resume, "checkpoint_every": 2, "final_head": False}
    return trained(network(dtype=torch.float64), steps=steps, **options)[0].state_dict()


def test_a_run_is_resumed_by_another_number_of_processes(groups: dict[int, Processes], tmp_path: Any) -> None:
    one = run_in(str(tmp_path / "one"), 6, False)
    first = groups[2](run_in, str(tmp_path / "several"), 3, False)
    require_equal(run_in(str(tmp_path / "start"), 3, False), first)
    require_equal(one, groups[4](run_in, str(tmp_path / "several"), 6, True))
    require_equal(one, groups[3](run_in, str(tmp_path / "several"), 6, True))  # it is finished: the same network


def message(kind: str) -> str:
    here = distributed.rank()
    try:
        if kind == "data":
            images, labels = digits()[0]
            torchckn.train(network(), (images + here, labels), lam=0.1, steps=1, batch_size=8)
        elif kind == "seed":
            torchckn.train(network(), digits()[0], lam=0.1, steps=1, batch_size=8, seed=here)
        elif kind == "batch norm":
            layers = nn.Sequential(nn.Conv2d(1, 4, 5), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(400, 10))
            torchckn.train(torchckn.ScaledConvNet(layers, (1, 14, 14)), digits()[0], lam=0.1, steps=1, batch_size=8)
        elif kind == "order":
            loader = DataLoader(TensorDataset(*digits()[0]), 48, shuffle=True)
            torchckn.train(network(), loader, lam=0.1, steps=1, batch_size=48, patches=100)
        elif kind == "small batches":
            loader = DataLoader(TensorDataset(*digits()[0]), 2)
            torchckn.train(network(), loader, lam=0.1, steps=1, batch_size=48, patches=100)
        elif kind == "batch":
            torchckn.train(network(), digits()[0], lam=0.1, steps=1, batch_size=1)
        else:
            torchckn.train(network(), digits()[0], lam=0.1, steps=1, run_dir=kind)
    except (ConfigError, DataError) as error:
        return str(error)
    return "no error"


def test_different_data_or_options_are_noticed_by_all_processes(groups: dict[int, Processes]) -> None:
    for told in groups[2](message, "data"):
        assert "process 1 on" in told
        assert "in its training data: expected" in told
        assert "give all machines the same code, data and options" in told
    assert all("in its training options: expected" in told for told in groups[2](message, "seed"))


def test_a_batch_has_an_image_for_every_process(groups: dict[int, Processes]) -> None:
    assert set(groups[3](message, "batch")) == {"batch_size is 1, but there are 3 processes; each needs at least one image"}


def test_batch_normalization_is_refused_on_several_processes(groups: dict[int, Processes]) -> None:
    for told in groups[2](message, "batch norm"):
        assert "expected a network without batch normalization on 2 processes, got one with BatchNorm2d" in told
        assert "use one process, nn.GroupNorm, or nn.SyncBatchNorm in a training loop of your own with Dist" in told
    assert message("batch norm") == "no error"


def test_a_loader_that_shuffles_differently_in_each_process_is_refused(groups: dict[int, Processes]) -> None:
    for told in groups[2](message, "order"):
        assert "expected data in the same order in all 2 processes, got a DataLoader that shuffles by torch's own" in told
        assert "pass its Dataset, which train shuffles itself, or DataLoader(..., generator=" in told
    assert message("order") == "no error"


def test_batches_that_are_all_too_small_are_an_error_in_every_process(groups: dict[int, Processes]) -> None:
    told = groups[3](message, "small batches")
    assert set(told) == {"there are no training images in batches of at least 3, one for each process"}


def test_an_error_of_the_first_process_is_one_of_all(groups: dict[int, Processes], tmp_path: Any) -> None:
    (tmp_path / "file.txt").write_text("not a run")
    told = groups[3](message, str(tmp_path))
    assert len(set(told)) == 1
    assert "is not empty and not a run" in told[0]
