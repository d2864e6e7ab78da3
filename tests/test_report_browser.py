"""The page about runs in a real browser."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from selenium import webdriver
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

import torchckn
from torchckn import cli, report
from torchckn.files import read_tensors, write_tensors
from torchckn.runs import read_config

from .browser import HOSTILE, browser, canary, console, foreign_elements, open_page, without_policies
from .reports import STEPS, digits

__all__ = ["browser"]  # a fixture, which pytest finds by its name here


@pytest.fixture(scope="module")
def page(runs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report.write(runs, tmp_path_factory.mktemp("report") / "report.html", data=digits())


def find(browser: webdriver.Chrome, selector: str) -> WebElement:
    return browser.find_element(By.CSS_SELECTOR, selector)


def test_nothing_is_written_to_the_console(browser: webdriver.Chrome, page: Path) -> None:
    open_page(browser, page)
    assert len(browser.find_elements(By.CSS_SELECTOR, ".plot svg")) == 3
    find(browser, "input[value='1']").click()
    find(browser, "input[name='minor']").click()
    assert console(browser) == []


def test_nothing_is_fetched(browser: webdriver.Chrome, page: Path) -> None:
    open_page(browser, page)
    fetched = browser.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert [name for name in fetched if not name.startswith("data:")] == []


def test_the_slider_moves_the_filters(browser: webdriver.Chrome, page: Path) -> None:
    open_page(browser, page)
    slider, picture = find(browser, "#slider-0"), find(browser, ".filters .moving")
    assert find(browser, ".filters output").text == str(STEPS)
    before = picture.get_attribute("src")
    slider.send_keys(Keys.HOME)
    assert picture.get_attribute("src") not in (before, None)
    assert find(browser, ".filters output").text == "0"
    assert slider.get_attribute("aria-valuetext") == "step 0"
    assert (picture.get_attribute("alt") or "").endswith("at step 0")
    assert browser.execute_script("return arguments[0].complete && arguments[0].naturalWidth > 0", picture)


def test_a_hover_shows_values(browser: webdriver.Chrome, page: Path) -> None:
    open_page(browser, page)
    plot, readout = find(browser, "#chart-accuracy .plot"), find(browser, "#chart-accuracy .readout")
    assert readout.text.startswith(f"step {STEPS}\n")
    ActionChains(browser).move_to_element_with_offset(plot, 50 - plot.size["width"] // 2, 0).perform()
    assert readout.text.startswith("step 0\n")
    start = read_start(page)
    assert start in readout.text
    assert start in (plot.get_attribute("aria-valuetext") or "")


def read_start(page: Path) -> str:
    """The first run's accuracy at the start, as its summary says it."""
    source = page.read_text(encoding="utf-8")
    return source.split("validation accuracy from ")[1].split(" to ")[0]


def test_arrow_keys_move_through_a_chart(browser: webdriver.Chrome, page: Path) -> None:
    open_page(browser, page)
    plot, readout = find(browser, "#chart-loss .plot"), find(browser, "#chart-loss .readout")
    plot.send_keys(Keys.ARROW_LEFT)
    assert readout.text.startswith(f"step {STEPS - 2}\n")
    plot.send_keys(Keys.HOME)
    assert readout.text.startswith("step 0\n")
    assert plot.get_attribute("aria-valuenow") == "0"


def test_curves_can_be_seen_over_seconds_and_with_mini_batches(browser: webdriver.Chrome, page: Path) -> None:
    open_page(browser, page)
    readout = find(browser, "#chart-accuracy .readout")
    assert "mini-batches" not in readout.text
    find(browser, "input[value='1']").click()
    assert readout.text.split("\n")[0].endswith(" s")
    find(browser, "input[name='minor']").click()
    assert "kernel, mini-batches" in readout.text


@pytest.mark.parametrize("width", [360, 768, 1200])
def test_the_page_never_scrolls_sideways(browser: webdriver.Chrome, page: Path, width: int) -> None:
    open_page(browser, page, width=width)
    browser.execute_script("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    browser.execute_script("window.scrollTo(500, 0)")
    assert browser.execute_script("return window.scrollX") == 0
    assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_follows_the_colours_of_the_reader(browser: webdriver.Chrome, page: Path, dark: bool) -> None:
    open_page(browser, page, dark=dark)
    colours = [find(browser, "body").value_of_css_property(name) for name in ("background-color", "color")]
    background, ink = (sum(map(int, colour.split("(")[1].split(",")[:3])) / 3 for colour in colours)
    assert (background < 40) == dark
    assert abs(background - ink) > 150


def test_without_scripts_the_numbers_are_there(browser: webdriver.Chrome, page: Path) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        open_page(browser, page)
        assert "The charts need JavaScript, which is disabled" in find(browser, "noscript").text
        assert len(browser.find_elements(By.CSS_SELECTOR, "#chart-accuracy tbody tr")) == 2 * (STEPS // 2 + 1)
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


# Files from elsewhere

EVIL = "".join(HOSTILE)


def change_report(model: Path, **fields: Any) -> None:
    """Another report in a model file, with a digest that is right."""
    description, tensors = read_tensors(model, "network")
    first = description["report"]["rows"][0]
    first.update(fields)
    write_tensors(model, "network", description, tensors)


@pytest.fixture
def hostile(runs: tuple[Path, Path], tmp_path: Path) -> Path:
    """A run whose every text is hostile: names, settings, metrics, results, environment and the report in the model."""
    run = Path(shutil.copytree(runs[0], tmp_path / "<img src=x onerror=window.canary=1>'\"javascript:"))
    part = {"name": EVIL, "correspondence": "dropped", "why": EVIL, "faithful": False}
    texts: dict[str, Any] = dict.fromkeys(("source", "operation", "layer", "counterpart", "kernel"), EVIL)
    change_report(run / "model" / "model.safetensors", **texts, reasons=[EVIL], parts=[part])
    description, tensors = read_tensors(run / "model" / "model.safetensors", "network")
    description["report"]["network"] = EVIL
    write_tensors(run / "model" / "model.safetensors", "network", description, tensors)
    config = read_config(run)
    config["training"]["method"] = EVIL
    (run / "config.toml").write_text(
        tomli_w.dumps(config | {EVIL: EVIL, "list": [EVIL] * 3, "table": {EVIL: {"deep": EVIL}}})
    )
    strange = [
        {"step": 99, "seconds": 9.0, EVIL: 1},
        {"step": EVIL, "seconds": EVIL, "loss": EVIL},
        {"step": 10**400, "seconds": 1},
    ]
    with (run / "metrics.jsonl").open("a") as file:
        file.write("".join(json.dumps(record) + "\n" for record in strange) + EVIL + "\n")
    (run / "environment.json").write_text(json.dumps({EVIL: EVIL, "versions": {EVIL: [EVIL, {EVIL: EVIL}]}}))
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps(result | {"stopped": EVIL, EVIL: EVIL}))
    return run


def write_page(body: str, path: Path) -> Path:
    path.write_text(f"<!doctype html><meta charset=utf-8><title>page</title>{body}", encoding="utf-8")
    return path


@pytest.mark.parametrize("text", [text for text in HOSTILE if text.startswith(("<", '"', "'>"))])
def test_hostile_texts_run_where_nothing_escapes_them(browser: webdriver.Chrome, tmp_path: Path, text: str) -> None:
    open_page(browser, write_page(text, tmp_path / "page.html"))
    assert canary(browser)


@pytest.mark.parametrize("policy", [True, False], ids=["policy", "no policy"])
def test_a_report_about_a_hostile_run_runs_nothing(
    browser: webdriver.Chrome, hostile: Path, tmp_path: Path, policy: bool
) -> None:
    images, labels = digits()
    page = report.write(hostile, tmp_path / "report.html", data=(images, labels, [f"{EVIL}{i}" for i in range(10)]))
    if policy:
        open_page(browser, page)
        assert not canary(browser)
        assert console(browser) == []
    else:
        with without_policies(browser):
            open_page(browser, page)
            assert not canary(browser)
    assert foreign_elements(browser) == []
    assert len(browser.find_elements(By.CSS_SELECTOR, "script")) == 2
    assert EVIL in (find(browser, "#translation").get_attribute("textContent") or "")
    assert len(browser.find_elements(By.CSS_SELECTOR, ".plot svg")) == 3
    browser.execute_script("document.querySelectorAll('a, summary, img, th, td').forEach((element) => element.click())")
    assert not canary(browser)


@pytest.mark.parametrize(
    "fields",
    [{"correspondence": f"exact'>{HOSTILE[0]}"}, {"output_shape": [HOSTILE[0]]}, {"filters": HOSTILE[0]}, {HOSTILE[0]: 1}],
    ids=["correspondence", "output_shape", "filters", "another field"],
)
def test_a_model_with_a_report_that_no_translation_writes_is_refused(
    browser: webdriver.Chrome, runs: tuple[Path, Path], tmp_path: Path, fields: dict[str, Any]
) -> None:
    run = Path(shutil.copytree(runs[0], tmp_path / "run"))
    change_report(run / "model" / "model.safetensors", **fields)
    with pytest.raises(
        torchckn.DataError, match="is a torchckn model, but not one that this version can rebuild: expected a report"
    ):
        torchckn.load(run / "model" / "model.safetensors")
    cli.app(["report", str(run), "-o", str(tmp_path / "report.html")], standalone_mode=False)
    with without_policies(browser):
        open_page(browser, tmp_path / "report.html")
        assert not canary(browser)
    assert foreign_elements(browser) == []
    assert "There are no predictions: " in find(browser, "#figures").text


def test_the_settings_of_a_hostile_run_are_shown_as_text(browser: webdriver.Chrome, hostile: Path, tmp_path: Path) -> None:
    config = read_config(hostile) | {"settings": {"network": EVIL, "data": EVIL, "kind": EVIL}}
    config |= {"classes": [EVIL], "image_shape": [1, 14, 14], "preprocessing": {}}
    (hostile / "config.toml").write_text(tomli_w.dumps(config))
    with without_policies(browser):
        open_page(browser, report.write(hostile, tmp_path / "report.html"))
        assert not canary(browser)
    assert foreign_elements(browser) == []
    assert EVIL in (find(browser, "#settings").get_attribute("textContent") or "")


def test_a_hostile_model_in_a_notebook_runs_nothing(browser: webdriver.Chrome, hostile: Path, tmp_path: Path) -> None:
    shown = torchckn.load(hostile / "model" / "model.safetensors").report
    assert shown is not None
    for name, text in (("table", shown._repr_html_()), ("drawing", shown.to_svg())):
        open_page(browser, write_page(text, tmp_path / f"{name}.html"))
        assert not canary(browser)
        assert [found for found in foreign_elements(browser) if not found.startswith("xmlns")] == []
    (tmp_path / "drawing.svg").write_text(shown.to_svg(), encoding="utf-8")
    open_page(browser, tmp_path / "drawing.svg")
    assert not canary(browser)


def test_the_policy_of_the_page_lets_nothing_else_run_or_load(browser: webdriver.Chrome, page: Path, tmp_path: Path) -> None:
    (tmp_path / "other.js").write_text("window.canary = 1")
    for inserted in (
        *HOSTILE[:2],
        "<script src=other.js></script>",
        "<iframe srcdoc='<script>parent.canary=1</script>'></iframe>",
    ):
        (tmp_path / "page.html").write_text(
            page.read_text(encoding="utf-8").replace("<main", inserted + "<main"), encoding="utf-8"
        )
        open_page(browser, tmp_path / "page.html")
        assert not canary(browser)
        assert any("Content Security Policy" in line["message"] for line in console(browser)), inserted
        with without_policies(browser):
            open_page(browser, tmp_path / "page.html")
            assert canary(browser), inserted


def test_the_drawing_and_the_matrix_have_their_colors_under_the_policy(browser: webdriver.Chrome, page: Path) -> None:
    open_page(browser, page)
    browser.execute_script("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    colors = browser.execute_script(
        """
        const image = document.querySelector(".drawing"), canvas = document.createElement("canvas");
        [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
        const context = canvas.getContext("2d"); context.drawImage(image, 0, 0);
        const pixels = context.getImageData(0, 0, canvas.width, canvas.height).data, found = new Set();
        for (let i = 0; i < pixels.length; i += 4) found.add(`${pixels[i]},${pixels[i + 1]},${pixels[i + 2]}`);
        return [...found];
        """
    )
    assert {"255,255,255", "238,242,255"} <= set(colors)  # the page and the boxes of layers
    cells = browser.find_elements(By.CSS_SELECTOR, ".matrix td")
    assert len({cell.value_of_css_property("background-color") for cell in cells}) > 3
    exact = find(browser, ".ckn-report td.exact")
    assert exact.value_of_css_property("color") == "rgba(26, 127, 75, 1)"
