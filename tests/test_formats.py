"""Numbers as text: what is rounded to zero has no sign, here and on the page of results."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from torchckn.experiments import claims
from torchckn.experiments.results import read_results
from torchckn.formats import number, percent

MINUS_ZERO = re.compile(r"-0(\.0*)?(?![\d.])")


@given(st.floats(-1e-3, 1e-3), st.integers(0, 3))
def test_nothing_is_minus_zero(value: float, digits: int) -> None:
    for text in (percent(value, digits), number(value)):
        assert not MINUS_ZERO.search(text), text


def test_numbers_are_rounded_as_ever() -> None:
    assert [percent(0.98765), percent(0.98765, 2), percent(-0.5)] == ["98.8 %", "98.77 %", "-50.0 %"]
    assert [number(1234.5678), number(2**-5), number(0.0)] == ["1235", "0.03125", "0"]


def test_no_claim_is_measured_as_minus_zero() -> None:
    results = read_results(Path(__file__).parents[1] / "experiments", "cpu")
    measured = [claim.measured for claim in claims.judge_claims(results)]
    assert len(measured) > 20
    assert not [text for text in measured if MINUS_ZERO.search(text)]
