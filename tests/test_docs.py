"""The documentation says what is there: its commands run, its table of the paper names real code and real tests."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from torchckn.cli import app
from torchckn.settings import Settings

from .test_readme import ROOT, blocks

DOCS = ROOT / "docs"


def shell_blocks(page: Path) -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def commands(group: Any = None, path: str = "torchckn") -> Iterator[tuple[str, Any]]:
    """Every command with its full name: ``torchckn data list``."""
    group = typer.main.get_command(app) if group is None else group
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def run(script: str, folder: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "COLUMNS": "120"}
    done = subprocess.run(["sh", "-euc", script], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_commands_of_the_tutorial_work_one_after_the_other(tmp_path: Path) -> None:
    page = DOCS / "tutorial.md"
    for file, content in blocks(page):
        if file:
            (tmp_path / file).write_text(content)
    said = "".join(run(block, tmp_path) for block in shell_blocks(page))
    assert "accuracy" in said
    for made in ("smallnet.svg", "report.html", "smallnet.onnx", "runs/first/model/model.safetensors"):
        assert (tmp_path / made).stat().st_size > 0
    table, outside = said.rstrip().rsplit("\n", 1)
    assert "seven 9" in table or "seven 100" in table
    assert outside.startswith("5 ")  # by the alphabet, after eight, five, four, nine and one


@pytest.mark.parametrize(("name", "command"), [*commands()], ids=lambda value: value if isinstance(value, str) else "")
def test_every_command_is_on_its_page_with_its_example_and_its_options(name: str, command: Any) -> None:
    page = (DOCS / "command.md").read_text()
    section = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    assert section, f"command.md has no section about {name}"
    example = re.search(r"Example: \[bold\](.*?)\[/bold\]", command.help or "")
    assert example
    assert example[1] in section[1]
    for parameter in command.params:
        if name == "torchckn train" and parameter.name in Settings.model_fields:
            continue  # a table that is made when the site is built
        for option in parameter.opts:
            if option.startswith("--") and option not in ("--help", "--json", "--data-dir", "--quiet"):
                assert f"`{option}" in section[1], f"{name}: {option}"


def test_the_table_of_the_paper_names_code_that_exists() -> None:
    page = (DOCS / "paper.md").read_text()
    links = re.findall(r"\]\((reference/\w+\.md)#(torchckn[\w.]+)\)", page)
    assert len(links) > 30
    for file, name in links:
        module = next(module for module in modules_of(DOCS / file) if name == module or name.startswith(f"{module}."))
        found: Any = importlib.import_module(module)
        for part in name.removeprefix(module).strip(".").split("."):
            found = getattr(found, part) if part else found


def modules_of(page: Path) -> list[str]:
    """The modules that a page of the reference is about, the longest names first."""
    return sorted(re.findall(r"^::: (torchckn[\w.]*)", page.read_text(), re.MULTILINE), key=len, reverse=True)


def test_the_table_of_the_paper_names_tests_that_exist() -> None:
    tests = {file.stem: file.read_text() for file in (ROOT / "tests").glob("test_*.py")}
    named = re.findall(r"`(test_\w+)::(test_\w+)`", (DOCS / "paper.md").read_text())
    assert len(named) > 30
    for file, test in named:
        assert f"def {test}(" in tests[file], f"{file}.py has no {test}"


def test_figures_in_the_answers_are_those_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    figures = re.findall(r"\d+\.\d+ %", (DOCS / "questions.md").read_text())
    assert figures
    for figure in figures:
        assert figure in readme, figure


def test_every_public_module_is_in_the_reference() -> None:
    source = ROOT / "src"
    modules = {
        ".".join(file.relative_to(source).with_suffix("").parts).removesuffix(".__init__")
        for file in (source / "torchckn").rglob("*.py")
    }
    written = {name for page in (DOCS / "reference").glob("*.md") for name in modules_of(page)}
    overviews = {"torchckn", "torchckn.nn", "torchckn.fit", "torchckn.report"}  # a line on the reading order and no more
    assert modules - overviews <= written
    assert written <= modules


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"\S+\.md", navigation)) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def test_nothing_in_the_docs_comes_from_another_host() -> None:
    for file in (*DOCS.rglob("*.md"), *DOCS.rglob("*.css"), *DOCS.rglob("*.svg"), ROOT / "mkdocs.yml"):
        found = re.findall(r"https?://(?!www\.w3\.org/)\S+", file.read_text())
        assert not found, f"{file.name}: {found}"


def test_pictures_are_small_and_have_words_for_those_who_cannot_see_them() -> None:
    for picture in (file for file in (DOCS / "images").rglob("*") if file.is_file()):
        assert picture.stat().st_size < 200_000, picture.name
    for page in DOCS.rglob("*.md"):
        for words in re.findall(r"!\[(.*?)\]\(", page.read_text()):
            assert len(words) > 20, f"{page.name}: {words!r}"


@pytest.mark.site
def test_the_site_has_formulas_and_options_and_needs_no_other_host() -> None:
    """``make docs`` builds the site, strictly, and then runs this."""
    site = ROOT / "site"
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(list(DOCS.rglob("*.md")))
    for page in pages:
        text = page.read_text()
        assert not re.findall(r'(?:src|href)="?(?:https?:)?//[^\s">]+', text), page.name
        assert ".. math::" not in re.sub(r"<details.*?</details>", "", text, flags=re.DOTALL), page.name  # but in sources
    assert "<math" in (site / "paper.html").read_text()
    for name in Settings.model_fields:
        option = "--option" if name == "options" else f"--{name.replace('_', '-')}"
        assert f"<code>{option}</code>" in (site / "command.html").read_text() or name == "network"
