"""Step sizes: the paper's search, schedules, and how users write them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from torchckn import ConfigError, TrainConfig
from torchckn.fit.schedules import Constant, Cosine, RootOfSteps, Search, Search2019, Stages, schedule


def never(lr: float) -> float:
    raise AssertionError("no trial is needed")


def test_the_search_takes_the_step_size_with_the_lowest_loss() -> None:
    tried: list[float] = []

    def trial(lr: float) -> float:
        tried.append(lr)
        return abs(math.log2(lr) + 3)

    assert Search().choose(0, 1000, None, trial) == 2**-3
    assert tried == [2.0**i for i in range(-6, 3)]


def test_later_the_search_looks_around_the_current_step_size_every_hundred_steps() -> None:
    tried: list[float] = []

    def trial(lr: float) -> float:
        tried.append(lr)
        return lr

    assert Search().choose(100, 1000, 0.5, trial) == 0.5 * 2**-3
    assert tried == [0.5 * 2.0**i for i in range(-3, 4)]
    assert Search().choose(101, 1000, 0.5, never) == 0.5


def test_step_sizes_that_diverge_are_passed_over() -> None:
    assert Search().choose(0, 10, None, lambda lr: math.inf if lr > 2**-6 else 1.0) == 2**-6
    with pytest.raises(ConfigError, match="no learning rate"):
        Search().choose(0, 10, None, lambda lr: math.nan)


def test_schedules() -> None:
    stages = Stages((4.0, 2.0, 1.0), length=10)
    assert [stages.choose(step, 99, None, never) for step in (0, 9, 10, 29, 98)] == [4, 4, 2, 1, 1]
    falling = Cosine(0.5)
    values = [falling.choose(step, 10, None, never) for step in range(10)]
    assert values[0] == 0.5
    assert values == sorted(values, reverse=True)
    assert values[5] == pytest.approx(0.25)
    assert RootOfSteps(3.0).choose(5, 900, None, never) == pytest.approx(0.1)


def test_what_users_write() -> None:
    assert schedule(0.1) == Constant(0.1)
    assert schedule([0.1, 0.01]) == Stages((0.1, 0.01))
    assert schedule("search") == Search()
    released = schedule("search:2019")
    assert isinstance(released, Search2019)
    assert (released.first[0], released.first[-1], released.tries) == (2**-9, 2**-1, 5)
    assert (released.one_batch, released.refit, released.keep) == (True, True, True)
    assert schedule("cosine:0.25") == Cosine(0.25)
    assert schedule(Constant(1.0)) == Constant(1.0)
    first = schedule("search", convnet=True)
    assert isinstance(first, Search)
    assert first.first[0] == 2**-10


@pytest.mark.parametrize("lr", [np.float32(0.5), np.array(0.5), torch.tensor(0.5)])
def test_numbers_of_numpy_and_torch_are_those_of_python(lr: Any) -> None:
    assert schedule(lr) == Constant(0.5)
    assert schedule([lr, 0.25]) == schedule(np.array([0.5, 0.25])) == Stages((0.5, 0.25))
    assert TrainConfig(lr=[lr]).to_plain()["lr"] == [0.5]


@pytest.mark.parametrize(
    "lr", [0, -1.0, math.nan, math.inf, "fast", "search:2018", "cosine:x", "cosine:-1", [], None, True, [0.5, True]]
)
def test_nonsense_is_refused_with_what_was_expected(lr: object) -> None:
    with pytest.raises(ConfigError, match="learning rate|lr|positive number"):
        schedule(lr)
