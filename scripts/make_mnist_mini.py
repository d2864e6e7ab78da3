"""Make ``src/torchckn/data/mnist_mini.npz``: of the full MNIST, the first 600 training and 150 test images of each digit.

Run it with ``.venv/bin/python scripts/make_mnist_mini.py``. It downloads MNIST if need be.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from torchckn import data
from torchckn.files import write_atomically

PER_DIGIT = {"train": 600, "test": 150}


def main() -> None:
    full = data.load("mnist")
    assert full.test is not None
    arrays = {}
    for name, part in (("train", full.train), ("test", full.test)):
        labels = part.labels.numpy()
        first = np.sort(np.concatenate([np.flatnonzero(labels == digit)[: PER_DIGIT[name]] for digit in range(10)]))
        arrays[f"{name}_images"] = part.images.numpy()[first, 0]
        arrays[f"{name}_labels"] = labels[first].astype(np.uint8)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    target = Path(__file__).parent.parent / "src" / "torchckn" / "data" / "mnist_mini.npz"
    write_atomically(target, buffer.getvalue())
    print(
        f"{target}: {target.stat().st_size / 1e6:.2f} MB, {len(arrays['train_images'])} + {len(arrays['test_images'])} images"
    )


if __name__ == "__main__":
    main()
