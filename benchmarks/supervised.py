"""Accuracy over steps and time of networks trained with labels, on the full data sets.

    python -m benchmarks.supervised lenet5                                      # the defaults, from nothing
    python -m benchmarks.supervised lenet5 --steps 1000 --batch-size 2048
    python -m benchmarks.supervised allcnn --filters 8 --method sgo --seed 2

The penalty is chosen on 10,000 validation images; the test set is read once, at the end, and not at all without ``--test``.
With ``--run-dir`` the run can be interrupted and resumed, and leaves its history behind.
"""

from __future__ import annotations

import argparse
import json
import time

import torch

import torchckn
from torchckn import data

from .measure import high_water
from .unsupervised import network


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("network", choices=["lenet5", "lenet1", "allcnn"])
    parser.add_argument("--filters", type=int, default=32)
    parser.add_argument("--method", default="ulr")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--lr", default=None)
    parser.add_argument("--momentum", type=float, default=None)
    parser.add_argument("--tau", type=float, default=2**-5)
    parser.add_argument("--head-update", default="exact")
    parser.add_argument("--seed", type=int, default=0, help="of the split, the patches, k-means and the order of the images")
    parser.add_argument("--evaluate-every", type=int, default=None)
    parser.add_argument("--run-dir", default=None)
    parser.add_argument("--test", action="store_true", help="read the test set at the end")
    given = parser.parse_args()
    whole = data.load("cifar10" if given.network == "allcnn" else "mnist")
    assert whole.test is not None
    train, valid = data.split(whole.train, 10_000, given.seed)
    start = time.perf_counter()
    generator = torch.Generator().manual_seed(given.seed)
    ckn = network(given.network, train.images, generator, given.filters)
    result = torchckn.train(
        ckn,
        train,
        valid,
        method=given.method,
        steps=given.steps,
        batch_size=given.batch_size,
        lr=given.lr,
        momentum=given.momentum,
        tau=given.tau,
        head_update=given.head_update,
        evaluate_every=given.evaluate_every,
        generator=generator,
        run_dir=given.run_dir,
        resume=given.run_dir is not None,
    )
    for record in result.history:
        if "valid_accuracy" in record:
            print(f"step {record['step']:5d}  {record['seconds']:7.1f} s  validation {record['valid_accuracy']:.4f}")
    assert result.head is not None
    print(f"{json.dumps(vars(given))}\nvalidation {result.head.accuracy:.4f}, {result.seconds:.1f} s of training")
    if given.test:
        print(f"test {torchckn.evaluate(ckn, whole.test).accuracy:.4f}")
    print(f"total {time.perf_counter() - start:.1f} s, peak memory {high_water() / 1e6:.2f} GB")


if __name__ == "__main__":
    main()
