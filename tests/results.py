"""Results of experiments that nobody ran, and what claims are judged to be by them."""

from __future__ import annotations

from typing import Any

from torchckn.experiments import claims
from torchckn.experiments.judging import JudgedClaim
from torchckn.experiments.results import Result, Results


def result(experiment: str, seed: int = 0, history: list[dict[str, Any]] | None = None, **values: Any) -> Result:
    keys = ("test_accuracy", "valid_accuracy", "errors", "root_errors", "layers")
    measured = {key: values.pop(key) for key in list(values) if key in keys}
    variables = {key.replace("__", "."): value for key, value in values.items()}
    return Result(experiment, "train", variables, seed, measured, history or [], {"steps": 100}, {}, 1.0, {})


def verdicts(*results: Result) -> dict[str, JudgedClaim]:
    return {judged.claim: judged for judged in claims.judge_claims(Results(results))}


def seeds(experiment: str, values: list[float], key: str = "test_accuracy", **others: Any) -> list[Result]:
    return [result(experiment, seed, **{key: value}, **others) for seed, value in enumerate(values)]
