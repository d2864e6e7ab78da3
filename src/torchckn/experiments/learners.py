"""Ways to learn from n labelled images: kernel networks, ConvNets, and features or kernels with a linear classifier.

Each learner is made for a :class:`Problem` and then called with the number of labels. Penalties, bandwidths and learning rates
are chosen on these labels alone. Penalties and bandwidths: by five-fold cross-validation below 2,000 labels, on at least 2,000
held-out ones otherwise (``ckn`` and ``kmeans``: on a fifth). Learning rates: on the folds that have at least 40 labels together,
so on one fold from 200 labels on. Then all labels are fitted to. The test labels are not seen by a learner.

============================  ==========================================================================================
``ckn``                       features of a kernel network with unsupervised filters, linear classifier
``ckn-augmented``             the same, the classifier fitted to shifted (and, in color, mirrored) copies as well
``ckn-ulr``                   the same network, then trained with the labels by ultimate layer reversal
``convnet``                   batch normalization, He weights, AdamW, cosine decay
``convnet-augmented``         the same with shifted (and, in color, mirrored) images
``svm``, ``hog-svm``          a support vector machine with an RBF kernel on pixels, on histograms of oriented gradients
``hog-svm-augmented``         the latter, with bandwidth and soft margin of the images, fitted to changed copies as well
``kmeans``                    features of whitened patches and their k-means (Coates and Ng), linear classifier
``kmeans-augmented``          the same, the classifier fitted to changed copies as well
============================  ==========================================================================================
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from ..data import augment
from ..files import read_tensors, write_tensors
from ..fit import extract_features
from ..fit.classifier import LAMBDAS, HeldOut, fit_classifier, search_penalty
from ..fit.features import evaluate
from ..fit.folds import FEW_IMAGES, FOLDS, Folds, cross_validated_penalty, fold_of, in_their_span
from ..fit.solvers import Multinomial
from ..network import CKN, FeatureScaling
from ..runs import train
from .baselines import ConvNetRecipe, PatchFeatures, augmentation, convnet_scores, hog, rbf_machine

Rate = TypeVar("Rate", str, float)


@dataclass(frozen=True)
class Problem:
    """Images, the first of which have labels, in the order of a draw."""

    images: Tensor
    """(N, C, H, W), bytes"""
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    classes: int
    seed: int
    unlabeled: Tensor
    """all training images"""
    ckn: Callable[[], CKN]
    """a network with unsupervised filters"""
    shared: Path
    """folder for what every draw needs"""
    color: bool

    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)


class Learned(NamedTuple):
    """The outcome for a number of labels."""

    predictions: Tensor
    """classes of the test images"""
    valid_accuracy: float
    """of the choice, on labelled images that were held out"""
    chosen: dict[str, Any]


Learner = Callable[[int], Learned]


def splits(labels: Tensor, at_least: int = FEW_IMAGES) -> Iterator[tuple[Tensor, Tensor]]:
    """Masks of the images to fit to and to validate on: folds, until at least so many images are among those held out."""
    fold = fold_of(labels)
    for held_out in range(min(FOLDS, math.ceil(FOLDS * at_least / len(labels)))):
        yield fold != held_out, fold == held_out


def linear_classifier(x: Tensor, y: Tensor, test: Tensor, classes: int) -> Learned:
    """Multinomial logistic regression on features scaled by their mean norm."""
    if len(y) < FEW_IMAGES:
        lam, curve = cross_validated_penalty(x, y, classes)
        accuracy = next(score.accuracy for score in curve if score.lam == lam)
        weight, bias, _ = fit_classifier(x, y, classes, lam=lam)
    else:
        rest, here = next(splits(y))
        weight, bias, fit = fit_classifier(x[rest], y[rest], classes, x[here], y[here], refit=True)
        lam, accuracy = fit.lam, fit.accuracy or 0.0
    return Learned((test @ weight + bias).argmax(1), accuracy, {"lam": lam})


def linear_classifier_of_copies(x: Tensor, y: Tensor, test: Tensor, classes: int) -> Learned:
    """The same, fitted to images and changed copies of them, x (copies, n, d); the images themselves, x[0], are validated on."""
    copies, n, _ = x.shape
    every, labels = in_their_span(x.flatten(0, 1)), y.repeat(copies)
    parts = []
    for rest, here in splits(y):
        fitted = rest.repeat(copies)
        parts.append(HeldOut(Multinomial(every[fitted], labels[fitted], classes, 1000), every[:n][here], y[here]))
    lam, _, curve = search_penalty(Folds(parts), LAMBDAS, "path", progress=False)
    weight, bias, _ = fit_classifier(x.flatten(0, 1), labels, classes, lam=lam)
    accuracy = next(score.accuracy for score in curve if score.lam == lam)
    return Learned((test @ weight + bias).argmax(1), accuracy, {"lam": lam})


def _with_features(problem: Problem, own: Tensor, test: Tensor) -> Learner:
    """The linear classifier on features of the draw's images, (N, d) or with copies (copies, N, d), and of the test images."""

    def learn(count: int) -> Learned:
        labels, some = problem.labels[:count], own[..., :count, :]
        scaling = FeatureScaling(own.shape[-1], "feature")
        scaling.calibrate(some.flatten(0, -2))
        scaling.eval()
        if own.ndim == 2:
            return linear_classifier(scaling(some), labels, scaling(test), problem.classes)
        return linear_classifier_of_copies(
            torch.stack([scaling(copy) for copy in some]), labels, scaling(test), problem.classes
        )

    return learn


def _kept(problem: Problem, name: str, compute: Callable[[Tensor], Tensor]) -> Tensor:
    """Features of the test images, computed once for all draws."""
    file = problem.shared / f"{name}-test.safetensors"
    if not file.exists():
        problem.shared.mkdir(parents=True, exist_ok=True)
        write_tensors(file, "features", {}, {"features": compute(problem.test_images)})
    return read_tensors(file, "features")[1]["features"]


#: changed copies of each image that the classifier of an augmented learner is fitted to
COPIES = 5


def _with_copies(problem: Problem, features: Callable[[Tensor], Tensor], copies: int) -> Tensor:
    """Features of the images, (N, d); if there are to be changed copies, before these: (1 + copies, N, d)"""
    generator, kinds = problem.generator(), augmentation(problem.color)
    own = features(problem.images)
    changed = [features(augment(problem.images, kinds, generator)) for _ in range(copies)]
    return torch.stack([own, *changed]) if copies else own


def _ckn(copies: int = 0) -> Callable[[Problem], Learner]:
    def learner(problem: Problem) -> Learner:
        net = problem.ckn()

        def features(images: Tensor) -> Tensor:
            return extract_features(net, images)[0]

        test = _kept(problem, f"ckn-{net.fingerprint()[:16]}", features)
        return _with_features(problem, _with_copies(problem, features, copies), test)

    return learner


def _kmeans(copies: int = 0) -> Callable[[Problem], Learner]:
    def learner(problem: Problem) -> Learner:
        features = PatchFeatures.fit(problem.unlabeled, torch.Generator().manual_seed(0)).__call__
        return _with_features(problem, _with_copies(problem, features, copies), _kept(problem, "kmeans", features))

    return learner


def _best_rate(
    rates: Sequence[Rate], labels: Tensor, accuracy: Callable[[Rate, Tensor, Tensor], float]
) -> tuple[Rate, float]:
    """The learning rate with the best mean accuracy on the held-out parts of the labels, and that accuracy."""
    masks = list(splits(labels, 40))
    means = {rate: sum(accuracy(rate, rest, here) for rest, here in masks) / len(masks) for rate in rates}
    best = max(rates, key=lambda rate: means[rate])
    return best, means[best]


def _ckn_ulr(problem: Problem) -> Learner:
    start = problem.ckn()

    def trained(images: Tensor, labels: Tensor, valid: Any, lr: str) -> CKN:
        net = copy.deepcopy(start)
        batch_size = min(256, len(labels))
        train(
            net,
            (images, labels),
            valid,
            lr=lr,
            steps=ULR_STEPS,
            batch_size=batch_size,
            evaluate_every=ULR_STEPS,
            folds=FOLDS if valid is None else None,
            seed=problem.seed,
            progress=False,
        )
        return net

    def learn(count: int) -> Learned:
        images, labels = problem.images[:count], problem.labels[:count]

        def accuracy(lr: str, rest: Tensor, here: Tensor) -> float:
            held_out = images[here], labels[here]
            return evaluate(trained(images[rest], labels[rest], held_out, lr), held_out, progress=False).accuracy

        best, valid_accuracy = _best_rate(ULR_RATES, labels, accuracy)
        net = trained(images, labels, None, best)
        scores = evaluate(net, (problem.test_images, problem.test_labels), progress=False)
        return Learned(scores.predictions, valid_accuracy, {"lr": best})

    return learn


#: steps of ultimate layer reversal from unsupervised filters, and the learning rates that are tried
ULR_STEPS = 100
ULR_RATES = ("cosine:0.00390625", "cosine:0.015625")


def _convnet(augment: bool) -> Callable[[Problem], Learner]:
    def learner(problem: Problem) -> Learner:
        def learn(count: int) -> Learned:
            images, labels = problem.images[:count], problem.labels[:count]

            def predicted(lr: float, some: Tensor, others: Tensor) -> Tensor:
                recipe = ConvNetRecipe(lr, _steps(count), augment, problem.color, problem.seed)
                return convnet_scores(recipe, images[some], labels[some], others, problem.classes).argmax(1)

            def accuracy(lr: float, rest: Tensor, here: Tensor) -> float:
                return float((predicted(lr, rest, images[here]) == labels[here]).double().mean())

            best, valid_accuracy = _best_rate(RATES, labels, accuracy)
            predictions = predicted(best, torch.ones_like(labels, dtype=torch.bool), problem.test_images)
            return Learned(predictions, valid_accuracy, {"lr": best, "steps": _steps(count)})

        return learn

    return learner


#: learning rates that are tried, and steps of 64 images (all of them, if they are fewer), by the number of labels
RATES = (0.001, 0.004)
STEPS = {50: 150, 100: 300, 300: 600, 1000: 2000, 3000: 3000, 10000: 6000}


def _steps(count: int) -> int:
    return next((steps for labels, steps in STEPS.items() if count <= labels), max(STEPS.values()))


def _machine(features: Callable[[Tensor], Tensor], copies: int = 0) -> Callable[[Problem], Learner]:
    def learner(problem: Problem) -> Learner:
        own, test = _with_copies(problem, features, copies), features(problem.test_images)

        def learn(count: int) -> Learned:
            labels = problem.labels[:count]
            machine = rbf_machine(own[..., :count, :], labels, test, list(splits(labels)))
            return Learned(machine.predictions, machine.valid_accuracy, {"c": machine.c, "gamma": machine.gamma})

        return learn

    return learner


def _pixels(images: Tensor) -> Tensor:
    return images.flatten(1).float() / 255


LEARNERS: dict[str, Callable[[Problem], Learner]] = {
    "ckn": _ckn(),
    "ckn-augmented": _ckn(COPIES),
    "ckn-ulr": _ckn_ulr,
    "convnet": _convnet(augment=False),
    "convnet-augmented": _convnet(augment=True),
    "svm": _machine(_pixels),
    "hog-svm": _machine(hog),
    "hog-svm-augmented": _machine(hog, COPIES),
    "kmeans": _kmeans(),
    "kmeans-augmented": _kmeans(COPIES),
}
