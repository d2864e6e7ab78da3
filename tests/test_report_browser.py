"""The page about runs in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from torchckn import report

from .browser import browser, console, open_page
from .test_report import STEPS, digits, runs

__all__ = ["browser", "runs"]  # fixtures, which pytest finds by their names here


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
