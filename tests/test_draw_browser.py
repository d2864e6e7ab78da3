"""The page of the drawing board in a real browser."""

from __future__ import annotations

import json
import shutil
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By

from torchckn import draw
from torchckn.draw import make_server
from torchckn.draw.board import SIDE, Board

from .browser import HOSTILE, browser, canary, console, foreign_elements, open_page, without_policies  # noqa: F401 - a fixture
from .drawing import started


def test_a_stroke_on_the_page_is_classified_live(server: Any, browser: webdriver.Chrome) -> None:  # noqa: F811
    open_page(browser, f"http://127.0.0.1:{server.server_port}/")
    board = browser.find_element(By.ID, "board")
    ActionChains(browser).move_to_element_with_offset(board, 0, -90).click_and_hold().move_by_offset(
        0, 180
    ).release().perform()
    deadline = time.monotonic() + 20
    while len(browser.find_elements(By.CSS_SELECTOR, "section.answer")) < 2:
        assert time.monotonic() < deadline, browser.find_element(By.ID, "answers").text
        time.sleep(0.05)
    sections = browser.find_elements(By.CSS_SELECTOR, "section.answer")
    assert "(CKN)" in sections[0].text
    assert "(ConvNet)" in sections[1].text
    assert len(sections[0].find_elements(By.CSS_SELECTOR, ".row")) == 10
    assert sections[0].find_element(By.CSS_SELECTOR, ".row.best span").text == "1"  # a vertical stroke
    assert len(sections[0].find_elements(By.CSS_SELECTOR, ".nearest img")) == 8
    browser.find_element(By.ID, "clear").click()
    assert "Nothing drawn yet" in browser.find_element(By.ID, "answers").text
    assert [line for line in console(browser) if line["level"] == "SEVERE"] == []


def test_hostile_names_of_runs_and_classes_are_shown_as_text(
    drawing_runs: Path,
    tmp_path: Path,
    browser: webdriver.Chrome,  # noqa: F811
) -> None:
    evil = "".join(HOSTILE)
    run = Path(shutil.copytree(drawing_runs / "ckn", tmp_path / "<img src=x onerror=window.canary=1>'\"javascript:"))
    config = tomllib.loads((run / "config.toml").read_text())
    config["classes"] = [f"{evil}{i}" for i in range(10)]
    (run / "config.toml").write_text(tomli_w.dumps(config))
    for running in started(make_server([run])):
        with without_policies(browser):
            open_page(browser, f"http://127.0.0.1:{running.server_port}/")
            ActionChains(browser).move_to_element(browser.find_element(By.ID, "board")).click().perform()
            deadline = time.monotonic() + 20
            while not browser.find_elements(By.CSS_SELECTOR, ".nearest img"):
                assert time.monotonic() < deadline, browser.find_element(By.ID, "answers").text
                time.sleep(0.05)
            assert not canary(browser)
        assert [found for found in foreign_elements(browser) if not found.startswith("style=width:")] == []
        shown = browser.find_element(By.ID, "answers").get_attribute("textContent") or ""
        assert run.name in shown
        assert f"{evil}9" in shown


def test_the_policy_of_the_page_lets_nothing_else_run(server: Any, browser: webdriver.Chrome) -> None:  # noqa: F811
    insert = "document.getElementById('answers').innerHTML = arguments[0]"
    open_page(browser, f"http://127.0.0.1:{server.server_port}/")
    browser.execute_script(insert, HOSTILE[0])
    assert not canary(browser)
    assert any("Content Security Policy" in line["message"] for line in console(browser))
    with without_policies(browser):
        open_page(browser, f"http://127.0.0.1:{server.server_port}/")
        browser.execute_script(insert, HOSTILE[0])
        assert canary(browser)


def test_another_page_can_neither_ask_the_server_nor_show_its_page(
    server: Any,
    browser: webdriver.Chrome,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(Board, "classify", lambda _, drawing: asked.append(drawing) or [])
    address, body = f"http://127.0.0.1:{server.server_port}", json.dumps({"pixels": [0] * SIDE**2})
    (tmp_path / "evil.html").write_text(
        f"""<!doctype html><title>evil</title><iframe src="{address}/"></iframe>
        <form method="post" action="{address}/classify" enctype="text/plain" target="hidden"></form>
        <iframe name="hidden"></iframe>
        <script>
        document.forms[0].submit();
        fetch("{address}/classify", {{method: "POST", mode: "no-cors", body: '{body}'}})
          .catch(() => null).then(() => {{ window.finished = true; }});
        </script>"""
    )
    open_page(browser, tmp_path / "evil.html")
    deadline = time.monotonic() + 20
    while not browser.execute_script("return window.finished"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    browser.switch_to.frame(0)
    try:
        assert not browser.find_elements(By.ID, "board")
    finally:
        browser.switch_to.default_content()
    assert asked == []


def test_the_page_fits_a_phone(server: Any, browser: webdriver.Chrome) -> None:  # noqa: F811
    open_page(browser, f"http://127.0.0.1:{server.server_port}/", width=360, height=700)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 360


def test_the_page_is_one_file_that_needs_no_network() -> None:
    page = (Path(draw.__file__).parent / "page.html").read_text()
    assert "http://" not in page
    assert "https://" not in page
