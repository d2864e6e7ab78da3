"""One training step, by each of the methods that are compared.

=============  =======================================================================================================
``ulr``        ultimate layer reversal: filters descend on the reduced objective, the classifier follows by its model
``sgo``        filters and classifier descend on the penalized objective together, the filters on their spheres
``sgo-ball``   the same, the classifier constrained to a ball instead of penalized (proposition "sgo_constrained")
``sgd``        SGD with momentum on all parameters of a ConvNet, with the same penalty
=============  =======================================================================================================

Paper: section 4.3, Algorithm 3. Read first: :mod:`torchckn.fit.ulr`. Read next: :mod:`torchckn.fit.loop`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer

from ..distributed import common, summing, total_of_numbers
from ..errors import ConfigError, NotFittedError, NumericalError
from ..network import Classifier
from ..nn.checks import Deferred
from ..nn.devices import wide_dtype
from ..nn.walk import modules_of
from ..nn.whitening import Whitening, every_whitening
from .chunks import batch_features, batch_gradient
from .classifier import fit_classifier
from .config import MethodOptions as MethodOptions
from .features import check_labels
from .sphere import SphereSGD, project_to_ball
from .targets import aim
from .ulr import Reduced, reduced_objective, step_head

T = TypeVar("T")


class StepResult(NamedTuple):
    loss: float
    """the objective that was descended on, before the step"""
    accuracy: float
    """of the classifier on the batch, before the step"""


class Method:
    """A network with the optimizers that train it."""

    #: whether the objective has the L2 penalty of the classifier
    penalized: ClassVar[bool] = True

    def __init__(self, net: Classifier, options: MethodOptions) -> None:
        self.net, self.options = net, options
        lam = net.penalty if options.lam is None else options.lam
        if lam is None:
            raise NotFittedError("no L2 penalty: pass lam=..., or fit the classifier first (torchckn.fit_head)")
        #: L2 penalty of the classifier: the one that is given, or the one that it was fitted with
        self.lam = lam
        self.momentum = options.momentum or 0.0
        if options.class_weights == "balanced":
            raise ConfigError("class_weights: 'balanced' needs all training labels, which torchckn.train has; pass numbers")
        no_labels = torch.empty(0, dtype=torch.long)
        self.aim = aim(options.class_weights, options.label_smoothing, no_labels, net.head.out_features)
        self.optimizers: list[Optimizer] = self._optimizers()
        self.checks = Deferred()
        #: images of a batch, and how much of it this process has
        self._images, self._share = 1.0, 1.0

    def _optimizers(self) -> list[Optimizer]:
        """Of the features: filters on their spheres in a kernel network, all parameters but the head's in any other."""
        net = self.net
        groups = net.parameter_groups()
        if not groups:
            raise ConfigError("there is nothing to train: every layer is fixed; check trainable=... and requires_grad")
        if net.on_spheres:
            normalize = isinstance(self, ULR) if self.options.normalize is None else self.options.normalize
            return [SphereSGD(groups, lr=0.0, normalize=normalize, momentum=self.momentum)]
        return [self._plain_optimizer(groups, self.options.weight_decay)]

    def _plain_optimizer(self, parameters: Any, decay: float = 0.0) -> Optimizer:
        """Of parameters that are on no sphere."""
        if self.options.optimizer == "adamw":
            if self.net.on_spheres:
                raise ConfigError(
                    "optimizer 'adamw' is for ConvNets; CKN filters are trained by SGD on the sphere: leave optimizer out"
                )
            return AdamW(parameters, lr=0.0, weight_decay=decay)
        return SGD(parameters, lr=0.0, momentum=self.momentum, weight_decay=decay)

    def step(self, images: Tensor, labels: Tensor, lr: float) -> StepResult:
        """One step on a batch; an error, and nothing changed, if its objective is not finite.

        With several processes, each has its share of the batch.
        """
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        if not all(module.training for module in modules_of(self.net)):
            self.net.train()
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        with self.checks, summing(self.net):
            labels = check_labels(labels, self.net.head.out_features).to(self.net.head.weight.device)
            (self._images,) = total_of_numbers(len(labels))
            self._share = len(labels) / self._images
            # On an accelerator, what follows this one read of results is checked in the next step's.
            value, accuracy = self.checks.read(*self._descend(images, labels))
            if not math.isfinite(value):
                raise NumericalError(f"the objective of a batch is {value}")
            for group in groups:
                group["lr"] = lr
            for optimizer in self.optimizers:
                optimizer.step()
            self._follow(images, labels)
        return StepResult(value, accuracy)

    def _descend(self, images: Tensor, labels: Tensor) -> Tensor:
        """Put the gradients of the objective into the parameters; objective and accuracy, of all processes: (2,)"""
        raise NotImplementedError

    def _gradient(self, images: Tensor, objective: Callable[[Tensor], tuple[Tensor, T]]) -> tuple[Tensor, T]:
        """:func:`batch_gradient` of this batch, in chunks and memory as the options have it."""
        o = self.options
        return batch_gradient(self.net, images, objective, o.chunk, o.precision, self._images, o.graph_memory)

    def _follow(self, images: Tensor, labels: Tensor) -> None:
        """What comes after the optimizers' step."""

    def _objective(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and penalty of the current classifier on raw features, and its accuracy.

        In double precision: sums over images in any order.
        """
        wide = wide_dtype(features.device)
        weight, *bias = (common(parameter.to(wide)) for parameter in self.net.head.parameters())
        scores = F.linear(self.net.scaling(features).to(wide), weight, *bias)
        penalty = self.lam * weight.square().sum() if self.penalized else 0.0
        return self._loss(scores, labels) + penalty, accuracy_of(scores, labels)

    def _loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        multinomial = self.options.loss == "multinomial"
        if multinomial and self.aim.is_plain:
            return F.cross_entropy(scores, labels)
        targets, weights = self.aim.targets(labels, scores.shape[1]).to(scores), self.aim.weights(labels)
        per_image = -(targets * F.log_softmax(scores, 1)).sum(1) if multinomial else (targets - scores).square().sum(1)
        return (per_image if weights is None else weights.to(scores) * per_image).mean()

    @torch.no_grad()
    def loss(self, images: Tensor, labels: Tensor) -> float:
        """The objective of the current filters and classifier on a batch, by which learning rates are compared."""
        features, labels = self._without_graph(images, labels)
        with summing(self.net):
            return _over_all_images(self._objective(features, labels)[0], labels)

    @torch.no_grad()
    def refitted_loss(self, images: Tensor, labels: Tensor) -> float:
        """The loss, without its penalty, of a classifier fitted to a batch with the penalty; the network's own stays as it is."""
        features, labels = self._without_graph(images, labels)
        with summing(self.net):
            scaled = self.net.scaling(features)
        how: dict[str, Any] = {"loss": self.options.loss, "lam": self.lam, "aim": self.aim}
        weight, bias, _ = fit_classifier(scaled, labels, self.net.head.out_features, **how)
        return _over_all_images(self._loss(scaled @ weight + bias, labels), labels)

    def _without_graph(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Features of a batch in training mode, and its labels beside them."""
        self.net.train()
        (count,) = total_of_numbers(len(labels))
        features = batch_features(self.net, images, self.options.chunk, self.options.precision, count)
        return features, check_labels(labels, self.net.head.out_features).to(features.device)

    def state(self) -> dict[str, Tensor]:
        """All tensors that a step changes, copied: the network's, then the optimizers'.

        On an accelerator what a step has changed is checked by ``checks.read()``, at the latest in the next step.
        """
        tensors = net_state(self.net)
        for i, optimizer in enumerate(self.optimizers):
            for j, entries in optimizer.state_dict()["state"].items():
                for key, value in entries.items():
                    if isinstance(value, Tensor):
                        tensors[f"optimizer.{i}.{j}.{key}"] = value
        return {name: tensor.detach().clone() for name, tensor in tensors.items()}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Back to what :meth:`state` copied."""
        self.net.load_state_dict({name[4:]: value for name, value in tensors.items() if name.startswith("net.")})
        for i, optimizer in enumerate(self.optimizers):
            entries: dict[int, dict[str, Any]] = {}
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            for name, value in tensors.items():
                if name.startswith(f"optimizer.{i}."):
                    _, _, j, key = name.split(".", 3)
                    if value.ndim and value.shape != parameters[int(j)].shape:
                        raise ValueError(
                            f"{name} has shape {tuple(value.shape)}, its parameter {tuple(parameters[int(j)].shape)}"
                        )
                    entries.setdefault(int(j), {})[key] = value.clone()
            optimizer.load_state_dict({"state": entries, "param_groups": optimizer.state_dict()["param_groups"]})


class ULR(Method):
    """Algorithm 3: a step of the filters on the reduced objective, then the classifier that minimizes the model."""

    def step(self, images: Tensor, labels: Tensor, lr: float) -> StepResult:
        if self.options.head_update != "exact":
            return super().step(images, labels, lr)
        with every_whitening(self.net, Whitening.keeping_images):  # the exact classifier sees the same images again
            return super().step(images, labels, lr)

    def _descend(self, images: Tensor, labels: Tensor) -> Tensor:
        net = self.net

        def objective(features: Tensor) -> tuple[Tensor, Tensor]:
            scaled = net.scaling.calibrated(features)
            value, eta = self._reduce(scaled, labels)
            with torch.no_grad():
                accuracy = accuracy_of(net.head(scaled), labels)
            return torch.stack([value, self._share * accuracy]), eta

        results, self._eta = self._gradient(images, objective)
        return results

    def _follow(self, images: Tensor, labels: Tensor) -> None:
        if self.options.head_update == "exact":  # the model of the same classifier, at the new filters
            with torch.no_grad():
                chunk, precision = self.options.chunk, self.options.precision
                features = batch_features(self.net, images, chunk, precision, self._images)
                self._eta = self._reduce(self.net.scaling.calibrated(features), labels)[1]
        step_head(self.net.head, self._eta)

    def _reduce(self, scaled: Tensor, labels: Tensor) -> Reduced:
        return reduced_objective(scaled, labels, self.net.head, **self._model())

    def _model(self) -> dict[str, Any]:
        """What the classifier minimizes, and how: arguments of :func:`torchckn.fit.ulr.reduced_objective`."""
        o = self.options
        model = {"lam": self.lam, "tau": o.tau, "loss": o.loss, "hessian": o.hessian, "aim": self.aim}
        return model | {"total": self.net.scaling.total, "images": self._images}


class SGO(Method):
    """Gradient steps on filters and classifier together, on the penalized objective."""

    def _optimizers(self) -> list[Optimizer]:
        return [*super()._optimizers(), self._plain_optimizer(self.net.head.parameters())]

    def _descend(self, images: Tensor, labels: Tensor) -> Tensor:
        def objective(features: Tensor) -> tuple[Tensor, None]:
            self.net.scaling.calibrate(features.detach())
            return self._share * torch.stack(self._objective(features, labels)), None

        return self._gradient(images, objective)[0]


class SGOBall(SGO):
    """Gradient steps without a penalty; the classifier's weights stay in a ball."""

    penalized = False

    def __init__(self, net: Classifier, options: MethodOptions) -> None:
        super().__init__(net, options)
        radius = options.radius
        self.radius = float(torch.linalg.vector_norm(net.head.weight.detach())) if radius is None else radius
        if not self.radius > 0:
            raise ConfigError(
                "radius: the classifier it starts from is zero, so its norm cannot be the radius; pass radius=..."
            )

    def state(self) -> dict[str, Tensor]:
        return super().state() | {"radius": torch.tensor(self.radius, dtype=torch.float64)}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        super().restore(tensors)
        self.radius = float(tensors.get("radius", self.radius))  # without steps there was none

    @torch.no_grad()
    def _follow(self, images: Tensor, labels: Tensor) -> None:
        weight = self.net.head.weight.detach()
        weight.copy_(project_to_ball(weight, self.radius))


class ConvNetSGD(SGO):
    """SGD with momentum on every parameter, penalty on the classifier."""


def _over_all_images(mean: Tensor, labels: Tensor) -> float:
    """The mean over the batches of all processes, from that over this one's."""
    total, images = total_of_numbers(len(labels) * float(mean), len(labels))
    return total / images


def net_state(net: Classifier) -> dict[str, Tensor]:
    """A network's tensors, as :meth:`Method.state` names them."""
    return {f"net.{name}": tensor.detach().clone() for name, tensor in net.state_dict().items()}


METHODS: dict[str, type[Method]] = {"ulr": ULR, "sgo": SGO, "sgo-ball": SGOBall, "sgd": ConvNetSGD}


def accuracy_of(scores: Tensor, labels: Tensor) -> Tensor:
    """The share of images whose highest score is that of their class."""
    return (scores.detach().argmax(1) == labels).to(wide_dtype(scores.device)).mean()
