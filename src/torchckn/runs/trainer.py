"""Training with labels: Algorithm 2 of the paper, whole.

Unsupervised filters, a classifier on all features, steps on mini-batches, the classifier refitted on all features. A run that
has a folder can be interrupted, or killed, at any moment, and resumed to give exactly what it would have given.

Read first: :mod:`torchckn.fit.loop`, the steps, and :mod:`torchckn.runs`, what a run leaves behind.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from ..data import size_of
from ..data.batches import check_whole, sampler_of
from ..distributed import check_agreement, code_digest, digest_of, from_first, is_first, rank, world
from ..errors import ConfigError, DataError
from ..fit.batches import TrainingBatches
from ..fit.callbacks import Callback, EarlyStopping, KeepBest, ProgressBar
from ..fit.chunks import BATCH_NORMS, check_chunk, share_of_batch
from ..fit.config import TrainConfig
from ..fit.features import check_labels
from ..fit.folds import FEW_IMAGES
from ..fit.loop import TrainingLoop, share_weights
from ..fit.methods import METHODS, Method
from ..fit.result import TrainResult
from ..fit.targets import aim
from ..network import Classifier, modes_kept
from ..nn.whitening import Whitening, every_whitening
from .callbacks import Checkpoints, FilterSnapshots, MetricsFile
from .digests import data_digest
from .folder import Run
from .reading import DIGESTS

#: the digest, computed once: a process runs the code that it has imported
_code = functools.cache(code_digest)


def train(
    net: Classifier,
    train_data: Any,
    valid_data: Any = None,
    config: TrainConfig | None = None,
    *,
    generator: torch.Generator | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    description: Mapping[str, Any] | None = None,
    unlabeled: Any = None,
    method_class: type[Method] | None = None,
    clock: Callable[[], float] = time.perf_counter,
    **overrides: Any,
) -> TrainResult:
    """Train a network with labels, in place.

    What has not been done to the network yet is done first: unsupervised filters (``fit_filters``), the classifier on all
    features (``fit_head``). Afterwards the classifier is refitted. ``method="sgd"`` starts from a ConvNet's own random weights.

    With several processes (:mod:`torchckn.distributed`), all of them call this with the same arguments and data, each computes
    its share, and all end with the same network; the first one writes ``run_dir``.

    Args:
        net: a CKN, or a :class:`torchckn.ScaledConvNet`.
        train_data: a pair (images, labels), a ``Dataset`` of such pairs, or a ``DataLoader``.
        valid_data: images and labels to choose the L2 penalty on, and to follow the accuracy. Without them, pass ``lam``.
        config: how to train; every option is described there.
        generator: decides everything that is random, in place of ``seed``.
        run_dir: folder to keep configuration, metrics, checkpoints and the trained network in.
        resume: continue the run in ``run_dir``, if there is one; with more ``steps``, it is trained further, and may have another
            ``lr``, ``head_update`` or ``augment``.
        callbacks: see :class:`torchckn.Callback`. With several processes, each of them has its own.
        progress: whether to show progress bars; by default on a terminal.
        description: what else the run's ``config.toml`` says.
        unlabeled: images, or data whose labels are not used, to fit the unsupervised filters to, instead of ``train_data``.
        method_class: a training step of your own, in place of the one that ``method`` names.
        clock: what seconds are measured with. ``time.process_time`` does not count the time of other programs; it adds up
            the time of all threads, so use it with one thread.
        overrides: options of :class:`torchckn.TrainConfig` by name, which take precedence over ``config``.

    Example:
        >>> from torchckn import data, train, translate, zoo
        >>> digits = data.load("mnist-mini")
        >>> ckn = translate(zoo.build("lenet1", filters=4), (1, 28, 28))
        >>> result = train(ckn, digits.train[:300], lam=2**-10, steps=2, batch_size=32, patches=100)
        >>> result.steps
        2
    """
    if not isinstance(net, Classifier):
        raise ConfigError(f"train expected a CKN (torchckn.translate) or a torchckn.ScaledConvNet, got {type(net).__name__}")
    config = _merged(config, overrides)
    images = size_of(train_data)
    own_batches = len(train_data) if isinstance(train_data, DataLoader) and images is not None else None
    config = config.resolved(net.default_method, images, own_batches)
    config = config.replace(seed=_seed(config, overrides, generator))
    if generator is None:
        generator = torch.Generator().manual_seed(config.seed)
    _check(net, train_data, valid_data, config)
    if config.class_weights == "balanced":
        labels = check_labels(_all_labels(train_data), net.head.out_features)
        config = config.replace(class_weights=aim("balanced", None, labels, net.head.out_features).class_weights)
    share_of = functools.partial(share_of_batch, net, chunk=config.chunk, precision=config.precision)
    batch_size, classes = config.batch_size or 1, net.head.out_features
    training_batches = TrainingBatches(train_data, batch_size, classes, generator, config.augment, share_of)
    with (
        modes_kept(net),
        net.training_only(config.trainable, config.bandwidths),
        _torch_seeded(generator),
        every_whitening(net, Whitening.keeping),
        torch.enable_grad(),
    ):
        if config.steps and not net.parameter_groups():
            raise ConfigError("there is nothing to train: every layer is fixed; check trainable=... and requires_grad")
        content = {}
        if run_dir or world() > 1:
            content = _run_content(net, train_data, valid_data, unlabeled, config, description)
        if world() > 1:
            _check_same(content, generator)
            share_weights(net)
        run: Run | None = None

        def open_run() -> None:
            nonlocal run
            if run_dir is not None:
                run = Run(run_dir, content, resume, free=TrainConfig.option_names(bookkeeping=True))

        from_first(open_run)
        progress = progress if is_first() else False
        try:
            loop = TrainingLoop(
                net=net,
                config=config,
                method_class=method_class or METHODS[config.method or net.default_method],
                train_data=train_data,
                valid_data=valid_data,
                batches=training_batches,
                generator=generator,
                callbacks=[*callbacks, *_built_in(config, run, progress)],
                store=run,
                unlabeled=unlabeled,
                progress=progress,
                clock=clock,
            )
            return loop.train()
        except (ConfigError, DataError):  # a mistake in options or data, which may be corrected
            if run is not None:
                run.discard()
            raise
        finally:
            net.zero_grad()
            if run is not None:
                run.close()


def _merged(config: TrainConfig | None, overrides: Mapping[str, Any]) -> TrainConfig:
    if config is None:
        return TrainConfig(**overrides)
    if not isinstance(config, TrainConfig):
        raise ConfigError(f"config: expected a torchckn.TrainConfig, got {type(config).__name__}")
    return config.replace(**overrides)


def _seed(config: TrainConfig, overrides: Mapping[str, Any], generator: torch.Generator | None) -> int:
    if generator is None:
        return config.seed
    if not isinstance(generator, torch.Generator):
        raise ConfigError(
            f"generator: expected a torch.Generator, got {generator!r}; pass a number as seed=..., or "
            "torch.Generator().manual_seed(0)"
        )
    if "seed" in overrides and generator.initial_seed() != config.seed:
        raise ConfigError(f"give seed or generator, not both; got seed={config.seed} and a generator of another seed")
    return generator.initial_seed()


def _check(net: Classifier, train_data: Any, valid_data: Any, config: TrainConfig) -> None:
    """What would go wrong later goes wrong now, before anything is written."""
    if config.method == "sgd" and net.on_spheres:
        raise ConfigError(
            "method 'sgd' is for ConvNets and does not keep filters at unit norm; train a CKN with 'ulr' or 'sgo'"
        )
    images = size_of(train_data)
    has_folds = config.folds if config.folds is not None else images is not None and images < FEW_IMAGES
    needs_choice = not has_folds if config.method != "sgd" else config.final_head
    if valid_data is None and config.lam is None and net.penalty is None and needs_choice:
        others = "no classifier at the end (final_head=False, --no-final-head)"
        if config.method != "sgd":
            others = "a number of folds (folds=5, --folds 5) to choose it by cross-validation"
        raise ConfigError(
            f"train chooses the L2 penalty on validation data: pass valid_data, or the penalty itself (lam, --lam), or {others}"
        )
    coupled = [type(module).__name__ for module in net.modules() if isinstance(module, BATCH_NORMS)]
    if world() > 1 and config.steps and coupled:  # each process has the statistics of its own images
        raise ConfigError(
            f"train expected a network without batch normalization on {world()} processes, got one with {coupled[0]}, whose "
            "output depends on all images of a batch; use one process, nn.GroupNorm, or nn.SyncBatchNorm in a training loop of "
            "your own with DistributedDataParallel"
        )
    if config.steps:
        check_chunk(net.modules(), config.chunk)
    for data in (train_data, valid_data):
        check_whole(data)
        if world() > 1 and isinstance(data, DataLoader) and _shuffles_by_itself(data):
            raise ConfigError(
                f"train expected data in the same order in all {world()} processes, got a DataLoader that shuffles by torch's "
                "own random numbers, which differ; pass its Dataset, which train shuffles itself, or "
                "DataLoader(..., generator=torch.Generator().manual_seed(0))"
            )
    if config.copies and isinstance(train_data, (Dataset, DataLoader)):
        raise ConfigError(
            f"copies are for images in memory, got {type(train_data).__name__}; pass a pair (images, labels), leave --stream "
            "out, or set copies=0"
        )
    if config.rollback and isinstance(train_data, (DataLoader, IterableDataset)):
        raise ConfigError(
            f"rollback needs to know where an epoch ends, which it cannot of a {type(train_data).__name__}; pass a Dataset or a "
            "pair (images, labels)"
        )
    for name in ("patience", "keep_best"):
        if valid_data is None and getattr(config, name):
            raise ConfigError(f"{name} needs validation data: pass valid_data")


def _shuffles_by_itself(loader: DataLoader[Any]) -> bool:
    sampler = sampler_of(loader)
    return isinstance(sampler, (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)) and sampler.generator is None


def _all_labels(data: Any) -> Tensor:
    """The labels of all training images, where they are in memory."""
    labels = getattr(data, "labels", data[1] if isinstance(data, (tuple, list)) and len(data) == 2 else None)
    if labels is None:
        raise ConfigError(
            f"class_weights: 'balanced' needs all training labels at once, which {type(data).__name__} does not have; pass a "
            "number for each class"
        )
    return torch.as_tensor(labels)


def _built_in(config: TrainConfig, run: Run | None, progress: bool | None) -> list[Callback]:
    """The callbacks that the configuration asks for. Checkpoints come after all that may ask to stop or has a state."""
    callbacks: list[Callback] = []
    if config.patience is not None:
        callbacks.append(EarlyStopping(config.patience))
    if config.keep_best:
        callbacks.append(KeepBest())
    if run is not None:
        callbacks += [MetricsFile(run), FilterSnapshots(run), Checkpoints(run, config.checkpoint_every)]
    return [*callbacks, ProgressBar(progress)]


def _run_content(
    net: Classifier,
    train_data: Any,
    valid_data: Any,
    unlabeled: Any,
    config: TrainConfig,
    description: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """What a run folder's ``config.toml`` says, and what has to be the same in all processes."""
    return {
        "network": net.fingerprint(),
        "data": data_digest(train_data),
        "validation_data": None if valid_data is None else data_digest(valid_data),
        "unlabeled_data": None if unlabeled is None else data_digest(unlabeled),
        **(description or {}),
        "training": config.to_plain(),
    }


def _check_same(content: Mapping[str, Any], generator: torch.Generator) -> None:
    """An error unless all processes have the same code, data, network, options and random numbers."""
    facts = {text: str(content[name]) for name, text in DIGESTS.items()}
    options = digest_of(sorted(content["training"].items()))
    random_numbers = digest_of(generator.get_state().tolist())
    check_agreement({"version of the code": _code(), **facts, "training options": options, "seed": random_numbers})


@contextmanager
def _torch_seeded(generator: torch.Generator) -> Iterator[None]:
    """Within this context what draws from torch's own generator, such as dropout, depends on ours; after it, all is as before."""
    with torch.random.fork_rng():
        torch.manual_seed((generator.initial_seed() + rank()) % 2**63)
        yield
