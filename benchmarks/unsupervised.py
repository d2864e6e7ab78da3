"""Accuracy and time of networks with unsupervised filters, on the full data sets.

    python -m benchmarks.unsupervised lenet5 --seed 1      # or lenet1, allcnn, ckn-cifar

Filters by k-means, features of all images, the L2 penalty of the head chosen on 10,000 validation images, a head refitted on all
training images; the test set is used once, at the end.
"""

from __future__ import annotations

import argparse
import time

import torch

import torchckn
from torchckn import data, presets, zoo
from torchckn.kernels import RBFSphere
from torchckn.network import CKN

from .measure import high_water


def network(name: str, images: torch.Tensor, generator: torch.Generator, filters: int = 32) -> CKN:
    """The same number of filters and the RBF kernel in every layer, as in the runs that the authors released."""
    if name in presets.names():
        return presets.build(name, images, generator=generator)
    whitened = name == "allcnn"
    pixels = data.Preprocessing.fit(images, whiten=whitened)
    options = {"lenet5": {"padding": 2}, "allcnn": {"in_channels": 27}}.get(name, {})
    net = zoo.build(name, filters=filters, **options)
    shape = (images.shape[1], images.shape[2], images.shape[3])
    rbf = RBFSphere(0.6)
    return torchckn.translate(net, shape, rbf, linear_kernel=rbf, preprocessing=pixels, generator=generator)


def main(name: str, seed: int) -> None:
    whole = data.load("cifar10" if name in ("allcnn", *presets.names()) else "mnist")
    assert whole.test is not None
    train, valid = data.split(whole.train, 10_000, seed)
    start = last = time.perf_counter()

    def lap(what: str) -> None:
        nonlocal last
        now = time.perf_counter()
        print(f"{what:34s} {now - last:7.1f} s", flush=True)
        last = now

    generator = torch.Generator().manual_seed(seed)
    ckn = network(name, train.images, generator)
    torchckn.fit_filters(ckn, train, generator=generator)
    lap("filters")
    head = torchckn.fit_head(ckn, train, valid, refit=True)
    lap("features of training images, head")
    result = torchckn.evaluate(ckn, whole.test)
    lap("features of test images, accuracy")
    exponent = torch.tensor(head.lam).log2().item()
    print(f"{name}: lambda 2^{exponent:.0f}, validation {head.accuracy:.4f}, test {result.accuracy:.4f}")
    print(f"total time {time.perf_counter() - start:.1f} s, peak memory {high_water() / 1e6:.2f} GB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("network", choices=["lenet5", "lenet1", "allcnn", *presets.names()])
    parser.add_argument("--seed", type=int, default=0, help="seed of the split, the patches and k-means")
    arguments = parser.parse_args()
    main(arguments.network, arguments.seed)
