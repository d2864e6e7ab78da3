"""The rows of a report: one operation of the ConvNet each, as plain data. Read next: ``table.py``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..choices import Correspondence


@dataclass(frozen=True)
class Part:
    """Something that belongs to an operation and is not translated with it, such as the bias of a convolution."""

    name: str
    correspondence: Correspondence
    why: str
    faithful: bool
    """whether ``strict=True`` accepts it"""

    @property
    def note(self) -> str:
        return f"{self.name} {self.correspondence}: {self.why}"


@dataclass(frozen=True)
class Row:
    """One operation of the ConvNet and what it has become."""

    name: str
    """its own name, unique even where a module is used twice; empty for a classifier that the ConvNet does not have"""
    source: str
    """its name in the ConvNet: the path of a module, or the name of a function"""
    operation: str
    """its type, such as ``Conv2d``"""
    correspondence: Correspondence
    reasons: tuple[str, ...]
    """why that is its counterpart, and each reason why it is not an exact one"""
    faithful: bool
    """whether ``strict=True`` accepts it"""
    inputs: tuple[str, ...] = ()
    """the names of the operations it gets its input from"""
    parts: tuple[Part, ...] = ()
    layer: str = ""
    """the name of the CKN's layer that stands for it; empty if there is none"""
    counterpart: str = ""
    """what that layer does, such as ``conv 5x5, pad 2``; empty if the operation only decides the layer's kernel"""
    filters: int | None = None
    """how many filters the layer has, if it has filters"""
    kernel: str = ""
    """the layer's kernel, if it has one"""
    trained: bool = True
    """whether the layer's filters are trained"""
    output_shape: tuple[int, ...] = ()
    """in the CKN, without the batch"""

    @property
    def why(self) -> str:
        """All reasons in one line."""
        return "; ".join(self.reasons)

    @property
    def decides_kernel(self) -> bool:
        """Whether it is the nonlinearity of a layer that another operation began."""
        return bool(self.layer) and not self.counterpart

    @property
    def label(self) -> str:
        """The layer in words: ``conv1: conv 5x5, 32 filters, Linear()``."""
        return f"{self.layer}: {layer_text(self)}" if self.layer else ""


def layer_text(row: Row, *, filters: bool = True, kernel: bool = True) -> str:
    """What the layer does, how many filters it has, its kernel, and whether it is fixed."""
    texts = [row.counterpart]
    texts += [f"{row.filters} filters"] if filters and row.filters else []
    texts += [row.kernel] if kernel else []
    texts += [] if row.trained else ["fixed"]
    return ", ".join(text for text in texts if text)


def short_sources(rows: Sequence[Row]) -> list[str]:
    """The operations' names in the ConvNet, without a beginning such as ``layers.`` that the paths of all modules share."""
    paths = {row.source for row in rows if "." in row.source}
    common = min(paths, default="").split(".")[:-1]
    while common and not all(path.startswith(".".join(common) + ".") for path in paths):
        common.pop()
    beginning = ".".join([*common, ""])
    short = [row.source.removeprefix(beginning) for row in rows]
    return short if len(set(short)) == len({row.source for row in rows}) else [row.source for row in rows]


def loss_lines(rows: Sequence[Row]) -> list[str]:
    """A line for everything that ``strict=True`` does not accept."""
    lines = []
    for row in rows:
        if not row.faithful:
            lines.append(f"{row.source} ({row.operation}): {row.correspondence}, {row.why}")
        lines += [
            f"{row.source} ({row.operation}), its {part.name}: {part.correspondence}, {part.why}"
            for part in row.parts
            if not part.faithful
        ]
    return lines
