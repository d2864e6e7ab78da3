"""From a run folder, or a saved file, back to its network; and what a run folder says for that.

Read first: :mod:`torchckn.building`, which builds networks from settings.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from . import data, runs
from .building import Images, build_convnet, load_data, to_classifier
from .errors import ConfigError, DataError, NotFittedError, PathError
from .network import Classifier
from .settings import Settings, settings_from
from .storage import load, load_weights
from .tables import shape_text


class Trained(NamedTuple):
    """A trained network, the names of its classes, and the settings it was trained with, if they are known."""

    net: Classifier
    classes: tuple[str, ...]
    settings: Settings | None


def load_trained(path: str | os.PathLike[str], *, trust: bool = False) -> Trained:
    """The network of a finished run, or of a file that :func:`torchckn.save` wrote.

    Args:
        trust: whether Python code that the run folder has may be executed. A ConvNet of your own, ``file.py:ClassName``, needs
            it; kernel networks and ConvNets of the zoo do not.
    """
    path = Path(path)
    if not path.exists():
        raise PathError(f"{path} does not exist; expected the folder of a run, or a file that torchckn.save wrote")
    if path.is_file():
        return _load_saved(path)
    config = runs.read_config(path)
    model = runs.model_file(path)
    if (
        not model.exists() or runs.read_result(path) is None
    ):  # it may have the model of earlier steps, and be trained further
        how = (
            resume_command(path, config["settings"]["network"])
            if "settings" in config
            else "torchckn.train(..., resume=True)"
        )
        raise NotFittedError(f"the run in {path} is not finished; resume it: {how}")
    if "settings" not in config:  # made in Python
        return _load_saved(model)
    settings = run_settings(path, config)
    classes = tuple(map(str, config["classes"]))
    if settings.kind == "ckn":
        ckn = load(model).eval()
        if len(classes) != ckn.head.out_features:
            expected = f"the names of {ckn.head.out_features} classes, as many as its model has"
            raise DataError(f"{path / 'config.toml'} expected {expected}, got {len(classes)}; restore that file")
        return Trained(ckn, classes, settings)
    source = trusted_source(path, config, settings, trust)
    net = build_convnet(settings, tuple(config["image_shape"]), len(classes), source)
    pixels = data.Preprocessing(**config["preprocessing"])
    convnet = to_classifier(settings, net, tuple(config["image_shape"]), pixels, len(classes), None)
    load_weights(convnet, model)
    return Trained(convnet.eval(), classes, settings)


def resume_command(folder: str | os.PathLike[str], network: str) -> str:
    """How to resume a run. To name one's own network again is to trust its code."""
    named = f"{shlex.quote(network)} " if ":" in network else ""
    return f"torchckn train {named}--resume {shlex.quote(os.fspath(folder))}"


def _load_saved(file: Path) -> Trained:
    ckn = load(file).eval()
    return Trained(ckn, tuple(map(str, range(ckn.head.out_features))), None)


def trusted_source(folder: Path, config: dict[str, Any], settings: Settings, trust: bool) -> str | None:
    """The Python code of a run's network, if it has any and its user trusts it."""
    if ":" not in settings.network:
        return None
    if not trust:
        raise ConfigError(
            f"the run in {folder} has Python code, of {settings.network}, which would be executed; read it in "
            f"{folder / 'config.toml'} (network_source), and pass --trust if you trust it"
        )
    source = config.get("network_source")
    if not isinstance(source, str):
        raise DataError(f"{folder / 'config.toml'} does not have the Python code of {settings.network} (network_source)")
    if config.get("network_sha256") != _sha256(source):
        raise DataError(
            f"the Python code in {folder / 'config.toml'} (network_source) was changed after the run was made: its digest is not "
            "network_sha256; restore that file"
        )
    return source


def _sha256(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()


def check_places(folder: str | os.PathLike[str], settings: Settings, places: Iterable[str] = ("data",)) -> None:
    """An error for images of a run that are no longer where they were when it was trained."""
    for name in places:
        place = getattr(settings, name)
        if place is not None and os.path.isabs(place) and not os.path.exists(place):
            raise PathError(
                f"the run in {folder} was trained on {place}, which is not there; pass its new path with --{name}"
            )


def load_run_data(
    folder: str | os.PathLike[str],
    settings: Settings | None,
    classes: Sequence[str] | None,
    shape: Sequence[int] | None,
    name: str | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    resize: bool = False,
) -> data.DataSet:
    """The images of a run, or others that its network can take, as it takes them.

    Args:
        settings, classes, shape: of the run, as far as they are known. Classes are found by name, images become grey or colored.
        name: other images, by name or path; a folder is resized as that of the run was.
        resize: whether a folder of other images is resized to the images of the run.
    """
    if resize and name is None:
        raise ConfigError(
            "--resize is for other images than those of the run: name their folder with --data, or leave it out"
        )
    if name is not None:
        like = settings if settings is not None and Path(name).is_dir() else Settings()
        side = _side(shape) if resize else like.resize
        whole = data.load(name, data_dir, stream=like.stream, resize=side)
    elif settings is None:
        raise ConfigError(f"{folder} has no record of its training data; name the images with --data")
    else:
        check_places(folder, settings)
        whole = load_data(settings, data_dir)
    whole = whole if classes is None else whole.in_classes(tuple(classes))
    if shape is not None:
        whole = whole.in_channels(shape[0])
        if whole.image_shape != tuple(shape):
            raise DataError(
                f"{whole.name} has images of {shape_text(whole.image_shape)}, the network of {folder} expects "
                f"{shape_text(shape)}; resize or crop them (evaluate: --resize, for a folder of images), or name other images "
                "with --data"
            )
    return whole


def _side(shape: Sequence[int] | None) -> int:
    """Of the square images of a network."""
    if shape is None or shape[1] != shape[2]:
        given = "an unknown size" if shape is None else shape_text(shape)
        raise ConfigError(f"--resize expected a network for square images, got {given}; resize the images yourself")
    return shape[1]


def run_settings(folder: Path, config: dict[str, Any]) -> Settings:
    """The settings that a run was made with, of its configuration."""
    return settings_from(config["settings"] | config["training"], str(folder / "config.toml"))


def run_description(settings: Settings, images: Images, source: str | None) -> dict[str, Any]:
    """What a run folder's configuration says beside the training configuration, enough to build the network again."""
    return {
        "settings": settings.model_dump(exclude_none=True, exclude={"training"}),
        "network_source": source,
        "network_sha256": None if source is None else _sha256(source),
        "classes": list(images.classes),
        "image_shape": list(images.shape),
        "preprocessing": asdict(images.pixels),
        "test_data": None if images.test is None else runs.data_digest(images.test),
    }
