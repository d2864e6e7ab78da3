"""Accuracy over steps and time of networks trained with labels, on the full data sets.

    python -m benchmarks.supervised lenet5                                      # the defaults, all stages
    python -m benchmarks.supervised lenet5 --steps 1000 --batch-size 2048
    python -m benchmarks.supervised allcnn --filters 8 --method sgo --seed 2

The penalty is chosen on 10,000 validation images; the test set is read once, at the end, and not at all without ``--test``.
With ``--run-dir`` the run can be interrupted and resumed, and leaves its history behind.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch

import torchckn
from torchckn import TrainConfig, data

from .measure import high_water
from .unsupervised import network


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("network", choices=["lenet5", "lenet1", "allcnn"])
    parser.add_argument("--filters", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0, help="of the split, the patches, k-means and the order of the images")
    parser.add_argument("--run-dir", default=None)
    parser.add_argument("--test", action="store_true", help="read the test set at the end")
    given, others = parser.parse_known_args()
    config = TrainConfig(seed=given.seed, **_options(others))
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
        config,
        generator=generator,
        run_dir=given.run_dir,
        resume=given.run_dir is not None,
    )
    for record in result.history:
        if "valid_accuracy" in record:
            print(f"step {record['step']:5d}  {record['seconds']:7.1f} s  validation {record['valid_accuracy']:.4f}")
    assert result.head is not None
    print(json.dumps(vars(given) | config.to_plain()))
    print(f"validation {result.head.accuracy:.4f}, {result.seconds:.1f} s of training")
    if given.test:
        print(f"test {torchckn.evaluate(ckn, whole.test).accuracy:.4f}")
    print(f"total {time.perf_counter() - start:.1f} s, peak memory {high_water() / 1e6:.2f} GB")


def _options(arguments: list[str]) -> dict[str, Any]:
    """Options of training as ``torchckn train`` has them: ``--batch-size 2048 --lr cosine:0.03``."""
    names = [name.removeprefix("--").replace("-", "_") for name in arguments[::2]]
    return dict(zip(names, (_number_or_text(value) for value in arguments[1::2]), strict=True))


def _number_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


if __name__ == "__main__":
    main()
