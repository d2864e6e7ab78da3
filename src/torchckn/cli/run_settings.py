"""What a training run is to do: its settings from the command line, a preset and a file, or from the run that is resumed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

from ..choices import PLACES, DataSetName, KernelNetworkName
from ..config import metadata_of
from ..errors import ConfigError
from ..fit.config import TrainConfig
from ..fit.defaults import PRESET_FILTERS, preset_options
from ..settings import Settings, read_settings, settings_from


def new_settings(network: str | None, preset: str | None, config: Path | None, given: dict[str, Any]) -> Settings:
    """Settings from a preset, a file and the command line; later ones take precedence."""
    values = read_settings(config) if config else {}
    values |= given | ({"network": network} if network else {})
    settings = settings_from(_preset(preset, values) | values, str(config) if config and not given else "train")
    if preset is not None and settings.method != "ulr":
        raise ConfigError(
            f"--preset is for kernel networks trained by ulr, got {settings.kind} trained by {settings.method}; remove --preset"
        )
    _check_owners(values, settings)
    return _with_whole_paths(settings.replace(network=resolved(settings.network)))


def resumed_settings(folder: Path, network: str | None, given: dict[str, Any]) -> Settings:
    """The settings of a run, with those that may differ when it is resumed. Naming its network again is trusting its code."""
    from .. import runs
    from ..trained import check_places, run_settings

    content = runs.read_config(folder)
    if "settings" not in content:
        raise ConfigError(f"{folder} was not made by torchckn train; resume it from Python, with the same arguments")
    free = {*runs.MAY_DIFFER, *PLACES} | TrainConfig.option_names(bookkeeping=True)
    fixed = sorted(given.keys() - free)
    if fixed:
        raise ConfigError(
            f"--resume uses the options of the run: expected no other options than {', '.join(sorted(free))}, got {fixed[0]}"
        )
    settings = run_settings(folder, content)
    if network is not None and resolved(network) != settings.network:
        raise ConfigError(f"the run in {folder} is of {settings.network}, got {network}; name the same network, or none")
    _check_owners(given, settings)
    places = {name: value for name, value in given.items() if name in PLACES}
    changes = {name: value for name, value in given.items() if name not in places}
    settings = _with_whole_paths(settings.replace(**places, training=settings.training.replace(**changes)))
    check_places(folder, settings, [name for name in PLACES if name not in places])
    return settings


def _check_owners(values: Iterable[str], settings: Settings) -> None:
    """An error for an option of another kind of network or another method."""
    for name in values:
        owners = metadata_of(Settings.all_options()[name]).get("only_for") or ()
        owners = (owners,) if isinstance(owners, str) else owners
        if owners and not {*owners} & {settings.kind, settings.method}:
            listed = ", ".join(owners)
            raise ConfigError(f"{name} is for {listed} only, got {settings.kind} trained by {settings.method}; remove it")


def _preset(name: str | None, values: dict[str, Any]) -> dict[str, Any]:
    """The options of a preset. Networks of the zoo get its filters per layer."""
    if name is None:
        return {}
    options = preset_options(name, values)  # type: ignore[arg-type]
    has_own = ":" in str(values.get("network", "")) or values.get("network") in get_args(KernelNetworkName)
    return options if has_own else options | {"filters": PRESET_FILTERS}


def _with_whole_paths(settings: Settings) -> Settings:
    """With whole paths of images, where there are any: a run can be resumed from any folder."""
    places = {name: value for name in PLACES if (value := getattr(settings, name)) is not None}
    return settings.replace(**{name: os.path.abspath(value) for name, value in places.items() if _is_path(value)})


def _is_path(data: str) -> bool:
    return data not in get_args(DataSetName) and os.path.exists(data)


def resolved(network: str) -> str:
    """A network with the whole path of its file, if it has one: a run can be resumed from any folder."""
    file, colon, name = network.rpartition(":")
    try:
        return f"{Path(file).resolve()}:{name}" if colon else network
    except (OSError, RuntimeError, ValueError) as error:  # a circle of links, a character that no path has
        raise ConfigError(f"{network!r} cannot be the path of a file: {error}; expected file.py:ClassName") from None
