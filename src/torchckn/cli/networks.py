"""Networks: what there is, what becomes of them, how fast they are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ..errors import ConfigError
from ..settings import Settings, settings_from
from .options import AsJSON, name_and_value, print_json


def zoo(as_json: AsJSON = False) -> None:
    """List the ConvNets that torchckn knows by name.

    Example: [bold]torchckn zoo[/bold]
    """
    from .. import zoo as networks

    rows: list[dict[str, Any]] = []
    for name, architecture in networks.ARCHITECTURES.items():
        described = (architecture.__doc__ or "").strip().splitlines()[0]
        rows.append({"name": name, "input_shape": list(architecture.input_shape), "description": described})
    if as_json:
        print_json(rows)
        return
    table = Table("name", "images", "what it is")
    for row in rows:
        table.add_row(row["name"], " x ".join(map(str, row["input_shape"])), row["description"])
    Console().print(table)


def translate(
    network: Annotated[str, typer.Argument(help="A network of the zoo, or file.py:ClassName for one of your own.")],
    filters: Annotated[int | None, typer.Option(help="Filters a layer, for networks of the zoo.")] = None,
    option: Annotated[list[str] | None, typer.Option(help="Further arguments of the network's class: name=value.")] = None,
    input_shape: Annotated[str | None, typer.Option(help="Shape of an image, as 1,28,28; the zoo's own by default.")] = None,
    kernel: Annotated[str, typer.Option(help="match, or one for all nonlinear layers: rbf:0.6, arccosine:1, ...")] = "match",
    strict: Annotated[bool, typer.Option("--strict", help="Refuse what has no exact counterpart.")] = False,
    svg: Annotated[Path | None, typer.Option(help="Write the side-by-side drawing here.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the table as HTML here.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write the kernel network, with random filters, here.")] = None,
    as_json: AsJSON = False,
) -> None:
    """Turn a ConvNet into its kernel counterpart, and say what became of each operation.

    Example: [bold]torchckn translate lenet5 --filters 16[/bold]
    """
    from .. import kernels
    from ..building import build_convnet
    from ..files import write_atomically
    from ..storage import save as write_network
    from ..translation import translate as translated

    given = {"network": network, "options": dict(name_and_value(text) for text in option or [])}
    settings = settings_from(given | ({} if filters is None else {"filters": filters}), "translate")
    shape = None if input_shape is None else _shape(input_shape)
    known = shape or (1, 32, 32)
    net = build_convnet(settings, known, settings.options.get("classes", 10)) if shape else _zoo_or_file(settings)
    ckn = translated(net, shape, kernels.parse(kernel), strict=strict)
    assert ckn.report is not None
    if svg:
        write_atomically(svg, ckn.report.to_svg().encode())
    if html:
        write_atomically(html, ckn.report.to_html().encode())
    if save:
        write_network(ckn, save)
    if as_json:
        print_json({"report": ckn.report.to_json(), "layers": ckn.summary().to_json(), "features": ckn.graph.features})
    else:
        Console().print(ckn.report, f"{ckn.graph.features} features an image", sep="\n")


def _zoo_or_file(settings: Settings) -> Any:
    from .. import zoo as networks
    from ..building import build_convnet

    if ":" in settings.network:
        return build_convnet(settings, (1, 1, 1), 10)
    return networks.build(settings.network, settings.filters, **settings.options)


def _shape(text: str) -> tuple[int, int, int]:
    try:
        channels, height, width = (int(part) for part in text.replace("x", ",").split(","))
    except ValueError:
        raise ConfigError(f"--input-shape expected channels,height,width, such as 1,28,28, got {text!r}") from None
    return channels, height, width


def bench(
    network: Annotated[str, typer.Argument(help="A network of the zoo.")] = "lenet5",
    filters: Annotated[int, typer.Option(min=1, help="Filters a layer.")] = 32,
    batch_size: Annotated[int, typer.Option(min=1, help="Images a batch.")] = 256,
    as_json: AsJSON = False,
) -> None:
    """Measure a kernel network against its ConvNet on this machine: forward and backward, inference, a training step.

    Example: [bold]torchckn bench lenet5 --filters 16 --batch-size 128[/bold]
    """
    from ..bench import measure

    found = measure(network, filters, batch_size)
    if as_json:
        print_json(found)
        return
    table = Table("", "CKN", "ConvNet", "ratio", title=f"{network}, {filters} filters, batch {batch_size} (milliseconds)")
    for name, (ours, theirs) in found.items():
        table.add_row(name, f"{1e3 * ours:.1f}", f"{1e3 * theirs:.1f}", f"{ours / theirs:.2f}")
    Console().print(table)
