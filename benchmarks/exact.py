"""The time of the exact kernel of two images, on one thread.

python -m benchmarks.exact
"""

from __future__ import annotations

import time

import torch

import torchckn
from torchckn import zoo
from torchckn.kernels import RBFSphere


def seconds_per_pair(images: int = 10) -> float:
    """CPU time of a pair of 28x28 images, with the kernel of LeNet-1; each image with each of the others."""
    torch.set_num_threads(1)
    ckn = torchckn.translate(zoo.build("lenet1", filters=8), (1, 28, 28), RBFSphere(0.6))
    x, y = torch.rand(2, images, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    began = time.process_time()
    torchckn.exact_kernel(ckn, x, y)
    return (time.process_time() - began) / images**2


if __name__ == "__main__":
    print(f"{seconds_per_pair():.2f} s of CPU time per pair of images")
