"""Accuracy with n labels: for each n, a learner gets n labelled images, chooses its hyperparameters on them, and is tested once.

A draw of labels (a seed) is an order of the training images in which the classes take turns; n labels are its first n images, so
that more labels are a superset of fewer. Images without labels may be used by the learners that can: filters and pixel statistics
are those of all training images, and the same for every draw. Read next: :mod:`torchckn.experiments.learners`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import Tensor

from .. import data
from ..building import Images, build_network, load_data
from ..errors import ConfigError, DataError
from ..files import read_tensors, write_atomically, write_tensors
from ..fit import fit_filters
from ..network import CKN
from ..settings import Settings
from .learners import LEARNERS, Problem
from .results import start_settings
from .shared import digest


def accuracy_by_labels(
    settings: Settings,
    learner: str,
    counts: Sequence[int],
    shared: Path,
    work: Path,
    known: Sequence[dict[str, Any]] = (),
) -> list[dict[str, Any]]:
    """A record for each number of labels; what is known, or in ``work`` already, is not computed again.

    Args:
        shared: folder of what draws have in common: filters, and features of the test images.
        known: records of the first numbers of labels.
    """
    shared = shared / digest({name: value for name, value in start_settings(settings).items() if name != "seed"})
    whole = load_data(settings)
    if whole.test is None:
        raise DataError(f"{settings.data} has no test images, which experiments are measured with")
    if counts[-1] > len(whole.train):
        raise ConfigError(f"label_counts: {settings.data} has {len(whole.train)} training images, got {counts[-1]}")
    file = work / "records.json"
    records: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else list(known)
    left = counts[len(records) :]
    if not left:
        return records
    seed = settings.training.seed
    order = draw_order(whole.train.labels, torch.Generator().manual_seed(seed))[: counts[-1]]
    problem = Problem(
        images=whole.train.images[order],
        labels=whole.train.labels[order],
        test_images=whole.test.images,
        test_labels=whole.test.labels,
        classes=len(whole.classes),
        seed=seed,
        unlabeled=whole.train.images,
        ckn=lambda: unsupervised_network(settings, whole, shared),
        shared=shared,
        color=whole.image_shape[0] > 1,
    )
    learn = LEARNERS[learner](problem)
    for count in left:
        clock = time.process_time()
        learned = learn(count)
        right = (learned.predictions == problem.test_labels).double().mean()
        records.append(
            {
                "labels": count,
                "valid_accuracy": round(learned.valid_accuracy, 6),
                "test_accuracy": round(float(right), 6),
                "cpu_seconds": round(time.process_time() - clock, 2),
                "chosen": learned.chosen,
            }
        )
        write_atomically(file, json.dumps(records).encode())
    return records


def draw_order(labels: Tensor, generator: torch.Generator) -> Tensor:
    """All images in random order, the classes taking turns as long as they last: (n,)"""
    order = torch.randperm(len(labels), generator=generator)
    shuffled = labels[order]
    turn = torch.empty(len(labels), dtype=torch.long)
    for label in shuffled.unique():
        here = shuffled == label
        turn[here] = torch.arange(int(here.sum()))
    return order[turn.argsort(stable=True)]


def unsupervised_network(settings: Settings, whole: data.DataSet, shared: Path) -> CKN:
    """The kernel network with filters of all training images, without their labels; fitted once, whatever the draw."""
    generator = torch.Generator().manual_seed(0)
    pixels = data.Preprocessing.fit(whole.train.images, whiten=settings.whiten)
    images = Images(whole.train, whole.train, whole.test, whole.classes, whole.image_shape, pixels)
    net = build_network(settings, images, generator)
    assert isinstance(net, CKN), "cells of ConvNets are refused"
    file = shared / f"filters-{net.fingerprint()[:16]}.safetensors"
    shared.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_suffix(".lock")):
        if not file.exists():
            how = settings.training
            fit_filters(net, whole.train.images, how.patches, restarts=how.restarts, generator=generator)
            write_tensors(file, "few-labels", {}, net.state_dict())
    net.load_state_dict(read_tensors(file, "few-labels")[1])
    return net
