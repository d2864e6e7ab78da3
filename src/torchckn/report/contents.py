"""What the page reads from the files of a run, with its types. The files may come from anybody: other contents are an error."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from ..errors import DataError

Number = Annotated[float, Field(strict=True)]
Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Text = Annotated[str, Field(strict=True)]


class _Contents(BaseModel):
    model_config = ConfigDict(extra="ignore", defer_build=True)


class _Settings(_Contents):
    kind: Text | None = None
    network: Text | None = None
    data: Text | None = None


class _Training(_Contents):
    method: Text | None = None
    steps: Annotated[int, Field(strict=True)] | None = None


class Configuration(_Contents):
    """``config.toml``."""

    settings: _Settings = _Settings()
    training: _Training = _Training()


class _Score(_Contents):
    lam: Finite
    accuracy: Number


class _HeadFit(_Contents):
    lam: Number
    accuracy: Number | None = None
    curve: list[_Score]


class Result(_Contents):
    """``result.json``."""

    seconds: Number = 0.0
    test_accuracy: Number | None = None
    start: _HeadFit | None = None
    head: _HeadFit | None = None


def check(file: str, content: Any, kind: type[BaseModel]) -> None:
    """An error that names the place, unless the file has what the page reads."""
    try:
        kind.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))[:100]
        raise DataError(f"{file} is not one that torchckn wrote, at {where!r}: {first['msg']}") from None


def usable(record: dict[str, Any]) -> bool:
    """Whether a line of metrics has a place on both axes, and no number that is too large for a chart."""
    try:
        values = {key: float(value) for key, value in record.items()}
    except OverflowError:
        return False
    return "seconds" in values and math.isfinite(values["step"]) and math.isfinite(values["seconds"])


def check_filters(filters: dict[int, Tensor]) -> None:
    """An error for tensors that are no filters: (filters, channels, height, width), or one more for regions."""
    for step, bank in filters.items():
        if bank.ndim not in (2, 4, 5) or not bank.numel() or not bank.is_floating_point():
            raise DataError(f"expected filters of 2, 4 or 5 dimensions at step {step}, got {bank.dtype} {tuple(bank.shape)}")
