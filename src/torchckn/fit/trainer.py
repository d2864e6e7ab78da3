"""Training with labels: Algorithm 2 of the paper, whole.

Filters without labels, a classifier on all features, steps on mini-batches, a classifier on all features once more. A run that
has a folder can be interrupted, or killed, at any moment, and resumed to give exactly what it would have given.

Read first: :mod:`torchckn.fit.loop`, the steps. Read next: :mod:`torchckn.runs`, what a run leaves behind.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ..choices import Chunk, HeadUpdate, Hessian, Loss
from ..choices import TrainingMethod as MethodName
from ..data.batches import batches, size_of
from ..errors import ConfigError, unknown_name
from ..kernels import Kernel, RBFSphere
from ..network import CKN, Classifier, modes_kept
from ..runs import Run, read_config
from .batches import TrainingBatches
from .classifier import LAMBDAS, HeadFit
from .filters import fit_filters
from .head import fit_head
from .loop import Loop, TrainResult
from .methods import METHODS, MethodOptions
from .schedules import StepSize, step_size


def train(
    net: Classifier,
    train_data: Any,
    valid_data: Any = None,
    *,
    method: MethodName = "ulr",
    steps: int = 500,
    batch_size: int | None = None,
    lr: float | str | Sequence[float] | StepSize | None = None,
    tau: float = 2**-5,
    lam: float | None = None,
    loss: Loss = "multinomial",
    hessian: Hessian = "auto",
    head_update: HeadUpdate = "exact",
    momentum: float | None = None,
    normalize: bool | None = None,
    radius: float | None = None,
    trainable: Iterable[str] | None = None,
    bandwidths: bool = False,
    rollback: bool = False,
    patches: int = 10_000,
    lambdas: Sequence[float] = LAMBDAS,
    final_head: bool = True,
    chunk: Chunk = "auto",
    evaluate_every: int | None = None,
    checkpoint_every: int = 100,
    generator: torch.Generator | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: bool | None = None,
    on_step: Callable[[dict[str, Any]], None] | None = None,
    description: Mapping[str, Any] | None = None,
) -> TrainResult:
    """Train a network with labels, in place.

    What has not been done to the network yet is done first: filters without labels (``fit_filters``), the classifier on all
    features (``fit_head``). Afterwards the classifier is fitted once more. ``"sgd"`` starts from a ConvNet's own random weights.

    Args:
        net: a CKN, or a :class:`torchckn.ScaledConvNet`.
        train_data: a pair (images, labels), a ``Dataset`` of such pairs, or a ``DataLoader``.
        valid_data: images and labels to choose the penalty on, and to follow the accuracy. Without them, pass ``lam``.
        method: ``"ulr"``, ``"sgo"``, ``"sgo-ball"``; ``"sgd"`` for ConvNets. See :mod:`torchckn.fit.methods`.
        steps: how many mini-batches.
        batch_size: images in each; by default 256, or all of them if there are fewer.
        lr: step size: a number; ``"search"``, the paper's; ``"cosine:0.03"``, from there to zero; a list of numbers, for stages
            of 2,000 steps each; or a rule of :mod:`torchckn.fit.schedules`.
        tau, hessian: of ultimate layer reversal; see :func:`torchckn.fit.ulr.reduced_objective`.
        lam: penalty of the classifier; by default the one its first fit has chosen, 2^-17 for ``"sgd"``.
        head_update: ``"exact"``: after the step, the classifier is that of the model at the new filters, as in the paper, at the
            cost of another forward pass; ``"reuse"``: that of the model at the old ones, which is known already.
        momentum: by default 0.9 for ``"ulr"`` and ``"sgd"``, else 0. The paper has none for CKNs.
        normalize: whether each filter's gradient is scaled to unit norm; by default in ``"ulr"``, as in the paper.
        radius: of ``"sgo-ball"``; by default the norm of the classifier it starts from.
        trainable: names of the layers to train; by default all that have filters to train.
        bandwidths: train the bandwidths of RBF kernels as well.
        rollback: after an epoch that loses more than 2 % of training accuracy, go back to the state before it and divide the
            step size by 4.
        patches: for the filters without labels.
        final_head: whether to fit the classifier once more at the end.
        chunk: images that go through the network at a time; see :func:`torchckn.fit.chunks.batch_gradient`.
        evaluate_every: steps between looks at the validation data; by default ten in all.
        checkpoint_every: steps between checkpoints.
        generator: decides everything that is random.
        run_dir: folder to keep configuration, metrics, checkpoints and the trained network in.
        resume: go on with the run in ``run_dir``, if there is one.
        on_step: called with each record of the history.
        description: what else the run's configuration shall say.
    """
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    for name, value, known in (
        ("loss", loss, Loss),
        ("hessian", hessian, Hessian),
        ("head_update", head_update, HeadUpdate),
    ):
        if value not in get_args(known):
            raise unknown_name(name, value, get_args(known))
    for name, number in (("steps", steps), ("checkpoint_every", checkpoint_every), ("evaluate_every", evaluate_every)):
        if number is not None and (not isinstance(number, int) or number < 1):
            raise ConfigError(f"{name} expected a whole number of at least 1, got {number!r}")
    if not isinstance(net, Classifier):
        raise ConfigError(f"train expected a CKN (torchckn.translate) or a torchckn.ScaledConvNet, got {type(net).__name__}")
    if method == "sgd" and isinstance(net, CKN):
        raise ConfigError("method 'sgd' is for ConvNets, and would leave the sphere; train a CKN with 'ulr' or 'sgo'")
    for name, amount in (("tau", tau), ("lam", lam), ("momentum", momentum), ("radius", radius)):
        if amount is not None and not (isinstance(amount, (int, float)) and 0 <= amount < math.inf):
            raise ConfigError(f"{name} expected a number >= 0, got {amount!r}")
    if generator is not None and not isinstance(generator, torch.Generator):
        raise ConfigError(
            f"generator expected a torch.Generator, got {generator!r}; torch.Generator().manual_seed(0) makes one"
        )
    if isinstance(trainable, str):
        raise ConfigError(f"trainable expected a list of layers' names, got {trainable!r}; write [{trainable!r}]")
    trainable = None if trainable is None else sorted(trainable)
    if batch_size is None:
        batch_size = min(256, size_of(train_data) or 256)
    if generator is None:
        generator = torch.Generator().manual_seed(_seed_of(run_dir if resume else None))
    rule = step_size(DEFAULT_LR[method] if lr is None else lr, convnet=method == "sgd")
    order = TrainingBatches(train_data, batch_size, net.head.out_features, generator)
    if valid_data is None and lam is None and not net.lam >= 0 and (method != "sgd" or final_head):
        raise ConfigError("train chooses the penalty on validation data: pass valid_data, or the penalty itself as lam=...")
    options = MethodOptions(
        lam=-1.0,
        loss=loss,
        tau=tau,
        hessian=hessian,
        head_update=head_update,
        momentum=(0.9 if method in ("ulr", "sgd") else 0.0) if momentum is None else momentum,
        normalize=normalize,
        radius=radius,
        chunk=chunk,
    )
    asked = {
        "method": method,
        "steps": steps,
        "batch_size": batch_size,
        "lr": describe_rule(rule),
        "lam": lam,
        "trainable": trainable,
        "bandwidths": bandwidths,
        "rollback": rollback,
        "patches": patches,
        "lambdas": [float(value) for value in lambdas],
        "final_head": final_head,
        "evaluate_every": evaluate_every,
        "options": asdict(replace(options, lam=0.0)),
        "seed": generator.initial_seed(),
        **(description or {}),
    }
    if run_dir is not None:
        validation = None if valid_data is None else describe_data(valid_data)
        asked |= {"network": describe_network(net), "data": describe_data(train_data), "validation_data": validation}

    def prepare() -> tuple[float, HeadFit | None]:
        fitted = None
        if method == "sgd":
            net.lam.fill_(lam if lam is not None else net.lam if net.lam >= 0 else SGD_LAM)
            return float(net.lam), None
        if isinstance(net, CKN) and not bool(net.filters_fitted):
            fit_filters(net, train_data, patches, generator=generator, progress=progress)
        if not net.lam >= 0 or (lam is not None and float(net.lam) != lam) or net.head_loss not in (loss, None):
            fitted = fit_head(net, train_data, valid_data, loss=loss, lam=lam, lambdas=lambdas, progress=progress)
        return float(net.lam), fitted

    def finish(lam_used: float) -> HeadFit | None:
        if not final_head:
            return None
        fixed = lam_used if valid_data is None or lam is not None else None
        return fit_head(net, train_data, valid_data, loss=loss, lam=fixed, lambdas=lambdas, progress=progress)

    with modes_kept(net), _only_trainable(net, trainable, bandwidths), _chance(generator), torch.enable_grad():
        METHODS[method](net, replace(options, lam=0.0))  # what it would refuse, it refuses before anything is written
        run = None if run_dir is None else Run(run_dir, asked, resume)
        try:
            loop = Loop(
                net=net,
                order=order,
                valid_data=valid_data,
                rule=rule,
                steps=steps,
                generator=generator,
                folder=run,
                rollback=rollback,
                evaluate_every=evaluate_every or max(1, steps // 10),
                checkpoint_every=checkpoint_every,
                show=progress,
                on_step=on_step,
            )
            return loop.run(METHODS[method], options, prepare, finish)
        finally:
            net.zero_grad()
            if run is not None:
                run.close()


# What did best on validation images of MNIST (LeNet-5, 32 filters, batch 256, about 90 s in all): momentum 0.9 with a step size
# that falls from 2^-6, 98.8 %; without momentum from 2^-4, 98.6 %.
# Reusing the classifier saves a third of the time. LeNet-5 does not mind: 98.2 % after 300 steps and 24 s, against 98.25 % after
# 34 s. All-CNN-C does: with the penalty that its classifier chooses (2^-33) it falls from 37 to 32 % in 25 steps, where the exact
# classifier rises to 45 %. So exact is the default.
# ConvNets, 300 steps on the embedded digits: from 0.1, 0.3, 1 LeNet-5 has 93.5, 95.4, 89.8 %, LeNet-1 96.5, 97.3, 97.4 %.
DEFAULT_LR: dict[str, str] = {"ulr": "cosine:0.015625", "sgo": "search", "sgo-ball": "root:1", "sgd": "cosine:0.3"}


# A ConvNet's classifier starts as random as its filters. Fitted to random features first, as a CKN's is to good ones, its weights
# are so large that only tiny steps are stable: on validation images of MNIST LeNet-5 then has 96.9 % after 3,900 steps, where it
# has 98.3 % after 1,000 from a random one.
#: penalty of a ConvNet's classifier during SGD, unless another is given
SGD_LAM = 2.0**-17


@contextmanager
def _only_trainable(net: Classifier, names: Iterable[str] | None, bandwidths: bool) -> Iterator[None]:
    """Within this context only the layers of these names have gradients, and RBF bandwidths if asked for."""
    if not isinstance(net, CKN):
        if names is not None or bandwidths:
            raise ConfigError(
                "trainable and bandwidths are for kernel networks; set requires_grad on a ConvNet's parameters"
            )
        yield
        return
    layers = net.kernel_layers()
    names = list(layers if names is None else names)
    for name in names:
        if name not in layers:
            raise unknown_name("layer", name, layers)
    chosen = [layers[name] for name in names if bandwidths and layers[name].init != "identity"]
    kernels = {layer: layer.kernel for layer in chosen if type(layer.kernel) is RBFSphere}
    if bandwidths and not kernels:
        raise ConfigError("bandwidths=True expected layers with an RBFSphere kernel, and there is none to train")
    fixed = [p for name, layer in layers.items() if name not in names for p in layer.parameters() if p.requires_grad]
    try:
        for layer, kernel in kernels.items():
            layer.kernel = RBFSphere(_sigma(kernel), trainable=True).to(layer.weight.device)
        for parameter in fixed:
            parameter.requires_grad_(False)
        yield
    finally:
        for layer, kernel in kernels.items():  # the new bandwidth stays; whether it is trainable is as it was
            back = RBFSphere(_sigma(layer.kernel), trainable=kernel.trainable).to(layer.weight.device)
            layer.kernel = back.train(kernel.training)
        for parameter in fixed:
            parameter.requires_grad_(True)


def _sigma(kernel: Kernel) -> float:
    return float(dict(kernel.spec().arguments)["sigma"])


@contextmanager
def _chance(generator: torch.Generator) -> Iterator[None]:
    """Within this context what draws from torch's own generator, such as dropout, depends on ours; after it, all is as before."""
    with torch.random.fork_rng():
        torch.manual_seed(generator.initial_seed())
        yield


def _seed_of(run_dir: str | os.PathLike[str] | None) -> int:
    """The seed of the run that is in a folder, if there is one; else any."""
    if run_dir is not None and (Path(run_dir) / "config.toml").exists():
        return int(read_config(run_dir)["seed"])
    return int(torch.randint(2**62, (1,)))


def describe_rule(rule: StepSize) -> str:
    """A step-size rule in words that are the same in every process."""
    return f"{type(rule).__name__}({', '.join(f'{key}={value!r}' for key, value in vars(rule).items())})"


def describe_network(net: Classifier) -> str:
    """A digest of what a network is made of, to tell one configuration from another."""
    made_of = repr(net.graph.to_json()) if isinstance(net, CKN) else repr(net)
    return hashlib.sha256(made_of.encode()).hexdigest()[:16]


def describe_data(data: Any) -> str:
    """A digest of images and labels; of a data set, its length and some of its items; of a stream, what it is called."""
    digest = hashlib.sha256(f"{type(data).__name__} {size_of(data)}".encode())
    some: Any = data
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        count = size_of(data) or 0
        some = [data[i] for i in range(0, count, max(1, count // 16))]
        digest.update(repr([(t.shape, t.double().sum()) for item in some for t in item if isinstance(t, Tensor)]).encode())
    elif not isinstance(data, (DataLoader, IterableDataset)):
        for part in next(iter(batches(data, 2**62))):
            if part is not None:
                digest.update(part.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
