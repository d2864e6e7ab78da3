"""Whole trainings on several processes: the same network as one process gives, and errors that all of them tell."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import torchckn
from torchckn import ConfigError, DataError, distributed
from torchckn.distributed import rank, world
from torchckn.fit.defaults import PRESETS
from torchckn.fit.patches import sample_patches
from torchckn.fit.schedules import Search, Search2019
from torchckn.graph import Conv, Graph, Local

from .processes import COUNTS, FEW, TOLERANCES, Processes, require_equal
from .training import digits, network, trained


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
@pytest.mark.parametrize(
    ("final_head", "counts"), [(True, COUNTS), (False, COUNTS[-1:])], ids=["final head", "no final head"]
)
def test_filters_training_and_classifier_are_those_of_one_process(
    groups: dict[int, Processes], dtype: torch.dtype, final_head: bool, counts: tuple[int, ...]
) -> None:
    one = whole(dtype, final_head=final_head)
    for count in counts:
        others = groups[count](whole, dtype, final_head=final_head)
        assert all(torch.equal(one["predictions"], other["predictions"]) for other in others)
        require_equal(one, others, dtype)
        if dtype == torch.float32:  # not one bit differs, but in the mean loss of a batch, in double precision
            assert all(torch.equal(value, others[0][name]) for name, value in one.items() if name != "history")


def parts(count: int) -> dict[str, Tensor]:
    """Patches and filters of groups and regions, some of which have few patches that are not constant, or none."""
    nodes = [Conv("grouped", filters=6, kernel_size=3, groups=3), Local("local", filters=3, kernel_size=2, regions=3)]
    net = torchckn.CKN(Graph((3, 8, 8), nodes), generator=torch.Generator().manual_seed(0))
    images = torch.rand(70, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    images[20:, 1] = 0
    images[:, 2] = 0
    images[5:, :, :5, :5] = 0
    torchckn.fit_filters(net, images, count, batch_size=8, generator=torch.Generator().manual_seed(2))
    found = {f"filters of {name}": layer.weight.detach() for name, layer in net.kernel_layers().items()}
    for name in net.kernel_layers():
        patches = sample_patches(net, name, images, count, 8, torch.Generator().manual_seed(3))
        found |= {f"patches of {name} {part}": some for part, some in enumerate(patches)}
    return found


@pytest.mark.parametrize("count", [60, 1000])
def test_patches_and_filters_of_groups_and_regions_are_those_of_one_process(
    groups: dict[int, Processes], count: int
) -> None:
    one = parts(count)
    assert {len(some) for name, some in one.items() if "patches" in name} > {0, count}
    for processes in COUNTS:
        for other in groups[processes](parts, count):
            assert one.keys() == other.keys()
            assert all(torch.equal(value, other[name]) for name, value in one.items())


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
        {"lr": Search2019(first=(2.0**-7, 2.0**-5), tries=2), "steps": 3},
        pytest.param({"lr": "search"}, marks=pytest.mark.slow),
        {"rollback": True, "steps": 6, "batch_size": 128, "chunk": 32},  # more steps than an epoch has
        {"loss": "square"},
        {"augment": "shift", "copies": 1, "steps": 1},
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


class StopInOne(torchckn.Callback):
    """Asks to stop in the last of the processes only."""

    def __init__(self, event: str) -> None:
        self.event = event

    def on_validation_end(self, training: Any, record: dict[str, Any]) -> None:
        self._stop("validation", training, record)

    def on_step_end(self, training: Any, record: dict[str, Any]) -> None:
        self._stop("step", training, record)

    def _stop(self, event: str, training: Any, record: dict[str, Any]) -> None:
        if event == self.event and record["step"] == 2 and rank() == world() - 1:
            training.stop("that is enough")


def stopped_in_one(event: str, folder: Path) -> tuple[int, str | None, int]:
    options: dict[str, Any] = {"steps": 6, "evaluate_every": 1, "final_head": False, "callbacks": [StopInOne(event)]}
    _, result = trained(run_dir=folder, **options)
    return result.steps, result.stopped, rank()


@pytest.mark.parametrize("event", ["validation", "step"])
def test_what_one_process_asks_for_all_do(groups: dict[int, Processes], event: str, tmp_path: Path) -> None:
    for steps, reason, number in groups[2](stopped_in_one, event, tmp_path / "run"):
        assert steps == 2
        assert reason == ("that is enough" if number == 1 else "another process asked to stop")


def loader_of_one_part() -> str:
    (images, labels), _ = digits()
    whole = TensorDataset(images, labels)
    loader = DataLoader(whole, 48, sampler=DistributedSampler(whole))
    messages = []
    uses: list[Any] = [torchckn.evaluate, torchckn.fit_filters, functools.partial(torchckn.train, lam=2**-8)]
    for use in uses:
        with pytest.raises(ConfigError, match="got a DataLoader with a DistributedSampler") as caught:
            use(network(), loader)
        messages.append(str(caught.value))
    return messages[-1]


def test_a_loader_that_gives_each_process_a_part_is_refused(groups: dict[int, Processes]) -> None:
    assert all("pass its Dataset" in message for message in groups[2](loader_of_one_part))
