"""The drawing board: what the server answers, what it refuses, and the page in a real browser."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By

from torchckn import ConfigError, DataError, cli, data, draw
from torchckn.draw import LIMIT, SIDE, as_input, make_server, parse_drawing

from .browser import browser, console, open_page  # noqa: F401 - a fixture


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, few_digits: Path) -> Iterator[Any]:
    """A server for a CKN and a ConvNet that were trained a little."""
    folder = tmp_path_factory.mktemp("draw")
    for kind in ("ckn", "convnet"):
        network = ["lenet5", "--filters", "8", "--kind", kind, "--data", str(few_digits)]
        cli.app(["train", *network, "--steps", "20", "--run", str(folder / kind), "-q"], standalone_mode=False)
    made = make_server([folder / "ckn", folder / "convnet"])
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()


def ask(server: Any, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        content = answer.read()
        return answer.status, json.loads(content) if answer.headers["Content-Type"] == "application/json" else content
    finally:
        connection.close()


def drawn(image: torch.Tensor) -> bytes:
    """A digit of the data set as the page would send it."""
    large = np.kron(image[0].numpy(), np.ones((4, 4), np.uint8))
    return json.dumps({"pixels": large.flatten().tolist()}).encode()


def test_a_digit_is_recognized_and_its_nearest_images_have_its_class(server: Any, digits: data.DataSet) -> None:
    test = digits.test
    assert test is not None
    right, alike = 0, 0
    for image, label in zip(test.images[:20], test.labels[:20].tolist(), strict=True):
        status, content = ask(server, "POST", "/classify", drawn(image))
        assert status == 200
        ckn, convnet = content["answers"]
        assert ckn["name"].endswith("(CKN)")
        assert convnet["name"].endswith("(ConvNet)")
        assert sum(ckn["probabilities"]) == pytest.approx(1, abs=1e-2)
        right += int(np.argmax(ckn["probabilities"])) == label
        alike += sum(found["label"] == str(label) for found in ckn["nearest"])
        assert convnet["nearest"] == []
    assert right >= 15
    assert alike >= 0.6 * 8 * 20


def test_an_empty_drawing_is_classified_too(server: Any) -> None:
    status, content = ask(server, "POST", "/classify", json.dumps({"pixels": [0] * SIDE**2}).encode())
    assert status == 200
    assert len(content["answers"]) == 2


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"\xff\xfe", b'{"pixels": [1, 2]}', b'{"pixels": "' + b"1" * SIDE**2 + b'"}', b"[" * 50_000]
    + [json.dumps({"pixels": [value] * SIDE**2}).encode() for value in (256, -1, 0.5, None)],
)
def test_malformed_drawings_are_refused_and_the_server_keeps_running(server: Any, body: bytes) -> None:
    status, content = ask(server, "POST", "/classify", body)
    assert status == 400
    assert "integers from 0 to 255" in content["error"]
    assert ask(server, "GET", "/")[0] == 200


def test_oversized_and_other_requests_are_refused(server: Any) -> None:
    assert ask(server, "POST", "/classify", b"", Content_Length=str(LIMIT + 1))[0] == 413
    for length in ("-5", "9" * 50):
        assert ask(server, "POST", "/classify", b"", Content_Length=length)[0] == 411
    assert ask(server, "POST", "/classify", b"{}", Origin="http://evil.example")[0] == 403
    assert ask(server, "GET", "/etc/passwd")[0] == 404
    assert ask(server, "POST", "/", b"{}")[0] == 404
    assert ask(server, "GET", "/", Host="evil.example:80")[0] == 403
    assert ask(server, "DELETE", "/")[0] == 501


def test_it_listens_on_the_loopback_address_only(server: Any) -> None:
    assert server.server_address[0] == "127.0.0.1"


def test_a_drawing_is_centered_as_the_data_set_is() -> None:
    pixels = np.zeros((SIDE, SIDE), np.uint8)
    pixels[5:45, 80:90] = 255  # a stroke in a corner
    image = as_input(pixels, (1, 28, 28))
    mass = image[0] / image.sum()
    rows, columns = (mass.sum(1) * torch.arange(28)).sum(), (mass.sum(0) * torch.arange(28)).sum()
    assert (float(rows), float(columns)) == pytest.approx((13.5, 13.5), abs=0.6)
    assert int((image[0].sum(1) > 0).sum()) == 20
    assert as_input(pixels, (3, 32, 32)).shape == (3, 32, 32)
    assert float(as_input(np.zeros((SIDE, SIDE), np.uint8), (1, 28, 28)).sum()) == 0


def test_drawing_needs_a_run() -> None:
    with pytest.raises(ConfigError, match="draw expected at least one run, got none; pass the folder of a run"):
        make_server([])


def test_a_drawing_is_read_strictly() -> None:
    pixels = parse_drawing(json.dumps({"pixels": list(range(256)) * 49}).encode())
    assert pixels.shape == (SIDE, SIDE)
    assert pixels.flat[255] == 255
    with pytest.raises(DataError, match="expected"):
        parse_drawing(b"3")


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


def test_the_page_fits_a_phone(server: Any, browser: webdriver.Chrome) -> None:  # noqa: F811
    open_page(browser, f"http://127.0.0.1:{server.server_port}/", width=360, height=700)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 360


def test_the_page_is_one_file_that_needs_no_network() -> None:
    page = (Path(draw.__file__).parent / "page.html").read_text()
    assert "http://" not in page
    assert "https://" not in page
