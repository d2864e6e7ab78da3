"""Kernel networks as scikit-learn estimators: unsupervised features, and a classifier on them.

Images are (N, C, H, W); or (N, H, W, C), as scikit-image and matplotlib have them, if C is 1, 3 or 4 and the images are larger
than that; or grey images (N, H, W); or flat rows (N, C * H * W) together with an ``image_shape``, which is what a ``Pipeline`` or
``GridSearchCV`` around other estimators needs.

Example:
    >>> from torchckn import data
    >>> from torchckn.sklearn import CKNClassifier
    >>> digits = data.load("mnist-mini")
    >>> model = CKNClassifier(filters=8, patches=500, random_state=0)
    >>> model = model.fit(digits.train.images[:600].numpy(), digits.train.labels[:600].numpy())
"""

from __future__ import annotations

import functools
import math
import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor, nn

from . import zoo
from .choices import Augmentation, Centering, as_integer
from .data.sets import by_share, has_channels_last
from .errors import ConfigError, DataError, unknown_name
from .fit.classifier import HeadFit
from .fit.config import TrainConfig
from .fit.features import extract_features
from .fit.filters import fit_filters
from .fit.folds import FEW_IMAGES, FOLDS
from .fit.head import fit_head_as
from .graph import AdaptiveAveragePool, AveragePool, Conv, Graph
from .graph.preprocessing import Preprocessing
from .kernels import RBFSphere
from .network import CKN
from .runs import train
from .translation import translate

#: options of the layers that an estimator without a net of its own has
_OF_LAYERS = ("filters", "kernel_size", "layers", "output_size", "eps")


@dataclass(eq=False, repr=False)  # scikit-learn reads its options from the arguments of __init__
class _CKNEstimator(BaseEstimator):  # type: ignore[misc]
    """What the transformer and the classifier have in common: images in, unsupervised filters."""

    filters: int = 32
    sigma: float = 0.6
    kernel_size: int = 3
    layers: int = 2
    output_size: int = 4
    patches: int = 10_000
    eps: float = 1e-3
    whiten: bool = False
    centering: Centering = "image"
    image_shape: tuple[int, ...] | None = None
    random_state: int | np.random.RandomState | None = None
    net: nn.Module | str | None = None

    def _images(self, x: Any, *, reset: bool) -> Tensor:
        """Images (N, C, H, W) as float32; bytes as pixels between 0 and 1."""
        x = self._channels_first(x.numpy(force=True) if isinstance(x, Tensor) else x)
        as_bytes = bool(getattr(x, "dtype", None) == np.uint8)
        more_than_rows = getattr(x, "ndim", 2) > 2
        rows = validate_data(self, x, reset=reset, dtype=np.float32, allow_nd=True, ensure_2d=not more_than_rows)
        if reset:
            self._unit_pixels = as_bytes or float(rows.max()) <= 1
        elif as_bytes and not self._unit_pixels:
            raise DataError(
                "expected images of numbers larger than 1, as in fit, got bytes (uint8), which stand for numbers from 0 to 1; "
                "convert them as those of fit, or fit to bytes"
            )
        if rows.ndim == 2:
            shape = self._row_shape(rows.shape[1])
            if int(np.prod(shape)) != rows.shape[1]:
                raise DataError(
                    f"image_shape={shape} expected rows of {int(np.prod(shape))} numbers, got {rows.shape[1]}; pass the images' "
                    "own image_shape"
                )
            rows = rows.reshape(-1, *shape)
        if rows.ndim == 3:
            rows = rows[:, None]
        if rows.ndim != 4:
            raise DataError(f"expected images (N, C, H, W), (N, H, W) or rows with an image_shape, got {rows.shape}")
        images = torch.from_numpy(np.ascontiguousarray(rows))
        return images / 255 if as_bytes else images

    def _channels_first(self, x: Any) -> Any:
        """(N, C, H, W) of images (N, H, W, C), which are known by their few channels; ``image_shape`` overrides that."""
        shape = tuple(getattr(x, "shape", ()))
        is_as_said = self.image_shape is not None and tuple(self.image_shape) == shape[1:]
        return np.moveaxis(x, 3, 1) if has_channels_last(shape) and not is_as_said else x

    def _row_shape(self, length: int) -> tuple[int, ...]:
        """Of square grey images, or of a signal, unless ``image_shape`` says otherwise."""
        if self.image_shape is not None:
            return tuple(self.image_shape)
        side, color_side = math.isqrt(length), math.isqrt(length // 3)
        if 3 * color_side**2 == length and color_side >= 8:
            warnings.warn(
                f"rows of {length} numbers are taken for signals; if they are color images, pass image_shape=(3, {color_side}, "
                f"{color_side})",
                stacklevel=4,
            )
        return (1, side, side) if side * side == length else (1, 1, length)

    def _start(self) -> None:
        """What a fit begins with: all that is random in it has one seed."""
        given = self.random_state
        if given is None or isinstance(given, (int, np.integer)):
            self._seed = int(given or 0)
        else:
            self._seed = int(check_random_state(given).randint(2**31))

    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self._seed)

    def _build(self, images: Tensor, classes: int = 10) -> CKN:
        """``layers`` kernel layers with pooling between them, on standardized (or whitened) images."""
        generator = self._generator()
        channels, height, width = images.shape[1:]
        scale = images.std() > 0
        pixels = Preprocessing.fit(images, self.whiten) if scale else None
        if self.net is not None:
            return self._translated((channels, height, width), images, pixels, classes, generator)
        nodes = list(pixels.nodes()) if pixels else []
        size = [height, width]
        if as_integer(self.kernel_size, 1) is None:
            raise ConfigError(f"kernel_size expected an integer >= 1, the side of the patches, got {self.kernel_size!r}")
        for i in range(self.layers):
            window = min(self.kernel_size, size[0]), min(self.kernel_size, size[1])
            kernel = RBFSphere(self.sigma)
            nodes.append(Conv(f"conv{i + 1}", filters=self.filters, kernel_size=window, kernel=kernel, eps=self.eps))
            size = [n - w + 1 for n, w in zip(size, window, strict=True)]
            if i + 1 < self.layers and min(size) >= 4:
                nodes.append(AveragePool(f"pool{i + 1}", kernel_size=(2, 2)))
                size = [n // 2 for n in size]
        nodes.append(
            AdaptiveAveragePool("pool", output_size=(min(self.output_size, size[0]), min(self.output_size, size[1])))
        )
        centering = "none" if self.filters == 1 else self.centering
        ckn = CKN(Graph((channels, height, width), nodes), classes, centering, generator=generator).eval()
        return fit_filters(ckn, images, self.patches, generator=generator) if scale else ckn

    def _translated(
        self,
        shape: tuple[int, int, int],
        images: Tensor,
        pixels: Preprocessing | None,
        classes: int,
        generator: torch.Generator,
    ) -> CKN:
        """The kernel counterpart of ``net``, with the RBF kernel in place of its nonlinearities."""
        for name in _OF_LAYERS:
            value = getattr(self, name)
            if value != getattr(_CKNEstimator, name):
                raise ConfigError(
                    f"{name} is for estimators without net, got {name}={value!r} with a net; build the net with it"
                )
        net = self.net
        if isinstance(net, str):
            if net not in zoo.ARCHITECTURES:
                raise unknown_name("network", net, zoo.ARCHITECTURES, "Or pass your own ConvNet.")
            net = zoo.build(
                net, **zoo.ARCHITECTURES[net].load().options_for(pixels.output_shape(shape) if pixels else shape)
            )
        assert net is not None
        rbf = RBFSphere(self.sigma)
        ckn = translate(
            net, shape, rbf, classes=classes, preprocessing=pixels, centering=self.centering, generator=generator
        ).eval()
        return fit_filters(ckn, images, self.patches, generator=generator) if pixels else ckn

    def _features(self, images: Tensor) -> Tensor:
        if tuple(images.shape[1:]) != self.ckn_.graph.input_shape:
            raise DataError(
                f"expected images of shape {self.ckn_.graph.input_shape}, as in fit, got {tuple(images.shape[1:])}; crop or "
                "resize them"
            )
        features, _ = extract_features(self.ckn_, images)
        with torch.no_grad():
            return self.ckn_.scaling.eval()(features)


class CKNTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, _CKNEstimator):  # type: ignore[misc]
    """Features of images, learned without labels: kernel layers with unsupervised filters (k-means on patches).

    Args:
        filters: filters per layer.
        sigma: bandwidth of the layers' kernel, the RBF kernel on the sphere.
        kernel_size: side of the patches.
        layers: how many there are.
        output_size: the last layer's features are averaged to this many rows and columns.
        patches: number of patches that a layer's filters are computed from.
        eps: added to the diagonal of each layer's Gram matrix.
        whiten: whiten images patch by patch first; for color photographs.
        centering: mean that is subtracted from the features: ``"image"``, ``"feature"`` or ``"none"``.
        image_shape: (C, H, W) or (H, W) of images that are passed as flat rows. Of images (N, C, H, W), it says that the first
            axis has the channels even if the last one is short enough to be taken for them.
        random_state: seed of the filters, or a ``RandomState`` to draw it from; None is 0.
        net: a ConvNet of your own, or the name of one of the zoo, whose kernel counterpart is taken instead of such layers;
            ``filters``, ``kernel_size``, ``layers``, ``output_size`` and ``eps`` are not for it.
    """

    def fit(self, x: Any, y: Any = None) -> CKNTransformer:
        self._start()
        images = self._images(x, reset=True)
        self.ckn_ = self._build(images)
        features, _ = extract_features(self.ckn_, images)
        self.ckn_.scaling.calibrate(features)
        self._n_features_out = features.shape[1]
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags

    def transform(self, x: Any) -> np.ndarray:
        check_is_fitted(self)
        features: np.ndarray = self._features(self._images(x, reset=False)).numpy()
        return features


@dataclass(eq=False, repr=False)
class CKNClassifier(ClassifierMixin, _CKNEstimator):  # type: ignore[misc]
    """A linear classifier on the features of :class:`CKNTransformer`; its L2 penalty is chosen on images that are held out.

    ``ckn_`` is the whole network, classifier included: ``torchckn.save(model.ckn_, path)`` keeps it.

    Args:
        method: ``"unsupervised"``: the filters are computed without labels; ``"ulr"``, ``"sgo"``: they are trained with labels
            (:func:`torchckn.train`).
        steps: mini-batches of that training.
        run_dir: a folder for the checkpoints of that training; a fit that was interrupted is resumed from there.
        lam: the L2 penalty; None chooses it by cross-validation if the filters are unsupervised and there are fewer than 2,000
            images, else on the fraction ``validation`` of the images, and then fits on all of them.
        validation: the fraction of the images that the L2 penalty is chosen on, or that training is validated with.
        augment: random changes of images, such as ``("flip", "crop")``: of those of each training step, and of ``copies``.
        copies: augmented copies of each image that the classifier is fitted to as well.
        others: as for :class:`CKNTransformer`.
    """

    lam: float | None = None
    validation: float = 0.2
    method: Literal["unsupervised", "ulr", "sgo"] = "unsupervised"
    steps: int = 200
    run_dir: str | None = None
    augment: tuple[Augmentation, ...] | None = None
    copies: int = 0

    def fit(self, x: Any, y: Any) -> CKNClassifier:
        if y is None:
            raise ValueError("CKNClassifier requires y to be passed, but the target y is None")
        if not 0 < self.validation < 1:
            raise ConfigError(f"validation expected a fraction of the images, above 0 and below 1, got {self.validation!r}")
        self._start()
        images = self._images(x, reset=True)
        labels = column_or_1d(y, warn=True)
        check_classification_targets(labels)
        if len(labels) != len(images):
            raise DataError(f"y expected one label for each of {len(images)} images, got {len(labels)}")
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise DataError(f"CKNClassifier expected at least two classes, got one class only: {self.classes_[0]}")
        if self.method not in ("unsupervised", "ulr", "sgo"):
            raise unknown_name("method", self.method, ("unsupervised", "ulr", "sgo"))
        steps = 0 if self.method == "unsupervised" else self.steps
        config = TrainConfig(augment=self.augment, copies=self.copies, lam=self.lam, steps=steps)
        config.resolved("ulr", len(images))  # which finds options that do not fit together
        self.ckn_ = self._build(images, len(self.classes_))
        targets = torch.from_numpy(codes.astype(np.int64))
        order = torch.randperm(len(images), generator=self._generator())
        held = min(max(1, int(self.validation * len(images))), len(images) - 1)
        order = by_share(order, targets, held)
        if self.method != "unsupervised":
            self._train(config, images, targets, order[held:], order[:held])
        self.head_fit_ = self._fit_head(config, (images, targets), order[held:], order[:held])
        head = self.ckn_.head
        self.coef_, self.intercept_ = head.weight.detach().numpy().copy(), head.bias.detach().numpy().copy()
        return self

    def _fit_head(self, config: TrainConfig, labeled: tuple[Tensor, Tensor], kept: Tensor, valid: Tensor) -> HeadFit:
        """The classifier of all images, its penalty chosen by cross-validation if they are few, else on ``valid``."""
        images, targets = labeled
        fit = functools.partial(fit_head_as, config, self.ckn_, generator=self._generator())
        if self.lam is not None:
            return fit(labeled)
        if self.method == "unsupervised" and len(images) < FEW_IMAGES:
            return fit(labeled, folds=min(FOLDS, len(images)))
        parts = ((images[index], targets[index]) for index in (kept, valid))
        return fit(*parts, refit=True, folds=0)  # trained filters know the labels of any fold

    def _train(self, config: TrainConfig, images: Tensor, targets: Tensor, kept: Tensor, valid: Tensor) -> None:
        """Train the filters with labels; the classifier on all images comes after."""
        method: Any = self.method
        self.train_result_ = train(
            self.ckn_,
            (images[kept], targets[kept]),
            (images[valid], targets[valid]),
            config,
            method=method,
            final_head=False,
            generator=self._generator(),
            run_dir=self.run_dir,
            resume=self.run_dir is not None,
        )
        self.ckn_.eval()

    def decision_function(self, x: Any) -> np.ndarray:
        check_is_fitted(self)
        scores: np.ndarray = self._features(self._images(x, reset=False)).numpy() @ self.coef_.T + self.intercept_
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_proba(self, x: Any) -> np.ndarray:
        scores = np.asarray(self.decision_function(x), dtype=np.float64)
        if scores.ndim == 1:
            scores = np.stack([np.zeros_like(scores), scores], 1)
        scores -= scores.max(1, keepdims=True)
        weights = np.exp(scores)
        return weights / weights.sum(1, keepdims=True)

    def predict(self, x: Any) -> np.ndarray:
        scores = self.decision_function(x)
        index = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(1)
        return self.classes_[index]
