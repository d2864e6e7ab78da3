"""The first tracer: ``torch.fx`` with symbolic images that know their values for an image of zeros.

Each operation is computed as soon as it is recorded, so that sizes are plain numbers: ``if x.shape[-1] > 7``, loops over sizes
and ``int(x.shape[2] * scale)`` are as in any other run. What depends on pixels has no number, and is an error that names the
line. Read next: ``exported.py``.
"""

from __future__ import annotations

import operator
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, fx, nn

from .calls import Call, DependsOnPixelsError, DoesNotRunError, Key, Recording, changes, is_leaf, is_own, place

#: methods and functions whose results are the same for all images of one shape
_OF_SHAPES = {
    *("size", "dim", "ndimension", "numel", "nelement", "stride", "element_size", "get_device"),
    *("is_contiguous", "is_floating_point", "is_complex", "is_tensor"),
}


def record(net: nn.Module, images: Tensor, has_rule: Callable[[nn.Module], bool]) -> Recording:
    """Trace ``net`` with these images."""
    tracer = _Tracer(images, has_rule)
    graph = tracer.trace(net)
    calls = [_call(node, tracer) for node in graph.nodes if node.op != "output"]
    (output,) = (node.args[0] for node in graph.nodes if node.op == "output")
    return Recording(calls, output)


class _Tracer(fx.Tracer):
    """Records values, and which line of the user's code each operation comes from. (torch can do the latter as well, but
    imports its compiler for it, which takes longer than the whole translation.)"""

    def __init__(self, images: Tensor, has_rule: Callable[[nn.Module], bool]) -> None:
        super().__init__()
        self.images, self._has_rule = images, has_rule
        self.values: dict[fx.Node, Any] = {}
        self.changed: dict[fx.Node, tuple[Tensor, ...]] = {}
        self._is_computing = False

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return is_leaf(m, self._has_rule)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Symbol(node, self)

    def to_bool(self, obj: fx.Proxy) -> bool:
        return bool(self.constant(obj))

    def constant(self, obj: fx.Proxy) -> Any:
        """The value of what is the same for all images, such as a parameter; an error for what is not."""
        waiting, seen = [obj.node], set()
        while waiting:
            node = waiting.pop()
            if node.op == "placeholder":
                raise DependsOnPixelsError("what it does depends on pixel values")
            waiting += [before for before in node.all_input_nodes if before not in seen]
            seen.update(node.all_input_nodes)
        return self.values[obj.node]

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        return (obj[i] for i in range(len(obj)))  # type: ignore[index]

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        stack = [(frame, line, frame.f_code.co_filename) for frame, line in traceback.walk_stack(sys._getframe(1))][::-1]
        began = next(i for i, (_, _, file) in enumerate(stack) if file == __file__)  # where tracing was called
        own = [(frame, line) for frame, line, file in stack[began + 1 :] if is_own(file)]
        node.meta["frames"] = list(traceback.StackSummary.extract(own))
        node.meta["modules"] = [path for path, _ in self.module_stack.values()]
        if node.op != "output":
            self.values[node] = self._value_of(node)
        return node

    def create_proxy(self, kind: str, target: Any, *args: Any, **kwargs: Any) -> Any:
        proxy = super().create_proxy(kind, target, *args, **kwargs)
        if kind in ("call_function", "call_method") and getattr(target, "__name__", target) in _OF_SHAPES:
            self.graph.erase_node(proxy.node)
            return self.values[proxy.node]
        return proxy

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        # While a value is computed, nothing is recorded.
        return forward(*args, **kwargs) if self._is_computing else super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        return attr_val if self._is_computing else super().getattr(attr, attr_val, parameter_proxy_cache)

    def _value_of(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return self.images
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: self.values[n])
        self._is_computing = True
        try:
            with torch.inference_mode(False), torch.no_grad():
                value, self.changed[node] = changes(lambda: self._computed(node, args, kwargs), args, kwargs)
            return value
        except Exception as error:
            what = node.target if isinstance(node.target, str) else node.name
            raise DoesNotRunError(f"{what} ({place(node.meta['frames']) or node.op})", error) from None
        finally:
            self._is_computing = False

    def _computed(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        target = str(node.target)
        if node.op == "get_attr":
            owner, _, name = target.rpartition(".")
            return getattr(self.root.get_submodule(owner), name)
        if node.op == "call_module":
            return self.root.get_submodule(target)(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], target)(*args[1:], **kwargs)
        assert callable(node.target)
        return node.target(*args, **kwargs)


class _Symbol(fx.Proxy):
    """The result of an operation, whose sizes are known."""

    tracer: _Tracer

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.tracer.values[self.node], name)
        if isinstance(value, Tensor):  # such as x.mT
            return self.tracer.create_proxy("call_function", getattr, (self, name), {})
        return super().__getattr__(name) if callable(value) else value

    def __setitem__(self, index: Any, value: Any) -> None:
        part = self[index]  # type: ignore[index]
        mine, other = (self.tracer.values[item.node].untyped_storage()._cdata for item in (self, part))
        if mine != other:  # an index of numbers gives a copy
            raise TypeError("a write with an index of tensors")
        part.copy_(value) if isinstance(value, (fx.Proxy, Tensor)) else part.fill_(value)

    def __len__(self) -> int:
        return len(self.tracer.values[self.node])

    def __int__(self) -> int:
        return int(self.tracer.constant(self))

    def __index__(self) -> int:
        return int(self.tracer.constant(self))

    def __float__(self) -> float:
        return float(self.tracer.constant(self))


def _in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, other: self.tracer.create_proxy("call_function", function, (self, other), {})


for _function in (operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ipow):
    setattr(_Symbol, f"__{_function.__name__}__", _in_place(_function))


def _call(node: fx.Node, tracer: _Tracer) -> Call:
    key: Key | None = None
    module = None
    if node.op == "call_module":
        module = tracer.root.get_submodule(str(node.target))
        key = type(module)
    elif node.op == "call_function":
        assert callable(node.target)
        key = node.target
    elif node.op == "call_method":
        key = str(node.target)
    source = str(node.target) if node.op in ("call_module", "get_attr", "placeholder") else node.name
    where = place(node.meta["frames"])
    modules = [path for path in node.meta["modules"] if module is None or path != source]
    inside = modules[-1] if modules else ""
    value, changed = tracer.values[node], tracer.changed.get(node, ())
    return Call(node, node.name, source, key, module, node.args, dict(node.kwargs), value, where, inside, changed)
