"""The code in the README and in the docs runs as it stands, block after block; the README is short and works elsewhere."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import torchckn
from torchckn.graph import Node
from torchckn.kernels import Kernel
from torchckn.translation.rules import RULES

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
#: where files of the repository are on the web: as pages, and as raw files
HOMES = ("https://github.com/torchckn/torchckn/blob/main/", "https://raw.githubusercontent.com/torchckn/torchckn/main/")


def blocks(page: Path) -> list[tuple[str, str]]:
    """The Python blocks of a page: the file that a block is to be saved as, empty if it is to be run, and the code."""
    return re.findall(r'^```python(?: title="([^"]+)")?\n(.*?)^```', page.read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture
def _forgetting() -> Iterator[None]:
    """What a page registers, kernels and operations and rules of its own, is forgotten after it."""
    registries = [(known, dict(known)) for known in (Kernel._registry, Node._registry, RULES)]
    yield
    for known, before in registries:
        known.clear()
        known.update(before)


#: what is smaller in a test of a page: that its code runs does not depend on it
SMALLER = {
    "index.md": [("steps=20", "steps=4"), ("split(digits.train, 1000)", "split(digits.train[:800], 300)")],
    "sklearn.md": [("[:600]", "[:200]"), ("steps=30", "steps=4")],
    "training.md": [
        ("steps=20", "steps=4"),
        ("steps=40", "steps=15"),
        ("digits.train[:500], 100", "digits.train[:250], 50"),
    ],
    "tutorial.md": [("steps=20", "steps=4")],
}
WITH_CODE = [page for page in PAGES if blocks(page) and page != README]


@pytest.mark.usefixtures("_forgetting", "_few_penalties")
@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
def test_the_code_on_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = [block for file, block in blocks(page) if not file]
    for whole, part in SMALLER.get(page.name, []):
        assert any(whole in block for block in code)
        code = [block.replace(whole, part) for block in code]
    run(page, code, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.usefixtures("_forgetting")
@pytest.mark.parametrize("page", [page for page in WITH_CODE if page.name in SMALLER], ids=lambda page: page.name)
def test_the_code_on_a_page_runs_as_it_stands(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(page, [block for file, block in blocks(page) if not file], tmp_path, monkeypatch)


def run(page: Path, code: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the blocks one after the other, in a folder with the files that the page has."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    files = [(file, block) for file, block in blocks(page) if file]
    for file, block in files:
        (folder / file).write_text(block)
        monkeypatch.delitem(sys.modules, Path(file).stem, raising=False)
    namespace: dict[str, object] = {}
    for block in code:
        exec(compile(block, page.name, "exec"), namespace)
    for file, _ in files:
        sys.modules.pop(Path(file).stem, None)


DECIMAL = r"\d+\.\d+"


def readme_example() -> tuple[str, str]:
    """The example of the README, and what stands below it as its output."""
    ((_, example),) = blocks(README)
    return example, README.read_text().partition(f"```python\n{example}```\n\n```text\n")[2].partition("```")[0]


@pytest.mark.usefixtures("_few_penalties")
def test_the_example_in_the_readme_is_short_and_runs(capsys: pytest.CaptureFixture[str], few_digits: Path) -> None:
    """On a tenth of its images, with a tenth of its filters and steps."""
    example, shown = readme_example()
    assert len([line for line in example.splitlines() if line.strip()]) <= 15
    for whole, part in (
        ("mnist-mini", str(few_digits)),
        ("1000)", "100)"),
        ("filters=16", "filters=4"),
        ("steps=50", "steps=5"),
    ):
        assert whole in example
        example = example.replace(whole, part)
    exec(compile(example, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert re.sub(DECIMAL, "", printed) == re.sub(DECIMAL, "", shown).replace("1500 images", "150 images")


@pytest.mark.slow
def test_the_example_in_the_readme_prints_what_stands_below_it(capsys: pytest.CaptureFixture[str]) -> None:
    example, shown = readme_example()
    exec(compile(example, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert re.sub(DECIMAL, "", printed) == re.sub(DECIMAL, "", shown)
    differences = [
        abs(float(a) - float(b)) for a, b in zip(*(re.findall(DECIMAL, text) for text in (printed, shown)), strict=True)
    ]
    assert max(differences) < 0.02, printed  # another machine rounds in another way


def test_the_readme_has_at_most_120_lines() -> None:
    assert len(README.read_text().splitlines()) <= 120


def test_the_results_in_the_readme_are_those_of_the_page_on_when_to_use_a_kernel_network() -> None:
    rows = [line for line in README.read_text().splitlines() if line.startswith(("| images |", "| CIFAR-10,", "| MNIST,"))]
    assert len(rows) > 5
    assert set(rows) <= set((ROOT / "docs" / "when.md").read_text().splitlines())


def test_links_of_the_readme_work_on_a_package_index_as_well() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", README.read_text()):
        home = next((home for home in HOMES if target.startswith(home)), None)
        assert home, f"{target} is not an absolute link"
        assert (ROOT / target.removeprefix(home)).is_file(), target


def test_links_between_pages_lead_somewhere() -> None:
    for page in (ROOT / "CONTRIBUTING.md", *PAGES):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_make_targets_that_the_readme_and_the_docs_name_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        assert set(re.findall(r"(?:^|`)make ([a-z]+)", page.read_text(), re.MULTILINE)) <= targets, page.name
    assert {"demo", "test"} <= set(re.findall(r"^make ([a-z]+)", README.read_text(), re.MULTILINE))


def test_the_drawing_in_the_docs_is_the_one_that_translate_makes() -> None:
    drawing = torchckn.translate(torchckn.zoo.build("lenet5")).report
    assert drawing is not None
    assert (ROOT / "docs" / "images" / "lenet5.svg").read_text().strip() == drawing.to_svg()
