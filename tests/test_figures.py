"""Figures in the documentation have one source: docs/benchmarks.md, or docs/results.md, which is made from the results.

Every figure (percentage, ratio, time, memory) on another page is listed here with the line that it is quoted from, or with
the reason why it has none. Whoever changes a figure, on the page or at its source, has to change the other one as well.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Iterator, Mapping

import pytest

from torchckn.experiments.results import read_results

from .test_readme import PAGES, ROOT

SOURCES = ("benchmarks.md", "results.md")
NETWORKS = ("lenet1", "lenet5", "allcnn")
NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"
UNIT = r"(?:%|(?:percentage\s+)?points?\b|x(?! ?\d)\b|times\b|m?s\b|seconds?\b|minutes?\b|hours?\b|[GM]B\b)"
FIGURE = re.compile(rf"(?<![\w.^])(?<!\^-)({NUMBER})(?=(?:,?\s+(?:to|and|or)\s+{NUMBER}|,\s+{NUMBER}|-{NUMBER})*\s*{UNIT})")

#: page -> its figures in their order, each with the line of a source that has it, or with the reason why there is none
QUOTED: dict[str, list[tuple[str, str]]] = {
    "README.md": [
        ("85.5", "benchmarks.md: | `ckn-cifar5`, 128, whitened CIFAR-10, flips and crops"),
        ("1.5", "benchmarks.md: In short: a training step takes"),
        ("2.5", "benchmarks.md: In short: a training step takes"),
        ("1.1", "benchmarks.md: In short: inference takes"),
        ("1.3", "benchmarks.md: In short: inference takes"),
        ("95", "the level of the confidence intervals"),
        ("0.1", "the paper: section 5.3"),
        ("1", "the paper: section 5.3"),
        ("99.14", "benchmarks.md: | LeNet-5 CKN, 32, `accurate`"),
        ("82", "benchmarks.md: | LeNet-5 CKN, 32, `accurate`"),
        ("98.5", "benchmarks.md: | LeNet-1 CKN, 32, MNIST (`lenet1 --seed 1`)"),
        ("48", "benchmarks.md: | LeNet-1 CKN, 32, MNIST (`lenet1 --seed 1`)"),
    ],
    "when.md": [
        ("95", "the level of the confidence intervals"),
        ("78.5", "results.md: CKNs and ConvNets with the settings of the released curves"),
        ("77.0", "results.md: CKNs and ConvNets with the settings of the released curves"),
    ],
    "questions.md": [
        ("94.4", "benchmarks.md: | LeNet-5 CKN, 32, MNIST (`lenet5 --seed 1`)"),
        ("99.14", "benchmarks.md: | LeNet-5 CKN, 32, `accurate`"),
        ("82", "benchmarks.md: | LeNet-5 CKN, 32, `accurate`"),
        ("1.5", "benchmarks.md: In short: a training step takes"),
        ("2.5", "benchmarks.md: In short: a training step takes"),
        ("1.1", "benchmarks.md: In short: inference takes"),
        ("1.3", "benchmarks.md: In short: inference takes"),
    ],
    "training.md": [
        ("512", "a limit: of torchckn.nn.whitening"),
        ("2", "a setting: DROP in torchckn.fit.loop"),
        ("0.8", "benchmarks.md: | `ckn-cifar5`, 128, 256"),
        ("1.9", "benchmarks.md: | `ckn-cifar5`, 128, 256"),
        ("96.43", "benchmarks.md: | LeNet-5, 16, MNIST"),
        ("96.45", "benchmarks.md: | LeNet-5, 16, MNIST"),
    ],
    "scale.md": [
        ("150", "an assumption of the model in benchmarks.scale"),
        ("20", "an assumption of the model in benchmarks.scale"),
        ("1.06", "benchmarks.md: | LeNet-5 CKN, 32, 1,024"),
        ("1.21", "benchmarks.md: | LeNet-5 CKN, 16, 256"),
        ("56", "benchmarks.md: | LeNet-5 CKN, 16, 256"),
    ],
    "safety.md": [
        ("16", "a limit: _LARGEST_HEADER in torchckn.files"),
        ("3", "a setting: the memory of the processes in tests/faults"),
        ("20", "a setting: PATIENCE in tests/faults/harness.py"),
    ],
    "paper.md": [
        *[("2", "a setting: DROP in torchckn.fit.loop")] * 2,
        ("2.5", "the paper: section 5.2"),
        *((figure, "the paper: section 5.3") for figure in ("64", "97")),
        *((figure, "the paper: appendix G") for figure in ("67", "98")),
    ],
}


def figures(text: str) -> list[re.Match[str]]:
    """The figures of a page, but not those of its code."""
    prose = re.sub(r"^```(?:python|sh|bibtex).*?^```", lambda code: " " * len(code[0]), text, flags=re.DOTALL | re.MULTILINE)
    return [*FIGURE.finditer(prose)]


def problems(texts: Mapping[str, str], quoted: Mapping[str, list[tuple[str, str]]]) -> Iterator[str]:
    """What does not agree between pages, the list of their figures, and the sources."""
    for page, text in texts.items():
        on_page, listed = [figure[1] for figure in figures(text)], [figure for figure, _ in quoted.get(page, [])]
        if page not in SOURCES and on_page != listed:
            yield f"{page} has the figures {on_page}, test_figures.py lists {listed}"
    for page, entries in quoted.items():
        for figure, source in entries:
            name, _, start = source.partition(": ")
            if name in SOURCES and not has_figure(lines(texts[name], start), figure):
                yield f"{page}: {figure} is not in {source}"


def lines(text: str, start: str) -> str:
    """The lines that begin in this way."""
    return "\n".join(line for line in text.splitlines() if line.startswith(start))


def has_figure(line: str, figure: str) -> bool:
    return figure in re.findall(rf"(?<![\w.]){NUMBER}(?!\w)", line)


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return {str(page.relative_to(ROOT / "docs" if page.parent != ROOT else ROOT)): page.read_text() for page in PAGES}


def test_every_figure_outside_the_benchmarks_is_quoted_from_there_or_has_a_reason(texts: dict[str, str]) -> None:
    assert list(problems(texts, QUOTED)) == []


def test_a_figure_that_is_changed_is_noticed(texts: dict[str, str]) -> None:
    pages = [page for page in texts if page not in SOURCES and figures(texts[page])]
    assert set(pages) == set(QUOTED)
    for page in pages:
        for figure in figures(texts[page]):
            for other in (f"{figure[1]}1", str(9 - int(figure[1][0])) + figure[1][1:]):
                changed = texts[page][: figure.start()] + other + texts[page][figure.end() :]
                assert list(problems(texts | {page: changed}, QUOTED)), f"{page}: {figure[1]} became {other}"
    for entry, source in (entry for entries in QUOTED.values() for entry in entries):
        name, _, start = source.partition(": ")
        if name in SOURCES:
            line = lines(texts[name], start)
            assert line, source
            changed = texts[name].replace(line, re.sub(rf"(?<![\w.]){re.escape(entry)}(?!\w)", f"{entry}1", line))
            assert list(problems(texts | {name: changed}, QUOTED)), f"{source}: {entry} was changed"


def test_a_new_figure_is_noticed(texts: dict[str, str]) -> None:
    for sentence in ("It takes 3 s.", "It has 97.2 %.", "It is 4 to 5 times faster.", "It needs 1.5 GB.", "2 points more"):
        assert list(problems(texts | {"index.md": f"{texts['index.md']}\n{sentence}\n"}, QUOTED)), sentence


def test_the_summary_of_the_experiments_has_the_figures_of_their_results(texts: dict[str, str]) -> None:
    results = read_results(ROOT / "experiments", "cpu")

    def accuracy(experiment: str, **variables: object) -> float:
        """Mean test accuracy over the seeds, in percent."""
        wanted = {key.replace("bias", "options.bias"): value for key, value in variables.items()}
        found = [r for r in results.of(experiment) if all(r.variables.get(key) == value for key, value in wanted.items())]
        assert len(found) in (1, 3), variables
        return 100 * statistics.mean(r["test_accuracy"] for r in found)

    def span(values: Iterable[float], decimals: int = 0) -> str:
        values = sorted(values)
        return f"{values[0]:.{decimals}f} to {values[-1]:.{decimals}f}"

    filters = (8, 16, 32)
    ckn = {(net, f): accuracy("ckn-convnet", network=net, filters=f, kind="ckn") for net in NETWORKS for f in filters}
    unsupervised = {key: accuracy("unsupervised", network=key[0], filters=key[1]) for key in ckn}

    def ahead(net: str) -> list[float]:
        """Percentage points by which kernel networks are ahead of their ConvNets."""
        common = {"network": net, "kind": "convnet", "budget": "steps", "bias": False}
        return [ckn[net, f] - accuracy("ckn-convnet", filters=f, **common) for f in filters]

    centred = {"network": "allcnn", "filters": 16, "centering": "feature"}
    behind = accuracy("centering", kind="ckn", **centred) - accuracy("centering", kind="convnet", budget="steps", **centred)
    of = {net: [ckn[net, f] for f in filters] for net in NETWORKS}
    share = {net: span(100 * unsupervised[net, f] / ckn[net, f] for f in filters) for net in NETWORKS}
    lenet1 = ahead("lenet1")
    points = "percentage points"
    expected = [
        f"LeNet-1 (MNIST): the kernel network has {span(of['lenet1'], 1)} %, between {max(lenet1):.2f} {points} more and "
        f"{-min(lenet1):.2f} {points} less than its ConvNet.",
        f"LeNet-5 (MNIST): the kernel network has {span(of['lenet5'], 1)} %, which is "
        f"{span(ahead('lenet5'), 1)} {points} more than its ConvNet",
        f"All-CNN-C (CIFAR-10, 300 steps): the kernel network has {span(of['allcnn'])} %. That is "
        f"{span(ahead('allcnn'))} {points} more than the ConvNet after the same number of steps",
        f"with 16 filters, the ConvNet is {behind:.0f} {points} behind.",
        f"Unsupervised filters reach {share['lenet1']} % (LeNet-1), {share['lenet5']} % (LeNet-5) and {share['allcnn']} % "
        "(All-CNN-C) of the accuracy after training with labels.",
    ]
    section = texts["benchmarks.md"].partition("## The paper's experiments in short\n")[2]
    for sentence in expected:
        assert sentence in " ".join(section.split())
    assert len(figures(section)) == len(figures("\n".join(expected))), "a figure that is not checked here"


@pytest.mark.parametrize(
    ("section", "column", "words"),
    [
        ("Inference", 4, "inference takes {} times as long"),
        ("A training step", 2, "a training step takes {} times as long as the ConvNet's with the exact classifier"),
        ("A training step", 3, "{} times as long with the reused one"),
    ],
)
def test_ranges_of_speeds_are_those_of_their_table(texts: dict[str, str], section: str, column: int, words: str) -> None:
    table, _, sentence = texts["benchmarks.md"].partition(f"## {section}\n")[2].partition("In short: ")
    rows = [line.split("|") for line in table.splitlines() if line.startswith(("| LeNet", "| All-CNN"))]
    assert len(rows) == 6
    values = sorted((row[column].split()[0] for row in rows), key=float)
    assert words.format(f"{values[0]} to {values[-1]}") in " ".join(sentence.split())


def test_every_table_of_the_benchmarks_has_its_command(texts: dict[str, str]) -> None:
    for section in texts["benchmarks.md"].split("\n## ")[1:]:
        assert re.search(r"`(make bench|python -m benchmarks\.\w+|torchckn (?:reproduce|train)) ?", section), (
            section.splitlines()[0]
        )


def test_the_runs_in_the_repository_have_the_figures_of_the_benchmarks(texts: dict[str, str]) -> None:
    metrics = (ROOT / "benchmarks" / "results" / "allcnn-1000.jsonl").read_text().splitlines()
    for step, figure in ((100, "61.0"), (1000, "74.3")):
        (record,) = (line for line in metrics if f'"step": {step},' in line)
        found = re.search(r'"valid_accuracy": ([\d.]+)', record)
        assert found
        assert f"{100 * float(found[1]):.1f}" == figure
        assert has_figure(texts["benchmarks.md"], figure)
