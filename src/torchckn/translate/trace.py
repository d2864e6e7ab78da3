"""What a ConvNet does, step by step: its operations in the order of computation, with shapes and places in the source.

``torch.fx`` follows a symbolic image through ``forward``; then real zeros run through what it recorded, for the shapes. The
network itself is left untouched: all of this happens to a copy. Read next: :mod:`torchckn.translate.rules`.
"""

from __future__ import annotations

import copy
import re
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from ..errors import TranslationError

Key = type[nn.Module] | Callable[..., Any] | str
"""What an operation is known by: the class of a module, a function, or the name of a tensor's method."""


@dataclass
class Operation:
    """One operation of the traced network."""

    name: str
    """unique, and fit to be the name of a graph's node"""
    source: str
    """as the user knows it: the path of a module, or the name of a function"""
    key: Key | None
    """what to look a rule up by; None for parameters and for the input"""
    kind: str
    """for messages: ``Conv2d``, ``F.relu``, ``Tensor.view``"""
    module: nn.Module | None
    args: tuple[Any, ...]
    """positional arguments, with other operations in place of what they give"""
    kwargs: dict[str, Any]
    value: Any
    """what it gave for a batch of two all-zero images"""
    where: str
    """file, line and text of the source, where known"""
    users: list[Operation] = field(default_factory=list)

    @property
    def is_tensor(self) -> bool:
        return isinstance(self.value, Tensor)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of its result, without the batch."""
        return tuple(self.value.shape[1:])


@dataclass
class Trace:
    operations: list[Operation]
    input: Operation
    output: Any
    """what ``forward`` returns, with operations in place of tensors"""


def trace(net: nn.Module, input_shape: Sequence[int], is_known: Callable[[nn.Module], bool]) -> Trace:
    """Follow an image of ``input_shape`` (C, H, W) through ``net``.

    ``is_known`` says of a module whether it is to be taken whole; all others are looked into.
    """
    net = copy.deepcopy(net).eval()
    graph_module = _record(net, is_known)
    values = _run(graph_module, net, tuple(input_shape))
    operations: dict[fx.Node, Operation] = {}
    taken: set[str] = set()
    output: Any = None
    inputs: list[Operation] = []
    for node in graph_module.graph.nodes:
        if node.op == "output":
            output = _replace(node.args[0], operations)
            continue
        args, kwargs = _replace(node.args, operations), _replace(node.kwargs, operations)
        key, kind, module = _identify(node, graph_module)
        source = str(node.target) if node.op in ("call_module", "get_attr", "placeholder") else node.name
        name = _unique(node.name, taken)
        operation = Operation(name, source, key, kind, module, args, kwargs, values[node], _place(node))
        for earlier in node.all_input_nodes:
            operations[earlier].users.append(operation)
        if node.op == "placeholder" and not node.args:
            inputs.append(operation)
        operations[node] = operation
    return Trace(list(operations.values()), inputs[0], output)


class _Tracer(fx.Tracer):
    record_stack_traces = True

    def __init__(self, is_known: Callable[[nn.Module], bool]) -> None:
        super().__init__()
        self._is_known = is_known

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return self._is_known(m) or super().is_leaf_module(m, module_qualified_name)


def _record(net: nn.Module, is_known: Callable[[nn.Module], bool]) -> fx.GraphModule:
    if is_known(net) or (type(net).__module__.startswith("torch.nn") and not isinstance(net, nn.Sequential)):
        net = nn.Sequential(net)  # a single layer is a network as well
    tracer = _Tracer(is_known)
    try:
        graph = tracer.trace(net)
    except Exception as error:
        raise TranslationError(
            f"{type(net).__name__} cannot be traced{_culprit(error)}: {_first_line(error)}. Its forward must do the same "
            "operations for every image: no `if` or loop that depends on pixel values, no conversion of tensors to numbers. "
            "Move such code out of forward, or put it into a module of its own and register a rule for that module."
        ) from None
    inputs = [node for node in graph.nodes if node.op == "placeholder" and not node.args]  # args: a default value
    if len(inputs) != 1:
        raise TranslationError(
            f"translate expects a network of one input, a batch of images; {type(net).__name__}.forward takes {len(inputs)}. "
            "Wrap it in a module that fixes the others."
        )
    return fx.GraphModule(net, graph)


def _run(graph_module: fx.GraphModule, net: nn.Module, input_shape: tuple[int, ...]) -> dict[fx.Node, Any]:
    values: dict[fx.Node, Any] = {}

    class Recorder(fx.Interpreter):
        current: fx.Node

        def run_node(self, n: fx.Node) -> Any:
            self.current = n
            values[n] = super().run_node(n)
            return values[n]

    example = next((t for t in (*net.parameters(), *net.buffers()) if t.is_floating_point()), torch.zeros(()))
    images = torch.zeros(2, *input_shape, dtype=example.dtype, device=example.device)
    recorder = Recorder(graph_module, garbage_collect_values=False)
    recorder.extra_traceback = False
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the network's own affair
            recorder.run(images)
    except Exception as error:
        node = recorder.current
        raise TranslationError(
            f"{type(net).__name__} does not run on images of shape {input_shape}: {node.target} ({_place(node) or node.op}) "
            f"says: {_first_line(error)}. Is input_shape, without the batch, the one that the network was made for?"
        ) from None
    return values


def _identify(node: fx.Node, graph_module: fx.GraphModule) -> tuple[Key | None, str, nn.Module | None]:
    if node.op == "call_module":
        module = graph_module.get_submodule(str(node.target))
        return type(module), type(module).__name__, module
    if node.op == "call_function":
        function = node.target
        home = str(getattr(function, "__module__", "") or "")
        prefix = {"torch.nn.functional": "F.", "_operator": "operator."}.get(home, "torch." if "torch" in home else "")
        assert callable(function)
        return function, prefix + getattr(function, "__name__", str(function)), None
    if node.op == "call_method":
        return str(node.target), f"Tensor.{node.target}", None
    return None, node.op, None


def _replace(argument: Any, operations: dict[fx.Node, Operation]) -> Any:
    return fx.node.map_arg(argument, lambda node: operations[node])  # type: ignore[arg-type,return-value]


def _unique(name: str, taken: set[str]) -> str:
    """A name that a graph's node can have: not used yet, and not one of a module dictionary's own."""
    while name in taken or name == "input" or hasattr(nn.ModuleDict, name):
        name += "_"
    taken.add(name)
    return name


def _place(node: fx.Node) -> str:
    """``file.py:12, x = F.relu(x)``: the innermost line of the user's own code."""
    frames = re.findall(r'File "(.+?)", line (\d+), in .+\n\s*(.*)', node.stack_trace or "")
    own = [frame for frame in frames if not _is_torch(frame[0])]
    if not own:
        return ""
    file, line, text = own[-1]
    return f"{Path(file).name}:{line}, `{text.strip()}`"


def _culprit(error: BaseException) -> str:
    """Where in the user's code tracing stopped."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_torch(frame.filename)]
    own = [frame for frame in frames if Path(frame.filename) != Path(__file__)]
    return f" beyond {Path(own[-1].filename).name}:{own[-1].lineno}, `{own[-1].line}`" if own else ""


def _is_torch(file: str) -> bool:
    return Path(torch.__file__).parent in Path(file).parents


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
