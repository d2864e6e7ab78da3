"""From settings to data and networks. Read next: :mod:`torchckn.trained`, from a run folder back to its network."""

from __future__ import annotations

import inspect
import os
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from . import data, kernels, presets, zoo
from .convnet import ScaledConvNet
from .data.sets import listed
from .distributed import local_device
from .errors import CKNError, ConfigError, DataError, PathError, unknown_name
from .files import read_text
from .network import Classifier
from .settings import Settings
from .translation import translate


class Images(NamedTuple):
    """Images for a run: a training and a validation part, a test part if there is one, the classes, what is done to pixels."""

    train: data.Part
    valid: data.Part | None
    test: data.Part | None
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    pixels: data.Preprocessing
    """with the statistics of the training part"""
    unlabeled: Tensor | None = None
    """images that filters are fitted to, if not to the training part"""


#: images that pixels' statistics are taken from, if images are read when they are needed
STATISTICS_OF = 10_000


def load_data(settings: Settings, data_dir: str | os.PathLike[str] | None = None) -> data.DataSet:
    """The data set that the settings name, in memory or not."""
    return data.load(settings.data, data_dir, stream=settings.stream, resize=settings.resize, workers=settings.workers)


def load_images(settings: Settings, data_dir: str | os.PathLike[str] | None = None) -> Images:
    whole = load_data(settings, data_dir)
    train, valid = whole.train, whole.valid
    if valid is None and settings.validation != 0:
        held_out = settings.validation or max(1, min(10_000, len(train) // 6))
        if held_out >= len(train):
            raise ConfigError(
                f"validation expected fewer than the {len(train)} images of {whole.name} that are not for testing, got {held_out}"
            )
        train, valid = data.split(train, held_out, settings.training.seed)
        _require_all_classes(train, whole, held_out)
    elif valid is not None and settings.validation is not None:
        raise ConfigError(
            f"validation is for data without validation images, but {whole.name} has {len(valid)} of its own; leave it out"
        )
    some = _for_statistics(train)
    unlabeled = None
    if settings.unlabeled is not None:
        further = data.load_unlabeled(settings.unlabeled, whole.image_shape, resize=settings.resize is not None)
        if some.dtype != further.dtype:
            raise DataError(
                f"unlabeled expected training images of bytes (0 to 255), as image files have them, got numbers in {whole.name} "
                f"({str(some.dtype).removeprefix('torch.')}); store these as uint8"
            )
        some = unlabeled = torch.cat([some, further])
    pixels = data.Preprocessing.fit(some, whiten=settings.whiten)
    return Images(train, valid, whole.test, whole.classes, whole.image_shape, pixels, unlabeled)


def _require_all_classes(train: data.Part, whole: data.DataSet, held_out: int) -> None:
    """An error for classes of which all images are held out for validation."""
    before, after = (torch.bincount(part.labels, minlength=len(whole.classes)) for part in (whole.train, train))
    lost = [name for name, had, has in zip(whole.classes, before, after, strict=True) if had and not has]
    if lost:
        raise ConfigError(
            f"validation expected to leave training images of every class, but of the {held_out} images that are held out, some "
            f"are all that {whole.name} has of {'class' if len(lost) == 1 else 'classes'} {listed(lost)}; add images, or hold "
            "out fewer or none (--validation 0)"
        )


def _for_statistics(train: data.Part) -> Tensor:
    """The training images that the statistics of pixels are taken from."""
    return train.some(STATISTICS_OF).images if isinstance(train, data.LazyPart) else train.images


def build_convnet(
    settings: Settings, image_shape: tuple[int, int, int], classes: int, source: str | None = None
) -> nn.Module:
    """The ConvNet that the settings name, for images of this shape.

    Args:
        source: the text of the Python file of a network ``file.py:ClassName``, which is executed; by default the file's.
    """
    shape = (9 * image_shape[0], *image_shape[1:]) if settings.whiten else image_shape
    if ":" in settings.network:
        return _from_source(own_source(settings.network) if source is None else source, settings)
    if settings.network in presets.names():
        raise ConfigError(
            f"{settings.network} is a kernel network, not a ConvNet, so it cannot be translated; to train it: torchckn train "
            f"{settings.network}"
        )
    if settings.network not in zoo.ARCHITECTURES:
        raise unknown_name(
            "network", settings.network, [*zoo.names(), *presets.names()], "Or file.py:ClassName for your own."
        )
    if "filters" in settings.options:
        raise ConfigError("filters is a separate option: use --filters, not --option filters=...")
    fitting = zoo.ARCHITECTURES[settings.network].load().options_for(shape)
    try:
        return zoo.build(settings.network, settings.filters, **{"classes": classes, **fitting, **settings.options})
    except CKNError:
        raise
    except (ArithmeticError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        given = settings.options | ({} if settings.filters is None else {"filters": settings.filters})
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(f"{settings.network} cannot be built with {given}: {reason}") from error


def own_source(network: str) -> str:
    """The text of the Python file of a network ``file.py:ClassName``."""
    file = Path(network.rpartition(":")[0])
    if not file.is_file():
        what = "is not a file" if file.exists() else "does not exist"
        raise PathError(f"{file} {what}; give your own network as file.py:ClassName")
    try:
        return read_text(file)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read as Python code: {error}") from error


def _from_source(source: str, settings: Settings) -> nn.Module:
    """Execute the Python code of a user, and build the network that the settings name in it."""
    path, _, name = settings.network.rpartition(":")
    file = Path(path)
    module = types.ModuleType(f"_torchckn_network_{file.stem}")  # not a name that others may need
    module.__file__ = str(file)
    sys.modules[module.__name__] = module
    try:
        with _importing_from(file.parent):
            exec(compile(source, str(file), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:  # a script that reads its own arguments exits
        raise ConfigError(f"{file} cannot be imported: {type(error).__name__}: {error}") from error
    factory = getattr(module, name, None)
    if factory is None:
        networks = [n for n, v in vars(module).items() if inspect.isclass(v) and issubclass(v, nn.Module)]
        raise ConfigError(f"{file} has no {name!r}; it has {', '.join(networks) or 'no networks'}")
    if settings.filters is not None:
        raise ConfigError("filters is for networks of the zoo; pass your own network's arguments as --option name=value")
    is_built = isinstance(factory, nn.Module) or not callable(factory)
    if is_built and settings.options:
        raise ConfigError(f"{name} of {file} is built already and takes no options, got {settings.options}; name its class")
    try:
        with _importing_from(file.parent):
            net = factory if is_built else factory(**settings.options)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{name} cannot be built with {settings.options}: {type(error).__name__}: {error}") from error
    if not isinstance(net, nn.Module):
        raise ConfigError(f"{file}:{name} gives a {type(net).__name__}, expected a torch.nn.Module")
    return net


@contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    """Within this context, files of this folder can be imported, as by a Python script there; another folder may have others."""
    place, before = str(folder.resolve()), set(sys.modules)
    sys.path.insert(0, place)
    try:
        yield
    finally:
        sys.path.remove(place)
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", None) or "").startswith(place + os.sep):
                del sys.modules[name]


def build_network(settings: Settings, images: Images, generator: torch.Generator, source: str | None = None) -> Classifier:
    """The network to train: the kernel counterpart, or the ConvNet itself, with the pixels' statistics in it."""
    device = find_device(local_device(settings.device))
    if settings.network in presets.names():
        return _ready_made(settings, images, generator).to(device)
    with torch.random.fork_rng():  # a ConvNet draws its weights from torch's own generator
        torch.manual_seed(settings.training.seed)
        net = build_convnet(settings, images.shape, len(images.classes), source)
    classifier = to_classifier(settings, net, images.shape, images.pixels, len(images.classes), generator)
    return classifier.to(device)


def _ready_made(settings: Settings, images: Images, generator: torch.Generator) -> Classifier:
    """A kernel network that was not translated from a ConvNet."""
    name = settings.network
    if settings.kind != "ckn":
        raise ConfigError(f"{name} is a kernel network without a ConvNet; expected kind = 'ckn', got {settings.kind!r}")
    usual = Settings()
    for option in ("whiten", "linear_kernel", "inverse_sqrt", "root_block"):
        if getattr(settings, option) != getattr(usual, option):
            raise ConfigError(f"{option} is for networks of the zoo and your own, not for {name}; remove it")
    for option in settings.options:
        if option not in presets.OPTIONS:
            raise unknown_name(f"option of {name}", option, presets.OPTIONS)
    kernel = kernels.parse(settings.kernel)
    if isinstance(kernel, str):
        raise ConfigError(
            f"{name} has no activations that a kernel could match; expected a kernel such as rbf:0.6, got 'match'"
        )
    return presets.build(
        name,
        _for_statistics(images.train) if images.unlabeled is None else images.unlabeled,
        len(images.classes),
        filters=settings.filters,
        kernel=kernel,
        centering=settings.centering,
        generator=generator,
        **settings.options,
    )


def find_device(name: str) -> torch.device:
    """The device that a network is trained on; images follow it batch by batch. It must know float64, as MPS does not."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if device.type == "meta":
            raise RuntimeError("meta has no numbers")
        torch.zeros(1, dtype=torch.float64, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"device = {name!r} is not available; expected auto, cpu, or an available GPU such as cuda or cuda:1 ({reason})"
        ) from error
    return device


def to_classifier(
    settings: Settings,
    net: nn.Module,
    shape: tuple[int, int, int],
    pixels: data.Preprocessing,
    classes: int,
    generator: torch.Generator | None,
) -> Classifier:
    """The ConvNet with feature scaling, or its kernel counterpart."""
    if settings.kind == "convnet":
        convnet = ScaledConvNet(net, shape, pixels, settings.centering, generator=generator)
        if convnet.head.out_features != classes:
            raise ConfigError(
                f"the network gives {convnet.head.out_features} scores, the data have {classes} classes; build it for {classes}"
            )
        std = getattr(net, "init_std", None) if settings.init_std is None else settings.init_std
        if settings.init == "he":
            if settings.init_std is not None:
                raise ConfigError(f"give init = 'he' or init_std, not both; got init_std = {settings.init_std}")
            convnet.initialize_(None, generator)
        elif std is not None:
            convnet.initialize_(std, generator)
        # torch's convolutions are faster in this layout on a CPU, as those of kernel layers are
        return convnet.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    kernel = kernels.parse(settings.kernel)
    linear = kernels.parse(settings.linear_kernel)
    if isinstance(linear, str):
        raise ConfigError("linear_kernel expected a kernel, such as linear or rbf:0.6, got 'match'")
    return translate(
        net,
        shape,
        kernel,
        linear_kernel=linear,
        inverse_sqrt=settings.inverse_sqrt,
        root_block=settings.root_block,
        classes=classes,
        preprocessing=pixels,
        centering=settings.centering,
        generator=generator,
    )
