"""What the charts and pictures of a report are made of."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import torchckn
from torchckn.fit.conditioning import layer_facts, nystrom_error
from torchckn.fit.patches import sample_patches
from torchckn.kernels import ArcCosine, RBFSphere
from torchckn.report.charts import DASHES, penalty_chart, style, thinned
from torchckn.report.confusion import Sample, confusion
from torchckn.report.folder import read_runs
from torchckn.report.page import flat, short
from torchckn.report.pictures import FRAMES, filter_frames, thumbnail

from .reports import Small, digits, page


def test_the_confusion_matrix_counts_what_the_network_predicts(runs: tuple[Path, Path]) -> None:
    ckn = read_runs(runs)[0].ckn
    assert ckn is not None
    images, labels = digits()
    found = confusion(ckn, Sample("", images, labels, tuple(map(str, range(10)))))
    predictions = torchckn.evaluate(ckn, (images, labels)).predictions
    expected = [[int(((labels == i) & (predictions == j)).sum()) for j in range(10)] for i in range(10)]
    assert found.counts == expected
    assert found.accuracy == pytest.approx(sum(expected[i][i] for i in range(10)) / len(images))
    assert sum(count for count, _, _ in found.most_frequent) <= sum(map(sum, expected))
    with torch.no_grad():
        scores = ckn(images)
    losses = torch.nn.functional.cross_entropy(scores, labels, reduction="none")
    worst = int(torch.where(predictions != labels, losses, -1).argmax())
    hardest = found.hardest[0]
    assert hardest.picture == thumbnail(images[worst])
    assert (hardest.true, hardest.predicted) == (str(int(labels[worst])), str(int(predictions[worst])))
    assert hardest.probability == pytest.approx(float(scores[worst].softmax(0).max()))


def test_many_classes_are_listed_and_not_drawn(copied: Path, tmp_path: Path) -> None:
    images, labels = digits(50)
    net = torchckn.translate(Small(), (1, 14, 14), classes=60).eval()
    torchckn.save(net, copied / "model" / "model.safetensors")
    assert "A matrix of 60 classes would be too large to read." in page(copied, tmp_path, (images, labels)).text


@pytest.mark.parametrize("kernel", [RBFSphere(0.6), ArcCosine(0), ArcCosine(1)])
def test_the_nystrom_error_is_the_distance_to_the_subspace(kernel: Any) -> None:
    images, _ = digits(60)
    ckn = torchckn.translate(Small(), (1, 14, 14), kernel, generator=torch.Generator().manual_seed(0)).double().eval()
    for name, layer in ckn.kernel_layers().items():
        patches = sample_patches(ckn, name, images, 240, generator=torch.Generator().manual_seed(0))[0]
        filters = layer.filter_matrix().detach()
        gram = kernel.gram(filters) + layer.eps * torch.eye(len(filters))
        against = kernel.gram(filters, patches)  # (f, n)
        residuals = []
        for i, patch in enumerate(patches):
            own = float(kernel.gram(patch[None]))
            residuals.append(1 - float(against[:, i] @ torch.linalg.solve(gram, against[:, i])) / own)
        assert nystrom_error(ckn, name, layer, images) == pytest.approx(sum(residuals) / len(residuals), rel=1e-6)


def test_filters_that_are_the_patches_leave_no_error() -> None:
    images, _ = digits(4)
    layer = torchckn.graph.Conv("conv", filters=16, kernel_size=(5, 5), kernel=RBFSphere(0.6), eps=1e-9)
    ckn = torchckn.CKN(torchckn.Graph((1, 14, 14), [layer]), dtype=torch.float64).eval()
    patches = sample_patches(ckn, "conv", images, 16, generator=torch.Generator().manual_seed(0))[0]
    conv = ckn.kernel_layers()["conv"]
    with torch.no_grad():
        conv.weight.copy_(patches.view_as(conv.weight))
        conv.normalize_()
    assert nystrom_error(ckn, "conv", conv, images) == pytest.approx(0, abs=1e-5)


def test_the_nystrom_error_of_a_layer_is_over_those_of_its_regions_and_groups_that_have_patches() -> None:
    nodes = [
        torchckn.graph.Conv("grouped", filters=4, kernel_size=(3, 3), groups=2),
        torchckn.graph.Local("local", filters=4, kernel_size=(3, 3), regions=2),
    ]
    ckn = torchckn.CKN(torchckn.Graph((2, 8, 8), nodes), generator=torch.Generator().manual_seed(0)).eval()
    images = torch.rand(20, 2, 8, 8, generator=torch.Generator().manual_seed(1))
    images[:, 0] = 0
    images[:, :, :6, :6] = 0
    for name, layer in ckn.kernel_layers().items():
        sample = sample_patches(ckn, name, images, 80, generator=torch.Generator().manual_seed(0))
        assert not len(sample[0])
        residuals = []
        for weight, patches in zip(layer.filter_matrix().detach().double(), sample, strict=True):
            gram = layer.kernel.gram(weight) + layer.eps * torch.eye(len(weight), dtype=torch.float64)
            for patch in patches.double():
                against = layer.kernel.gram(weight, patch[None])[:, 0]
                own = float(layer.kernel.gram(patch[None]))
                residuals.append(1 - float(against @ torch.linalg.solve(gram, against)) / own)
        assert nystrom_error(ckn, name, layer, images) == pytest.approx(sum(residuals) / len(residuals), rel=1e-6)


def test_conditioning_is_that_of_the_gram_matrix(runs: tuple[Path, Path]) -> None:
    ckn = read_runs(runs)[0].ckn
    assert ckn is not None
    for facts, layer in zip(layer_facts(ckn, None), ckn.kernel_layers().values(), strict=True):
        filters = layer.filter_matrix().detach().double()
        eigenvalues = torch.linalg.eigvalsh(layer.kernel.gram(filters) + layer.eps * torch.eye(len(filters)))
        assert facts.smallest == pytest.approx(float(eigenvalues[0]), rel=1e-4)
        assert facts.largest == pytest.approx(float(eigenvalues[-1]), rel=1e-4)
        assert facts.condition == pytest.approx(facts.largest / facts.smallest)
        assert facts.error is None


def test_the_penalty_chart_has_what_was_tried_and_marks_what_was_chosen(runs: tuple[Path, Path]) -> None:
    read = read_runs(runs)
    chart = penalty_chart(read)
    names = ["kernel, before training", "kernel, after training", "convnet, after training"]
    assert [line.name for line in chart.series] == names, "a ConvNet's first classifier is random"
    assert read[0].result is not None
    for line, key in zip(chart.series, ("start", "head"), strict=False):
        fit = read[0].result[key]
        assert sorted(2**x for x in line.x[0]) == pytest.approx(sorted(score["lam"] for score in fit["curve"]))
        assert line.marked is not None
        assert line.x[0][line.marked] == math.log2(fit["lam"])


def test_long_curves_are_averaged_and_short_ones_left_alone() -> None:
    records = [{"step": i, "loss": float(i)} for i in range(1000)]
    few = thinned(records, ("step", "loss"), points=100)
    assert len(few) == 100
    assert few[0] == {"step": 4.5, "loss": 4.5}
    assert thinned(records[:7], ("step", "loss")) == records[:7]


def test_runs_are_distinguished_by_color_and_by_dash() -> None:
    styles = [style(index) for index in range(len(DASHES) * 6)]
    assert len(set(styles)) == len(styles)
    assert len({dash for _, dash in styles[:6]}) == 6


def test_filters_are_shown_at_no_more_steps_than_a_slider_can_use() -> None:
    frames = filter_frames({step: torch.rand(4, 1, 3, 3) for step in range(200)})
    assert len(frames["steps"]) == len(frames["images"]) == FRAMES
    assert (frames["steps"][0], frames["steps"][-1]) == (0, 199)


@pytest.mark.parametrize(
    "image",
    [torch.randint(0, 256, (1, 5, 4), dtype=torch.uint8), torch.rand(3, 5, 4), torch.randn(27, 5, 4), torch.zeros(1, 5, 4)],
)
def test_any_image_has_a_thumbnail(image: Tensor) -> None:
    assert thumbnail(image).startswith("data:image/png;base64,")


def test_settings_are_written_as_people_read_them() -> None:
    settings = {"a": 1, "options": {"tau": 2**-5, "deep": {"yes": True}}, "lambdas": list(range(41)), "none": None}
    assert flat(settings) == {
        "a": "1",
        "options.tau": "0.03125",
        "options.deep.yes": "yes",
        "lambdas": "0, 1, …, 40 (41 values)",
        "none": "none",
    }
    assert short([1.5, False]) == "1.5, no"


def test_settings_are_shown_up_to_a_depth_and_a_length() -> None:
    deep: Any = "end"
    for _ in range(500):
        deep = {"a": [deep]}
    assert len(flat({"deep": deep})) == 1
    assert short([[[[[[[["deep"]]]]]]]]) == "…"
    assert short([{"a": 1, "b": [2.5]}]) == "a: 1, b: 2.5"
    assert short("x" * 501) == "x" * 500 + "…"
