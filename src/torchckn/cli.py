"""The ``torchckn`` command.

Everything heavy is imported inside the commands: ``torchckn --help`` answers before torch would have been loaded.
"""

from __future__ import annotations

import inspect
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from rich.console import Console
from rich.table import Table

from .errors import CKNError, ConfigError
from .settings import Settings, read_settings, settings_from

if TYPE_CHECKING:
    from .building import Trained
    from .data import DataSet, Part

app = typer.Typer(
    name="torchckn",
    help="Turn a ConvNet into the kernel network it approximates, train it, and look at what came out.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(no_args_is_help=True, help="Data sets: list, fetch, verify, where they are.")
runs_app = typer.Typer(no_args_is_help=True, help="Runs: list, show, compare.")
app.add_typer(data_app, name="data")
app.add_typer(runs_app, name="runs")

AsJSON = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Where data sets are kept; also TORCHCKN_DATA.")]
Model = Annotated[Path, typer.Argument(help="The folder of a finished run, or a file that torchckn.save wrote.")]
Runs = Annotated[list[Path], typer.Argument(help="Folders of runs.")]


def main() -> None:
    """Run the command: status 0 if it did what it should, 1 if it failed, 2 if it was asked for something wrong."""
    try:
        app()
    except CKNError as error:
        Console(stderr=True).print(f"[red]error:[/red] {_escaped(str(error))}", soft_wrap=True, highlight=False)
        sys.exit(2 if isinstance(error, ConfigError) else 1)
    except OSError as error:
        what = f"{error.strerror}: {error.filename}" if error.filename else str(error)
        Console(stderr=True).print(f"[red]error:[/red] {_escaped(what)}", soft_wrap=True, highlight=False)
        sys.exit(1)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _show(quiet: bool, *what: Any) -> None:
    if not quiet:
        Console(markup=False).print(*what, soft_wrap=True, highlight=False)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def _version(asked: bool) -> None:
    if asked:
        from . import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass


def settings_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options that these fields of the settings describe (all of them by default).

    The command gets them as one dictionary ``given``, with only what was said on the command line.
    """
    chosen = names or tuple(name for name in Settings.model_fields if name != "network")

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "given"]
        added = [_option(name) for name in chosen]

        def wrapped(**values: Any) -> None:
            given = {name: values.pop(name) for name in chosen}
            command(**values, given=_said(given))

        wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
        wrapped.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
        return wrapped

    return decorate


def _option(name: str) -> inspect.Parameter:
    field = Settings.model_fields[name]
    kinds = [kind for kind in get_args(field.annotation) or (field.annotation,) if kind is not type(None)]
    if name == "options":
        option, kind = typer.Option("--option", help=f"{field.description} May be repeated."), list[str] | None
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option])
    flag = "--" + name.replace("_", "-")
    default = "" if field.default is None or field.default is False else f" [dim]\\[default: {field.default}][/dim]"
    literals = [value for kind in (field.annotation, *kinds) for value in get_args(kind) if isinstance(value, str)]
    text = f"{field.description}{f' One of {chr(44).join(literals)}.' if literals else ''}{default}"
    if field.annotation is bool:
        option = typer.Option(f"{flag}/--no-{flag[2:]}", help=text, show_default=False)
        annotation: Any = Annotated[bool | None, option]
    else:
        plain = int if int in kinds else float if kinds == [float] else str
        annotation = Annotated[plain | None, typer.Option(flag, help=text, show_default=False)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _said(given: dict[str, Any]) -> dict[str, Any]:
    """What was said on the command line, with its numbers and lists understood."""
    said = {name: value for name, value in given.items() if value is not None}
    if "options" in said:
        said["options"] = dict(_pair(text) for text in said["options"])
    if "lr" in said:
        parts = [_number_or_text(part) for part in said["lr"].split(",")]
        said["lr"] = parts if len(parts) > 1 else parts[0]
    return said


def _pair(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"--option expects name=value, came {text!r}")
    return name, _literal(value)


def _number_or_text(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _literal(text: str) -> Any:
    """A number or truth value as JSON has it, or the text itself."""
    try:
        return json.loads(text.lower() if text in ("True", "False") else text)
    except json.JSONDecodeError:
        return text


# The zoo, and translation.


@app.command()
def zoo(as_json: AsJSON = False) -> None:
    """List the ConvNets that torchckn knows by name.

    Example: [bold]torchckn zoo[/bold]
    """
    from . import zoo as networks

    rows: list[dict[str, Any]] = []
    for name, architecture in networks.ARCHITECTURES.items():
        described = (architecture.__doc__ or "").strip().splitlines()[0]
        rows.append({"name": name, "input_shape": list(architecture.input_shape), "description": described})
    if as_json:
        _print_json(rows)
        return
    table = Table("name", "images", "what it is")
    for row in rows:
        table.add_row(row["name"], " x ".join(map(str, row["input_shape"])), row["description"])
    Console().print(table)


@app.command()
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
    from . import kernels
    from .building import build_convnet
    from .storage import save as write_network
    from .storage import write_atomically
    from .translate import translate as translated

    given = {"network": network, "options": dict(_pair(text) for text in option or [])}
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
        _print_json({"report": ckn.report.to_json(), "layers": ckn.summary().to_json(), "features": ckn.graph.features})
    else:
        Console().print(ckn.report, f"{ckn.graph.features} features an image", sep="\n")


def _zoo_or_file(settings: Settings) -> Any:
    from . import zoo as networks
    from .building import build_convnet

    if ":" in settings.network:
        return build_convnet(settings, (1, 1, 1), 10)
    return networks.build(settings.network, settings.filters, **settings.options)


def _shape(text: str) -> tuple[int, int, int]:
    try:
        channels, height, width = (int(part) for part in text.replace("x", ",").split(","))
    except ValueError:
        raise ConfigError(f"--input-shape expects channels,height,width, such as 1,28,28, came {text!r}") from None
    return channels, height, width


# Training.


@app.command()
@settings_options()
def train(
    given: dict[str, Any],
    network: Annotated[
        str | None,
        typer.Argument(help="One that torchckn zoo lists, or file.py:ClassName; lenet5 by default."),
    ] = None,
    run: Annotated[Path | None, typer.Option("--run", "-o", help="A new folder for the run; in ./runs by default.")] = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="Go on with the run in this folder.")] = None,
    config: Annotated[Path | None, typer.Option("--config", help="TOML file with these options' names as keys.")] = None,
    data_dir: DataDir = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Log for TensorBoard into a folder beside the run, RUN-tensorboard.")
    ] = False,
    as_json: AsJSON = False,
    quiet: Quiet = False,
) -> None:
    """Train a network: filters without labels, then with them. The run can be interrupted, and resumed.

    Example: [bold]torchckn train lenet5 --filters 16 --data mnist-mini --steps 100 --run runs/first[/bold]
    """
    import torch

    from . import runs
    from .building import build_network, load_images, run_description
    from .fit import train as fit

    if resume is not None:
        if network or config or run or given:
            raise ConfigError("--resume takes a run with the options it has; give no others")
        found = runs.read_config(resume)
        if "settings" not in found:
            raise ConfigError(f"{resume} was not made by torchckn train; resume it from Python, with the same arguments")
        settings, folder = settings_from(found["settings"], str(resume / "config.toml")), resume
    else:
        values = read_settings(config) if config else {}
        values |= given | ({"network": network} if network else {})
        settings = settings_from(values, str(config) if config and not given else "train")
        _refuse_unused(settings, values)
        if ":" in settings.network:  # so that the run can be taken up from any folder
            file, _, name = settings.network.rpartition(":")
            settings = settings.model_copy(update={"network": f"{Path(file).resolve()}:{name}"})
        folder = run or _new_folder(settings)
    images = load_images(settings, data_dir)
    generator = torch.Generator().manual_seed(settings.seed)
    net = build_network(settings, images, generator)
    _show(quiet or as_json, f"{settings.network} ({settings.kind}), {len(images.train.images)} training images -> {folder}")
    arguments = settings.model_dump(
        include={*Settings.model_fields} & {*inspect.signature(fit).parameters} - {"method", "seed"}
    )
    convnet = settings.kind == "convnet"
    with _tensorboard(folder if tensorboard else None) as log, _stoppable(folder):
        result = fit(
            net,
            images.train,
            images.valid,
            method=settings.method or ("sgd" if convnet else "ulr"),
            generator=generator,
            run_dir=folder,
            resume=resume is not None,
            progress=False if quiet or as_json else None,
            on_step=log,
            description=run_description(settings, images),
            **arguments,
        )
    accuracy = None if result.head is None else result.head.accuracy
    if as_json:
        _print_json({"run": str(folder), "validation_accuracy": accuracy, **result.to_json()})
        return
    shown = "" if accuracy is None else f"validation accuracy {100 * accuracy:.2f} %, "
    _show(quiet, f"{shown}{result.seconds:.0f} s. Look at it: torchckn report {folder}; test it: torchckn evaluate {folder}")


#: settings that mean something for one kind of network, or one method, only
_ONLY_FOR = {
    "ckn": {"kernel", "linear_kernel", "inverse_sqrt", "bandwidths", "patches"},
    "convnet": {"init_std"},
    "ulr": {"tau", "hessian", "head_update"},
}


def _refuse_unused(settings: Settings, given: dict[str, Any]) -> None:
    """An error for an option that would be ignored."""
    method = settings.method or ("ulr" if settings.kind == "ckn" else "sgd")
    for owner, names in _ONLY_FOR.items():
        unused = sorted(names & given.keys())
        if unused and owner not in (settings.kind, method):
            raise ConfigError(f"{unused[0]} is for {owner} only, and this is {settings.kind} by {method}; leave it out")


def _new_folder(settings: Settings) -> Path:
    """A folder that was not there: runs/lenet5-ckn-1, -2, ..."""
    name = settings.network.rpartition(":")[2].lower()
    for number in itertools.count(1):
        folder = Path("runs") / f"{name}-{settings.kind}-{number}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise AssertionError


@contextmanager
def _stoppable(folder: Path) -> Iterator[None]:
    """Ctrl-C says how to go on."""
    try:
        yield
    except KeyboardInterrupt as stop:
        what = str(stop).partition(";")[0] or "interrupted before the first step"
        raise CKNError(f"{what}; go on with: torchckn train --resume {folder}") from None


@contextmanager
def _tensorboard(folder: Path | None) -> Iterator[Any]:
    if folder is None:
        yield None
    else:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ConfigError("--tensorboard needs TensorBoard: pip install 'torchckn[tensorboard]'") from None
        with SummaryWriter(str(folder.with_name(folder.name + "-tensorboard"))) as writer:

            def log(record: dict[str, Any]) -> None:
                for key, value in record.items():
                    if key != "step":
                        writer.add_scalar(key, value, record["step"])

            yield log


# What a trained network makes of images.


@app.command()
def evaluate(
    model: Model,
    data: Annotated[str | None, typer.Option(help="Images with labels; the run's own by default.")] = None,
    part: Annotated[str, typer.Option(help="test or train.")] = "test",
    data_dir: DataDir = None,
    as_json: AsJSON = False,
) -> None:
    """Accuracy of a trained network, on the test images by default.

    Example: [bold]torchckn evaluate runs/first[/bold]
    """
    from . import runs
    from .building import load_trained
    from .fit import evaluate as measured

    trained = load_trained(model)
    whole, chosen = _part(trained, data, part, data_dir)
    found = measured(trained.net, chosen)
    if as_json:
        _print_json(
            {"accuracy": found.accuracy, "loss": found.loss, "images": found.images, "data": whole.name, "part": part}
        )
    else:
        Console().print(
            f"{whole.name}, {part}: accuracy {100 * found.accuracy:.2f} %, loss {found.loss:.4f}, {found.images} images"
        )
    if model.is_dir() and part == "test" and data is None:
        runs.add_to_result(model, {"test_accuracy": found.accuracy, "test_images": found.images})


def _part(trained: Trained, name: str | None, part: str, data_dir: Path | None) -> tuple[DataSet, Part]:
    from . import data

    if part not in ("test", "train"):
        raise ConfigError(f"--part expects test or train, came {part!r}")
    if name is None and trained.settings is None:
        raise ConfigError("a model file does not say what it was trained on: name the images with --data")
    whole = data.load(name or trained.settings.data, data_dir)  # type: ignore[union-attr]
    chosen = whole.test if part == "test" else whole.train
    if chosen is None:
        raise ConfigError(f"{whole.name} has no test part; use --part train, or name other images with --data")
    return whole, chosen


@app.command()
def predict(
    model: Model,
    images: Annotated[list[Path], typer.Argument(help="Image files.")],
    top: Annotated[int, typer.Option(min=1, help="How many classes to show.")] = 3,
    resize: Annotated[bool, typer.Option("--resize", help="Resize images that are not of the network's size.")] = False,
    as_json: AsJSON = False,
) -> None:
    """Labels and probabilities for image files.

    Example: [bold]torchckn predict runs/first digit.png[/bold]
    """
    import torch

    from .building import input_shape, load_trained
    from .data.own import read_for
    from .data.preprocessing import unit_pixels

    trained = load_trained(model)
    pixels = torch.stack([read_for(file, input_shape(trained.net), resize) for file in images])
    with torch.inference_mode():
        probabilities = torch.softmax(trained.net.eval()(unit_pixels(pixels, trained.net.head.weight)), 1)
    rows: list[dict[str, Any]] = []
    for file, row in zip(images, probabilities, strict=True):
        best = row.topk(min(top, len(row)))
        classes = [trained.classes[int(i)] for i in best.indices]
        rows.append(
            {"file": str(file), "label": classes[0], "probabilities": dict(zip(classes, best.values.tolist(), strict=True))}
        )
    if as_json:
        _print_json(rows)
        return
    table = Table("file", "label", "probabilities")
    for found in rows:
        shown = ", ".join(f"{name} {100 * value:.1f} %" for name, value in found["probabilities"].items())
        table.add_row(found["file"], found["label"], shown)
    Console().print(table)


@app.command()
def export(
    model: Model,
    output: Annotated[Path, typer.Option("--output", "-o", help="A file .onnx, or .pt2 for torch.export.")],
    uint8: Annotated[bool, typer.Option("--uint8", help="Take pixels from 0 to 255 instead of 0 to 1.")] = False,
) -> None:
    """Write a trained network as a plain graph, from pixels to probabilities: ONNX or torch.export.

    Example: [bold]torchckn export runs/first -o first.onnx[/bold]
    """
    from . import export as exporting
    from .building import load_trained
    from .convnet import ScaledConvNet
    from .nn.network import CKN

    trained = load_trained(model)
    if output.suffix not in (".onnx", ".pt2"):
        raise ConfigError(f"--output expects a file ending in .onnx or .pt2, came {output}")
    assert isinstance(trained.net, (CKN, ScaledConvNet))
    write = exporting.to_onnx if output.suffix == ".onnx" else exporting.to_torch
    write(trained.net, output, uint8_input=uint8)
    _show(False, f"wrote {output}")


@app.command()
def report(
    runs: Runs,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    data_dir: DataDir = None,
) -> None:
    """Make one page of one or more runs, which opens without a server or a network.

    Example: [bold]torchckn report runs/first -o report.html[/bold]
    """
    from . import data
    from . import report as reporting
    from .runs import read_config

    settings = read_config(runs[0]).get("settings")
    images = data.load(settings["data"], data_dir) if settings else None
    _show(False, f"wrote {reporting.write(runs, output, data=images)}")


@app.command()
def draw(
    runs: Annotated[list[Path], typer.Argument(help="A run, and another one to compare with, such as its ConvNet's.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0 takes a free one.")] = 8000,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
    data_dir: DataDir = None,
) -> None:
    """Draw with the mouse and see what networks make of it, live, on a page that only this machine can reach.

    Example: [bold]torchckn draw runs/first[/bold]
    """
    from .draw import serve

    serve(runs, port, open_browser=open_browser, data_dir=data_dir)


@app.command()
def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="An experiment; without one, and without --all, they are listed.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All experiments.")] = False,
    scale: Annotated[str, typer.Option(help="cpu: what two cores finish; paper: the whole protocol.")] = "cpu",
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds of each cell; the experiment's own by default.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Cells at a time, which share the cores.")] = 1,
    draw: Annotated[
        bool, typer.Option("--draw", help="Run nothing; make the page from the results that there are.")
    ] = False,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of results.")] = Path("experiments"),
    page: Annotated[Path | None, typer.Option(help="The page to write; results.md in the folder by default.")] = None,
    data_dir: DataDir = None,
    as_json: AsJSON = False,
    quiet: Quiet = False,
) -> None:
    """Run the experiments of the paper, and say claim by claim what came out. It can be interrupted, and goes on where it was.

    Example: [bold]torchckn reproduce --draw[/bold]
    """
    from .experiments.cell import result_file
    from .experiments.page import write_page
    from .experiments.runner import run_cells
    from .experiments.spec import SCALES, experiment, experiments

    if scale not in SCALES:
        raise ConfigError(f"--scale expects {' or '.join(SCALES)}, came {scale!r}")
    if name is not None and everything:
        raise ConfigError("name an experiment, or say --all, not both")
    known = experiments()
    chosen = [experiment(name)] if name is not None else list(known.values())
    cells = [cell for one in chosen for cell in one.cells(scale, seeds)]
    if name is None and not everything and not draw:
        done = {one.name: [c for c in cells if c.experiment == one.name] for one in chosen}
        rows = [
            {"name": n, "title": known[n].title, "cells": len(c), "done": sum(result_file(output, x).exists() for x in c)}
            for n, c in done.items()
        ]
        if as_json:
            _print_json(rows)
            return
        table = Table("name", "what it is", "cells", "done", title=f"scale {scale}, results in {output}")
        for row in rows:
            table.add_row(*(str(value) for value in row.values()))
        Console().print(table)
        return
    failed: dict[str, str] = {}
    if not draw:
        failed = run_cells(cells, output, jobs, seeds, data_dir, quiet or as_json).failed
    written = write_page(output, scale, page or output / "results.md")
    if as_json:
        _print_json({"page": str(written), "cells": len(cells), "failed": failed})
    else:
        _show(quiet, f"wrote {written}")
    if failed:
        first = next(iter(failed))
        raise CKNError(
            f"{len(failed)} of {len(cells)} cells failed, the first is {first}: {failed[first]}; run the same again"
        )


@app.command()
def bench(
    network: Annotated[str, typer.Argument(help="A network of the zoo.")] = "lenet5",
    filters: Annotated[int, typer.Option(min=1, help="Filters a layer.")] = 32,
    batch_size: Annotated[int, typer.Option(min=1, help="Images a batch.")] = 256,
    as_json: AsJSON = False,
) -> None:
    """Measure a kernel network against its ConvNet on this machine: forward and backward, inference, a training step.

    Example: [bold]torchckn bench lenet5 --filters 16 --batch-size 128[/bold]
    """
    from .bench import measure

    found = measure(network, filters, batch_size)
    if as_json:
        _print_json(found)
        return
    table = Table("", "CKN", "ConvNet", "ratio", title=f"{network}, {filters} filters, batch {batch_size} (milliseconds)")
    for name, (ours, theirs) in found.items():
        table.add_row(name, f"{1e3 * ours:.1f}", f"{1e3 * theirs:.1f}", f"{ours / theirs:.2f}")
    Console().print(table)


# Data sets.


@data_app.command("list")
def data_list(data_dir: DataDir = None, as_json: AsJSON = False) -> None:
    """List the data sets that can be named, and whether they are here.

    Example: [bold]torchckn data list[/bold]
    """
    from . import data

    rows: list[dict[str, Any]] = [{"name": name, "here": data.is_here(name, data_dir)} for name in data.names()]
    if as_json:
        _print_json(rows)
        return
    table = Table("name", "here")
    for row in rows:
        table.add_row(row["name"], "yes" if row["here"] else "no, fetched when it is needed")
    Console().print(table)


@data_app.command("fetch")
def data_fetch(
    name: Annotated[str, typer.Argument(help="A data set.")], data_dir: DataDir = None, quiet: Quiet = False
) -> None:
    """Fetch a data set now.

    Example: [bold]torchckn data fetch mnist-mini[/bold]
    """
    from . import data

    found = data.load(name, data_dir, progress=not quiet)
    test = 0 if found.test is None else len(found.test.images)
    _show(quiet, f"{found.name}: {len(found.train.images)} training and {test} test images, {len(found.classes)} classes")


@data_app.command("verify")
def data_verify(name: Annotated[str, typer.Argument(help="A data set.")], data_dir: DataDir = None) -> None:
    """Check that a data set that is here has the content it should have.

    Example: [bold]torchckn data verify mnist-mini[/bold]
    """
    from . import data
    from .errors import DataError

    if not data.verify(name, data_dir):
        raise DataError(f"{name} does not have the content it should have; delete it from {data.data_folder(data_dir)}")
    Console().print(f"{name} is what it should be")


@data_app.command("where")
def data_where(data_dir: DataDir = None) -> None:
    """Print the folder that data sets are kept in.

    Example: [bold]torchckn data where[/bold]
    """
    from .data import data_folder

    print(data_folder(data_dir))


# Runs.


@runs_app.command("list")
def runs_list(
    folder: Annotated[Path, typer.Argument(help="The folder that has runs in it.")] = Path("runs"), as_json: AsJSON = False
) -> None:
    """List the runs in a folder.

    Example: [bold]torchckn runs list .[/bold]
    """
    from . import runs

    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder; torchckn train makes runs in ./runs, or where --run says")
    found = []
    for path in sorted(folder.glob("**/config.toml")):
        try:
            found.append(runs.summary(path.parent))
        except CKNError as error:
            _show(as_json, f"left out: {error}")
    _runs_table(found, as_json)


@runs_app.command("show")
def runs_show(run: Annotated[Path, typer.Argument(help="The folder of a run.")], as_json: AsJSON = False) -> None:
    """Show what is known of a run.

    Example: [bold]torchckn runs show runs/first[/bold]
    """
    from . import runs

    found = runs.summary(run) | {"config": runs.read_config(run)}
    if as_json:
        _print_json(found)
        return
    table = Table("", "", show_header=False)
    for key, value in found.items():
        entries = value.items() if isinstance(value, dict) else [("", value)]
        table.add_row(key, "\n".join(f"{name} = {json.dumps(item)}" if name else str(item) for name, item in entries))
    Console().print(table)


@runs_app.command("compare")
def runs_compare(runs_given: Annotated[list[Path], typer.Argument(metavar="RUNS...")], as_json: AsJSON = False) -> None:
    """Compare runs side by side.

    Example: [bold]torchckn runs compare runs/first runs/second[/bold]
    """
    from . import runs

    _runs_table([runs.summary(run) for run in runs_given], as_json)


def _runs_table(found: Sequence[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        _print_json(list(found))
        return
    columns = ("run", "network", "method", "steps", "validation", "test", "seconds", "state")
    table = Table()
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in ("validation", "test", "state"))
    for row in found:
        table.add_row(*(_shown(row[column]) for column in columns))
    Console().print(table)


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{100 * value:.2f} %" if value <= 1 else f"{value:.1f}"
    return "" if value is None else str(value)
