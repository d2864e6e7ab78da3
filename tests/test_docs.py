"""The documentation agrees with the code: its commands run, its tables name code and tests that exist, the site builds."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

import torchckn
from torchckn.cli import app

from . import forks
from .test_readme import PAGES, ROOT, blocks

DOCS = ROOT / "docs"
#: where the page of the command has the table of options, which is made from the command when the site is built
OPTIONS = "<!-- options of torchckn train -->"


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


def run(line: str, folder: Path) -> str:
    """What a line prints that a user would type: ``torchckn ...`` or ``python file.py ...``."""
    program, *arguments = shlex.split(line)
    command = {"torchckn": ["-m", "torchckn"], "python": []}[program] + arguments
    done = forks.run(command, cwd=folder, env=os.environ | {"COLUMNS": "120"})
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_commands_of_the_tutorial_work_one_after_the_other(tmp_path: Path) -> None:
    page = DOCS / "tutorial.md"
    for file, content in blocks(page):
        if file:
            (tmp_path / file).write_text(content)
    output = "".join(run(line, tmp_path) for block in shell_blocks(page) for line in block.splitlines())
    assert "accuracy" in output
    for made in ("smallnet.svg", "report.html", "smallnet.onnx", "runs/first/model/model.safetensors"):
        assert (tmp_path / made).stat().st_size > 0
    table, outside = output.rstrip().rsplit("\n", 1)
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
        if OPTIONS in section[1] and parameter.rich_help_panel:
            continue
        for option in parameter.opts:
            if option.startswith("--") and option not in ("--help", "--json", "--data-dir", "--quiet", "--trust"):
                assert f"`{option}" in section[1], f"{name}: {option}"


def test_the_table_of_the_paper_names_code_that_exists() -> None:
    page = (DOCS / "paper.md").read_text()
    links = re.findall(r"\]\((reference/\w+\.md)#(torchckn[\w.]+)\)", page)
    assert len(links) > 30
    for file, name in links:
        module = next(module for module in modules_of(DOCS / file) if name == module or name.startswith(f"{module}."))
        value: Any = importlib.import_module(module)
        for part in name.removeprefix(module).strip(".").split("."):
            value = getattr(value, part) if part else value


def modules_of(page: Path) -> list[str]:
    """The modules that a page of the reference is about, the longest names first."""
    return sorted(re.findall(r"^::: (torchckn[\w.]*)", page.read_text(), re.MULTILINE), key=len, reverse=True)


def test_the_table_of_the_paper_names_tests_that_exist() -> None:
    tests = {file.stem: file.read_text() for file in (ROOT / "tests").glob("test_*.py")}
    names = set(re.findall(r"`(test_\w+)`", (DOCS / "paper.md").read_text()))
    assert len(names) > 60
    for name in names:
        files = [file for file, text in tests.items() if f"def {name}(" in text]
        assert len(files) == 1, f"{name} is in {files or 'no file'}"


def test_every_public_module_is_in_the_reference() -> None:
    source = ROOT / "src"
    modules = {
        ".".join(file.relative_to(source).with_suffix("").parts).removesuffix(".__init__")
        for file in (source / "torchckn").rglob("*.py")
    }
    documented = [name for page in (DOCS / "reference").glob("*.md") for name in modules_of(page)]
    overviews = {
        "torchckn",
        "torchckn.__main__",
        "torchckn.nn",
        "torchckn.fit",
        "torchckn.report",
    }  # without code of their own
    assert sorted(documented) == sorted(modules - overviews)


def test_the_names_in_the_overview_of_the_reference_are_public() -> None:
    table = (DOCS / "reference" / "index.md").read_text().partition("These names can be imported")[2]
    names = re.findall(r"`(\w+)`", table.partition("\n\n")[2])
    assert len(names) > 15
    assert set(names) <= set(dir(torchckn))


def test_the_stack_of_packages_is_the_one_that_imports_are_checked_against() -> None:
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]["layers"]
    page = (DOCS / "architecture.md").read_text()
    stack = re.search(r"^```text\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert stack
    lines = [re.split(r" {3,}", line.strip())[0] for line in stack[1].splitlines() if line.strip()]
    assert lines == [*contract, "imports go down"]
    table = page.partition("## The packages")[2].partition("\n## ")[0]
    described = re.findall(r"`(\w+)`", " ".join(line.split("|")[1] for line in table.splitlines() if line.startswith("|")))
    assert sorted(described) == sorted(package for layer in contract for package in layer.split(" | "))


#: what nobody who uses PyTorch would say, and what they would
PLAIN = {
    r"filters a layer": "filters per layer",
    r"\bstep sizes?\b": "learning rate",
    r"\b(?:fitted|fit) (?:anew|once more)": "refitted",
    r"from nothing": "total time",
    r"\b(?:mend|mended)\b": "fix",
    r"\bcame\b": "got",
    r"\bwants?\b": "needs",
    r"speaks? for": "favours",
    r"say the same command": "rerun the command",
    r"the truth": "the exact kernel",
}


def test_pages_use_the_words_of_the_field() -> None:
    for page in (ROOT / "CONTRIBUTING.md", *PAGES):
        for pattern, better in PLAIN.items():
            match = re.search(pattern, page.read_text(), re.IGNORECASE)
            assert match is None or page.name == "results.md", f"{page.name}: {match[0]!r}; write {better!r}"


def test_the_tutorial_explains_the_parts_that_a_report_has() -> None:
    template = (ROOT / "src" / "torchckn" / "report" / "template" / "page.html").read_text()
    parts = re.findall(r'<li><a href="#\w+">(.+?)</a></li>', template)
    explained = (DOCS / "tutorial.md").read_text().partition("## Read the report")[2].partition("\n## ")[0]
    assert re.findall(r"^- \*\*(.+?)\*\*:", explained, re.MULTILINE) == parts


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"\S+\.md", navigation)) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def test_nothing_in_the_docs_comes_from_another_host() -> None:
    for file in (*DOCS.rglob("*.md"), *DOCS.rglob("*.css"), *DOCS.rglob("*.svg"), ROOT / "mkdocs.yml"):
        addresses = re.findall(r"https?://(?!www\.w3\.org/)\S+", file.read_text())
        assert not addresses, f"{file.name}: {addresses}"


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
    page = (site / "command.html").read_text()
    (train,) = (command for name, command in commands() if name == "torchckn train")
    for option in (option for parameter in train.params for option in parameter.opts if option.startswith("--")):
        assert f"<code>{option}</code>" in page, option
