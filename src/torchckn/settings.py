"""What a run is made of, as a user writes it: on the command line, or in a TOML file with the same names.

Each field is one option of ``torchckn train`` and one key of its ``--config``; nothing here needs torch, so that help is quick.
"""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .errors import ConfigError


class Settings(BaseModel):
    """A network, the images it is trained on, and how."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    network: str = Field("lenet5", description="A network of the zoo, or file.py:ClassName for one of your own.")
    filters: int | None = Field(None, ge=1, description="Filters a layer, for networks of the zoo; their own by default.")
    options: dict[str, Any] = Field({}, description="Further arguments of the network's class, as in bias=false.")
    kind: Literal["ckn", "convnet"] = Field("ckn", description="Train the kernel counterpart, or the ConvNet itself.")
    data: str = Field("mnist-mini", description="A data set by name, a folder of images, or an .npz file.")
    validation: int | None = Field(None, ge=1, description="Images held out for validation; a sixth, at most 10,000.")
    whiten: bool = Field(False, description="Whiten 3x3 patches of each image first, as the paper does for CIFAR-10.")
    kernel: str = Field(
        "rbf:0.6",
        description="Of nonlinear layers: match, rbf:0.6, arccosine:1, polynomial:2:0, matern:1.5:0.6.",
    )
    linear_kernel: str = Field("rbf:0.6", description="Of layers without a nonlinearity: linear, or as for --kernel.")
    inverse_sqrt: Literal["auto", "eigh", "newton", "svd"] = Field("auto", description="Method of the inverse square root.")
    centering: Literal["image", "feature", "none"] = Field(
        "image", description="Mean taken off features: per image, or feature."
    )
    init_std: float | None = Field(None, gt=0, description="Spread of a ConvNet's first weights; in the zoo, the paper's.")
    method: Literal["ulr", "sgo", "sgo-ball", "sgd"] | None = Field(None, description="By default ulr, sgd for ConvNets.")
    steps: int = Field(500, ge=1, description="Mini-batches to train on.")
    batch_size: int | None = Field(None, ge=1, description="Images in a mini-batch; 256, or all if there are fewer.")
    lr: str | float | list[float] | None = Field(
        None,
        description="Step size: 0.01, search, cosine:0.01, root:1, or stages 0.1,0.01.",
    )
    momentum: float | None = Field(None, ge=0, lt=1, description="By default 0.9 for ulr and sgd, else 0.")
    tau: float = Field(2**-5, ge=0, description="Proximal term of ultimate layer reversal.")
    lam: float | None = Field(None, ge=0, description="Penalty of the classifier; by default chosen on validation images.")
    loss: Literal["multinomial", "square"] = Field("multinomial", description="Loss of the classifier.")
    hessian: Literal["full", "diag", "cg", "auto"] = Field("auto", description="Hessian of ultimate layer reversal.")
    head_update: Literal["exact", "reuse"] = Field("exact", description="How the classifier follows the filters.")
    bandwidths: bool = Field(False, description="Train the bandwidths of RBF kernels as well.")
    rollback: bool = Field(False, description="Undo epochs that lose more than 2 % of training accuracy.")
    patches: int = Field(10_000, ge=1, description="Patches for the filters without labels.")
    evaluate_every: int | None = Field(None, ge=1, description="Steps between looks at the validation images.")
    checkpoint_every: int = Field(100, ge=1, description="Steps between checkpoints.")
    device: str = Field("auto", description="What trains: auto (a CUDA GPU if there is one), cpu, cuda, cuda:1.")
    seed: int = Field(0, ge=0, description="Decides everything that is random.")

    @property
    def training_method(self) -> Literal["ulr", "sgo", "sgo-ball", "sgd"]:
        return self.method or ("ulr" if self.kind == "ckn" else "sgd")


def settings_from(values: dict[str, Any], source: str) -> Settings:
    """Settings from plain values, or an error that names the key, what was expected, and the nearest known name."""
    try:
        return Settings(**values)
    except ValidationError as error:
        raise ConfigError(f"{source}: {_explain(error)}") from None


def read_settings(file: Path, what: str = "--config") -> dict[str, Any]:
    """The plain values of a TOML file; ``what`` expects it, as an error would say."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{file} does not exist; {what} expected a TOML file") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not UTF-8 text; save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from None


def _explain(error: ValidationError) -> str:
    """The first thing that is wrong, in a sentence."""
    first = error.errors()[0]
    key = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, Settings.model_fields, n=1)
        guess = f" Did you mean {near[0]!r}?" if near else f" Known keys: {', '.join(Settings.model_fields)}."
        return f"unknown key {key!r}.{guess}"
    return f"{key} = {first['input']!r}: {first['msg'][0].lower()}{first['msg'][1:]}"
