"""A network of any kind as training sees it: features, their scaling, and a linear head.

Read first: :mod:`torchckn.network.scaling`. Read next: :mod:`torchckn.network.ckn`.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from ..choices import Centering, Kind, TrainingMethod, as_integer
from ..errors import ConfigError, DataError
from ..kernels.base import require_tensor
from ..nn.checks import check_finite, reads_now
from ..nn.layers import require_same_type
from ..nn.normalize import unit_pixels
from .scaling import FeatureScaling

#: pixels are between 0 and 1, standardized ones rarely beyond 10
_FAR_BEYOND_1 = 20.0


class Classifier(nn.Module):
    """Features, their scaling, and a linear head: ``head(scaling(features(x)))``. What all training functions work on.

    Subclasses define :meth:`features`: a kernel network (:class:`torchckn.CKN`), a ConvNet (:class:`torchckn.ScaledConvNet`), or
    your own. What training asks of a network is here, with answers that suit any network but a kernel network.

    Args:
        input_shape: (channels, height, width) of an image.
        features: number of features per image.
        classes: number of scores that the head gives.
        centering: see :class:`torchckn.network.FeatureScaling`.
    """

    #: what kind of network this is, for messages and file names
    kind: ClassVar[Kind] = "convnet"
    #: the training method that is used unless another one is given
    default_method: ClassVar[TrainingMethod] = "sgd"
    #: whether its filters are points on spheres, which :class:`torchckn.fit.SphereSGD` keeps there
    on_spheres: ClassVar[bool] = False

    lam: Tensor | None
    filters_fitted: Tensor

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        features: int,
        classes: int,
        centering: Centering = "image",
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_shape = input_shape
        self.scaling = FeatureScaling(features, centering, device, dtype)
        self.head = _linear_head(features, classes, generator, device, dtype)
        # What has been done to this network goes wherever its state_dict goes: training starts from there.
        #: see ``penalty``; part of the state_dict once there is one
        self.register_buffer("lam", None)
        #: the loss that the head was fitted with, if it was fitted in this process
        self.head_loss: str | None = None
        #: whether the filters have been chosen, or are random yet
        self.register_buffer("filters_fitted", torch.tensor(False, device=device))

    @property
    def penalty(self) -> float | None:
        """The L2 penalty that the head was fitted with; None until then."""
        return None if self.lam is None else float(self.lam)

    @penalty.setter
    def penalty(self, lam: float | None) -> None:
        self.lam = None if lam is None else torch.tensor(lam, dtype=torch.float64, device=self.head.weight.device)

    def features(self, x: Tensor) -> Tensor:
        """The features of images, before scaling and head: (N, C, H, W) -> (N, d)"""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.scaling(self.features(x)))

    # Images

    def pixels(self, images: Tensor) -> Tensor:
        """Images as this network takes them: bytes as numbers from 0 to 1, in its dtype, on its device."""
        if images.dtype == torch.uint8 and not torch.compiler.is_compiling() and self._is_of_larger_numbers:
            warnings.warn(
                "this network was fitted to images of numbers beyond 0 to 1, got bytes, which become numbers from 0 to 1; pass "
                "images as they were, or fit the network to bytes (uint8)",
                stacklevel=3,
            )
        return unit_pixels(images, self.head.weight)

    def checked(self, x: Tensor) -> Tensor:
        """A batch that suits this network, bytes made into numbers from 0 to 1; or an error that says what does not suit."""
        require_shape(x, self.input_shape)
        if x.dtype == torch.uint8:
            return self.pixels(x)
        require_same_type("this network", x, self.head.weight)
        if torch.compiler.is_compiling() or not x.numel():
            return x
        if not reads_now(x):
            check_finite(x)
        else:
            low, high = (float(value) for value in x.detach().aminmax())
            if not math.isfinite(high - low):
                check_finite(x)
            if max(-low, high) > _FAR_BEYOND_1 and self._are_far_beyond(low, high):
                warnings.warn(
                    f"this network expected pixels from 0 to 1, got numbers from {low:.3g} to {high:.3g}; pass uint8 images, "
                    "which it scales by itself, or divide by 255",
                    stacklevel=4,
                )
        return x

    @property
    def pixel_statistics(self) -> tuple[Sequence[float], Sequence[float]] | None:
        """Mean and standard deviation of each channel, if the network begins by standardizing pixels."""
        return None

    @property
    def _is_of_larger_numbers(self) -> bool:
        """Whether the network's statistics cannot be those of pixels from 0 to 1."""
        return self.pixel_statistics is not None and any(
            not 0 <= mean <= 1 or std > 0.5 for mean, std in zip(*self.pixel_statistics, strict=True)
        )

    def _are_far_beyond(self, low: float, high: float) -> bool:
        """Whether these pixels are of another range than those that the network's statistics were computed from."""
        if self.pixel_statistics is None:
            return False
        channels = zip(*self.pixel_statistics, strict=True)
        return max(max(high - mean, mean - low) / std for mean, std in channels) > _FAR_BEYOND_1

    # Training

    @property
    def needs_filters(self) -> bool:
        """Whether ``fit_filters`` is to be called before training."""
        return False

    def filters_to_watch(self) -> Tensor | None:
        """The first layer's filters, if they can be shown as pictures while training."""
        return None

    def filter_norms(self) -> dict[str, Tensor]:
        """The norms of the filters that are to be of norm 1, by layer."""
        return {}

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Groups of parameters for an optimizer, where they have gradients; all but the head's."""
        head = set(self.head.parameters())
        body = [parameter for parameter in self.parameters() if parameter.requires_grad and parameter not in head]
        return [{"params": body}] if body else []

    @contextmanager
    def training_only(self, names: Sequence[str] | None, bandwidths: bool) -> Iterator[None]:
        """Within this context only the layers of these names have gradients, and RBF bandwidths if asked for."""
        if names is not None or bandwidths:
            raise ConfigError(
                "trainable and bandwidths are for kernel networks; set requires_grad on a ConvNet's parameters"
            )
        yield

    # Saving

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        metadata: Any,
        strict: bool,
        missing: Any,
        unexpected: Any,
        errors: list[str],
    ) -> None:
        if f"{prefix}head.weight" in state_dict:  # torch loads a buffer only where there is one already
            lam = state_dict.get(f"{prefix}lam")
            if lam is not None and (lam.numel() != 1 or not 0 <= float(lam) < math.inf):
                errors.append(f"lam expected a number >= 0, got {lam.tolist()}")
            elif state_dict[f"{prefix}head.weight"].shape == self.head.weight.shape:  # else the head stays as it is
                self.penalty = None if lam is None else 0.0
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, unexpected, errors)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        lam = self.lam
        super()._apply(fn, recurse)
        if lam is not None and self.lam is not None and self.lam.dtype != lam.dtype:
            self.lam = lam.to(self.lam.device)  # in half precision, a small penalty would be 0
        return self

    def description(self) -> dict[str, Any] | None:
        """All that is needed to build the network again, as JSON; None if only its own code can build it."""
        return None

    def fingerprint(self) -> str:
        """A digest of what the network is made of, whatever its weights are."""
        return digest(repr(self))


def _linear_head(
    features: int,
    classes: int,
    generator: torch.Generator | None,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> nn.Linear:
    """``nn.Linear`` with its own distribution of weights, drawn from the caller's generator and from no other."""
    if (count := as_integer(classes, 1)) is None:
        raise ConfigError(f"classes expected an integer >= 1, got {classes!r}")
    head = nn.utils.skip_init(nn.Linear, features, count, device=device or "cpu", dtype=dtype)
    assert isinstance(head, nn.Linear)
    if head.weight.is_meta:
        return head
    with torch.no_grad():
        for parameter in head.parameters():
            drawn = torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_((2 * drawn - 1) * features**-0.5)
    return head


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextmanager
def modes_kept(net: nn.Module) -> Iterator[None]:
    """Training and evaluation modes are restored at the end of this context, module by module."""
    before = {module: module.training for module in net.modules()}
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training


def require_shape(x: Tensor, shape: tuple[int, int, int]) -> None:
    """An error unless ``x`` is a batch of images of this shape."""
    require_tensor("this network", x)
    if x.ndim != 4 or tuple(x.shape[1:]) != shape:
        raise DataError(
            f"expected images (N, {', '.join(map(str, shape))}), got {tuple(x.shape)}; "
            "a single image needs x[None], grey images a channel dimension"
        )
