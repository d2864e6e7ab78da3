"""Networks: which there are, what translation makes of them, how fast they are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from ..errors import ConfigError
from ..settings import Settings, settings_from
from ..tables import Column, TextTable, line, paragraph, shape_text, table_lines
from .options import COMPLETE_NETWORKS, AsJSON, DataDir, print_json, settings_options, show

if TYPE_CHECKING:
    from torch import nn

    from ..network import CKN


def zoo(as_json: AsJSON = False) -> None:
    """List the ConvNets that are available by name.

    Example: [bold]torchckn zoo[/bold]
    """
    from .. import zoo as networks

    rows: list[dict[str, Any]] = []
    for name, architecture in networks.ARCHITECTURES.items():
        shape = list(architecture.input_shape)
        rows.append({"name": name, "input_shape": shape, "description": architecture.description})
    if as_json:
        print_json(rows)
    else:
        Console().print(_ZooTable(rows))


class _ZooTable(TextTable):
    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def lines(self, width: int, ascii_only: bool) -> list[Text]:
        names = Column("name", tuple(row["name"] for row in self.rows))
        shapes = Column("images", tuple(shape_text(row["input_shape"]) for row in self.rows))
        head, *firsts = table_lines([names, shapes])
        start = names.width + shapes.width + 4
        lines = [line([(head.plain.ljust(start) + "description", "bold")])]
        for first, row in zip(firsts, self.rows, strict=True):
            lines += paragraph(first.plain.ljust(start), row["description"], width)
        return lines


@settings_options("filters", "options", "data", "whiten", "kernel", "linear_kernel")
def translate(
    given: dict[str, Any],
    network: Annotated[
        str,
        typer.Argument(help="A network of the zoo, or your own as file.py:ClassName.", autocompletion=COMPLETE_NETWORKS),
    ],
    input_shape: Annotated[
        str | None,
        typer.Option(help="Shape of an image, such as 1,28,28, instead of a data set.", rich_help_panel="Images"),
    ] = None,
    data_dir: DataDir = None,
    why: Annotated[bool, typer.Option("--why", help="Show every operation, with its reasons in its row.")] = False,
    expand: Annotated[bool, typer.Option("--expand", help="Show every operation of a large network, not blocks.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Fail if anything has no exact counterpart.")] = False,
    svg: Annotated[Path | None, typer.Option(help="Write a side-by-side drawing to this file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the table to this file, as HTML.")] = None,
    save: Annotated[Path | None, typer.Option(help="Save the kernel network, with random filters, in this file.")] = None,
    as_json: AsJSON = False,
) -> None:
    """Translate a ConvNet into its kernel counterpart, and show what each operation became.

    It is the network that [bold]torchckn train[/bold] trains with the same options.

    Example: [bold]torchckn translate lenet5 --filters 16[/bold]
    """
    from ..files import write_atomically
    from ..runs import output_file
    from ..storage import save as write_network
    from ..translation import require_exact

    settings = settings_from(given | {"network": network}, "translate")
    shape = None if input_shape is None else _shape(input_shape)
    images_named = bool(given.keys() & {"data", "whiten"})
    if shape and images_named:
        raise ConfigError("--input-shape takes the place of a data set; give either --input-shape, or --data and --whiten")
    for output in (svg, html, save):
        if output is not None:
            output_file(output)
    ckn = _for_shape(settings, shape) if shape else _for_data(settings, data_dir, may_differ=not images_named)
    assert ckn.report is not None
    if strict:
        require_exact(ckn.report)
    if svg:
        write_atomically(svg, ckn.report.to_svg(expand=expand).encode())
    if html:
        write_atomically(html, ckn.report.to_html(expand=expand).encode())
    if save:
        write_network(ckn, save)
    if as_json:
        plain = {"report": ckn.report.to_json(), "layers": ckn.summary().to_json(), "features": ckn.graph.features}
        print_json(plain | {"graph": ckn.graph.to_json()})
        return
    Console().print(ckn.report.table(why=why, expand=expand))
    images = shape_text(ckn.input_shape)
    show(False, f"\n{images} images, {ckn.graph.features} features per image, {ckn.head.out_features} classes")


def _for_data(settings: Settings, data_dir: Path | None, may_differ: bool) -> CKN:
    """The network that ``torchckn train`` trains; ``may_differ`` if it may be one for other images, should these not suit."""
    import torch

    from .. import zoo as networks
    from ..building import build_convnet, build_network, load_images
    from ..network import CKN

    images = load_images(settings, data_dir)
    net = build_convnet(settings, images.shape, len(images.classes))
    trouble = _trouble(net, images.shape) if may_differ else None
    if trouble is None:
        ckn = build_network(settings, images, torch.Generator().manual_seed(settings.training.seed))
        assert isinstance(ckn, CKN)
        return ckn
    if settings.network in networks.ARCHITECTURES:
        net = networks.build(settings.network, settings.filters, **settings.options)
    own_shape = getattr(net, "input_shape", None)
    if own_shape is None:
        raise ConfigError(
            f"{settings.network} does not run on the images of {settings.data}, {shape_text(images.shape)} ({trouble}); name "
            "others with --data, or give their shape with --input-shape"
        )
    return _without_data(settings, net, own_shape)


def _for_shape(settings: Settings, shape: tuple[int, int, int]) -> CKN:
    from ..building import build_convnet

    return _without_data(settings, build_convnet(settings, shape, 10), shape)


def _without_data(settings: Settings, net: nn.Module, shape: tuple[int, int, int]) -> CKN:
    """The kernel network for images of which only the shape is known: it has no preprocessing."""
    import torch

    from .. import kernels
    from ..translation import translate as translated

    return translated(
        net,
        shape,
        kernels.parse(settings.kernel),
        linear_kernel=kernels.parse(settings.linear_kernel),  # type: ignore[arg-type]  # translate refuses "match"
        inverse_sqrt=settings.inverse_sqrt,
        root_block=settings.root_block,
        centering=settings.centering,
        generator=torch.Generator().manual_seed(settings.training.seed),
    )


def _trouble(net: nn.Module, shape: tuple[int, int, int]) -> str | None:
    """Why a network does not run on images of this shape; None if it does."""
    import torch

    from ..network import modes_kept

    try:
        with torch.no_grad(), modes_kept(net):
            net.eval()(torch.zeros(1, *shape))
    except Exception as error:
        return next(iter(str(error).splitlines()), type(error).__name__)
    return None


def _shape(text: str) -> tuple[int, int, int]:
    try:
        channels, height, width = (int(part) for part in text.replace("x", ",").split(","))
    except ValueError:
        raise ConfigError(f"--input-shape expected channels,height,width, such as 1,28,28, got {text!r}") from None
    return channels, height, width


def bench(
    network: Annotated[str, typer.Argument(help="A network of the zoo.", autocompletion=COMPLETE_NETWORKS)] = "lenet5",
    filters: Annotated[int, typer.Option(min=1, help="Filters per layer.")] = 32,
    batch_size: Annotated[int, typer.Option(min=1, help="Batch size.")] = 256,
    as_json: AsJSON = False,
) -> None:
    """Compare the speed of a kernel network and its ConvNet: forward and backward pass, inference, training step.

    Example: [bold]torchckn bench lenet5 --filters 16 --batch-size 128[/bold]
    """
    from ..bench import measure

    times = measure(network, filters, batch_size)
    if as_json:
        print_json(times)
        return
    show(False, f"{network}, {filters} filters per layer, batch size {batch_size}, milliseconds")
    columns = [Column("", tuple(times))]
    for i, title in enumerate(("CKN", "ConvNet")):
        columns.append(Column(title, tuple(f"{1e3 * pair[i]:.1f}" for pair in times.values()), right=True))
    columns.append(Column("ratio", tuple(f"{ours / theirs:.2f}" for ours, theirs in times.values()), right=True))
    for text in table_lines(columns):
        Console().print(text)
