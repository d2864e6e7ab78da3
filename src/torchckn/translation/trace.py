"""The operations of a ConvNet in the order of computation, with their shapes and their places in the source.

``torch.fx`` traces ``forward`` with a symbolic image; then an image of zeros runs through the recorded graph, which gives the
shapes. The network itself is left untouched: all of this happens to a copy. Read next: :mod:`torchckn.translation.rules`.
"""

from __future__ import annotations

import copy
import inspect
import operator
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
"""What identifies an operation: the class of a module, a function, or the name of a tensor's method."""


@dataclass
class Operation:
    """One operation of the traced network."""

    name: str
    """unique, and a valid name for a node of a graph"""
    source: str
    """its name in the ConvNet: the path of a module, or the name of a function"""
    key: Key | None
    """what to look a rule up by; None for parameters and for the input"""
    kind: str
    """for messages: ``Conv2d``, ``F.relu``, ``Tensor.view``"""
    module: nn.Module | None
    args: tuple[Any, ...]
    """positional arguments; an argument that is the result of another operation is that operation"""
    kwargs: dict[str, Any]
    value: Any
    """its result for a batch of two all-zero images"""
    where: str
    """file, line and text of the source, if known"""
    users: list[Operation] = field(default_factory=list)

    @property
    def is_tensor(self) -> bool:
        return isinstance(self.value, Tensor)

    @property
    def returns_its_input(self) -> bool:
        """Whether it gives back the tensor that it got, as stochastic depth does once a network is trained."""
        given = next((a.value for a in _operations_in((self.args, self.kwargs)) if a.is_tensor), None)
        return given is not None and self.value is given

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of its result, without the batch."""
        return tuple(self.value.shape[1:])


@dataclass
class Trace:
    operations: list[Operation]
    input: Operation
    output: Any
    """what ``forward`` returns; a tensor is the operation that gives it"""


def trace(net: nn.Module, input_shape: Sequence[int], has_rule: Callable[[nn.Module], bool]) -> Trace:
    """Trace ``net`` with an image of ``input_shape`` (C, H, W).

    A module for which ``has_rule`` is true is one operation; all others are traced into.
    """
    net = _copy(net)
    graph_module = _record(net, has_rule)
    values = _run(graph_module, net, tuple(input_shape))
    #: the operation that gives a node's value: its own, or the last one that has changed it in place
    current: dict[fx.Node, Operation] = {}
    operations: list[Operation] = []
    taken = {"input", "head"}
    output: Any = None
    for node in graph_module.graph.nodes:
        args, kwargs = _replace(node.args, current), _replace(node.kwargs, current)
        if node.op == "output":
            output = args[0]
            continue
        key, kind, module = _identify(node, graph_module)
        source = str(node.target) if node.op in ("call_module", "get_attr", "placeholder") else node.name
        operation = Operation(_unique(node.name, taken), source, key, kind, module, args, kwargs, values[node], _place(node))
        operations.append(operation)
        current[node] = operation
        if _is_in_place(operation) and node.all_input_nodes:
            changed = current[node.all_input_nodes[0]]
            current.update({n: operation for n, o in current.items() if o is changed})
    used = _needed(output)
    kept = [o for o in operations if id(o) in used or o is operations[0]]
    for operation in kept:
        for earlier in {id(o): o for o in _operations_in((operation.args, operation.kwargs))}.values():
            earlier.users.append(operation)
    return Trace(kept, operations[0], output)


def _copy(net: nn.Module) -> nn.Module:
    """A copy in eval mode, whose forward takes one argument: others keep their defaults."""
    try:
        net = copy.deepcopy(net).eval()
        parameters = inspect.signature(net.forward).parameters.values()
        forward = type(net).forward
        net.__class__ = type(type(net).__name__, (type(net),), {"forward": lambda self, images: forward(self, images)})
    except Exception as error:
        raise TranslationError(
            f"{type(net).__name__} cannot be copied, which translate does to leave it untouched: {_first_line(error)}. "
            "Detach tensors that it holds, and pass the inner module of a compiled, parallel or scripted one."
        ) from None
    needed = [p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(needed) > 1:
        raise TranslationError(
            f"translate expected a network of one input, a batch of images; {type(net).__name__}.forward takes {len(needed)}. "
            "Wrap it in a module that fixes the others."
        )
    return net


def _is_in_place(operation: Operation) -> bool:
    """Whether it changes its input: later operations on that input get the result."""
    if isinstance(operation.key, str):
        return operation.key.endswith("_") and not operation.key.endswith("__")
    if operation.module is not None:
        return bool(getattr(operation.module, "inplace", False))
    name = getattr(operation.key, "__name__", "")
    in_place_operators = (operator.iadd, operator.isub, operator.imul, operator.itruediv)
    return operation.key in in_place_operators or name.endswith("_") or operation.kwargs.get("inplace") is True


def _operations_in(item: Any) -> list[Operation]:
    """The operations in an argument."""
    if isinstance(item, Operation):
        return [item]
    if isinstance(item, slice):
        item = (item.start, item.stop, item.step)
    if isinstance(item, dict):
        item = tuple(item.values())
    return [operation for part in item for operation in _operations_in(part)] if isinstance(item, (tuple, list)) else []


def _needed(output: Any) -> set[int]:
    """The ids of all operations that the output depends on; the rest is dead code."""
    needed: set[int] = set()
    waiting = _operations_in(output)
    while waiting:
        operation = waiting.pop()
        if id(operation) not in needed:
            needed.add(id(operation))
            waiting += _operations_in((operation.args, operation.kwargs))
    return needed


class _Tracer(fx.Tracer):
    """Records which line of the user's code each operation comes from. (torch can do that as well, but imports its compiler
    for it, which takes longer than the whole translation.)"""

    def __init__(self, has_rule: Callable[[nn.Module], bool]) -> None:
        super().__init__()
        self._has_rule = has_rule

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return self._has_rule(m) or super().is_leaf_module(m, module_qualified_name)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        stack = traceback.extract_stack()[:-1]
        began = max(i for i, frame in enumerate(stack) if frame.filename == __file__)  # where tracing was called
        node.meta["own_frames"] = [frame for frame in stack[began + 1 :] if not _is_torch(frame.filename)]
        return node


def _record(net: nn.Module, has_rule: Callable[[nn.Module], bool]) -> fx.GraphModule:
    home = type(net).__mro__[1].__module__  # of the class that was copied
    if has_rule(net) or (home.startswith("torch.nn") and not isinstance(net, nn.Sequential)):
        net = nn.Sequential(net)  # a single layer is a network as well
    tracer = _Tracer(has_rule)
    try:
        graph = tracer.trace(net)
    except Exception as error:
        raise TranslationError(
            f"{type(net).__name__} cannot be traced{_culprit(error)}: {_first_line(error)}. Its forward must do the same "
            "operations for every image: no `if` or loop that depends on pixel values or sizes, no tensors turned into numbers. "
            "Move such code out of forward, or put it into a module of its own and register a rule for that module."
        ) from None
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
            warnings.simplefilter("ignore")  # warnings about the network, which its own training shows as well
            recorder.run(images)
    except Exception as error:
        node = recorder.current
        raise TranslationError(
            f"{type(net).__name__} does not run on images of shape {input_shape}: {node.target} ({_place(node) or node.op}) "
            f"raises: {_first_line(error)}. Check that input_shape, without the batch, is the one that the network was made for."
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


def _replace(argument: Any, current: dict[fx.Node, Operation]) -> Any:
    return fx.node.map_arg(argument, lambda node: current[node])  # type: ignore[arg-type,return-value]


def _unique(name: str, taken: set[str]) -> str:
    """A valid name for a node of a graph: not taken, and not an attribute of a module dictionary."""
    while name in taken or hasattr(_MODULES, name):
        name += "_"
    taken.add(name)
    return name


_MODULES = nn.ModuleDict()


def _place(node: fx.Node) -> str:
    """``file.py:12, x = F.relu(x)``: the innermost line of the user's code."""
    own = node.meta.get("own_frames")
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}, `{own[-1].line}`" if own else ""


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
