"""What is made of experiments' results: claims, figures, the page; and the results in the repository."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchckn import DataError
from torchckn.experiments import claims, figures, page
from torchckn.experiments.results import Result, Results, is_finished, read_results
from torchckn.experiments.spec import experiments
from torchckn.plots import look_past_start, new_figure

ROOT = Path(__file__).parent.parent


def result(experiment: str, seed: int = 0, history: list[dict[str, Any]] | None = None, **values: Any) -> Result:
    measured = {k: values.pop(k) for k in list(values) if k in ("test_accuracy", "valid_accuracy", "errors", "root_errors")}
    variables = {key.replace("__", "."): value for key, value in values.items()}
    return Result(experiment, "train", variables, seed, measured, history or [], {"steps": 100}, {}, 1.0, {})


def verdicts(*found: Result) -> dict[str, claims.Judged]:
    return {judged.claim: judged for judged in claims.judge(Results(found))}


def test_claims_are_judged_by_the_numbers() -> None:
    assert {judged.verdict for judged in verdicts().values()} == {"not run at this scale"}
    for ratio, verdict in ((3.0, "holds"), (2.0, "does not hold")):
        errors = {"svd": ratio * 1e-6, "newton-20": 1e-6, "eigh": 1e-7}
        found = verdicts(result("gradient", filters=8, errors=errors, root_errors=errors))
        assert next(j for c, j in found.items() if "2.5 times" in c).verdict == verdict

    def networks(ckn: float, convnet: float) -> list[Result]:
        common = {"network": "lenet5", "filters": 8, "options__bias": False, "budget": "steps"}
        return [
            result("ckn-convnet", kind="ckn", test_accuracy=ckn, **common),
            result("ckn-convnet", kind="convnet", test_accuracy=convnet, **common),
        ]

    claim = "LeNet-5: the CKN is at most 0.1 % below the ConvNet (and at most 1 % above)"
    for ckn, convnet, verdict in ((0.99, 0.985, "holds"), (0.985, 0.99, "does not hold"), (0.990, 0.991, "holds")):
        judged = verdicts(*networks(ckn, convnet))[claim]
        assert judged.verdict == verdict
        assert f"{100 * (ckn - convnet):+.2f} %" in judged.measured
        assert judged.runs == 2
    assert verdicts(networks(0.99, 0.98)[0])[claim].verdict == "not run at this scale", "half of it is not enough"
    assert verdicts(networks(0.99, 0.98)[0], replace(networks(0.99, 0.98)[1], seed=1))[claim].runs == 0, "other images"
    assert verdicts(*networks(0.99, 0.96))["LeNet-5: CKN and ConvNet are both above 97 %"].verdict == "holds in part"


def test_methods_are_compared_at_the_last_moment_that_both_have_reached() -> None:
    def curve(*points: tuple[float, float]) -> list[dict[str, Any]]:
        return [{"step": i, "seconds": s, "valid_accuracy": a} for i, (s, a) in enumerate(points)]

    common = {"network": "lenet5", "filters": 8, "loss": "multinomial"}
    ulr = result("ulr-sgo", method="ulr", valid_accuracy=0.98, history=curve((0, 0.5), (10, 0.7), (20, 0.98)), **common)
    sgo = result("ulr-sgo", method="sgo", valid_accuracy=0.9, history=curve((0, 0.5), (5, 0.6), (12, 0.9)), **common)
    judged = next(j for c, j in verdicts(ulr, sgo).items() if "LeNet-5, 8 filters" in c)
    assert judged.verdict == "holds in part"
    assert judged.measured == "after 2 steps +8.0 %, after the same time -20.0 %"


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
        judged = found["All-CNN-C: the CKN is 3 to 16 % above the ConvNet (ConvNet with biases, as much time)"]
        assert judged.verdict == verdict
        assert "took 1.2 times" in judged.measured
        assert not any(j.runs for claim, j in found.items() if "centred" in claim), "another experiment's"
    for centering, runs in (("feature", 2), ("image", 0)):
        common = {"network": "allcnn", "filters": 8, "centering": centering, "history": [{"seconds": 1.0}]}
        ckn = result("centering", kind="ckn", test_accuracy=0.6, **common)
        convnet = result("centering", kind="convnet", test_accuracy=0.5, budget="steps", **common)
        claim = "All-CNN-C: the CKN is 3 to 16 % above the ConvNet (features of both centred per feature, as many steps)"
        assert verdicts(ckn, convnet)[claim].runs == runs
    found = verdicts(result("unsupervised", network="lenet1", filters=8, test_accuracy=0.97), of("lenet1", "ckn", 0.96, 1.0))
    judged = next(j for claim, j in found.items() if "without labels" in claim and j.runs)
    assert judged.verdict == "holds", "more than all of it is not too much"
    for accuracy, verdict in ((0.5, "holds"), (0.9, "does not hold")):
        without = result("unsupervised", network="allcnn", filters=8, kind="ckn", test_accuracy=accuracy)
        found = verdicts(without, of("allcnn", "ckn", 1.0, 1.0))
        assert found["All-CNN-C: without labels the CKN has 44 to 59 % of its accuracy with labels"].verdict == verdict
    for incomplete, complete, verdict in ((0.9854, 0.985, "holds"), (0.98, 0.97, "does not hold")):
        pair = {"incomplete": incomplete, "complete": complete}
        runs = [result("connections", network="lenet1", options__connections=k, test_accuracy=v) for k, v in pair.items()]
        judged = [j.verdict for c, j in verdicts(*runs).items() if c.startswith("LeNet-1 ConvNet")]
        assert judged == [verdict, verdict]
    for accuracy, verdict in ((0.988, "holds"), (0.97, "does not hold")):
        run = result("released", network="lenet5", kind="ckn", filters=32, test_accuracy=accuracy)
        judged = [j.verdict for c, j in verdicts(run).items() if c.startswith("Released run, LeNet-5")]
        assert judged == [verdict, "not run at this scale"], "100 steps say nothing of 10,000"


def test_inverse_roots_are_judged_by_the_networks_trained_with_them() -> None:
    def judged(filters: int, newton: float, svd: float) -> list[tuple[str, str]]:
        methods = {"newton:50": newton, "svd": svd}
        runs = [result("inverse-root", filters=filters, inverse_sqrt=m, valid_accuracy=a) for m, a in methods.items()]
        return [(j.verdict, j.measured) for c, j in verdicts(*runs).items() if "Newton" in c and "SVD" in c and j.runs]

    assert judged(8, 0.5, 0.502) == [("holds", "-0.2 %")]
    assert judged(8, 0.5, 0.48) == [("does not hold", "+2.0 %")], "equal is not better"
    assert judged(128, 0.72, 0.70) == [("holds", "+2.0 %")]
    assert judged(128, 0.71, 0.70) == [("holds in part", "+1.0 %")]
    assert judged(32, 0.72, 0.70) == [("not run at this scale", "with 32 filters instead: +2.0 %")]


def test_one_thing_changed_is_judged_on_every_network() -> None:
    def runs(lenet: float, allcnn: float) -> list[Result]:
        found = [result("kernels", network=n, kernel="rbf:0.6", test_accuracy=0.7) for n in ("lenet5", "allcnn")]
        changed = {"lenet5": lenet, "allcnn": allcnn}
        return found + [result("kernels", network=n, kernel="arccosine:1", test_accuracy=a) for n, a in changed.items()]

    for lenet, allcnn, verdict in ((0.71, 0.70, "holds"), (0.71, 0.6, "holds in part"), (0.6, 0.6, "does not hold")):
        judged = next(j for c, j in verdicts(*runs(lenet, allcnn)).items() if "arc-cosine" in c)
        assert judged.verdict == verdict
        assert judged.measured == f"LeNet-5 {100 * lenet - 70:+.1f} %, All-CNN-C {100 * allcnn - 70:+.1f} %"
        assert judged.runs == 4


def test_a_damaged_result_is_named(tmp_path: Path) -> None:
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


def test_the_whole_small_scale_is_in_the_repository_as_its_experiments_are_now() -> None:
    known = {c.name: c for one in experiments().values() for c in one.cells("cpu")}
    files = (ROOT / "experiments" / "results" / "cpu").glob("*/*.json")
    assert {f"{file.parent.name}/{file.stem}" for file in files} == known.keys()
    assert [name for name, cell in known.items() if not is_finished(ROOT / "experiments", cell)] == []


def test_values_are_said_in_words() -> None:
    assert figures.say("filters", 8) == "8 filters"
    assert figures.say("options.bias", True) == "with biases"
    assert figures.say("bandwidths", False) == "without trained bandwidths"
    assert figures.say("slip", "none") == "as it should be"


def test_a_start_by_chance_goes_off_the_picture_and_others_stay_on_it() -> None:
    for first, shown in ((10.0, False), (90.0, True)):
        (axes,) = [new_figure(1, 1).subplots()]
        axes.plot([first, 95.0, 98.0])
        look_past_start(axes, [[first, 95.0, 98.0]])
        assert (axes.get_ylim()[0] <= first) == shown
