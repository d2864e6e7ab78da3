"""The page about runs: what it has, what it says of what is missing, and what is refused."""

from __future__ import annotations

import itertools
import json
import math
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from torch import Tensor, nn

import torchckn
from torchckn import ConfigError, DataError, building, data, report
from torchckn.files import write_tensors
from torchckn.fit.filters import sample_patches
from torchckn.kernels import ArcCosine, RBFSphere
from torchckn.report.charts import DASHES, penalty_chart, style, thinned, training_charts
from torchckn.report.conditioning import layer_facts, nystrom_error
from torchckn.report.confusion import Sample, confusion, take_sample
from torchckn.report.folder import read_runs
from torchckn.report.page import flat, render, short
from torchckn.report.pictures import FRAMES, filter_frames, thumbnail
from torchckn.settings import Settings

from .training import mnist_mini

STEPS = 6


class Small(nn.Sequential):
    """A ConvNet for small pictures."""

    def __init__(self) -> None:
        layers = (nn.Conv2d(1, 6, 5), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(150, 12), nn.ReLU())
        super().__init__(*layers, nn.Linear(12, 10))


def digits(count: int = 300) -> tuple[Tensor, Tensor]:
    images, labels = mnist_mini().train
    return torch.nn.functional.avg_pool2d(images[:count].float() / 255, 2), labels[:count]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A kernel network's and a ConvNet's run, made once for all tests."""
    folder = tmp_path_factory.getbasetemp() / "report-runs"
    made = folder / "kernel", folder / "convnet"
    if folder.exists():
        return made
    images, labels = digits()
    generator = torch.Generator().manual_seed(0)
    options: dict[str, Any] = {
        "steps": STEPS,
        "batch_size": 64,
        "patches": 200,
        "lambdas": [2.0**-6, 2.0**-12],
        "evaluate_every": 2,
        "generator": generator,
    }
    ckn = torchckn.translate(Small(), (1, 14, 14), RBFSphere(0.6), generator=generator)
    convnet = torchckn.ScaledConvNet(Small(), (1, 14, 14), generator=generator).initialize_(0.2, generator)
    for net, method, path in ((ckn, "ulr", made[0]), (convnet, "sgd", made[1])):
        torchckn.train(
            net, (images[:200], labels[:200]), (images[200:], labels[200:]), method=method, lr=2**-4, run_dir=path, **options
        )
    return made


@pytest.fixture
def copied(runs: tuple[Path, Path], tmp_path: Path) -> Path:
    """The kernel network's run, to be damaged."""
    return Path(shutil.copytree(runs[0], tmp_path / "copied"))


class Page(HTMLParser):
    """A page taken apart: elements in their order, and the text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {key: value or "" for key, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, *tags: str) -> list[dict[str, str]]:
        return [attributes for tag, attributes in self.elements if tag in tags]

    @property
    def data(self) -> Any:
        found = re.search(r'<script type="application/json" id="data">(.*?)</script>', self.source, re.DOTALL)
        assert found
        return json.loads(found[1])


def page(runs: Any, folder: Path, given: Any = None) -> Page:
    return Page(report.write(runs, folder / "report.html", data=given))


def test_the_page_needs_nothing_but_itself(runs: tuple[Path, Path], tmp_path: Path) -> None:
    made = page(runs, tmp_path, digits())
    assert not made.all("iframe", "object", "embed")
    for attributes in made.all("img", "script", "link", "source"):
        assert attributes.get("src", attributes.get("href", "data:")).startswith("data:")
    assert "@import" not in made.source
    assert "url(" not in made.source
    assert not re.search(r"[{]%|[{]#|[{][{]", made.source.split("<body>")[1].split("<script")[0])


def test_the_page_has_every_part(runs: tuple[Path, Path], tmp_path: Path) -> None:
    made = page(runs, tmp_path, (*digits(), [f"digit {i}" for i in range(10)]))
    assert {"figures", "curves", "translation", "filters", "penalty", "confusion", "conditioning", "settings"} <= {
        attributes.get("id") for attributes in made.all("section")
    }
    text = " ".join(made.text.split())
    assert f"kernel: kernel counterpart of Small, ultimate layer reversal, {STEPS} steps in" in text
    assert f"convnet: ConvNet, SGD with momentum, {STEPS} steps in" in text
    assert "Translation of Small" in text
    assert "digit 3 predicted as" in text
    assert "Nystrom error" in text
    assert "training.tau" in text
    assert "versions.torch" in text
    assert made.data["filters"][0]["steps"] == [0, 2, 4, 6]
    assert made.data["filters"][1]["steps"] == []


def test_the_page_can_be_read_by_ear(runs: tuple[Path, Path], tmp_path: Path) -> None:
    made = page(runs, tmp_path, digits())
    levels = [int(tag[1]) for tag, _ in made.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert all(len(made.all(landmark)) == 1 for landmark in ("header", "nav", "main", "footer"))
    assert all(image["alt"] for image in made.all("img"))
    assert all(cell.get("scope") in ("row", "col") for cell in made.all("th"))
    assert len(made.all("caption")) == len(made.all("table"))
    identities = [attributes["id"] for _, attributes in made.elements if "id" in attributes]
    assert len(identities) == len(set(identities))
    for name in ("for", "aria-labelledby"):
        assert {attributes[name] for _, attributes in made.elements if name in attributes} <= set(identities)
    sliders = [attributes for attributes in made.all("input") if attributes["type"] == "range"]
    assert {slider["id"] for slider in sliders} <= {label.get("for") for label in made.all("label")}
    assert all(plot["aria-valuetext"] for plot in made.all("div") if plot.get("role") == "slider")
    assert "from" in training_charts(read_runs(runs))[0].summary[0]


def test_names_are_escaped_wherever_they_stand(copied: Path, tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script>"
    wicked = copied.rename(tmp_path / "a <b>&'\" run")
    config = wicked / "config.toml"
    config.write_text(f"extra = '''{evil}'''\n" + config.read_text())
    plain = Page(report.write(wicked, tmp_path / "plain.html"))
    made = page(wicked, tmp_path, (*digits(), [f"{evil}{i}" for i in range(10)]))
    assert len(made.all("script")) == 2 == len(plain.all("script"))
    assert not made.all("b")
    assert evil not in made.source
    assert made.data["charts"]["accuracy"]["series"][0]["name"] == "a <b>&'\" run, validation"


def test_a_convnet_of_the_zoo_is_built_again_and_others_are_not(tmp_path: Path) -> None:
    settings = Settings(network="lenet1", filters=4, kind="convnet")
    images = building.load_images(settings)
    net = building.build_network(settings, images, torch.Generator().manual_seed(0))
    description = building.run_description(settings, images, None)
    train, valid = images.train[:100], images.valid[:100]
    torchckn.train(
        net, train, valid, method="sgd", steps=1, lr=0.01, lambdas=[0.01], run_dir=tmp_path / "run", description=description
    )
    text = " ".join(page(tmp_path / "run", tmp_path, images.test).text.split())
    assert "run: lenet1, a ConvNet, SGD with momentum, 1 step in" in text
    assert f"run: accuracy {100 * torchckn.evaluate(net, images.test).accuracy:.1f} % on 1500 images" in text
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace('"lenet1"', '"net.py:Net"'))
    text = " ".join(page(tmp_path / "run", tmp_path, images.test).text.split())
    assert "There are no predictions: " in text
    assert "run has Python code, of net.py:Net, which would be executed; read it in" in text
    assert "This run has no network that can be loaded." in text
    with pytest.raises(ConfigError, match="which would be executed; .*pass --trust if you trust it"):
        building.load_trained(tmp_path / "run")


def test_the_test_accuracy_is_shown_if_it_was_measured(copied: Path, tmp_path: Path) -> None:
    result = json.loads((copied / "result.json").read_text())
    (copied / "result.json").write_text(json.dumps(result | {"test_accuracy": 0.4321}))
    assert "test accuracy 43.2 %" in page(copied, tmp_path).text


def small_digits(test: data.Part | None, name: str = "digits") -> data.DataSet:
    return data.DataSet(name, data.Part(*digits()), test, tuple("0123456789"))


def cells(page: Page) -> dict[str, str]:
    """The first row of the first table, by the heads of its columns."""
    table = page.source.split("<table>")[1].split("</table>")[0]
    plain = [re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<t[hd].*?</t[hd]>", table, re.DOTALL)]
    count = len(plain) // 2
    return dict(zip(plain[:count], plain[count:], strict=True))


def test_the_test_accuracy_is_that_of_the_confusion_matrix_if_nobody_measured_it(copied: Path, tmp_path: Path) -> None:
    ckn = building.load_trained(copied).net
    test = data.Part(*digits(400)).subset(range(300, 400))
    expected = f"{100 * torchckn.evaluate(ckn, test).accuracy:.1f} %"
    made = page(copied, tmp_path, small_digits(test))
    text = " ".join(made.text.split())
    assert cells(made)["test"] == expected
    assert f"test accuracy {expected}" in text
    assert f"copied: accuracy {expected} on 100 images." in text
    assert "none" not in cells(made).values()


def test_a_test_accuracy_of_some_of_the_images_says_of_how_many(copied: Path, tmp_path: Path) -> None:
    images, labels = digits(3100)
    assert cells(page(copied, tmp_path, small_digits(data.Part(images, labels))))["test"].endswith(" % (3000 images)")


def test_images_that_are_not_of_the_run_s_test_set_give_no_test_accuracy(copied: Path, tmp_path: Path) -> None:
    test = data.Part(*digits(100))
    assert cells(page(copied, tmp_path))["test"] == "not measured"
    assert cells(page(copied, tmp_path, test))["test"] == "not measured"
    assert cells(page(copied, tmp_path, small_digits(None)))["test"] == "not measured"
    config = (copied / "config.toml").read_text()
    for name, measured in (("digits", True), ("/data/digits.npz", True), ("/data/digits", True), ("fashion-mnist", False)):
        run = read_runs(copied)[0]
        run.config["settings"] = {"data": name}
        text = render([run], take_sample(small_digits(test)))
        assert ("test accuracy" in text) == measured, name
    assert (copied / "config.toml").read_text() == config


def test_what_rounds_to_zero_has_no_sign(copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchckn.report.conditioning.nystrom_error", lambda *_: -1e-9)
    lines = [json.loads(line) for line in (copied / "metrics.jsonl").read_text().splitlines()]
    lines[-1] |= {"loss": -0.0, "valid_accuracy": -0.0}
    (copied / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    made = page(copied, tmp_path, digits())
    assert "0.0 %" in made.text
    assert not re.search(r"-0(\.0*)?(?![\d.])", made.text.split("Written by torchckn")[0])


def test_without_images_the_page_says_what_it_leaves_out(runs: tuple[Path, Path], tmp_path: Path) -> None:
    text = page(runs, tmp_path).text
    assert "No images were passed to this report (data=...), so there are no predictions." in text
    assert "so there are no Nystrom errors" in text
    assert "condition number" in text


def test_images_of_another_shape_are_reported_and_not_fatal(runs: tuple[Path, Path], tmp_path: Path) -> None:
    text = page(runs, tmp_path, mnist_mini()).text
    assert "Predictions of the saved networks on 1500 test images of mnist-mini." in text
    assert "These images do not suit this network: expected images (N, 1, 14, 14)" in text
    assert "There are no Nystrom errors: these images do not suit this network." in text


def test_an_unfinished_run_gives_a_page_that_says_so(copied: Path, tmp_path: Path) -> None:
    (copied / "result.json").unlink()
    shutil.rmtree(copied / "model")
    lines = (copied / "metrics.jsonl").read_text().splitlines()[:4]
    (copied / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    text = page(copied, tmp_path, digits()).text
    assert "not finished" in text
    assert f"The run is not finished: 3 of {STEPS} steps are done" in text
    assert "There are no predictions: the run in" in text
    assert "is not finished; resume it: torchckn.train(..., resume=True)." in text
    assert "No run has values for this chart." in text  # of the penalty


def test_a_folder_with_nothing_but_its_configuration_gives_a_page(tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "config.toml").write_text("[training]\nsteps = 5\n")
    text = page(tmp_path / "bare", tmp_path).text
    for sentence in ("There are no metrics", "There are no filters in checkpoint/", "There is no environment.json"):
        assert sentence in text


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("result.json", "result.json cannot be read"),
        ("environment.json", "environment.json cannot be read"),
        ("model/model.safetensors", "is not a file that torchckn wrote, or is truncated or corrupt"),
        ("checkpoint/filters-000002.safetensors", "checkpoint/ cannot be read"),
    ],
)
def test_a_damaged_part_is_reported_and_not_fatal(copied: Path, tmp_path: Path, file: str, said: str) -> None:
    (copied / file).write_bytes(b"{ damaged")
    assert said in page(copied, tmp_path).text


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("result.json", {"head": "<b>"}, "result.json has another head than a run has, got '<b>'"),
        ("result.json", {"head": {"lam": "<b>", "curve": []}}, "at 'head.lam': Input should be a valid number"),
        (
            "result.json",
            {"head": {"lam": 1, "curve": [{"lam": math.inf, "accuracy": 1}]}},
            "at 'head.curve.0.lam': Input should be",
        ),
        ("result.json", {"test_accuracy": "<b>"}, "has another test_accuracy than a run has, got '<b>'"),
        ("result.json", {"seconds": True}, "has another seconds than a run has, got 'True'"),
        ("result.json", [], "expected a table of names and values, got list"),
        ("environment.json", ["<b>"], "environment.json cannot be read: expected a table of names and values, got list"),
    ],
)
def test_a_file_with_other_contents_is_reported_and_not_fatal(
    copied: Path, tmp_path: Path, file: str, content: Any, said: str
) -> None:
    (copied / file).write_text(json.dumps(content))
    made = page(copied, tmp_path)
    assert said in made.text
    assert not made.all("b")


def test_tensors_that_are_no_filters_are_reported_and_not_fatal(copied: Path, tmp_path: Path) -> None:
    write_tensors(copied / "checkpoint" / "filters-000002.safetensors", "filters", {}, {"filters": torch.zeros(3)})
    assert "expected filters of 2, 4 or 5 dimensions at step 2, got torch.float32 (3,)" in page(copied, tmp_path).text


@pytest.mark.parametrize("table", ["settings", "training"])
def test_a_configuration_with_other_contents_is_refused(copied: Path, tmp_path: Path, table: str) -> None:
    whole = {"training": {}, "settings": {}, "classes": [], "image_shape": [], "preprocessing": {}}
    for content, name in (("text", table), ({"data": 3, "method": 3}, r"(data|method)")):
        (copied / "config.toml").write_text(tomli_w.dumps(whole | {table: content}))
        with pytest.raises(DataError, match=f"config.toml has another {name} than a run has, got "):
            page(copied, tmp_path)


def test_metrics_without_a_place_in_the_charts_are_left_out(copied: Path, tmp_path: Path) -> None:
    before = page(copied, tmp_path).data["charts"]
    with (copied / "metrics.jsonl").open("a") as file:
        for record in (
            {"step": 7},
            {"step": 10**400, "seconds": 1},
            {"step": 8, "seconds": math.nan},
            {"step": 9, "seconds": "<b>"},
        ):
            file.write(json.dumps(record) + "\n")
    assert page(copied, tmp_path).data["charts"] == before


def test_names_that_are_no_text_are_shown_as_far_as_they_are(copied: Path, tmp_path: Path) -> None:
    strange = copied.rename(tmp_path / "run-\udcff")
    (strange / "environment.json").write_text('{"half of a pair": "\\ud800"}')
    assert "Training report: run-?" in page(strange, tmp_path).text


def test_numbers_that_json_has_no_word_for_are_left_out(copied: Path, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in (copied / "metrics.jsonl").read_text().splitlines()]
    lines[-1] |= {"loss": float("nan"), "valid_loss": float("inf")}
    (copied / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    series = page(copied, tmp_path).data["charts"]["loss"]["series"]
    assert [line["y"][-1] for line in series] == [None, None]
    assert "not finite" in page(copied, tmp_path).text


def test_what_is_not_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected at least one run folder, got none; training writes one"):
        report.write([], tmp_path / "report.html")
    with pytest.raises(DataError, match="nowhere does not exist; expected a run folder"):
        report.write([tmp_path / "nowhere"], tmp_path / "report.html")
    with pytest.raises(DataError, match="is not a run folder: it has no config.toml"):
        report.write([tmp_path], tmp_path / "report.html")


def test_an_output_that_cannot_be_written_is_refused(runs: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="output expected the name of a file, such as .*report.html, got the folder"):
        report.write(runs, tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot write .*report.html"):
        report.write(runs, tmp_path / "file" / "report.html")


def test_images_that_cannot_be_used_are_refused() -> None:
    images, labels = digits(20)
    with pytest.raises(DataError, match="labels are needed here"):
        take_sample(images)
    with pytest.raises(DataError, match="a report expected images to classify, got none; leave data out"):
        take_sample((images[:0], labels[:0]))
    with pytest.raises(DataError, match="expected a name for each class, got 2 names and labels up to 9"):
        take_sample((images, labels, ["a", "b"]))


def test_a_sample_is_the_best_part_that_there_is() -> None:
    part = data.Part(*digits(30))
    whole = data.DataSet("d", part, part[:10], tuple("0123456789"), part[:20])
    for given, what in (
        (whole, "10 test images of d"),
        (replace(whole, test=None), "20 validation images of d"),
        (replace(whole, test=None, valid=None), "30 training images of d"),
    ):
        sample = take_sample(given)
        assert sample is not None
        assert sample.what == what


def test_a_sample_is_the_test_part_and_not_too_large() -> None:
    small = mnist_mini()
    sample = take_sample(small)
    assert sample is not None
    assert small.test is not None
    assert sample.what == f"{len(small.test.images)} test images of mnist-mini"
    assert sample.classes == small.classes
    large = take_sample(small.train)
    assert large is not None
    assert large.what == "3000 of 6000 images given"
    assert len(large.images) == 3000
    assert len(large.labels.unique()) == 10


def test_runs_of_one_name_are_distinguished(copied: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(copied, tmp_path / "elsewhere" / "copied"))
    names = [run.name for run in read_runs([copied, other, copied])]
    assert names == [f"{tmp_path.name}/copied", "elsewhere/copied", f"{tmp_path.name}/copied (2)"]


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
