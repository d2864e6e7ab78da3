"""Slow reference implementations: loops and textbook formulas in float64, written from the paper and not from the code."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np
import scipy.linalg
import scipy.special


def angle(x: np.ndarray, y: np.ndarray) -> float:
    """The angle between two vectors, accurate near 0 and pi, where the arc cosine is not (Kahan)."""
    x, y = x / np.linalg.norm(x), y / np.linalg.norm(y)
    return 2 * math.atan2(float(np.linalg.norm(x - y)), float(np.linalg.norm(x + y)))


def kappa(name: str, t: float, **arguments: Any) -> float:
    return kappa_of_angle(name, math.acos(min(1.0, max(-1.0, t))), **arguments)


def kappa_of_angle(name: str, theta: float, **arguments: Any) -> float:
    """The kernel as a function of the angle, by formulas that differ from the library's where possible."""
    t = math.cos(theta)
    chord = 2 * math.sin(theta / 2)
    match name:
        case "Linear":
            return t
        case "RBFSphere":  # through the distance between the two points
            return math.exp(-(chord**2) / (2 * arguments["sigma"] ** 2))
        case "Polynomial":
            return ((t + arguments["offset"]) / (1 + arguments["offset"])) ** arguments["degree"]
        case "ArcCosine":  # Cho and Saul (2009), equations 4 to 6
            angular = {
                0: math.pi - theta,
                1: math.sin(theta) + (math.pi - theta) * math.cos(theta),
                2: 3 * math.sin(theta) * math.cos(theta) + (math.pi - theta) * (1 + 2 * math.cos(theta) ** 2),
            }
            at_zero = {0: math.pi, 1: math.pi, 2: 3 * math.pi}
            order = int(arguments["order"])
            return angular[order] / at_zero[order]
        case "Matern":  # through the modified Bessel function
            nu = arguments["nu"]
            u = math.sqrt(2 * nu) * chord / arguments["sigma"]
            if u < 1e-12:
                return 1.0
            return 2 ** (1 - nu) / math.gamma(nu) * u**nu * float(scipy.special.kv(nu, u))
        case "Dual":
            return dual(arguments["activation"], t, arguments["scale"]) / dual(
                arguments["activation"], 1.0, arguments["scale"]
            )
    raise KeyError(name)


@functools.cache
def hermite_grid(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of Gauss and Hermite's quadrature, which take longer than all that is made of them."""
    return np.polynomial.hermite_e.hermegauss(count)


@functools.lru_cache(maxsize=4096)
def dual(activation: str, t: float, s: float) -> float:
    """E[a(s u) a(s v)] for standard normal u and v with correlation t: in closed form, or over a grid of independent pairs."""
    match activation:
        case "erf":  # Williams (1997)
            return 2 / math.pi * math.asin(2 * s * s * t / (1 + 2 * s * s))
        case "sine":
            return math.exp(-s * s) * math.sinh(s * s * t)
    functions = {"gelu": lambda u: u * scipy.special.ndtr(u), "tanh": np.tanh, "silu": lambda u: u / (1 + np.exp(-u))}
    nodes, weights = hermite_grid(120)
    u, w = nodes[:, None], nodes[None, :]
    v = t * u + math.sqrt(max(0.0, 1 - t * t)) * w
    a = functions[activation]
    return float((weights[:, None] * weights * a(s * u) * a(s * v)).sum()) / (2 * math.pi)


def degree(name: str, **arguments: Any) -> int:
    if name == "Dual":
        return int(arguments["degree"])
    return int({"ArcCosine": arguments.get("order"), "Polynomial": arguments.get("degree")}.get(name) or 0) or (
        0 if name == "ArcCosine" else 1
    )


def kernel(name: str, x: np.ndarray, y: np.ndarray, **arguments: Any) -> float:
    """k(x, y) of two vectors, norms included, with the convention for zero vectors."""
    nx, ny = math.sqrt(float(x @ x)), math.sqrt(float(y @ y))
    power = degree(name, **arguments)
    theta = angle(x, y) if nx > 0 and ny > 0 else math.pi / 2
    return (nx * ny) ** power * kappa_of_angle(name, theta, **arguments)


def inverse_sqrt(matrix: np.ndarray) -> np.ndarray:
    return np.linalg.inv(scipy.linalg.sqrtm(matrix).real)


def projection(weight: np.ndarray, name: str, eps: float, **arguments: Any) -> np.ndarray:
    """A(W), with every entry of the Gram matrix computed separately."""
    f = len(weight)
    gram = np.array([[kernel(name, weight[i], weight[j], **arguments) for j in range(f)] for i in range(f)])
    return inverse_sqrt(gram + eps * np.eye(f))


def patch(image: np.ndarray, row: int, column: int, size: tuple[int, int], dilation: tuple[int, int]) -> np.ndarray:
    """One patch of (C, H, W), with zero padding, as a vector in the order channel, row, column."""
    channels, height, width = image.shape
    values = []
    for c, i, j in itertools.product(range(channels), range(size[0]), range(size[1])):
        y, x = row + i * dilation[0], column + j * dilation[1]
        values.append(image[c, y, x] if 0 <= y < height and 0 <= x < width else 0.0)
    return np.array(values)


def positions(length: int, size: int, stride: int, padding: int, dilation: int) -> range:
    """Start positions of windows along one axis."""
    return range(-padding, length + padding - dilation * (size - 1), stride)


def conv_layer(
    images: np.ndarray,
    weight: np.ndarray,
    name: str,
    *,
    eps: float,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    region_of: list[int] | None = None,
    **arguments: Any,
) -> np.ndarray:
    """The layer equation, one position and one filter at a time, without pooling.

    ``weight`` is (f, C, kh, kw), or (regions, f, C, kh, kw) with ``region_of`` for every position.
    """
    regional = weight if region_of is not None else weight[None]
    size = (weight.shape[-2], weight.shape[-1])
    rows = [w.reshape(w.shape[0], -1) for w in regional]
    roots = [projection(w, name, eps, **arguments) for w in rows]
    ys = positions(images.shape[2], size[0], stride[0], padding[0], dilation[0])
    xs = positions(images.shape[3], size[1], stride[1], padding[1], dilation[1])
    out = np.zeros((len(images), rows[0].shape[0], len(ys), len(xs)))
    for n, (a, y), (b, x) in itertools.product(range(len(images)), enumerate(ys), enumerate(xs)):
        region = region_of[a * len(xs) + b] if region_of is not None else 0
        vector = patch(images[n], y, x, size, dilation)
        values = np.array([kernel(name, w, vector, **arguments) for w in rows[region]])
        out[n, :, a, b] = roots[region] @ values
    return out


def average_pool(x: np.ndarray, size: int, stride: int) -> np.ndarray:
    ys, xs = (positions(length, size, stride, 0, 1) for length in x.shape[2:])
    out = np.zeros((*x.shape[:2], len(ys), len(xs)))
    for (a, y), (b, z) in itertools.product(enumerate(ys), enumerate(xs)):
        out[:, :, a, b] = x[:, :, y : y + size, z : z + size].mean((2, 3))
    return out


def gaussian_pool(x: np.ndarray, stride: int, sigma: float, size: int, padding: int) -> np.ndarray:
    """Section 3.2: weights exp(-|x' - x|^2 / (2 sigma^2)), normalized to sum to one over the window."""
    ys, xs = (positions(length, size, stride, padding, 1) for length in x.shape[2:])
    middle = (size - 1) / 2
    weight = {
        (i, j): math.exp(-((i - middle) ** 2 + (j - middle) ** 2) / (2 * sigma**2))
        for i, j in itertools.product(range(size), repeat=2)
    }
    total = sum(weight.values())
    out = np.zeros((*x.shape[:2], len(ys), len(xs)))
    for (a, y), (b, z), (i, j) in itertools.product(enumerate(ys), enumerate(xs), weight):
        if 0 <= y + i < x.shape[2] and 0 <= z + j < x.shape[3]:
            out[:, :, a, b] += weight[i, j] / total * x[:, :, y + i, z + j]
    return out


def whiten(image: np.ndarray, size: int, eps: float) -> np.ndarray:
    """Per-image patch ZCA of (C, H, W), patch by patch."""
    channels, height, width = image.shape
    columns = []
    for y, x in itertools.product(range(height), range(width)):
        vector = patch(image, y - size // 2, x - size // 2, (size, size), (1, 1)).reshape(channels, -1)
        columns.append((vector - vector.mean(1, keepdims=True)).ravel())
    patches = np.array(columns).T  # (s, p)
    patches = patches - patches.mean(1, keepdims=True)
    covariance = patches @ patches.T / patches.shape[1]
    ridge = eps * np.trace(covariance) / (channels * (size**2 - 1))
    values, vectors = np.linalg.eigh(covariance + ridge * np.eye(len(covariance)))
    root = vectors @ np.diag(values**-0.5) @ vectors.T
    return (root @ patches).reshape(-1, height, width)
