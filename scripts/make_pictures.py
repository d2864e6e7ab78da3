"""Make the pictures of ``docs/images`` from real runs: a terminal, the report page, the drawing board. Takes 1 to 2 minutes.

Run it with ``make pictures``. The pictures of pages need chromium (or Chrome) and chromedriver. Nothing is downloaded: the
digits come with the package.
"""

from __future__ import annotations

import io
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.text import Text
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By

from torchckn.data import load
from torchckn.draw import make_server
from torchckn.files import write_atomically

IMAGES = Path(__file__).parent.parent / "docs" / "images"
TRAIN = ["train", "lenet5", "--filters", "8", "--data", "mnist-mini", "--steps", "60"]
COMMAND = [sys.executable, "-c", "from torchckn.cli import main; main()"]
LIMIT = 200_000  # bytes per picture


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        translation(folder)
        training(folder)
        run(folder, *TRAIN, "--kind", "convnet", "--run", "runs/convnet", "--quiet")
        for kind in ("first", "convnet"):
            run(folder, "evaluate", f"runs/{kind}")
        run(folder, "report", "runs/first", "runs/convnet", "-o", "report.html")
        with browser(folder / "browser") as chrome:
            report(chrome, folder / "report.html")
            drawing(chrome, [folder / "runs" / "first", folder / "runs" / "convnet"])


# The terminal.


def run(folder: Path, *arguments: str, width: int = 100) -> str:
    """What the command writes to a terminal of this width."""
    environment = os.environ | {"COLUMNS": str(width), "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    done = subprocess.run([*COMMAND, *arguments], cwd=folder, env=environment, check=True, capture_output=True, text=True)
    return done.stdout


def run_with_progress(folder: Path, *arguments: str, width: int = 100) -> tuple[str, str]:
    """What the command writes, and its progress bar about half-way through."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"COLUMNS": str(width), "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    process = subprocess.Popen(
        [*COMMAND, *arguments], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=theirs, text=True
    )
    os.close(theirs)
    shown = io.BytesIO()
    reader = threading.Thread(target=_copy, args=(ours, shown))
    reader.start()
    output, _ = process.communicate()
    reader.join()
    if process.returncode:
        raise SystemExit(shown.getvalue().decode())
    frames = [frame.strip() for frame in re.split(r"\r|\n|\x1b\[2K|\x1b\[1A|\x1b\[\?25[lh]", shown.getvalue().decode())]
    middle = [frame for frame in frames if re.search(r"\b[45]\d%", Text.from_ansi(frame).plain) and "loss" in frame]
    return output, middle[len(middle) // 2]


def _copy(descriptor: int, target: io.BytesIO) -> None:
    try:
        while content := os.read(descriptor, 4096):
            target.write(content)
    except OSError:  # on Linux: the other side was closed
        pass


def translation(folder: Path) -> None:
    command = ["translate", "lenet5", "--filters", "8"]
    screen("terminal.svg", 88, [(command, run(folder, *command, width=88))])


def training(folder: Path) -> None:
    command = [*TRAIN, "--run", "runs/first"]
    output, bar = run_with_progress(folder, *command, width=112)
    first, *rest = output.splitlines()
    digit = load("mnist-mini").test
    assert digit is not None
    Image.fromarray(digit.images[0, 0].numpy()).save(folder / "digit.png")
    seen = [(command, "\n".join([first, bar, *rest]))]
    for following in (["evaluate", "runs/first"], ["predict", "runs/first", "digit.png"]):
        seen.append((following, run(folder, *following)))
    screen("training.svg", 112, seen)


def screen(name: str, width: int, seen: list[tuple[list[str], str]]) -> None:
    """Commands and what they wrote, as an SVG in the reader's own monospace font."""
    console = Console(record=True, width=width, file=io.StringIO(), color_system="truecolor", force_terminal=True)
    for command, output in seen:
        console.print(Text.assemble(("$ ", "bold green"), (f"torchckn {' '.join(command)}", "bold")), soft_wrap=True)
        console.print(Text.from_ansi(output.rstrip()))
        console.print()
    svg = console.export_svg(title="", unique_id=Path(name).stem)
    svg = re.sub(r"\s*@font-face \{.*?\n    \}", "", svg, flags=re.DOTALL)
    svg = re.sub(r"\s*<!--.*?-->", "", svg).replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, monospace")
    assert "url(http" not in svg
    write(name, svg.encode())


# Pages.


@contextmanager
def browser(profile: Path) -> Iterator[webdriver.Chrome]:
    chromium, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if not chromium or not driver:
        raise SystemExit("expected chromium and chromedriver, found none; run: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        f"--user-data-dir={profile}",
    ):
        options.add_argument(argument)
    opened = webdriver.Chrome(options, webdriver.ChromeService(driver))
    try:
        yield opened
    finally:
        opened.quit()


def show(chrome: webdriver.Chrome, address: str, width: int, height: int) -> None:
    size = {"width": width, "height": height, "deviceScaleFactor": 1.5, "mobile": False}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = [{"name": "prefers-color-scheme", "value": "light"}]
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
    chrome.get(address)


def report(chrome: webdriver.Chrome, page: Path) -> None:
    show(chrome, page.as_uri(), 1100, 1240)
    time.sleep(1)
    photograph(chrome, "report.png")


def drawing(chrome: webdriver.Chrome, runs: list[Path]) -> None:
    server = make_server(runs)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        show(chrome, f"http://127.0.0.1:{server.server_port}/", 1024, 580)
        board = chrome.find_element(By.ID, "board")
        pen = ActionChains(chrome, duration=20).move_to_element_with_offset(board, -55, -85).click_and_hold()
        for step in [
            (50, -10),
            (45, 15),
            (15, 40),
            (-25, 35),
            (-45, 15),
            (45, 10),
            (30, 35),
            (-10, 40),
            (-45, 20),
            (-60, -10),
        ]:
            pen = pen.move_by_offset(*step)  # a three
        pen.release().perform()
        deadline = time.monotonic() + 30
        while len(chrome.find_elements(By.CSS_SELECTOR, "section.answer")) < len(runs):
            if time.monotonic() > deadline:
                raise SystemExit(chrome.find_element(By.ID, "answers").text)
            time.sleep(0.1)
        time.sleep(1)
        photograph(chrome, "draw.png")
    finally:
        server.shutdown()
        server.server_close()


def photograph(chrome: webdriver.Chrome, name: str) -> None:
    """The window as a PNG with 128 colours, which keeps it small."""
    picture = Image.open(io.BytesIO(chrome.get_screenshot_as_png())).convert("RGB")
    buffer = io.BytesIO()
    picture.quantize(128, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    write(name, buffer.getvalue())


def write(name: str, content: bytes) -> None:
    if len(content) > LIMIT:
        raise SystemExit(f"expected {name} to have at most {LIMIT} bytes, got {len(content)}; make it smaller")
    write_atomically(IMAGES / name, content)
    print(f"wrote {IMAGES / name} ({len(content)} bytes)")


if __name__ == "__main__":
    main()
