"""The report of a run: one page with every part."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import torchckn
from torchckn import ConfigError, building, data, report
from torchckn.report.charts import training_charts
from torchckn.report.confusion import take_sample
from torchckn.report.folder import read_runs
from torchckn.report.page import render
from torchckn.settings import Settings
from torchckn.trained import load_trained, run_description

from .reports import STEPS, Page, cells, digits, page, small_digits
from .training import mnist_mini


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
    description = run_description(settings, images, None)
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
        load_trained(tmp_path / "run")


def test_the_test_accuracy_is_shown_if_it_was_measured(copied: Path, tmp_path: Path) -> None:
    result = json.loads((copied / "result.json").read_text())
    (copied / "result.json").write_text(json.dumps(result | {"test_accuracy": 0.4321}))
    assert "test accuracy 43.2 %" in page(copied, tmp_path).text


def test_the_test_accuracy_is_that_of_the_confusion_matrix_if_nobody_measured_it(copied: Path, tmp_path: Path) -> None:
    ckn = load_trained(copied).net
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
    monkeypatch.setattr("torchckn.fit.conditioning.nystrom_error", lambda *_: -1e-9)
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
