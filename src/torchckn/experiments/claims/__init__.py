"""What is claimed, what was measured, and whether it holds.

To add a claim, decorate a function with ``@_claim`` in :mod:`.paper` or :mod:`.beyond`.
"""

from __future__ import annotations

from ..judging import JudgedClaim
from ..results import Results
from . import beyond, paper


def judge_claims(results: Results) -> list[JudgedClaim]:
    """All claims, in the paper's order, then those that are not in the paper."""
    return [*paper.CLAIMS.judged(results), *beyond.CLAIMS.judged(results)]
