"""A real browser for tests of pages: chromium or Chrome as the system has it, driven by its own chromedriver.

Nothing is ever downloaded for it: where either is missing, the tests that need it are skipped, with that reason.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """A browser without a window. It stays open for all tests, so :func:`open_page` sets what a test depends on."""
    chromium, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("needs chromium and chromedriver: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    profile = tmp_path_factory.mktemp("browser")
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", f"--user-data-dir={profile}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield opened
    opened.quit()


def open_page(
    browser: webdriver.Chrome, page: Path | str, *, width: int = 1200, height: int = 900, dark: bool = False
) -> None:
    """Open a file or an address in a window of this size, in light or dark mode, with an empty console."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
    console(browser)
    browser.get(page.resolve().as_uri() if isinstance(page, Path) else page)


def console(browser: webdriver.Chrome) -> list[dict[str, Any]]:
    """What the page has written to the console since the last call."""
    return browser.get_log("browser")


#: texts that set ``window.canary`` if a page takes them for more than text, one for each place where a text may stand
HOSTILE = (
    "<img src=x onerror=window.canary=1>",
    '"><script>window.canary=1</script>',
    "'><svg onload=window.canary=1>",
    "</script><script>window.canary=1</script>",
    "</style></title><img src=x onerror=window.canary=1>",
    "javascript:window.canary=1",
    "' onfocus=window.canary=1 autofocus='",
)


@contextmanager
def without_policies(browser: webdriver.Chrome) -> Iterator[None]:
    """As if pages had no content security policy, so that what is not escaped would run."""
    browser.execute_cdp_cmd("Page.enable", {})
    browser.execute_cdp_cmd("Page.setBypassCSP", {"enabled": True})
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Page.setBypassCSP", {"enabled": False})


def canary(browser: webdriver.Chrome, seconds: float = 0.5) -> bool:
    """Whether one of the hostile texts has run within this time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if browser.execute_script("return window.canary"):
            return True
        time.sleep(0.05)
    return False


def foreign_elements(browser: webdriver.Chrome) -> list[str]:
    """Elements and attributes that could run something or load something: none of our pages has any."""
    return browser.execute_script(
        """
        const found = [];
        for (const element of document.querySelectorAll("*")) {
          for (const { name, value } of element.attributes) {
            if (name.startsWith("on") || name === "style" || /^\\s*javascript:/i.test(value)) found.push(`${name}=${value}`);
            const local = value.startsWith("#") || value.startsWith("data:");
            if (["href", "src", "action", "srcdoc"].includes(name) && !local) found.push(`${name}=${value}`);
          }
        }
        return found;
        """
    )
