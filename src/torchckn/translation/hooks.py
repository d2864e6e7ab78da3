"""Forward hooks of the network's modules: which of them change something.

A module that is one operation for the rules is not traced into, so that its hooks are not seen. So the network is run once, and
a hook that changes what such a module gets or gives is an error; of other modules, it is traced. A hook that only looks on, such
as one that stores features, is left out of the trace. Read next: ``symbolic.py``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..errors import TranslationError
from .calls import changes

#: where a module keeps its hooks, and what to call them
_KINDS = {"_forward_pre_hooks": "forward pre-hook", "_forward_hooks": "forward hook"}


def settle_hooks(net: nn.Module, images: Tensor, is_leaf: Callable[[nn.Module], bool]) -> None:
    """Leave only hooks of ``net`` that change something and are traced; an error if one changes something unseen."""
    modules = {path: module for path, module in net.named_modules() if any(getattr(module, kind) for kind in _KINDS)}
    if not modules:
        return
    watched = [
        (path, module, kind, number, _Watched(hook))
        for path, module in modules.items()
        for kind in _KINDS
        for number, hook in getattr(module, kind).items()
    ]
    for _, module, kind, number, hook in watched:
        getattr(module, kind)[number] = hook
    net(images)
    for path, module, kind, number, hook in watched:
        if not hook.changes_something:
            del getattr(module, kind)[number]
        elif module is net or is_leaf(module):
            where = f"{path!r} ({type(module).__name__})" if path else "the network itself"
            raise TranslationError(
                f"{hook.name}, a {_KINDS[kind]} of {where}, cannot be translated: it changes the "
                f"{'input' if 'pre' in kind else 'output'}, outside of any forward. Do the same in the forward of a module, or "
                "remove the hook with the handle that registering it returned."
            )
        else:
            getattr(module, kind)[number] = hook.hook


class _Watched:
    """A hook that tells whether it has changed something."""

    def __init__(self, hook: Callable[..., Any]) -> None:
        self.hook = hook
        self.changes_something = False

    def __call__(self, *args: Any) -> Any:
        result, changed = changes(lambda: self.hook(*args), args, {})
        self.changes_something |= result is not None or bool(changed)
        return result

    @property
    def name(self) -> str:
        """``'scaled' (file.py:12)``"""
        function = inspect.unwrap(getattr(self.hook, "func", self.hook))
        name = getattr(function, "__qualname__", type(function).__qualname__).rpartition(".")[2]
        code = getattr(function, "__code__", None)
        return f"{name!r}" + (f" ({Path(code.co_filename).name}:{code.co_firstlineno})" if code is not None else "")
