"""The speed and memory that are promised, as ratios from one run. ``make slow``; ``make bench`` prints the tables."""

from __future__ import annotations

import functools

import pytest
import torch
from benchmarks.measure import median_times, peak_memory
from benchmarks.tables import BUILD, images_for, infer, prepare_step
from benchmarks.training import forward_and_backward
from benchmarks.wide import first_forward, resnet_step, seconds

from torchckn.nn import KernelLinear

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


@pytest.mark.parametrize("name", ["AlexNet", "VGG-11", "ResNet-50"])
def test_the_first_forward_of_a_wide_network_takes_less_than_ten_seconds(name: str) -> None:
    assert first_forward(name) < 10


def test_a_training_step_of_resnet_50_takes_less_than_twenty_seconds() -> None:
    assert seconds(resnet_step()) < 20


def test_blocks_of_filters_make_a_wide_root_five_times_faster() -> None:
    layers = {block: KernelLinear(64, 2048, root_block=block) for block in (256, None)}
    times = {block: min(seconds(layer.projection) for _ in range(3)) for block, layer in layers.items()}
    assert times[None] > 5 * times[256]
