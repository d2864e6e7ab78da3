r"""Pooling: averages of features over neighborhoods, followed by subsampling. P in the layer equation.

Paper: section 3.2 "Pooling". Plain averages are torch's own ``AvgPool2d`` and ``AdaptiveAvgPool2d``; this
module adds the Gaussian average of the CKN literature. Read next: :mod:`torchckn.nn.layers`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..choices import as_integer, as_real
from ..errors import ConfigError, DataError
from .devices import own_precision
from .geometry import conv_output_size, convolve


class GaussianPool2d(nn.Module):
    r"""Weighted average with Gaussian weights, then subsampling (paper, section 3.2 "Pooling").

    The weight of x' around x is proportional to ``exp(-|x' - x|^2 / (2 sigma^2))``, and the weights sum to one; the
    image is padded with zeros. The defaults are those of the CKN literature for subsampling by ``stride``: sigma =
    stride / sqrt 2, a window of 2 stride + 1, padding by stride. Computed along one axis after the other, at the output
    positions only.
    """

    def __init__(
        self, stride: int, sigma: float | None = None, kernel_size: int | None = None, padding: int | None = None
    ) -> None:
        super().__init__()
        for name, number in (("stride", stride), ("kernel_size", kernel_size), ("padding", padding)):
            if number is not None and as_integer(number, int(name != "padding")) is None:
                raise ConfigError(f"GaussianPool2d expected one integer as {name}, the same for both axes, got {number!r}")
        self.stride = int(stride)
        wanted = self.stride / 2**0.5 if sigma is None else as_real(sigma)
        if not wanted > 0:
            raise ConfigError(f"GaussianPool2d expected a positive sigma, got {sigma!r}")
        if not 1e-12 <= wanted <= 1e12:
            raise ConfigError(f"GaussianPool2d expected a sigma from 1e-12 to 1e12, got {str(sigma)[:30]}")
        self.sigma = wanted
        self.kernel_size = 2 * self.stride + 1 if kernel_size is None else int(kernel_size)
        self.padding = (self.kernel_size - 1) // 2 if padding is None else int(padding)

    def forward(self, x: Tensor) -> Tensor:
        if not x.is_floating_point():
            raise DataError(f"GaussianPool2d expected floating-point input, got {x.dtype}; use x.float()")
        if x.ndim != 4 or x.dtype == torch.float64:  # which torch has no fast convolution for
            rows, columns = (self.matrix(n).to(x) for n in x.shape[-2:])
            return rows @ x @ columns.mT
        for size in x.shape[2:]:
            self.positions(size)
        channels, window = x.shape[1], self.window().to(x).expand(x.shape[1], 1, 1, -1)
        with own_precision(x.device):  # an average has the dtype of what it averages, as that of nn.AvgPool2d has
            down = convolve(x, window.mT, (self.stride, 1), (self.padding, 0), groups=channels)
            return convolve(down, window, (1, self.stride), (0, self.padding), groups=channels)

    def window(self) -> Tensor:
        """The weights along one axis: (kernel_size,), float64"""
        offset = torch.arange(self.kernel_size, dtype=torch.float64) - (self.kernel_size - 1) / 2
        return torch.softmax(-(offset**2) / (2 * self.sigma**2), 0)

    def matrix(self, size: int) -> Tensor:
        """The pooling along one axis as a matrix: (output positions, input positions), float64."""
        first = torch.arange(self.positions(size))[:, None] * self.stride - self.padding
        offset = torch.arange(size) - first  # index of each input position in each window
        inside = (offset >= 0) & (offset < self.kernel_size)
        return self.window()[offset.clamp(0, self.kernel_size - 1)].masked_fill(~inside, 0.0)

    def positions(self, size: int) -> int:
        """Number of outputs along an axis of this size."""
        positions = conv_output_size((size, 1), (self.kernel_size, 1), (self.stride, 1), (self.padding, 0), (1, 1))[0]
        if positions < 1:
            raise DataError(f"GaussianPool2d expected at least {self.kernel_size - 2 * self.padding} pixels, got {size}")
        return positions

    def extra_repr(self) -> str:
        return f"stride={self.stride}, sigma={self.sigma:.3g}, kernel_size={self.kernel_size}, padding={self.padding}"


#: torch's modules that are linear and act on positions, the same for every channel
_LINEAR = (nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.ZeroPad2d, nn.Identity)


def require_linear(pool: nn.Module | None) -> nn.Module | None:
    """``pool``, or an error if it is a torch module that is not linear and so does not commute with the projection."""
    if pool is not None and not isinstance(pool, nn.Module):
        raise ConfigError(f"pool expected a module such as nn.AvgPool2d(2), or None, got {pool!r}")
    if isinstance(pool, nn.Sequential):
        for part in pool:
            require_linear(part)
    elif pool is not None and type(pool).__module__.startswith("torch.nn") and not isinstance(pool, _LINEAR):
        raise ConfigError(
            f"pool expected a linear pooling such as nn.AvgPool2d or GaussianPool2d, got {type(pool).__name__}; "
            "put it after the layer, as a separate module"
        )
    return pool
