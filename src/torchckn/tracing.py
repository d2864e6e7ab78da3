"""Whether operations of torch are computed as they are called, or compiled, traced or recorded.

``torch.compile`` and ``torch.export`` make a graph (``torch.compiler.is_compiling``): it has no values to check, and nothing that
Python keeps from call to call. ``torch.jit.trace`` records operations while they are computed, and so do dispatch modes such as
those of ``make_fx``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def is_eager() -> bool:
    """Whether operations are computed as they are called, neither compiled nor traced: then fewer and longer ones are faster."""
    return not torch.compiler.is_compiling() and not torch._C._is_tracing()


def is_traced() -> bool:
    """Whether ``torch.jit.trace`` records operations; it cannot record functions with a derivative of their own in a module."""
    return not torch.compiler.is_compiling() and torch._C._is_tracing()


def is_recorded() -> bool:
    """Whether anything records or counts operations, of which a call of compiled code is none."""
    return not is_eager() or torch._C._len_torch_dispatch_stack() > 0


@contextmanager
def untraced() -> Iterator[None]:
    """Within this context ``torch.jit.trace`` records nothing: what is computed here is a constant for it."""
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch._C._set_tracing_state(state)  # type: ignore[attr-defined]
