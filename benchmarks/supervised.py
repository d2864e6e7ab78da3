"""Accuracy over steps and time of supervised training, on the full data sets.

    python -m benchmarks.supervised lenet5                                      # default options
    python -m benchmarks.supervised lenet5 --steps 1000 --batch-size 2048
    python -m benchmarks.supervised allcnn --filters 8 --method sgo --seed 2

All training options of ``torchckn train`` are accepted. The L2 penalty is chosen on 10,000 validation images; the test set is
used once, at the end, and only with ``--test``. With ``--run-dir`` the run is saved, and can be interrupted and resumed.
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
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the split, the patches, k-means and the order of the images"
    )
    parser.add_argument("--run-dir", default=None)
    parser.add_argument("--test", action="store_true", help="evaluate on the test set at the end")
    arguments, options = parser.parse_known_args()
    config = TrainConfig(seed=arguments.seed, **_train_options(options))
    whole = data.load("cifar10" if arguments.network == "allcnn" else "mnist")
    assert whole.test is not None
    train, valid = data.split(whole.train, 10_000, arguments.seed)
    start = time.perf_counter()
    generator = torch.Generator().manual_seed(arguments.seed)
    ckn = network(arguments.network, train.images, generator, arguments.filters)
    result = torchckn.train(
        ckn,
        train,
        valid,
        config,
        generator=generator,
        run_dir=arguments.run_dir,
        resume=arguments.run_dir is not None,
    )
    for record in result.history:
        if "valid_accuracy" in record:
            print(f"step {record['step']:5d}  {record['seconds']:7.1f} s  validation {record['valid_accuracy']:.4f}")
    assert result.head is not None
    print(json.dumps(vars(arguments) | config.to_plain()))
    print(f"validation {result.head.accuracy:.4f}, training time {result.seconds:.1f} s")
    if arguments.test:
        print(f"test {torchckn.evaluate(ckn, whole.test).accuracy:.4f}")
    print(f"total time {time.perf_counter() - start:.1f} s, peak memory {high_water() / 1e6:.2f} GB")


def _train_options(arguments: list[str]) -> dict[str, Any]:
    """Training options, written as for ``torchckn train``: ``--batch-size 2048 --lr cosine:0.03``."""
    names = [name.removeprefix("--").replace("-", "_") for name in arguments[::2]]
    return dict(zip(names, (_number_or_text(value) for value in arguments[1::2]), strict=True))


def _number_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


if __name__ == "__main__":
    main()
