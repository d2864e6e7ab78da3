"""The package as a whole: the direction of its imports, what it declares, and what its releases hold."""

from __future__ import annotations

import ast
import functools
import graphlib
import importlib.metadata
import itertools
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import grimp
import pytest

import torchckn
from torchckn.fit import TrainConfig

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "torchckn"
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = CONFIG["project"]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package and of the contracts about its imports."""
    shutil.copytree(PACKAGE, tmp_path / "src" / "torchckn", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def lint_imports(copy: Path) -> subprocess.CompletedProcess[str]:
    """The last line of ``make lint``, in a copy."""
    (options,) = re.findall(r"^\t\S*/lint-imports(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    command = [sys.executable, "-c", "import importlinter.cli as cli; cli.lint_imports_command()", *options.split()]
    environment = os.environ | {"PYTHONPATH": str(copy / "src"), "COLUMNS": "200"}
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("file", "line", "chain"),
    [
        ("kernels/rbf.py", "from .. import fit", "torchckn.kernels.rbf -> torchckn.fit"),
        ("nn/layers.py", "from ..network import CKN", "torchckn.nn.layers -> torchckn.network"),
        ("data/sets.py", "def late():\n    from .. import cli", "torchckn.data.sets -> torchckn.cli"),
    ],
)
def test_lint_refuses_an_import_that_goes_up(copy: Path, file: str, line: str, chain: str) -> None:
    module = copy / "src" / "torchckn" / file
    module.write_text(f"{module.read_text()}\n\n{line}\n")
    refused = lint_imports(copy)
    assert refused.returncode == 1, refused.stdout + refused.stderr
    assert "Imports go down BROKEN" in refused.stdout
    assert chain in refused.stdout


def test_lint_refuses_a_cycle_between_modules_of_one_folder(copy: Path) -> None:
    assert lint_imports(copy).returncode == 0
    module = copy / "src" / "torchckn" / "nn" / "functional.py"
    module.write_text(f"{module.read_text()}\n\ndef late():\n    from . import layers\n")
    refused = lint_imports(copy)
    assert refused.returncode == 1, refused.stdout + refused.stderr
    assert "No cycles BROKEN" in refused.stdout


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Imports within functions and for type checkers count as well."""
    graph = grimp.build_graph("torchckn", cache_dir=None)
    assert len(graph.modules) > 80
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    graphlib.TopologicalSorter(imports).prepare()  # raises CycleError, which names the cycle


@functools.cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def distribution(requirement: str) -> str:
    return re.split(r"[\s<>=!~;\[]", requirement)[0].lower().replace("_", "-")


def test_every_package_that_the_code_imports_is_declared() -> None:
    extras = PROJECT["optional-dependencies"]
    declared = {distribution(one) for one in (*PROJECT["dependencies"], *extras["plot"], *extras["export"])}
    providers = importlib.metadata.packages_distributions()
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(parsed(file)):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            else:
                continue
            for name in {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"torchckn"}:
                found = {distribution(one) for one in providers[name]}
                assert found & declared, f"{file.name} imports {name}, which {found} provides"


def test_the_version_has_its_section_in_the_changelog() -> None:
    sections = re.findall(r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert sections[0] == ("Unreleased", "")
    assert sections[1][0] == torchckn.__version__
    assert all(date for _, date in sections[1:])


def test_every_dependency_is_pinned_for_the_tests() -> None:
    pins = {distribution(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    extras = {
        name: lines for name, lines in PROJECT["optional-dependencies"].items() if name not in ("tensorboard", "bench")
    }
    for requirement in (*PROJECT["dependencies"], *(line for lines in extras.values() for line in lines)):
        assert distribution(requirement) in pins | {"torchckn"}, requirement
        assert ">=" in requirement or requirement.startswith("torchckn["), f"{requirement} has no lower bound"


def test_the_sdist_has_files_and_folders_of_the_project_s_own_only() -> None:
    for pattern in CONFIG["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]:
        assert pattern.startswith("/"), f"{pattern} would match at any depth, in a virtual environment for example"
        assert (ROOT / pattern[1:]).exists(), pattern


def test_the_sdist_has_all_of_the_repository_but_what_is_for_its_host_alone() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode or "pyproject.toml" not in listed.stdout.splitlines():
        pytest.skip("this is no checkout of the repository")
    there = {line.partition("/")[0] for line in listed.stdout.splitlines()}
    included = {pattern[1:] for pattern in CONFIG["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]}
    assert {name for name in there if not name.startswith(".")} == included | {"pyproject.toml"}


def declared(tree: ast.Module) -> dict[str, set[tuple[str, str]]]:
    """The optional arguments of every function and the fields of every class, with their defaults, by name and line."""
    lists = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            arguments = node.args.posonlyargs + node.args.args
            last = arguments[len(arguments) - len(node.args.defaults) :]
            pairs = [
                *zip(last, node.args.defaults, strict=True),
                *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True),
            ]
            found = {(argument.arg, ast.unparse(default)) for argument, default in pairs if default}
        elif isinstance(node, ast.ClassDef):
            fields = [part for part in node.body if isinstance(part, ast.AnnAssign) and part.value]
            found = {(ast.unparse(field.target), ast.unparse(field.value)) for field in fields if field.value}
        else:
            continue
        lists[f"{node.name}, line {node.lineno}"] = found
    return lists


def repeated(lists: dict[str, set[tuple[str, str]]], most: int = 7) -> list[tuple[str, str]]:
    """Pairs that declare more than ``most`` options alike: such options want to be declared once."""
    return [(a, b) for (a, x), (b, y) in itertools.combinations(lists.items(), 2) if len(x & y) > most]


def test_no_two_argument_lists_repeat_each_other() -> None:
    """But those of layers, which spell out their arguments as the layers of torch do."""
    files = [file for file in PACKAGE.rglob("*.py") if file.parent != PACKAGE / "nn"]
    lists = {f"{file.name}: {name}": found for file in files for name, found in declared(parsed(file)).items()}
    assert len(lists) > 1000
    assert repeated(lists) == []
    options = ", ".join(f"{name}={name!r}" for name in "abcdefgh")
    twice = declared(ast.parse(f"def one(x, {options}): ...\ndef two({options.replace(', e', ', *, e')}): ..."))
    assert repeated(twice) == [("one, line 1", "two, line 2")]


def test_options_of_training_are_declared_in_one_class() -> None:
    """Functions for a part of training have the options of that part: fit_head, for example, those of the classifier."""
    options = set(TrainConfig.model_fields)
    own = PACKAGE / "fit" / "config.py"
    for file in (*PACKAGE.rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")):
        for name, found in declared(parsed(file)).items():
            assert file == own or len({argument for argument, _ in found} & options) <= 6, f"{file.name}: {name}"
