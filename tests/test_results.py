"""Claims, figures and the page made from experiments' results; and the results in the repository."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchckn import ConfigError, DataError
from torchckn.experiments import claims, figures, page
from torchckn.experiments.results import Result, Results, is_finished, read_results
from torchckn.experiments.spec import experiments
from torchckn.experiments.when import few_labels_tables, when_text
from torchckn.plots import crop_out_start, new_figure

ROOT = Path(__file__).parent.parent


def result(experiment: str, seed: int = 0, history: list[dict[str, Any]] | None = None, **values: Any) -> Result:
    measured = {k: values.pop(k) for k in list(values) if k in ("test_accuracy", "valid_accuracy", "errors", "root_errors")}
    variables = {key.replace("__", "."): value for key, value in values.items()}
    return Result(experiment, "train", variables, seed, measured, history or [], {"steps": 100}, {}, 1.0, {})


def verdicts(*results: Result) -> dict[str, claims.JudgedClaim]:
    return {judged.claim: judged for judged in claims.judge_claims(Results(results))}


def test_claims_are_judged_by_the_numbers() -> None:
    assert {judged.verdict for judged in verdicts().values()} == {"not run at this scale"}
    for ratio, verdict in ((3.0, "holds"), (2.0, "does not hold")):
        errors = {"svd": ratio * 1e-6, "newton-20": 1e-6, "eigh": 1e-7}
        judged_claims = verdicts(result("gradient", filters=8, errors=errors, root_errors=errors))
        judged = next(j for c, j in judged_claims.items() if "2.5 times" in c)
        assert judged.verdict == verdict
        assert f"with only the inverse root in float32 {ratio} (8 filters)" in judged.measured

    def networks(ckn: float, convnet: float) -> list[Result]:
        common = {"network": "lenet5", "filters": 8, "options__bias": False, "budget": "steps"}
        return [
            result("ckn-convnet", kind="ckn", test_accuracy=ckn, **common),
            result("ckn-convnet", kind="convnet", test_accuracy=convnet, **common),
        ]

    claim = "LeNet-5: the CKN is at most 0.1 % less accurate than the ConvNet (and at most 1 % more)"
    for ckn, convnet, verdict in ((0.99, 0.985, "holds"), (0.985, 0.99, "does not hold"), (0.990, 0.991, "holds")):
        judged = verdicts(*networks(ckn, convnet))[claim]
        assert judged.verdict == verdict
        assert f"{100 * (ckn - convnet):+.2f} %" in judged.measured
        assert judged.runs == 2
    assert verdicts(networks(0.99, 0.98)[0])[claim].verdict == "not run at this scale", "half of it is not enough"
    assert verdicts(networks(0.99, 0.98)[0], replace(networks(0.99, 0.98)[1], seed=1))[claim].runs == 0, "other images"
    assert (
        verdicts(*networks(0.99, 0.96))["LeNet-5: the test accuracies of CKN and ConvNet are above 97 %"].verdict
        == "holds in part"
    )


def test_methods_are_compared_at_the_end_of_the_shorter_training() -> None:
    def curve(*points: tuple[float, float]) -> list[dict[str, Any]]:
        return [{"step": i, "seconds": s, "valid_accuracy": a} for i, (s, a) in enumerate(points)]

    common = {"network": "lenet5", "filters": 8, "loss": "multinomial"}
    ulr = result("ulr-sgo", method="ulr", valid_accuracy=0.98, history=curve((0, 0.5), (10, 0.7), (20, 0.98)), **common)
    sgo = result("ulr-sgo", method="sgo", valid_accuracy=0.9, history=curve((0, 0.5), (5, 0.6), (12, 0.9)), **common)
    judged = next(j for c, j in verdicts(ulr, sgo).items() if "LeNet-5, 8 filters" in c)
    assert judged.verdict == "holds in part"
    assert judged.measured == "+8.0 % after 2 steps, -20.0 % after equal time"


def test_further_claims_are_judged() -> None:
    def of(network: str, kind: str, accuracy: float, seconds: float, **others: Any) -> Result:
        history = [{"step": 1, "seconds": seconds, "valid_accuracy": 0.5}]
        return result(
            "ckn-convnet", network=network, kind=kind, filters=8, test_accuracy=accuracy, history=history, **others
        )

    judgements = ((0.05, "holds"), (0.3, "holds in part"), (0.01, "does not hold"), (-0.1, "does not hold"))
    for difference, verdict in judgements:
        common = {"options__bias": True, "budget": "time"}
        found = verdicts(of("allcnn", "ckn", 0.5 + difference, 10.0), of("allcnn", "convnet", 0.5, 12.0, **common))
        judged = found[
            "All-CNN-C: the CKN is 3 to 16 % more accurate than the ConvNet (ConvNet with biases, equal training time)"
        ]
        assert judged.verdict == verdict
        assert "training time of the ConvNet: 1.2 times the CKN's" in judged.measured
        assert not any(j.runs for claim, j in found.items() if "centering" in claim), "another experiment's"
    for centering, runs in (("feature", 2), ("image", 0)):
        common = {"network": "allcnn", "filters": 8, "centering": centering, "history": [{"seconds": 1.0}]}
        ckn = result("centering", kind="ckn", test_accuracy=0.6, **common)
        convnet = result("centering", kind="convnet", test_accuracy=0.5, budget="steps", **common)
        setup = "centering per feature for both, equal number of steps"
        claim = f"All-CNN-C: the CKN is 3 to 16 % more accurate than the ConvNet ({setup})"
        assert verdicts(ckn, convnet)[claim].runs == runs
    found = verdicts(result("unsupervised", network="lenet1", filters=8, test_accuracy=0.97), of("lenet1", "ckn", 0.96, 1.0))
    judged = next(j for claim, j in found.items() if "with unsupervised filters" in claim and j.runs)
    assert judged.verdict == "holds", "a higher accuracy than with trained filters holds as well"
    for accuracy, verdict in ((0.5, "holds"), (0.9, "does not hold")):
        without = result("unsupervised", network="allcnn", filters=8, kind="ckn", test_accuracy=accuracy)
        found = verdicts(without, of("allcnn", "ckn", 1.0, 1.0))
        assert (
            found["All-CNN-C: with unsupervised filters the CKN has 44 to 59 % of its accuracy with trained filters"].verdict
            == verdict
        )
    for incomplete, complete, verdict in ((0.9854, 0.985, "holds"), (0.98, 0.97, "does not hold")):
        pair = {"incomplete": incomplete, "complete": complete}
        runs = [result("connections", network="lenet1", options__connections=k, test_accuracy=v) for k, v in pair.items()]
        judged = [j.verdict for c, j in verdicts(*runs).items() if c.startswith("LeNet-1 ConvNet")]
        assert judged == [verdict, verdict]
    for accuracy, verdict in ((0.988, "holds"), (0.97, "does not hold")):
        run = result("released", network="lenet5", kind="ckn", filters=32, test_accuracy=accuracy)
        judged = [j.verdict for c, j in verdicts(run).items() if c.startswith("Released run, LeNet-5")]
        assert judged == [verdict, "not run at this scale"], "100 steps say nothing about 10,000"


def test_inverse_roots_are_judged_by_the_networks_trained_with_them() -> None:
    def judged(filters: int, newton: float, svd: float) -> list[tuple[str, str]]:
        methods = {"newton:50": newton, "svd": svd}
        runs = [result("inverse-root", filters=filters, inverse_sqrt=m, valid_accuracy=a) for m, a in methods.items()]
        return [(j.verdict, j.measured) for c, j in verdicts(*runs).items() if "Newton" in c and "SVD" in c and j.runs]

    assert judged(8, 0.5, 0.502) == [("holds", "-0.2 %")]
    assert judged(8, 0.5, 0.5001) == [("holds", "+0.0 %")]
    assert judged(8, 0.5, 0.48) == [("does not hold", "+2.0 %")], "equal is not better"
    assert judged(128, 0.72, 0.70) == [("holds", "+2.0 %")]
    assert judged(128, 0.71, 0.70) == [("holds in part", "+1.0 %")]
    assert judged(32, 0.72, 0.70) == [("not run at this scale", "with 32 filters instead: +2.0 %")]


def test_a_comparison_is_judged_on_every_network() -> None:
    def runs(lenet: float, allcnn: float) -> list[Result]:
        found = [result("kernels", network=n, kernel="rbf:0.6", test_accuracy=0.7) for n in ("lenet5", "allcnn")]
        changed = {"lenet5": lenet, "allcnn": allcnn}
        return found + [result("kernels", network=n, kernel="arccosine:1", test_accuracy=a) for n, a in changed.items()]

    for lenet, allcnn, verdict in ((0.71, 0.70, "holds"), (0.71, 0.6, "holds in part"), (0.6, 0.6, "does not hold")):
        judged = next(j for c, j in verdicts(*runs(lenet, allcnn)).items() if "arc-cosine" in c)
        assert judged.verdict == verdict
        assert judged.measured == f"LeNet-5 {100 * lenet - 70:+.1f} %, All-CNN-C {100 * allcnn - 70:+.1f} %"
        assert judged.runs == 4


def test_the_error_for_a_damaged_result_names_its_file(tmp_path: Path) -> None:
    file = tmp_path / "results" / "cpu" / "one" / "x.json"
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    with pytest.raises(DataError, match="x.json is not a result"):
        read_results(tmp_path, "cpu")


def test_the_page_in_the_docs_is_made_from_the_results_in_the_repository() -> None:
    docs = ROOT / "docs" / "results.md"
    assert page.page_text(ROOT / "experiments", "cpu", docs, list(experiments().values())) == docs.read_text()
    for link in re.findall(r"\]\((images/.*?)\)", docs.read_text()):
        assert (docs.parent / link).exists(), link


def test_the_page_on_when_to_use_a_kernel_network_is_made_from_the_results_in_the_repository() -> None:
    docs = ROOT / "docs" / "when.md"
    assert when_text(ROOT / "experiments", "cpu", "images/results") == docs.read_text()
    for link in re.findall(r"\]\((images/.*?)\)", docs.read_text()):
        assert (docs.parent / link).exists(), link


def test_the_best_learner_of_each_number_of_labels_is_in_bold() -> None:
    def of(learner: str, seed: int, *accuracies: float) -> Result:
        history = [{"labels": n, "test_accuracy": a} for n, a in zip((50, 100), accuracies, strict=False)]
        return result("few-labels", seed, history, data="mnist", learner=learner)

    (table,) = few_labels_tables([of("ckn", 0, 0.5, 0.9), of("ckn", 1, 0.7, 0.9), of("svm", 0, 0.65)])
    assert table.splitlines() == [
        "| MNIST | 50 labels | 100 labels | draws |",
        "| --- | --- | --- | --- |",
        "| CKN, unsupervised filters | 60.0 (50.0 to 70.0) | **90.0 (90.0 to 90.0)** | 2 |",
        "| RBF SVM on pixels | **65.0** | - | 1 |",
    ]


def test_the_whole_small_scale_is_in_the_repository_as_its_experiments_are_now() -> None:
    cells = {c.name: c for one in experiments().values() for c in one.cells("cpu")}
    files = (ROOT / "experiments" / "results" / "cpu").glob("*/*.json")
    assert {f"{file.parent.name}/{file.stem}" for file in files} == cells.keys()
    assert [name for name, cell in cells.items() if not is_finished(ROOT / "experiments", cell)] == []


def test_values_have_labels_for_figures_and_tables() -> None:
    assert figures.value_label("filters", 8) == "8 filters"
    assert figures.value_label("options.bias", True) == "with biases"
    assert figures.value_label("bandwidths", False) == "without trained bandwidths"
    assert figures.value_label("loss", "square") == "square loss"
    assert figures.value_label("inverse_sqrt", "newton:50") == "Newton"


def test_without_matplotlib_the_error_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"figures need matplotlib, .* install it with: pip install 'torchckn\[plot\]'"):
        new_figure(1, 1)


def test_a_first_point_far_below_the_others_is_cropped_and_other_first_points_are_not() -> None:
    for first, shown in ((10.0, False), (90.0, True)):
        (axes,) = [new_figure(1, 1).subplots()]
        axes.plot([first, 95.0, 98.0])
        crop_out_start(axes, [[first, 95.0, 98.0]])
        assert (axes.get_ylim()[0] <= first) == shown
