"""What every configuration is: frozen, documented, validated; a mistake in one is explained in a sentence.

:class:`torchckn.TrainConfig`, the settings of the command line and the experiments' specs are made of this. An option is
declared once, as a field with :func:`option`: its default, its limits, what it means, and the heading it stands under in
``--help``. Nothing here needs torch.
"""

from __future__ import annotations

import difflib
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from .errors import ConfigError


class Config(BaseModel):
    """A frozen set of options; an unknown name or a value out of range is a :class:`torchckn.ConfigError`."""

    # built when it is first used: help shows options without it
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(explain(error, list(type(self).model_fields))) from None

    def replace(self, **changes: Any) -> Self:
        """A copy with other values, validated."""
        return type(self)(**(dict(self) | changes))

    def to_plain(self) -> dict[str, Any]:
        """As TOML and JSON have it; an option that is None is left out."""
        return self.model_dump(exclude_none=True)

    @classmethod
    def option_names(cls, **metadata: Any) -> frozenset[str]:
        """The names of all options whose metadata are these."""
        return frozenset(
            name
            for name, field in cls.model_fields.items()
            if all(metadata_of(field).get(key) == value for key, value in metadata.items())
        )


def option(
    default: Any,
    description: str,
    *,
    heading: str,
    only_for: str | tuple[str, ...] | None = None,
    shapes_start: bool = False,
    bookkeeping: bool = False,
    **limits: Any,
) -> Any:
    """A field of a configuration.

    Args:
        description: a sentence for ``--help`` and the documentation.
        heading: what it stands under in ``--help``.
        only_for: the kind of network, the method or the methods that it has a meaning for; all by default.
        shapes_start: whether it changes what a network is before its first training step.
        bookkeeping: whether it changes no number: a run may be resumed with another value.
        limits: ``ge``, ``gt``, ``le``, ``lt``, ``pattern``, ... of a pydantic field.
    """
    metadata: dict[str, Any] = {
        "heading": heading,
        "only_for": only_for,
        "shapes_start": shapes_start,
        "bookkeeping": bookkeeping,
    }
    return Field(default, description=description, json_schema_extra=metadata, **limits)


def metadata_of(field: FieldInfo) -> dict[str, Any]:
    """What :func:`option` was told about a field, besides its default, description and limits."""
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}


def explain(error: ValidationError, names: list[str]) -> str:
    """The first thing that is wrong, in a sentence: the option, what was expected, and what was given."""
    errors = error.errors()
    first = errors[0]
    key = str(first["loc"][0]) if first["loc"] else ""
    if first["type"] == "value_error":
        text, where = str(first["ctx"]["error"]), ".".join(str(part) for part in first["loc"])
        return text if not where or text.startswith(where) else f"{where}: {text}"
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, names, n=1)
        return f"unknown option {key!r}. " + (f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(names)}.")
    if first["type"] == "missing":
        return f"{'.'.join(map(str, first['loc']))} is missing"
    expected = dict.fromkeys(_expectation(entry["msg"]) for entry in errors if entry["loc"][:1] == first["loc"][:1])
    where = ".".join(str(part) for part in first["loc"] if not str(part).startswith(("literal[", "function-", "list[")))
    message = f"{where if len(expected) == 1 else key}: expected {' or '.join(expected)}, got {first['input']!r}"
    if first["type"] == "literal_error":
        words = [word for word in str(first["ctx"]["expected"]).split("'") if word.strip(" ,or")]
        near = difflib.get_close_matches(str(first["input"]), words, n=1)
        message += f". Did you mean {near[0]!r}?" if near else ""
    return message


_PLAIN = {
    "a valid integer": "an integer",
    "a valid number": "a number",
    "a valid boolean": "true or false",
    "a valid string": "text",
    "a valid list": "a list",
    "a valid tuple": "a list",
    "a valid dictionary": "a table of names and values",
}


def _expectation(message: str) -> str:
    """What was expected, of a message such as "Input should be greater than or equal to 1"."""
    text = message.removeprefix("Input should be ").partition(", unable")[0].partition(", got a number")[0]
    text = text.removeprefix("List should have ").removeprefix("Tuple should have ").partition(" after validation")[0]
    if text.startswith("String should match pattern"):
        return f"text that matches {text.rpartition('pattern ')[2]}"
    return _PLAIN.get(text, f"a number {text}" if text.startswith(("greater", "less")) else text)
