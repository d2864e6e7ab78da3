"""The paper's appendix "CKN counterparts to ConvNets", transcribed with numpy, against what ``translate`` gives.

The equations write eps = 0 "for clarity of the exposition"; here it is in its place on the diagonal of each Gram matrix.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.linalg
import scipy.signal
import torch

import torchckn
from torchckn import zoo

EPS = 1e-3
Array = np.ndarray


def arc_cosine_0(t: Array) -> Array:
    return 1 - np.arccos(np.clip(t, -1, 1)) / math.pi


def arc_cosine_1(t: Array) -> Array:
    t = np.clip(t, -1, 1)
    theta = np.arccos(t)
    return (np.sin(theta) + (math.pi - theta) * t) / math.pi  # the paper's bracket, put right


def inverse_root(gram: Array) -> Array:
    return np.linalg.inv(scipy.linalg.sqrtm(gram + EPS * np.eye(len(gram))).real)


def star(image: Array, weight: Array) -> Array:
    """The appendix's convolution: cross-correlation of one map with one filter, where it fits."""
    return scipy.signal.correlate2d(image, weight, mode="valid")


def linear_layer(features: Array, weight: Array) -> Array:
    """F'(k) = sum_z F(z) * W(k, z), then (sum W W^T)^(-1/2) on the channels."""
    maps = np.stack([sum(star(features[z], w[z]) for z in range(len(features))) for w in weight])
    gram = sum(np.outer(weight[:, m, n, p], weight[:, m, n, p]) for m, n, p in np.ndindex(weight.shape[1:]))
    return np.einsum("kl,lij->kij", inverse_root(gram), maps)


def pooled(features: Array) -> Array:
    """E^T (F * 1/4 ones) E: the mean over 2x2, at every other position."""
    return np.stack([star(f, np.full((2, 2), 0.25))[::2, ::2] for f in features])


def identity_layer(features: Array) -> Array:
    """k_0 on 1x1 patches with identity filters."""
    f = len(features)
    root = inverse_root(arc_cosine_0(np.eye(f)))
    norms = np.sqrt((features**2).sum(0))
    return np.einsum("kl,lij->kij", root, arc_cosine_0(features / norms))


def dense_layer(vector: Array, weight: Array) -> Array:
    """k_0 on the whole representation."""
    gram = arc_cosine_0(weight @ weight.T)
    np.fill_diagonal(gram, 1.0)
    return inverse_root(gram) @ arc_cosine_0(weight @ vector / np.linalg.norm(vector))


def rectified_layer(features: Array, weight: Array, stride: int, padding: int) -> Array:
    """N^(1/2) k(sum W W^T)^(-1/2) k(N^(-1/2) F') with the arc-cosine kernel of order 1."""
    features = np.stack([np.pad(f, padding) for f in features])  # Z^T F Z
    ones = np.ones(weight.shape[2:])
    norms = sum(star(f * f, ones) for f in features)[::stride, ::stride]
    maps = np.stack([sum(star(features[z], w[z]) for z in range(len(features))) for w in weight])[:, ::stride, ::stride]
    gram = arc_cosine_1(np.einsum("kmnp,lmnp->kl", weight, weight))
    values = arc_cosine_1(maps / np.sqrt(norms))
    return np.sqrt(norms) * np.einsum("kl,lij->kij", inverse_root(gram), values)


def lenet(image: Array, weights: list[Array]) -> Array:
    """LeNet-1 with two filter banks, LeNet-5 with four."""
    features = image
    for weight in weights[:2]:
        features = identity_layer(pooled(linear_layer(features, weight)))
    features = features.reshape(-1)
    for weight in weights[2:]:
        features = dense_layer(features, weight)
    return features


def allcnn(image: Array, weights: list[Array]) -> Array:
    features = image
    for layer, weight in enumerate(weights, start=1):
        stride = 2 if layer in (3, 6) else 1
        padding = 1 if weight.shape[2] == 3 and stride == 1 else 0
        features = rectified_layer(features, weight, stride, padding)
    return features.mean((1, 2))


@pytest.mark.parametrize(("name", "filters"), [("lenet1", None), ("lenet5", None), ("lenet5", 7), ("allcnn", 5)])
def test_the_translated_network_computes_the_appendix_s_equations(name: str, filters: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    net = zoo.build(name, filters=filters).double()
    ckn = torchckn.translate(net, eps=EPS, generator=generator).eval()
    weights = [layer.weight.detach().numpy() for layer in ckn.kernel_layers().values() if layer.init != "identity"]
    images = torch.randn(2, *net.input_shape, generator=generator, dtype=torch.float64)
    oracle = allcnn if name == "allcnn" else lenet
    expected = [oracle(image, weights) for image in images.numpy()]
    np.testing.assert_allclose(ckn.features(images).detach(), expected, rtol=1e-10, atol=1e-10)
