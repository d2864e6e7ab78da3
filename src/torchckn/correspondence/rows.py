"""The rows of a report: one operation of the ConvNet each, as plain data. Read next: ``table.py``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

from ..choices import Correspondence

#: limits of a report: characters of a text, entries of a list, rows, and a number
LONGEST_TEXT, MOST_ENTRIES, MOST_ROWS, LARGEST = 2_000, 1_000, 20_000, 2**31 - 1

# A report may come from a file of somebody else, so its fields are read strictly: no other types, no other words, no more fields.
Text = Annotated[str, Field(strict=True, max_length=LONGEST_TEXT)]
Size = Annotated[int, Field(strict=True, ge=1, le=LARGEST)]
Flag = Annotated[bool, Field(strict=True)]
_STRICTLY = ConfigDict(extra="forbid", revalidate_instances="always")


@dataclass(frozen=True)
class Part:
    """Something that belongs to an operation and is not translated with it, such as the bias of a convolution."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICTLY

    name: Text
    correspondence: Correspondence
    why: Text
    faithful: Flag
    """whether ``strict=True`` accepts it"""

    @property
    def note(self) -> str:
        return f"{self.name} {self.correspondence}: {self.why}"


@dataclass(frozen=True)
class OtherNumber:
    """A number that is another one in the images than the ConvNet was built for."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICTLY

    what: Literal["channels", "classes"]
    images: Size
    convnet: Size

    @property
    def note(self) -> str:
        return f"number of {self.what}: {self.images} in the images, {self.convnet} in the ConvNet"


@dataclass(frozen=True)
class Row:
    """One operation of the ConvNet and what it has become."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICTLY

    name: Text
    """its own name, unique even where a module is used twice; empty for a classifier that the ConvNet does not have"""
    source: Text
    """its name in the ConvNet: the path of a module, or the name of a function"""
    operation: Text
    """its type, such as ``Conv2d``"""
    correspondence: Correspondence
    reasons: Annotated[tuple[Text, ...], Field(max_length=MOST_ENTRIES)]
    """why that is its counterpart, and each reason why it is not an exact one"""
    faithful: Flag
    """whether ``strict=True`` accepts it"""
    inputs: Annotated[tuple[Text, ...], Field(max_length=MOST_ENTRIES)] = ()
    """the names of the operations it gets its input from"""
    parts: Annotated[tuple[Part, ...], Field(max_length=MOST_ENTRIES)] = ()
    layer: Text = ""
    """the name of the CKN's layer that stands for it; empty if there is none"""
    counterpart: Text = ""
    """what that layer does, such as ``conv 5x5, pad 2``; empty if the operation only decides the layer's kernel"""
    filters: Size | None = None
    """how many filters the layer has, if it has filters"""
    kernel: Text = ""
    """the layer's kernel, if it has one"""
    trained: Flag = True
    """whether the layer's filters are trained"""
    output_shape: Annotated[tuple[Size, ...], Field(max_length=MOST_ENTRIES)] = ()
    """in the CKN, without the batch"""
    module: Text = ""
    """the path of the module whose ``forward`` has the operation; empty for the network itself"""

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
