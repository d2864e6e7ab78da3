"""Training."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ConfigError, Interrupted
from ..fit.defaults import PRESETS
from ..formats import percent
from ..settings import Settings
from .options import COMPLETE_TRAINABLE, AsJSON, DataDir, Quiet, Trust, completion, print_json, settings_options, show
from .run_settings import new_settings, resumed_settings

if TYPE_CHECKING:
    from ..building import Images
    from ..fit import TrainResult

#: seconds that a process may wait for others: eleven days
_LONGEST = 10**6


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the pictures and the trained network.")] = Path(
        "demo"
    ),
    steps: Annotated[int, typer.Option(min=0, help="Training steps of each network.")] = 300,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything that is random.")] = 0,
) -> None:
    """Train LeNet-5 and its kernel counterpart on 5,000 digits, and draw their accuracy and filters. Takes a minute or two.

    Example: [bold]torchckn demo --steps 50 --output demo[/bold]
    """
    from ..demo import run
    from ..files import check_parent

    run(check_parent(output), seed, steps)


@settings_options()
def train(
    given: dict[str, Any],
    network: Annotated[
        str | None,
        typer.Argument(
            help="A network of the zoo, ckn-cifar, ckn-cifar5, or your own as file.py:ClassName; lenet5 by default.",
            autocompletion=COMPLETE_TRAINABLE,
        ),
    ] = None,
    run: Annotated[Path | None, typer.Option("--run", "-o", help="A new folder for the run; by default in ./runs.")] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume",
            help="Resume the run in this folder; with more --steps, train it further, also with another --lr, --head-update or "
            "--augment. If its images have been moved, pass their new path with --data or --unlabeled.",
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            "--preset",
            metavar="|".join(PRESETS),
            help="Options for a short training (fast) or a longer one (accurate); other options take precedence.",
            autocompletion=completion(list(PRESETS)),
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="TOML file whose keys are the names of these options.")
    ] = None,
    data_dir: DataDir = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write TensorBoard logs to RUN-tensorboard, next to the run.")
    ] = False,
    processes: Annotated[
        int, typer.Option("--processes", min=1, help="Processes on this machine; for several machines use torchrun.")
    ] = 1,
    max_restarts: Annotated[
        int, typer.Option("--max-restarts", min=0, help="Maximum number of automatic restarts when a process fails.")
    ] = 0,
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds that one of several processes waits for the others.")
    ] = 600,
    trust: Trust = False,
    as_json: AsJSON = False,
    quiet: Quiet = False,
) -> None:
    """Train a network: first unsupervised filters, then with labels. The run can be interrupted and resumed.

    Example: [bold]torchckn train lenet5 --filters 16 --data mnist-mini --steps 100 --run runs/first[/bold]
    """
    if not 1 <= timeout <= _LONGEST:  # NaN is neither less nor more
        raise ConfigError(f"--timeout expected from 1 to {_LONGEST} seconds, got {timeout}")
    if resume is not None and (config or run or preset):
        raise ConfigError(
            "--resume uses the options of the run: remove --config, --preset and --run; give more --steps to train it further"
        )
    from ..launch import is_one_of_several, joined

    def read() -> Settings:
        return resumed_settings(resume, network, given) if resume else new_settings(network, preset, config, given)

    if processes > 1 and not is_one_of_several():
        _start(processes, max_restarts, read(), run, resume)
        return
    with joined(timeout, _how_to_resume(resume or run, network)):
        from .. import runs
        from ..building import load_images
        from ..distributed import from_first, is_first
        from ..files import check_parent

        settings = from_first(read)
        if run:
            check_parent(run)
        source = _source(settings, None if network else resume, trust)
        images = load_images(settings, data_dir)
        quiet = quiet or not is_first()
        with _folder(resume or run, settings) as folder, _resumable(folder, settings.network):
            show(quiet or as_json, f"{settings.network} ({settings.kind}), {len(images.train)} training images -> {folder}")
            finished = runs.read_result(folder) if resume else None
            result = _trained(settings, images, source, folder, resume is not None, tensorboard, quiet or as_json)
        if as_json and is_first():
            accuracy = None if result.head is None else result.head.accuracy
            print_json({"run": str(folder), "validation_accuracy": accuracy, **result.to_json()})
        elif not as_json:
            if finished and finished.get("seconds") == result.seconds:
                show(quiet, "This run was finished before; give more --steps to train it further.")
            _show_result(result, folder, quiet, images)


def _source(settings: Settings, folder: Path | None, trust: bool) -> str | None:
    """The Python code of a network of one's own: of its file, or of the run in this folder, if its user trusts it."""
    from .. import runs
    from ..building import own_source
    from ..trained import trusted_source

    if folder is not None:
        return trusted_source(folder, runs.read_config(folder), settings, trust)
    return own_source(settings.network) if ":" in settings.network else None


def _trained(
    settings: Settings,
    images: Images,
    source: str | None,
    folder: Path,
    resume: bool,
    tensorboard: bool,
    quiet: bool,
) -> TrainResult:
    """What each of the processes does, or the only one."""
    import torch

    from .. import runs
    from ..building import build_network
    from ..distributed import is_first
    from ..fit import TensorBoard
    from ..launch import is_restarted
    from ..network import CKN
    from ..trained import run_description

    generator = torch.Generator().manual_seed(settings.training.seed)
    net = build_network(settings, images, generator, source)
    if isinstance(net, CKN) and net.report:
        for number in net.report.other_numbers:
            show(quiet, f"{number.note}; the kernel network is made for the images")
    log = Path(f"{os.path.abspath(folder)}-tensorboard")  # beside the run, whatever it is called: . has no name
    return runs.train(
        net,
        images.train,
        images.valid,
        settings.training,
        generator=generator,
        run_dir=folder,
        resume=resume or (is_restarted() and (folder / "config.toml").exists()),
        callbacks=[TensorBoard(log)] if tensorboard and is_first() else [],
        progress=False if quiet else None,
        description=run_description(settings, images, source),
        unlabeled=images.unlabeled,
    )


def _show_result(result: TrainResult, folder: Path, quiet: bool, images: Images) -> None:
    if result.stopped:
        show(quiet, f"stopped after step {result.steps}: {result.stopped}")
    head = result.head
    which = "cross-validated" if images.valid is None else "validation"
    shown = "" if head is None or head.accuracy is None else f"{which} accuracy {percent(head.accuracy, 2)}, "
    test = f"; test accuracy: torchckn evaluate {folder}" if images.test is not None else ""
    show(quiet, f"{shown}{result.seconds:.0f} s. Report: torchckn report {folder}{test}")


def _start(processes: int, max_restarts: int, settings: Settings, run: Path | None, resume: Path | None) -> None:
    """Start the same command in several processes, with the name of the folder that it would choose."""
    from ..launch import start

    arguments = sys.argv[1:]
    if resume is not None:
        start(processes, arguments, max_restarts, _how_to_resume(resume, settings.network))
        return
    with _folder(run, settings) as folder:
        start(
            processes,
            arguments if run else [*arguments, "--run", str(folder)],
            max_restarts,
            _how_to_resume(folder, settings.network),
        )


def _how_to_resume(folder: Path | None, network: str | None) -> str:
    from ..trained import resume_command

    return f"Resume it with: {resume_command(folder or 'RUN', network or 'lenet5')} (and --processes as you like)"


@contextmanager
def _resumable(folder: Path, network: str) -> Iterator[None]:
    """After Ctrl-C, say how to resume."""
    from ..trained import resume_command

    try:
        yield
    except KeyboardInterrupt as stop:
        what = str(stop).partition(";")[0] or "interrupted"
        is_run = (folder / "config.toml").exists()
        how = (
            f"resume it with: {resume_command(folder, network)}"
            if is_run
            else "the run had not begun, so there is nothing to resume"
        )
        raise Interrupted(f"{what}; {how}") from None


@contextmanager
def _folder(given: Path | None, settings: Settings) -> Iterator[Path]:
    """The folder that was asked for; or one that was not there, runs/lenet5-ckn-1, -2, ..., gone again if it stays empty."""
    from ..distributed import from_first, is_first
    from ..launch import is_restarted

    if given is not None:
        yield given
        return
    if is_restarted():
        raise ConfigError("--max-restarts needs -o RUN, the run folder that restarted processes resume")
    if not is_first():
        yield from_first(Path)
        return
    name = settings.network.rpartition(":")[2].lower()
    for number in itertools.count(1):
        folder = Path("runs") / f"{name}-{settings.kind}-{number}"
        made_parent = not folder.parent.exists()
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:
            continue
    try:
        yield from_first(lambda: folder)
    finally:
        if not any(folder.iterdir()):
            folder.rmdir()
            if made_parent:
                folder.parent.rmdir()
