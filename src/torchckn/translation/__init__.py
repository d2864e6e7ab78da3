"""ConvNet in, kernel network out: the translation of section 3 of the paper, for any traceable PyTorch module.

``trace.py`` follows an image through the network (``memory.py``: through operations in place; ``expansions.py`` and
``compositions.py``: where one operation is several, or several are one), ``rules/`` has the counterpart of each operation,
``builder.py`` has what rules work with, ``walk.py`` applies them one after the other; the report is in
:mod:`torchckn.correspondence`. Read next: :mod:`torchckn.fit`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Literal

import torch
from torch import nn

from ..choices import Centering, FilterMethod, Init, RootBlock, Weights, as_integer, as_integers, check_choice
from ..correspondence import Report, Row
from ..errors import ConfigError, TranslationError, unknown_name
from ..graph import Graph, KernelNode, Node
from ..graph.preprocessing import Preprocessing
from ..kernels import Kernel
from ..network import CKN
from ..nn.base import checked_eps
from ..nn.invsqrt import check_method
from .assembly import Builder
from .builder import Step
from .calls import example_tensor
from .recognition import looked_at
from .rules import rule
from .values import Policy, Value
from .walk import apply_rules, make_head, traced_network

__all__ = ["Report", "Row", "Step", "Value", "rule", "translate"]


def translate(
    net: nn.Module,
    input_shape: Sequence[int] | None = None,
    kernel: Literal["match"] | Kernel = "match",
    *,
    linear_kernel: Kernel | None = None,
    scale: float = 1.0,
    strict: bool = False,
    classes: int | None = None,
    filters: int | None = None,
    width: float = 1.0,
    eps: float = 1e-3,
    init: Init = "kmeans",
    inverse_sqrt: str = "auto",
    root_block: RootBlock = "auto",
    centering: Centering = "image",
    weights: Weights = "nystrom",
    preprocessing: Preprocessing | None = None,
    generator: torch.Generator | None = None,
) -> CKN:
    """The kernel counterpart of a ConvNet, with random filters; ``ckn.report`` says what each operation has become.

    Args:
        net: any module that does the same operations for all images of one shape. It is left untouched; its dtype and device
            carry over.
        input_shape: (channels, height, width); optional for networks that have an ``input_shape``, as those of the zoo do. The
            number of channels may differ from the network's: the CKN takes that of the images.
        kernel: ``"match"`` for each activation's own kernel, or one kernel for all nonlinear layers, such as
            ``RBFSphere(0.6)``, which the paper's experiments use.
        linear_kernel: the kernel of layers without a nonlinearity, ``Linear()`` by default; the runs that the paper's authors
            released have ``RBFSphere(0.6)`` there as well.
        scale: the standard deviation of pre-activations, for activations whose shape depends on it, such as tanh and GELU
            (:class:`torchckn.kernels.Dual`); 1 is what standardized inputs and the usual initializations give.
        strict: raise an error that lists everything without an exact counterpart, if there is anything.
        classes: number of scores that the head gives; by default as many as the network gives.
        filters: number of filters of every layer; by default as many as the network's layers have.
        width: multiplies the number of filters of every layer, such as 0.25 for a counterpart that is quick to train.
        eps, init, inverse_sqrt: options of every layer; see :class:`torchckn.nn.KernelConv2d`.
        root_block: filters per inverse root, at most: wider layers have their filters in blocks (see
            :class:`torchckn.nn.KernelConv2d`). ``"auto"``: 256 (``ROOT_BLOCK``), because the time of a root grows with the
            cube of its width; ``"all"``: one root per layer, whatever its width.
        centering: of the features; see :class:`torchckn.network.FeatureScaling`.
        weights: ``"random-features"`` gives the finite ConvNet with Gaussian weights whose kernel the CKN approximates.
        preprocessing: applied to the pixels first (:class:`torchckn.data.Preprocessing`). It becomes part of the CKN, which
            takes images of ``input_shape``; ``net`` is traced on what the preprocessing gives.
        generator: for the random filters.

    Example:
        >>> from torchckn import translate, zoo
        >>> ckn = translate(zoo.build("lenet5", filters=8, bias=False))
        >>> ckn(torch.rand(2, 1, 32, 32)).shape
        torch.Size([2, 10])
        >>> ckn.report.rows[0].label
        'layers_conv1: conv 5x5, 8 filters, Linear()'
    """
    if not isinstance(net, nn.Module):
        raise ConfigError(
            f"translate expected a torch.nn.Module, got {type(net).__name__}; zoo.build(name) makes one by name"
        )
    shape = image_shape = _checked_shape(net, input_shape)
    if preprocessing is not None:
        if not isinstance(preprocessing, Preprocessing):
            raise ConfigError(
                f"preprocessing expected a torchckn.data.Preprocessing, got {preprocessing!r}; use its fit(images)"
            )
        if input_shape is None:
            raise ConfigError("with preprocessing, translate expected input_shape, the shape of an image before it")
        shape = preprocessing.output_shape(image_shape)
    if isinstance(kernel, str) and kernel != "match":
        raise unknown_name("kernel", kernel, ["match"], "Or pass a kernel, such as torchckn.kernels.RBFSphere(0.6).")
    if not isinstance(kernel, (str, Kernel)):
        raise ConfigError(f"kernel expected 'match' or a kernel such as RBFSphere(0.6), got {kernel!r}")
    if linear_kernel is not None and not isinstance(linear_kernel, Kernel):
        raise ConfigError(f"linear_kernel expected a kernel such as Linear() or RBFSphere(0.6), got {linear_kernel!r}")

    if not _is_positive(scale):
        raise ConfigError(f"scale expected a positive number, the standard deviation of pre-activations, got {scale!r}")
    policy = Policy(
        kernel if isinstance(kernel, Kernel) else None,
        linear_kernel,
        scale,
        _layer_options(eps, init, inverse_sqrt),
        *_checked_width(filters, width),
    )
    classes = _checked_count("classes", classes, "number of scores")
    builder = Builder(policy, looked_at)
    traced = traced_network(net, shape, input_shape is not None)
    values = apply_rules(traced, shape, builder)
    features, classes = make_head(traced, values, builder, classes)
    _put_in_blocks(builder, root_block)
    if features == Graph.input:
        raise TranslationError(f"{type(net).__name__} has no layer before its classifier: there is nothing to translate")
    nodes = builder.used_nodes(features)
    report = Report(type(net).__name__, builder.finished_rows(nodes), tuple(builder.other_numbers))
    if strict:
        require_exact(report)
    example = example_tensor(net)
    ckn = CKN(
        _with_preprocessing(image_shape, preprocessing, nodes),
        classes,
        centering,
        weights=weights,
        generator=generator,
        device=example.device,
        dtype=example.dtype,
    )
    ckn.report = report
    return ckn.train(net.training)


translate.rule = rule  # type: ignore[attr-defined]


def _with_preprocessing(shape: Sequence[int], preprocessing: Preprocessing | None, nodes: list[Node]) -> Graph:
    if preprocessing is None:
        return Graph(shape, nodes)
    first = preprocessing.nodes()
    last = first[-1].name
    moved = [dataclasses.replace(node, inputs=tuple(last if i == Graph.input else i for i in node.inputs)) for node in nodes]
    return Graph(shape, [*first, *moved])


def _checked_shape(net: nn.Module, input_shape: Sequence[int] | None) -> tuple[int, int, int]:
    shape = getattr(net, "input_shape", None) if input_shape is None else input_shape
    if shape is None:
        raise ConfigError("translate expected input_shape=(channels, height, width), the shape of one image")
    numbers = as_integers(shape, 1) if isinstance(shape, Iterable) else None
    if numbers is None or len(numbers) != 3:
        raise ConfigError(f"input_shape expected (channels, height, width) of one image, without the batch, got {shape!r}")
    return numbers[0], numbers[1], numbers[2]


def _layer_options(eps: float, init: Init, inverse_sqrt: str) -> dict[str, object]:
    if init == "identity":
        raise ConfigError("init='identity' is for single layers; translate takes 'kmeans', 'sample' or 'random'")
    check_choice("init", init, FilterMethod)
    check_method(inverse_sqrt)
    return {"eps": checked_eps("eps", eps), "init": init, "inverse_sqrt": inverse_sqrt}


#: Filters per inverse root, at most, with ``root_block="auto"``: with 512, a step of ResNet-50 takes nearly twice as long
#: (``python -m benchmarks.wide``).
ROOT_BLOCK = 256


def _put_in_blocks(builder: Builder, root_block: RootBlock) -> None:
    """The filters of wide layers in blocks of at most ``root_block``, and the report says so."""
    if root_block == "all":
        return
    block = as_integer(ROOT_BLOCK if root_block == "auto" else root_block, 1)
    if block is None:
        raise ConfigError(f"root_block expected a number of filters >= 1, 'auto' or 'all', got {root_block!r}")
    for name, node in builder.nodes.items():
        if isinstance(node, KernelNode) and node.root_width > block:
            builder.nodes[name] = node = dataclasses.replace(node, root_block=block)
            reason = f"the average of {node.root_blocks} Nystrom approximations, each by at most {block} filters"
            builder.add_reason(node.name, reason)


def _is_positive(number: object) -> bool:
    return isinstance(number, Real) and not isinstance(number, bool) and 0 < number < float("inf")  # type: ignore[operator]


def _checked_count(name: str, count: int | None, own: str) -> int | None:
    number = as_integer(count, 1)
    if count is not None and number is None:
        raise ConfigError(f"{name} expected an integer >= 1, or None for the network's own {own}, got {count!r}")
    return number


def _checked_width(filters: int | None, width: float) -> tuple[int | None, float]:
    number = _checked_count("filters", filters, "widths")
    if not _is_positive(width):
        raise ConfigError(f"width expected a positive factor such as 0.25, got {width!r}")
    if filters is not None and width != 1:
        raise ConfigError(
            f"translate expected filters or width, got both, filters={filters} and width={width}; leave one out"
        )
    return number, width


def require_exact(report: Report) -> None:
    """An error that lists everything without an exact counterpart, if there is anything."""
    losses = report.losses()
    if losses:
        lines = "".join(f"\n  {text}" for text in losses)
        raise TranslationError(
            f"strict expected exact counterparts only; {report.network} has {len(losses)} operations or parts of operations "
            f"with no exact counterpart:{lines}\nReplace them, or leave strict out and read the report."
        )
