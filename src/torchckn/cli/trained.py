"""Commands for trained networks: evaluate, predict, export, report, draw."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import CKNError, ConfigError
from ..formats import percent
from ..tables import clean
from .options import AsJSON, DataDir, Model, OtherData, Runs, Trust, completion, print_json, show

if TYPE_CHECKING:
    from ..data import DataSet, Part
    from ..trained import Trained


def evaluate(
    model: Model,
    data: OtherData = None,
    part: Annotated[
        str,
        typer.Option(
            help="test, train, or valid if the data have their own validation images.",
            autocompletion=completion(("test", "train", "valid")),
        ),
    ] = "test",
    resize: Annotated[
        bool, typer.Option("--resize", help="Resize the images of a folder, --data, to the size of the network's.")
    ] = False,
    data_dir: DataDir = None,
    trust: Trust = False,
    as_json: AsJSON = False,
) -> None:
    """Measure the accuracy of a trained network, by default on the test images.

    Example: [bold]torchckn evaluate runs/first[/bold]
    """
    from .. import runs
    from ..fit import evaluate as measure
    from ..trained import load_trained

    trained = load_trained(model, trust=trust)
    whole, images = _part(model, trained, data, part, data_dir, resize)
    result = measure(trained.net, images)
    if as_json:
        print_json(
            {"accuracy": result.accuracy, "loss": result.loss, "images": result.images, "data": whole.name, "part": part}
        )
    else:
        accuracy = percent(result.accuracy, 2)
        show(False, f"{whole.name}, {part}: accuracy {accuracy}, loss {result.loss:.4f}, {result.images} images")
    if model.is_dir() and part == "test" and data is None:
        try:
            runs.add_to_result(model, {"test_accuracy": result.accuracy, "test_images": result.images})
        except CKNError as error:  # of a folder that others own, or a run that is being trained further
            show(as_json, f"this was not added to the result of the run: {error}")


def _part(
    model: Path, trained: Trained, name: str | None, part: str, data_dir: Path | None, resize: bool
) -> tuple[DataSet, Part]:
    from ..trained import load_run_data

    if part not in ("test", "train", "valid"):
        raise ConfigError(f"--part expected test, train or valid, got {part!r}")
    whole = load_run_data(model, trained.settings, trained.classes, trained.net.input_shape, name, data_dir, resize)
    images = {"test": whole.test, "train": whole.train, "valid": whole.valid}[part]
    if images is None:
        raise ConfigError(f"{whole.name} has no {part} part; use --part train, or name other images with --data")
    return whole, images


def predict(
    model: Model,
    images: Annotated[list[Path], typer.Argument(help="Image files, or folders of images.")],
    top: Annotated[int, typer.Option(min=1, help="Number of classes to show.")] = 3,
    resize: Annotated[bool, typer.Option("--resize", help="Resize images of another size.")] = False,
    trust: Trust = False,
    as_json: AsJSON = False,
) -> None:
    """Predict labels and probabilities of image files.

    Example: [bold]torchckn predict runs/first digit.png[/bold]
    """
    import torch

    from ..data.own import find_images, read_for
    from ..fit.features import CHUNK
    from ..trained import load_trained

    trained = load_trained(model, trust=trust)
    net = trained.net.eval()
    files = [file for path in images for file in (find_images(path) if path.is_dir() else [path])]
    rows: list[dict[str, Any]] = []
    for start in range(0, len(files), CHUNK):
        some = files[start : start + CHUNK]
        pixels = torch.stack([read_for(file, net.input_shape, resize) for file in some])
        with torch.inference_mode():
            probabilities = torch.softmax(net(net.pixels(pixels)), 1)
        for file, row in zip(some, probabilities, strict=True):
            best = row.topk(min(top, len(row)))
            classes = [trained.classes[int(i)] for i in best.indices]
            shares = dict(zip(classes, best.values.tolist(), strict=True))
            rows.append({"file": str(file), "label": classes[0], "probabilities": shares})
    if as_json:
        print_json(rows)
        return
    table = Table("file", "label", "probabilities")
    for row in rows:
        shown = ", ".join(f"{name} {percent(value)}" for name, value in row["probabilities"].items())
        table.add_row(*(Text(clean(cell)) for cell in (row["file"], row["label"], shown)))
    Console().print(table)


def export(
    model: Model,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write: .onnx, or .pt2 for torch.export.")],
    uint8: Annotated[bool, typer.Option("--uint8", help="The input has pixels from 0 to 255 instead of 0 to 1.")] = False,
    trust: Trust = False,
) -> None:
    """Export a trained network, from pixels to probabilities, as ONNX or as a torch.export program.

    Example: [bold]torchckn export runs/first -o first.onnx[/bold]
    """
    from .. import export as exporting
    from ..runs import output_file
    from ..trained import load_trained

    if output.suffix not in (".onnx", ".pt2"):
        raise ConfigError(f"--output expected a file ending in .onnx or .pt2, got {output}")
    output_file(output)
    trained = load_trained(model, trust=trust)
    write = exporting.to_onnx if output.suffix == ".onnx" else exporting.to_torch
    write(trained.net, output, uint8_input=uint8)
    show(False, f"wrote {output}")


def report(
    runs: Runs,
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file to write.")] = Path("report.html"),
    data: OtherData = None,
    data_dir: DataDir = None,
) -> None:
    """Write an HTML report of one or more runs, which opens without a server or an internet connection.

    Example: [bold]torchckn report runs/first -o report.html[/bold]
    """
    from .. import report as reporting
    from ..runs import output_file, read_config
    from ..trained import load_run_data, run_settings

    output_file(output)
    if output.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"--output expected a file ending in .html, got {output}")
    config = read_config(runs[0])
    settings = run_settings(runs[0], config) if "settings" in config else None
    images = None
    if settings is not None or data is not None:
        images = load_run_data(runs[0], settings, config.get("classes"), config.get("image_shape"), data, data_dir)
    show(False, f"wrote {reporting.write(runs, output, data=images)}")


def draw(
    runs: Annotated[list[Path], typer.Argument(help="A run, or two runs to compare, such as a CKN and its ConvNet.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0 chooses a free one.")] = 8000,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
    data: OtherData = None,
    data_dir: DataDir = None,
    trust: Trust = False,
) -> None:
    """Draw with the mouse and see the predictions, live, on a page that only this machine can reach.

    Example: [bold]torchckn draw runs/first[/bold]
    """
    from ..draw import serve

    serve(runs, port, open_browser=open_browser, data=data, data_dir=data_dir, trust=trust)
