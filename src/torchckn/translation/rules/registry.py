"""Where rules are registered: by module class, function, or name of a tensor method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import ConfigError
from ..builder import Step, Value
from ..trace import Key

Rule = Callable[[Step], Value | tuple[Any, ...]]

RULES: dict[Key, Rule] = {}


def rule(*keys: Key) -> Callable[[Rule], Rule]:
    """Register a rule for module classes, functions, or names of tensor methods. A later rule replaces an earlier one."""
    for key in keys:
        if not callable(key) and not isinstance(key, str):
            raise ConfigError(f"rule expected module classes, functions or names of tensor methods, got {key!r}")

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(keys, function))
        return function

    return register
