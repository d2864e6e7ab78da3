"""How a network is trained: every option once, with its default, its limits and what it means.

:class:`TrainConfig` is what :func:`torchckn.train` takes, what ``torchckn train --help`` shows, what a TOML file and the
experiments' specs are read into, and what a run folder keeps. A new option is one field here. Needs no torch.

Read next: :mod:`torchckn.fit.loop`.
"""

from __future__ import annotations

from typing import Any

from pydantic import field_serializer, field_validator, model_validator

from ..choices import (
    Augmentation,
    Chunk,
    ClassWeights,
    HeadUpdate,
    Hessian,
    Loss,
    Optimizer,
    PenaltySearch,
    Precision,
    PresetName,
    TrainingMethod,
)
from ..config import Config, option
from ..errors import ConfigError
from . import schedules
from .defaults import ADAMW_LR, BATCH_SIZE, GRAPH_MEMORY, METHOD_DEFAULTS, MOST, STEPS, preset_options

TRAINING, ULR, CLASSIFIER = "Training", "Ultimate layer reversal", "Classifier"
FILTERS, KEEPING = "Filters", "Validation and checkpoints"
#: the methods that begin with a classifier fitted to features
FITTED_FIRST = ("ulr", "sgo", "sgo-ball")
TRAINING_HEADINGS = (TRAINING, ULR, CLASSIFIER, FILTERS, KEEPING)


class MethodOptions(Config):
    """What one training step depends on, besides the images and the learning rate."""

    lam: float | None = option(
        None, "L2 penalty of the classifier; by default chosen on the validation images.", heading=CLASSIFIER, ge=0
    )
    loss: Loss = option("multinomial", "Loss of the classifier.", heading=CLASSIFIER, shapes_start=True)
    tau: float = option(
        2**-5, "Weight of the proximal term, which keeps the classifier's step short.", heading=ULR, only_for="ulr", ge=0
    )
    hessian: Hessian = option("auto", "Hessian of the classifier's quadratic model.", heading=ULR, only_for="ulr")
    # Reusing the classifier saves a third of the time. LeNet-5 does not mind: 98.2 % after 300 steps and 24 s, against 98.25 %
    # after 34 s. All-CNN-C does: with the penalty that its classifier chooses (2^-33) it drops from 37 to 32 % in 25 steps, where
    # the exact classifier rises to 45 %. So exact is the default.
    head_update: HeadUpdate = option(
        "exact",
        "Classifier after a step: computed for the new filters, as in the paper (exact), or for the old ones, without another "
        "forward pass (reuse).",
        heading=ULR,
        only_for="ulr",
    )
    class_weights: ClassWeights | None = option(
        None,
        "Weight of each class in the loss, such as 1,5,2; or balanced, for equal total weights.",
        heading=CLASSIFIER,
        shapes_start=True,
    )
    label_smoothing: float | None = option(
        None,
        "Fraction of each label that is spread over all classes.",
        heading=CLASSIFIER,
        ge=0,
        lt=1,
        shapes_start=True,
    )
    optimizer: Optimizer | None = option(
        None, "Optimizer of a ConvNet: sgd (the default) or adamw.", heading=TRAINING, only_for="convnet"
    )
    momentum: float | None = option(None, "Momentum; by default 0.9 for ulr and sgd, else 0.", heading=TRAINING, ge=0, lt=1)
    weight_decay: float = option(
        0.0, "L2 penalty of all weights of a ConvNet except the classifier's.", heading=TRAINING, only_for="convnet", ge=0
    )
    normalize: bool | None = option(
        None,
        "Scale each filter's gradient to unit norm; by default only in ulr, as in the paper.",
        heading=TRAINING,
        only_for="ckn",
    )
    radius: float | None = option(
        None,
        "Radius of the ball for sgo-ball; by default the norm of the initial classifier.",
        heading=CLASSIFIER,
        only_for="sgo-ball",
        gt=0,
    )
    chunk: Chunk = option("auto", "Images that are processed at a time: a number, auto, or all.", heading=TRAINING)
    graph_memory: float = option(
        GRAPH_MEMORY,
        "Megabytes for intermediate results of a step; what does not fit is computed twice. With 0, a step needs hardly more "
        "memory for larger batches.",
        heading=TRAINING,
        bookkeeping=True,
        ge=0,
        le=MOST,
    )
    precision: Precision = option(
        "float32",
        "Precision of convolutions and kernel maps in training steps: float32 (that of the network), or autocast to bfloat16 or "
        "float16. Roots, projections and the classifier keep that of the network.",
        heading=TRAINING,
    )

    @field_validator("class_weights", mode="before")
    @classmethod
    def _a_word(cls, weights: Any) -> Any:
        return weights[0] if isinstance(weights, list) and weights == ["balanced"] else weights  # of the command line

    @field_validator("chunk")
    @classmethod
    def _some_images(cls, chunk: Chunk) -> Chunk:
        if isinstance(chunk, int) and not 1 <= chunk <= MOST:
            raise ConfigError(f"chunk: expected at least one image and at most {MOST}, 'auto' or 'all', got {chunk!r}")
        return chunk


class TrainConfig(MethodOptions):
    """How to train a network: the options of :func:`torchckn.train` and of ``torchckn train``.

    Example:
        >>> config = TrainConfig(steps=100, lr="cosine:0.03")
        >>> config.replace(batch_size=64).steps
        100
        >>> TrainConfig(step=100)
        Traceback (most recent call last):
            ...
        torchckn.errors.ConfigError: unknown option 'step'. Did you mean 'steps'?
    """

    method: TrainingMethod | None = option(None, "Training method; by default ulr, for ConvNets sgd.", heading=TRAINING)
    steps: int | None = option(
        None,
        f"Training steps, one mini-batch each; {STEPS} by default. 0: only unsupervised filters and a classifier.",
        heading=TRAINING,
        ge=0,
        le=MOST,
    )
    epochs: int | None = option(None, "Passes over the training images, instead of steps.", heading=TRAINING, ge=0, le=MOST)
    batch_size: int | None = option(
        None, f"Images per step; by default {BATCH_SIZE}, or all if there are fewer.", heading=TRAINING, ge=1
    )
    lr: Any = option(
        None,
        "Learning rate: a number, search, search:2019, cosine:0.01 (decays to zero), root:1, or stages 0.1,0.01.",
        heading=TRAINING,
    )
    augment: tuple[Augmentation, ...] | None = option(
        None,
        "Random augmentation of training images: flip, crop, shift; several as flip,crop; or none.",
        heading=TRAINING,
    )
    rollback: bool = option(False, "Undo epochs that reduce the training accuracy by more than 2 %.", heading=TRAINING)
    seed: int = option(0, "Seed of everything that is random.", heading=TRAINING, shapes_start=True, ge=0, lt=2**63)
    lambdas: tuple[float, ...] | None = option(
        None,
        "L2 penalties to choose from; by default the paper's, 2^0 to 2^-40.",
        heading=CLASSIFIER,
        min_length=1,
        shapes_start=True,
    )
    folds: int | None = option(
        None,
        "Cross-validation folds to choose the L2 penalty of the first classifier; by default 5 for fewer than 2,000 images, else "
        "0: it is chosen on the validation images.",
        heading=CLASSIFIER,
        only_for=FITTED_FIRST,
        ge=0,
        shapes_start=True,
    )
    start_images: int | None = option(
        None,
        "Training images for the first classifier, before the steps; by default all.",
        heading=CLASSIFIER,
        only_for=FITTED_FIRST,
        ge=1,
        shapes_start=True,
    )
    copies: int = option(
        0,
        "With augment: randomly changed copies of each training image that classifiers are fitted to as well.",
        heading=CLASSIFIER,
        ge=0,
        le=1000,
        shapes_start=True,
    )
    penalty_search: PenaltySearch = option(
        "path",
        "L2 penalties to try: from large to small until the accuracy keeps decreasing (path), or all, as in the paper "
        "(exhaustive).",
        heading=CLASSIFIER,
        shapes_start=True,
    )
    final_head: bool = option(True, "Refit the classifier on all features at the end.", heading=CLASSIFIER)
    validation_labels: bool = option(
        False,
        "Fit the last classifier to training and validation images together, after its L2 penalty has been chosen.",
        heading=CLASSIFIER,
    )
    patches: int = option(
        10_000, "Patches per layer for the unsupervised filters.", heading=FILTERS, only_for="ckn", shapes_start=True, ge=1
    )
    restarts: int = option(
        3, "Random starts of k-means; the best one is used.", heading=FILTERS, only_for="ckn", shapes_start=True, ge=1
    )
    trainable: tuple[str, ...] | None = option(
        None, "Names of the layers to train; by default all that have trainable filters.", heading=FILTERS, only_for="ckn"
    )
    bandwidths: bool = option(False, "Train the bandwidths of RBF kernels as well.", heading=FILTERS, only_for="ckn")
    evaluate_every: int | None = option(
        None, "Steps between validations; by default a tenth of all steps.", heading=KEEPING, ge=1
    )
    patience: int | None = option(None, "Stop after this many validations without a better accuracy.", heading=KEEPING, ge=1)
    keep_best: bool = option(False, "Return the weights of the best validation instead of the last ones.", heading=KEEPING)
    checkpoint_every: int = option(100, "Steps between checkpoints.", heading=KEEPING, bookkeeping=True, ge=1)

    @field_validator("lr")
    @classmethod
    def _a_schedule(cls, lr: Any) -> Any:
        if lr is not None:
            schedules.schedule(lr)
        return schedules.plain(lr)

    @model_validator(mode="after")
    def _nothing_to_roll_back(self) -> TrainConfig:
        if self.rollback and self.lr is not None and schedules.schedule(self.lr).keep:
            raise ConfigError(
                f"rollback: expected a schedule that keeps no steps of its trials, got lr={self.lr!r}; use lr='search'"
            )
        return self

    @field_serializer("lr")
    def _plain_lr(self, lr: Any) -> Any:
        return schedules.describe(lr)

    @field_validator("augment", mode="before")
    @classmethod
    def _no_changes(cls, kinds: Any) -> Any:
        kinds = kinds.split(",") if isinstance(kinds, str) else kinds
        return None if kinds is None or list(kinds) in ([], ["none"]) else kinds

    @field_validator("trainable", mode="before")
    @classmethod
    def _a_list(cls, names: Any) -> Any:
        if isinstance(names, str):
            raise ConfigError(f"trainable: expected a list of layers' names, got {names!r}; write [{names!r}]")
        return None if names is None else tuple(sorted(names))

    @field_validator("lambdas")
    @classmethod
    def _penalties(cls, lambdas: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if lambdas is not None and not all(value >= 0 for value in lambdas):
            raise ConfigError(f"lambdas: expected numbers >= 0, got {list(lambdas)}")
        return lambdas

    @classmethod
    def preset(cls, name: PresetName, **overrides: Any) -> TrainConfig:
        """The options of a preset, ``"fast"`` or ``"accurate"``, with others in their place where they are given.

        Example:
            >>> TrainConfig.preset("fast", seed=1).head_update
            'reuse'
        """
        return cls(**preset_options(name, overrides) | overrides)

    def resolved(self, method: TrainingMethod, images: int | None, batches: int | None = None) -> TrainConfig:
        """With the defaults filled in that depend on the method and on the number of training images.

        Args:
            method: what to train with if the configuration does not say.
            images: number of training images, if that is known.
            batches: number of batches per epoch, of data that have their own batches.
        """
        if self.steps is not None and self.epochs is not None:
            raise ConfigError(f"give steps or epochs, not both; got steps={self.steps} and epochs={self.epochs}")
        if self.validation_labels and not self.final_head:
            raise ConfigError(
                "validation_labels is for the last classifier, expected final_head=True, got False; set validation_labels=False"
            )
        if self.copies and not self.augment:
            raise ConfigError(
                f"copies are augmented images: expected augment, such as flip,crop, got copies={self.copies} alone"
            )
        if self.augment and not self.copies and 0 in (self.steps, self.epochs):
            raise ConfigError(
                "augment changes the images of training steps: expected steps, got none; fit the classifier to augmented copies "
                "of the images (copies=5, or --copies 5), or remove augment"
            )
        method = self.method or method
        defaults = METHOD_DEFAULTS[method]
        default_lr = ADAMW_LR if self.optimizer == "adamw" else defaults["lr"]
        batch_size = self.batch_size or min(BATCH_SIZE, images or BATCH_SIZE)
        steps = STEPS if self.steps is None else self.steps
        if self.epochs is not None:
            if images is None:
                raise ConfigError("epochs needs training data whose number of images is known; give steps instead")
            steps = self.epochs * (images // batch_size if batches is None else batches)
        return self.replace(
            method=method,
            batch_size=batch_size,
            steps=steps,
            epochs=None,
            lr=default_lr if self.lr is None else self.lr,
            momentum=defaults["momentum"] if self.momentum is None else self.momentum,
        )
