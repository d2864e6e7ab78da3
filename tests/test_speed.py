"""The speed and memory that are promised, as ratios from one run. ``make slow``; ``make bench`` prints the tables."""

from __future__ import annotations

import functools

import pytest
import torch
from benchmarks.measure import median_times, peak_memory
from benchmarks.tables import BUILD, images_for, infer, prepare_step
from benchmarks.training import forward_and_backward

pytestmark = pytest.mark.slow


def test_a_step_is_five_times_faster_than_the_plain_method() -> None:
    images = images_for("LeNet-5", 256)
    kinds = ("torchckn", "reference")
    times = median_times(
        {kind: functools.partial(forward_and_backward, BUILD[kind]("LeNet-5", 32), images) for kind in kinds}
    )
    assert times["reference"] > 5 * times["torchckn"]


def test_inference_takes_at_most_two_and_a_half_times_the_convnet_s() -> None:
    images = images_for("LeNet-5", 256)
    kinds = ("torchckn", "ConvNet")
    times = median_times(
        {kind: functools.partial(infer, BUILD[kind]("LeNet-5", 32).eval(), images) for kind in kinds}, rounds=15
    )
    assert times["torchckn"] < 2.5 * times["ConvNet"]


def test_peak_memory_is_below_half_of_the_plain_method_s() -> None:
    peaks = [peak_memory(functools.partial(prepare_step, kind, "LeNet-5", 32, 256)) for kind in ("torchckn", "reference")]
    assert peaks[0] < peaks[1] / 2


def test_the_closed_form_is_faster_than_newton_on_a_cpu() -> None:
    from torchckn.kernels import RBFSphere
    from torchckn.nn.functional import projection

    weight = torch.nn.functional.normalize(torch.randn(128, 800)).requires_grad_()

    def run(method: str) -> None:
        projection(weight, RBFSphere(0.6), 1e-3, method).sum().backward()  # type: ignore[arg-type]

    times = median_times({method: functools.partial(run, method) for method in ("eigh", "newton")})
    assert times["eigh"] < times["newton"]
