"""ConvNet in, kernel network out: the translation of section 3 of the paper, for any traceable PyTorch module.

``trace.py`` follows an image through the network, ``rules/`` has the counterpart of each operation, ``builder.py`` has
what rules work with; the report is in :mod:`torchckn.correspondence`. Read next: :mod:`torchckn.fit`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import nn

from ..choices import Centering, Init, RootBlock, Weights
from ..correspondence import Report, Row
from ..errors import ConfigError, TranslationError, unknown_name
from ..graph import Dense, Graph, KernelNode, Node
from ..graph.preprocessing import Preprocessing
from ..kernels import Kernel
from ..network import CKN
from .assembly import Builder
from .builder import Step, rule_module
from .rules import RULES, Rule, reason_against, rule
from .rules.shapes import SELECTING, SEVERAL
from .trace import Operation, Trace, trace
from .values import Layout, Policy, Value
from .views import looked_at

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
        if input_shape is None:
            raise ConfigError("with preprocessing, translate expected input_shape, the shape of an image before it")
        shape = preprocessing.output_shape(image_shape)
    if isinstance(kernel, str) and kernel != "match":
        raise unknown_name("kernel", kernel, ["match"], "Or pass a kernel, such as torchckn.kernels.RBFSphere(0.6).")
    if not isinstance(kernel, (str, Kernel)):
        raise ConfigError(f"kernel expected 'match' or a kernel such as RBFSphere(0.6), got {kernel!r}")
    if linear_kernel is not None and not isinstance(linear_kernel, Kernel):
        raise ConfigError(f"linear_kernel expected a kernel such as Linear() or RBFSphere(0.6), got {linear_kernel!r}")

    if not 0 < scale < float("inf"):
        raise ConfigError(f"scale expected a positive number, the standard deviation of pre-activations, got {scale!r}")
    policy = Policy(
        kernel if isinstance(kernel, Kernel) else None,
        linear_kernel,
        scale,
        _layer_options(eps, init, inverse_sqrt),
        *_checked_width(filters, width),
    )
    builder = Builder(policy, looked_at)
    traced = _traced(net, shape, input_shape is not None)
    values = _walk(traced, shape, builder)
    classes = _head(traced, values, builder, classes)
    _put_in_blocks(builder, root_block)
    if not builder.nodes:
        raise TranslationError(f"{type(net).__name__} has no layer before its classifier: there is nothing to translate")
    nodes = builder.used_nodes(next(reversed(builder.nodes)))
    report = Report(type(net).__name__, builder.finished_rows(nodes))
    if strict:
        require_exact(report)
    example = next((t for t in (*net.parameters(), *net.buffers()) if t.is_floating_point()), torch.zeros(()))
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
    numbers = tuple(shape)
    if len(numbers) != 3 or not all(isinstance(n, int) and n > 0 for n in numbers):
        raise ConfigError(f"input_shape expected (channels, height, width) of one image, without the batch, got {shape!r}")
    return numbers


def _layer_options(eps: float, init: Init, inverse_sqrt: str) -> dict[str, object]:
    if init == "identity":
        raise ConfigError("init='identity' is for single layers; translate takes 'kmeans', 'sample' or 'random'")
    return {"eps": eps, "init": init, "inverse_sqrt": inverse_sqrt}


#: Filters per inverse root, at most, with ``root_block="auto"``: with 512, a step of ResNet-50 takes nearly twice as long
#: (``python -m benchmarks.wide``).
ROOT_BLOCK = 256


def _put_in_blocks(builder: Builder, root_block: RootBlock) -> None:
    """The filters of wide layers in blocks of at most ``root_block``, and the report says so."""
    if root_block == "all":
        return
    block = ROOT_BLOCK if root_block == "auto" else root_block
    if type(block) is not int or block < 1:
        raise ConfigError(f"root_block expected a number of filters >= 1, 'auto' or 'all', got {root_block!r}")
    for name, node in builder.nodes.items():
        if isinstance(node, KernelNode) and node.root_width > block:
            builder.nodes[name] = node = dataclasses.replace(node, root_block=block)
            reason = f"the average of {node.root_blocks} Nystrom approximations, each by at most {block} filters"
            builder.add_reason(node.name, reason)


def _checked_width(filters: int | None, width: float) -> tuple[int | None, float]:
    if filters is not None and (type(filters) is not int or filters < 1):
        raise ConfigError(f"filters expected an integer >= 1, or None for the network's own widths, got {filters!r}")
    if not isinstance(width, (int, float)) or isinstance(width, bool) or not 0 < width < float("inf"):
        raise ConfigError(f"width expected a positive factor such as 0.25, got {width!r}")
    if filters is not None and width != 1:
        raise ConfigError(
            f"translate expected filters or width, got both, filters={filters} and width={width}; leave one out"
        )
    return filters, width


def _traced(net: nn.Module, shape: tuple[int, int, int], adapt: bool) -> Trace:
    """The trace; if the network is made for another number of channels than ``shape`` has, for that number."""

    def has_rule(module: nn.Module) -> bool:
        return rule_module(module, RULES) is not None

    first = next((m for m in net.modules() if isinstance(m, nn.Conv2d)), None)
    try:
        return trace(net, shape, has_rule, RULES)
    except TranslationError:
        if not adapt or first is None or first.in_channels == shape[0]:
            raise
        try:
            return trace(net, (first.in_channels, *shape[1:]), has_rule, RULES)
        except TranslationError:
            pass
        raise


def _walk(traced: Trace, shape: tuple[int, ...], builder: Builder) -> dict[str, Value]:
    """Apply the rules in the order of computation."""
    builder.shapes[Graph.input] = shape
    channels = traced.input.shape[0]
    values: dict[str, Any] = {traced.input.name: Value(Graph.input, shape, width=channels)}
    for operation in traced.operations:
        step = Step(builder, operation, values)
        if operation.key in _NUMBERS and step.raw_inputs:
            raise step.refuse("it turns a feature map into numbers", "Compute with tensors.")
        # Not translated: the input and parameters, arithmetic with sizes, and with parameters alone (a weight times a mask).
        if operation.key is None or _is_bookkeeping(operation) or not step.raw_inputs:
            continue
        key = rule_module(operation.module, RULES) if operation.module is not None else operation.key
        if key not in RULES:
            if operation.returns_its_input:
                key = nn.Identity
            else:
                raise step.refuse(*reason_against(operation))
        if not operation.is_tensor and key not in SEVERAL:
            raise step.refuse("it does not give one tensor", "Give it a module of its own and register a rule for that.")
        value = _apply(_leaving_out if any(_is_statistic(v) for v in step.raw_inputs) else RULES[key], step)
        # What several operations read must be there by itself: it cannot merge with one of them. But its parts can.
        readers = [user for user in operation.users if not _is_bookkeeping(user)]
        if len(readers) > 1 and isinstance(value, Value):
            value = dataclasses.replace(value, several=True)
            if not all(user.key in SELECTING for user in readers):
                value = builder.settle(value)
        values[operation.name] = value
    return values


#: methods that give numbers, and not tensors, which depend on pixels
_NUMBERS = ("item", "tolist")


def _apply(applied: Rule, step: Step) -> Any:
    """A rule's result, checked; errors in a rule name the operation and its place."""
    before = len(step.builder.rows)
    try:
        value = applied(step)
    except TranslationError:
        raise
    except Exception as error:
        raise step.refuse(
            f"its rule failed: {error}", "If the rule is yours, fix it; otherwise please report this."
        ) from None
    if isinstance(value, tuple) or (isinstance(value, Value) and value.view is not None):
        return value
    if not isinstance(value, Value):
        raise step.refuse(
            f"its rule returned {type(value).__name__}", "A rule returns what step.emit, step.layer, ... gave it."
        )
    wanted = _positions_of(step.output_shape, value.layout)
    if wanted is not None and not value.statistic and len(value.shape) == 3 and value.shape[1:] != wanted:
        raise step.refuse(f"its rule gives {value.shape[1:]} positions, the network {wanted}", "Fix the rule.")
    shape = (torch.Size(value.shape).numel(),) if value.flat else value.shape
    rows = step.builder.rows
    for i in range(before, len(rows)):
        if rows[i].name == step.name:
            rows[i] = dataclasses.replace(rows[i], output_shape=shape)
    return dataclasses.replace(value, width=_channels_of(step.output_shape, value))


def _is_statistic(value: Any) -> bool:
    return isinstance(value, Value) and value.statistic


def _leaving_out(step: Step) -> Value:
    """Arithmetic with norms and variances of single channels, which the CKN leaves out."""
    others = [value for value in step.inputs if not value.statistic]
    step.note("dropped", "normalization of single channels has no counterpart", faithful=False)
    return others[0] if others else step.input


def _positions_of(shape: tuple[int, ...], layout: Layout) -> tuple[int, ...] | None:
    """Rows and columns of the ConvNet's image of this shape."""
    if len(shape) != 3:
        return None
    return shape[:2] if layout == "hwc" else shape[1:]


def _channels_of(shape: tuple[int, ...], value: Value) -> int:
    """How many channels the ConvNet has in a result of this shape."""
    if len(shape) <= 1:
        positions = torch.Size(value.shape[1:]).numel()
        return torch.Size(shape).numel() // positions
    return shape[-1] if value.layout in ("hwc", "pc") else shape[0]


def _is_bookkeeping(operation: Operation) -> bool:
    """Whether it only asks for sizes: ``x.size(0)``, ``x.shape[0]``."""
    parts = operation.value if isinstance(operation.value, tuple) else (operation.value,)
    return all(isinstance(part, (int, float, torch.dtype, torch.device)) for part in parts)


def _head(traced: Trace, values: dict[str, Value], builder: Builder, classes: int | None) -> int:
    """Make the last linear layer the head, or report that one is added; returns the number of classes."""
    output = traced.output
    if not isinstance(output, Operation) or output.name not in values:
        raise TranslationError(
            f"translate expected a network that gives one tensor of scores, got {type(output).__name__}; "
            "wrap it in a module that returns the scores only"
        )
    last = builder.looked_at(values[output.name])
    if isinstance(last.pending, Dense):
        name = last.pending.name
        why = "the last linear layer is the classifier, trained on the features"
        builder.rows = [
            # The head has a bias, so the one that was there is not lost.
            dataclasses.replace(row, correspondence="kept", reasons=(why,), parts=(), layer="head", counterpart=_HEAD)
            if row.layer == name
            else row
            for row in builder.rows
        ]
        if last.pending.inputs == (Graph.input,):
            builder.nodes.clear()
        return last.width if classes is None else classes
    builder.settle(last)
    if classes is None:
        if len(output.shape) != 1:
            raise TranslationError(
                f"the network gives {output.shape} for each image and ends without a linear layer, so how many classes "
                "there are cannot be seen; pass classes=..."
            )
        classes = output.shape[0]
    why = "the ConvNet ends without a linear layer; one is added, as in the paper's All-CNN-C"
    builder.rows.append(
        Row("", "", "", "kept", (why,), True, (output.name,), layer="head", counterpart=_HEAD, output_shape=(classes,))
    )
    return classes


_HEAD = "linear classifier"


def require_exact(report: Report) -> None:
    """An error that lists everything without an exact counterpart, if there is anything."""
    losses = report.losses()
    if losses:
        lines = "".join(f"\n  {text}" for text in losses)
        raise TranslationError(
            f"strict expected exact counterparts only; {report.network} has {len(losses)} operations or parts of operations "
            f"with no exact counterpart:{lines}\nReplace them, or leave strict out and read the report."
        )
