"""Reports about runs that are unfinished, damaged or odd, and requests that are refused."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch

from torchckn import ConfigError, DataError, report
from torchckn.files import write_tensors
from torchckn.report.confusion import take_sample

from .reports import STEPS, digits, page
from .training import mnist_mini


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
        ("result.json", {"head": "<b>"}, "result.json has an invalid head for a run, got '<b>'"),
        ("result.json", {"head": {"lam": "<b>", "curve": []}}, "at 'head.lam': Input should be a valid number"),
        (
            "result.json",
            {"head": {"lam": 1, "curve": [{"lam": math.inf, "accuracy": 1}]}},
            "at 'head.curve.0.lam': Input should be",
        ),
        ("result.json", {"test_accuracy": "<b>"}, "has an invalid test_accuracy for a run, got '<b>'"),
        ("result.json", {"seconds": True}, "has an invalid seconds for a run, got 'True'"),
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
        with pytest.raises(DataError, match=f"config.toml has an invalid {name} for a run, got "):
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
