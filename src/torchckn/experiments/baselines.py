"""What kernel networks are compared with on few labels, each small and as strong as it is known to be.

A ConvNet with batch normalization trained by AdamW; support vector machines; histograms of oriented gradients (Dalal and Triggs,
2005); features of whitened patches and their k-means (Coates and Ng, 2012). Read first: :mod:`torchckn.experiments.learners`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..choices import Augmentation
from ..data import augment
from ..fit.kmeans import spherical_kmeans

# ConvNets


class ConvNetRecipe(NamedTuple):
    lr: float
    """learning rate of AdamW, which decays to zero (cosine)"""
    steps: int
    augment: bool
    color: bool
    """layers of 3x3 for color images; LeNet-1's 5x5 for grey ones"""
    seed: int
    weight_decay: float = 0.05
    batch_size: int = 64


def convnet_scores(recipe: ConvNetRecipe, images: Tensor, labels: Tensor, others: Tensor, classes: int) -> Tensor:
    """Train a ConvNet on images (n, C, H, W), bytes, and its scores for other images: (m, classes)"""
    generator = torch.Generator().manual_seed(recipe.seed)
    with torch.random.fork_rng():
        torch.manual_seed(recipe.seed)
        net = _convnet(images.shape, recipe.color, classes)
    net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    mean, std = _statistics(images)

    def pixels(some: Tensor) -> Tensor:
        return ((some.float() / 255 - mean) / std).contiguous(memory_format=torch.channels_last)

    optimizer = torch.optim.AdamW(net.parameters(), lr=recipe.lr, weight_decay=recipe.weight_decay)
    size = min(recipe.batch_size, len(images))
    kinds = augmentation(recipe.color) if recipe.augment else ()
    order = torch.empty(0, dtype=torch.long)
    for step in range(recipe.steps):
        if len(order) < size:
            order = torch.randperm(len(images), generator=generator)
        index, order = order[:size], order[size:]
        batch = augment(images[index], kinds, generator)
        optimizer.param_groups[0]["lr"] = recipe.lr * (1 + math.cos(math.pi * step / recipe.steps)) / 2
        optimizer.zero_grad()
        F.cross_entropy(net(pixels(batch)), labels[index]).backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        return torch.cat([net(pixels(some)) for some in others.split(256)])


def augmentation(color: bool) -> Sequence[Augmentation]:
    """What is done at random to images: digits are not mirrored."""
    return ("flip", "crop") if color else ("shift",)


def _convnet(shape: Sequence[int], color: bool, classes: int) -> nn.Module:
    widths, size, padding = ((32, 64, 128), 3, 1) if color else ((32, 32), 5, 0)
    layers: list[nn.Module] = []
    channels = shape[1]
    for width in widths:
        convolution = nn.Conv2d(channels, width, size, padding=padding, bias=False)
        nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
        layers += [convolution, nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]
        channels = width
    body = nn.Sequential(*layers, nn.Flatten())
    with torch.no_grad():
        features = body.eval()(torch.zeros(1, *shape[1:])).shape[1]
    return nn.Sequential(body, nn.Linear(features, classes)).train()


def _statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel: (1, C, 1, 1)"""
    pixels = images.float() / 255
    return pixels.mean((0, 2, 3), keepdim=True), pixels.std((0, 2, 3), keepdim=True)


# Support vector machines


class Machine(NamedTuple):
    predictions: Tensor
    valid_accuracy: float
    c: float
    gamma: float
    """of exp(-gamma |x - y|^2), in units of the inverse mean squared distance"""


#: bandwidths and soft margins that are tried
GAMMAS, COSTS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0), (1.0, 10.0, 100.0)


def rbf_machine(x: Tensor, y: Tensor, test: Tensor, splits: Sequence[tuple[Tensor, Tensor]]) -> Machine:
    """A support vector machine with an RBF kernel, bandwidth and soft margin chosen on the splits.

    Of images and changed copies of them, x (copies, n, d), the images themselves, x[0], are chosen on; all are fitted to.
    """
    from sklearn.svm import SVC  # its import takes a second, which most cells would wait for in vain

    images = x if x.ndim == 2 else x[0]
    distances = _squared_distances(images, images)
    scale = float(distances.mean())
    accuracies: dict[tuple[float, float], float] = {}
    for gamma in GAMMAS:
        gram = (distances * (-gamma / scale)).exp_()
        for c in COSTS:
            by_split = []
            for rest, here in splits:
                machine = SVC(C=c, kernel="precomputed").fit(gram[rest][:, rest].numpy(), y[rest].numpy())
                right = torch.from_numpy(machine.predict(gram[here][:, rest].numpy())) == y[here]
                by_split.append(float(right.double().mean()))
            accuracies[gamma, c] = sum(by_split) / len(by_split)
    gamma, c = best = max(accuracies, key=lambda pair: accuracies[pair])
    every = x.reshape(-1, x.shape[-1])
    gram = (_squared_distances(every, every) * (-gamma / scale)).exp_()
    machine = SVC(C=c, kernel="precomputed").fit(gram.numpy(), y.repeat(len(every) // len(y)).numpy())
    parts = [
        torch.from_numpy(machine.predict((_squared_distances(some, every) * (-gamma / scale)).exp_().numpy()))
        for some in test.split(2000)
    ]
    return Machine(torch.cat(parts), accuracies[best], c, gamma)


def _squared_distances(x: Tensor, y: Tensor) -> Tensor:
    x, y = x.double(), y.double()
    return (x.square().sum(1)[:, None] + y.square().sum(1) - 2 * x @ y.T).clamp_(min=0)


# Histograms of oriented gradients

#: directions, without sign, and pixels along a cell's side
ORIENTATIONS, CELL = 9, 4


def hog(images: Tensor) -> Tensor:
    """Histograms of gradients' directions in cells, normalized in blocks of 2x2 cells: (n, d) of images (n, C, H, W), bytes."""
    return torch.cat([_hog(some.float() / 255) for some in images.split(1000)])


def _hog(x: Tensor) -> Tensor:
    n, _, height, width = x.shape
    padded = F.pad(x, (1, 1, 1, 1), mode="replicate")
    right = padded[:, :, 1:-1, 2:] - padded[:, :, 1:-1, :-2]
    down = padded[:, :, 2:, 1:-1] - padded[:, :, :-2, 1:-1]
    length, strongest = (right.square() + down.square()).sqrt().max(1)  # (n, H, W), of the strongest channel
    right, down = (part.gather(1, strongest[:, None])[:, 0] for part in (right, down))
    angle = torch.atan2(down, right).remainder(math.pi) * (ORIENTATIONS / math.pi)  # in bins
    low = angle.floor()
    share = angle - low
    votes = torch.zeros(n, ORIENTATIONS, height, width)
    for bins, weight in ((low, 1 - share), (low + 1, share)):
        votes.scatter_add_(1, (bins.long() % ORIENTATIONS)[:, None], (weight * length)[:, None])
    cells = F.avg_pool2d(votes, CELL)  # (n, 9, h, w)
    blocks = F.unfold(cells, 2)  # (n, 36, blocks)
    blocks = F.normalize(blocks, dim=1, eps=1e-3).clamp(max=0.2)
    return F.normalize(blocks, dim=1, eps=1e-3).flatten(1)


# K-means features


class PatchFeatures(NamedTuple):
    """Soft-thresholded products of whitened patches with centroids, averaged over the quarters of an image.

    ``max(0, <d_k, z> - alpha)`` for each centroid d_k and whitened patch z, as Coates and Ng have it.
    """

    whitening: Tensor
    """(s, s)"""
    mean: Tensor
    centroids: Tensor
    """(k, s), unit rows"""

    @classmethod
    def fit(cls, images: Tensor, generator: torch.Generator, count: int = 400, patches: int = 40_000) -> PatchFeatures:
        n, _, height, width = images.shape
        index = torch.randint(n, (patches,), generator=generator)
        top = torch.randint(height - PATCH + 1, (patches, 1, 1), generator=generator)
        left = torch.randint(width - PATCH + 1, (patches, 1, 1), generator=generator)
        steps = torch.arange(PATCH)
        drawn = images[index[:, None, None], :, top + steps[:, None], left + steps]  # (patches, 6, 6, C)
        x = _contrast_normalized(drawn.permute(0, 3, 1, 2).flatten(1).float() / 255)
        mean = x.mean(0)
        values, vectors = torch.linalg.eigh(torch.cov(x.T).double())
        whitening = ((vectors / (values.clamp(min=0) + 0.1).sqrt()) @ vectors.T).float()
        points = (x - mean) @ whitening
        points = points[points.norm(dim=1) > 1e-3]
        return cls(whitening, mean, spherical_kmeans(points, count, iterations=30, generator=generator).centroids)

    def __call__(self, images: Tensor) -> Tensor:
        return torch.cat([self._features(some.float() / 255) for some in images.split(100)])

    def _features(self, x: Tensor) -> Tensor:
        positions = [size - PATCH + 1 for size in x.shape[2:]]
        rows = F.unfold(x, PATCH).transpose(1, 2).flatten(0, 1)  # (n positions, s)
        products = (_contrast_normalized(rows) - self.mean) @ (self.whitening @ self.centroids.T)
        active = products.sub_(THRESHOLD).clamp_(min=0).view(len(x), *positions, -1).permute(0, 3, 1, 2)
        return F.adaptive_avg_pool2d(active, 2).flatten(1)  # (n, 4 k)


#: side of a patch, and alpha
PATCH, THRESHOLD = 6, 0.25


def _contrast_normalized(patches: Tensor) -> Tensor:
    """Patches (n, s) with mean 0 and, unless they are nearly constant, variance 1."""
    centered = patches - patches.mean(1, keepdim=True)
    return centered / (centered.square().mean(1, keepdim=True) + (10 / 255**2)).sqrt()
