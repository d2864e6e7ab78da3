"""Training."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import CKNError, ConfigError
from ..settings import Settings, read_settings, settings_from
from .options import AsJSON, DataDir, Quiet, print_json, settings_options, show


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

    from .. import runs
    from ..building import build_network, load_images, run_description, training_arguments
    from ..fit import train as fit

    if resume is not None:
        if network or config or run or given:
            raise ConfigError("--resume takes a run with the options it has; give no others")
        found = runs.read_config(resume)
        if "settings" not in found:
            raise ConfigError(f"{resume} was not made by torchckn train; resume it from Python, with the same arguments")
        settings = settings_from(found["settings"], str(resume / "config.toml"))
    else:
        values = read_settings(config) if config else {}
        values |= given | ({"network": network} if network else {})
        settings = settings_from(values, str(config) if config and not given else "train")
        _refuse_unused(settings, values)
        if ":" in settings.network:  # so that the run can be taken up from any folder
            file, _, name = settings.network.rpartition(":")
            settings = settings.model_copy(update={"network": f"{Path(file).resolve()}:{name}"})
    images = load_images(settings, data_dir)
    generator = torch.Generator().manual_seed(settings.seed)
    net = build_network(settings, images, generator)
    folder = resume or run or _new_folder(settings)  # not before: what is wrong with the settings leaves no folder behind
    show(quiet or as_json, f"{settings.network} ({settings.kind}), {len(images.train.images)} training images -> {folder}")
    with _tensorboard(folder if tensorboard else None) as log, _stoppable(folder):
        result = fit(
            net,
            images.train,
            images.valid,
            generator=generator,
            run_dir=folder,
            resume=resume is not None,
            progress=False if quiet or as_json else None,
            on_step=log,
            description=run_description(settings, images),
            **training_arguments(settings),
        )
    accuracy = None if result.head is None else result.head.accuracy
    if as_json:
        print_json({"run": str(folder), "validation_accuracy": accuracy, **result.to_json()})
        return
    shown = "" if accuracy is None else f"validation accuracy {100 * accuracy:.2f} %, "
    show(quiet, f"{shown}{result.seconds:.0f} s. Look at it: torchckn report {folder}; test it: torchckn evaluate {folder}")


#: settings that mean something for one kind of network, or one method, only
_ONLY_FOR = {
    "ckn": {"kernel", "linear_kernel", "inverse_sqrt", "bandwidths", "patches"},
    "convnet": {"init_std"},
    "ulr": {"tau", "hessian", "head_update"},
}


def _refuse_unused(settings: Settings, given: dict[str, Any]) -> None:
    """An error for an option that would be ignored."""
    method = settings.training_method
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
