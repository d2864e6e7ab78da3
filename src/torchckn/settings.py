"""What a run is made of, as a user writes it: on the command line, or in a TOML file with the same names.

Each field is one option of ``torchckn train`` and one key of its ``--config``. How to train is :class:`torchckn.TrainConfig`,
embedded here; its options stand beside the others on the command line and in the file. Nothing here needs torch, so that help is
quick.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pydantic import Field

from .choices import Centering, ConvNetInit, Kind, RootBlock
from .config import Config, metadata_of, option
from .errors import ConfigError, PathError, unknown_name
from .fit.config import TRAINING_HEADINGS, MethodOptions, TrainConfig

NETWORK, IMAGES = "Network", "Images"
#: the headings of ``--help``, in this order
HEADINGS = (NETWORK, IMAGES, *TRAINING_HEADINGS)


class Settings(Config):
    """A network, the images it is trained on, and how."""

    network: str = option(
        "lenet5", "A network of the zoo, ckn-cifar, ckn-cifar5, or your own as file.py:ClassName.", heading=NETWORK
    )
    filters: int | None = option(
        None,
        "Filters per layer, for networks of the zoo; by default as published. ckn-cifar: of its first layer.",
        heading=NETWORK,
        ge=1,
        le=2**14,
    )
    options: dict[str, Any] = option({}, "Further arguments of the network's class, as in bias=false.", heading=NETWORK)
    kind: Kind = option("ckn", "Train the kernel counterpart, or the ConvNet itself.", heading=NETWORK)
    data: str = option("mnist-mini", "A data set by name, a folder of images, or an .npz file.", heading=IMAGES)
    validation: int | None = option(
        None, "Images held out for validation; by default a sixth, at most 10,000. 0: none.", heading=IMAGES, ge=0
    )
    stream: bool = option(
        False, "Read images when they are needed, from a folder of images, .tar or .npz files.", heading=IMAGES
    )
    resize: int | None = option(None, "Side in pixels to which image files are resized.", heading=IMAGES, ge=1, le=2**13)
    workers: int = option(0, "With stream: number of processes that decode images in advance.", heading=IMAGES, ge=0, le=256)
    unlabeled: str | None = option(
        None,
        "Folder of further images without labels, for the unsupervised filters and the pixel statistics.",
        heading=IMAGES,
        only_for="ckn",
    )
    whiten: bool = option(
        False, "Whiten the 3x3 patches of each image first, as the paper does for CIFAR-10.", heading=IMAGES
    )
    kernel: str = option(
        "rbf:0.6",
        "Kernel of nonlinear layers: match, rbf:0.6, arccosine:1, polynomial:2:0, matern:1.5:0.6, dual:tanh.",
        heading=NETWORK,
        only_for="ckn",
    )
    linear_kernel: str = option(
        "rbf:0.6",
        "Kernel of layers without a nonlinearity: linear, or as for --kernel.",
        heading=NETWORK,
        only_for="ckn",
    )
    inverse_sqrt: str = option(
        "auto",
        "Method of the inverse square root: auto, eigh, newton, newton:50 (iterations), svd.",
        heading=NETWORK,
        only_for="ckn",
    )
    root_block: RootBlock = option(
        "auto",
        "Maximum number of filters per inverse square root in wide layers: a number, auto (256), or all.",
        heading=NETWORK,
        only_for="ckn",
    )
    centering: Centering = option(
        "image",
        "Mean that is subtracted from features: per image or per feature; none; raw: no mean and no scaling.",
        heading=NETWORK,
    )
    init: ConvNetInit = option(
        "paper",
        "Initial weights of a ConvNet: normal with one standard deviation, as in the paper, or He initialization.",
        heading=NETWORK,
        only_for="convnet",
    )
    init_std: float | None = option(
        None,
        "Standard deviation of a ConvNet's initial weights; by default the paper's, for networks of the zoo.",
        heading=NETWORK,
        only_for="convnet",
        gt=0,
    )
    device: str = option("auto", "Device: auto (a CUDA GPU if available), cpu, cuda, cuda:1.", heading=NETWORK)
    training: TrainConfig = Field(default_factory=TrainConfig)

    @property
    def method(self) -> str:
        """The training method, by default that of the kind of network."""
        return self.training.method or ("ulr" if self.kind == "ckn" else "sgd")

    @classmethod
    def all_options(cls) -> dict[str, Any]:
        """Every option by name, those of training included."""
        fields = {name: field for name, field in cls.model_fields.items() if name != "training"} | TrainConfig.model_fields
        places = {
            name: (HEADINGS.index(metadata_of(field)["heading"]), name in MethodOptions.model_fields)
            for name, field in fields.items()
        }
        return {name: fields[name] for name in sorted(fields, key=lambda name: places[name])}

    def to_flat(self) -> dict[str, Any]:
        """All options side by side, as a file has them; an option that is None is left out."""
        own = self.to_plain()
        return {name: value for name, value in own.items() if name != "training"} | own["training"]


def settings_from(values: dict[str, Any], source: str) -> Settings:
    """Settings from options side by side, or an error that names the option, what was expected, and the nearest name."""
    options = Settings.all_options()
    for name in values:
        if name not in options:
            raise ConfigError(f"{source}: {unknown_name('option', name, options)}")
    training = {name: value for name, value in values.items() if name in TrainConfig.model_fields}
    own = {name: value for name, value in values.items() if name not in training}
    try:
        return Settings(**own, training=TrainConfig(**training))
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def read_settings(file: Path, what: str = "--config") -> dict[str, Any]:
    """The plain values of a TOML file; ``what`` names who expects it in an error."""
    from .files import read_text  # which imports torch, and help needs none

    try:
        return tomllib.loads(read_text(file))
    except FileNotFoundError:
        raise PathError(f"{file} does not exist; {what} expects a TOML file") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not UTF-8 text; save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # beside TOMLDecodeError: a number of very many digits
        raise ConfigError(f"{file} is not valid TOML: {error}") from None
