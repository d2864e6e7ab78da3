"""The second tracer: ``torch.export``, for networks that symbolic images cannot pass through.

``torch.export`` runs a network with tensors that have a shape and no numbers, and records ATen operations: code that asks
``isinstance(x, Tensor)``, scripted functions and functions with a gradient of their own are no obstacle to it. The operations
of a module that is one operation for the rules are put together again, and the others are named after the functions that
``torch.nn.functional`` and ``torch`` have for them, so that the same rules apply. Read next: ``rules/``.
"""

from __future__ import annotations

import itertools
import operator
import re
import traceback
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from .calls import Call, Key, Recording, changes, is_leaf, place


def record(
    net: nn.Module, images: Tensor, has_rule: Callable[[nn.Module], bool], rules: Iterable[Key], *, strict: bool = False
) -> Recording:
    """Export ``net`` with these images; functions are those that ``rules`` has a key for, if there is one."""
    program = torch.export.export(net, (images,), strict=strict)
    exported = program.module()
    assert isinstance(exported, fx.GraphModule)
    values, changed = _values(exported, images)
    keys, leaves, names = set(rules), _Leaves(net, has_rule), fx.graph._Namespace()
    calls: list[Call] = []
    output: Any = None
    given = [node for node in exported.graph.nodes if node.op not in ("call_module", "output")]  # without guards
    for leaf, group in itertools.groupby(given, leaves.of):
        nodes = list(group)
        whole = _module_call(leaf, nodes, values, net) if leaf is not None else None
        own = [whole] if whole is not None else [_function_call(node, values, keys) for node in nodes]
        parts = [nodes] if whole is not None else [[node] for node in nodes]
        for call, its in zip(own, parts, strict=True):
            calls.append(replace(call, changed=tuple(tensor for node in its for tensor in changed.get(node, ()))))
    calls.sort(key=lambda call: call.node.op != "placeholder")  # the image first; parameters are before all operations
    calls = [replace(call, name=names.create_name(call.name, None)) for call in calls]
    for node in exported.graph.nodes:
        if node.op == "output":
            assert program.call_spec.out_spec is not None
            output = pytree.tree_unflatten(pytree.tree_leaves(node.args[0]), program.call_spec.out_spec)
    return Recording(calls, output)


def _values(exported: fx.GraphModule, images: Tensor) -> tuple[dict[fx.Node, Any], dict[fx.Node, tuple[Tensor, ...]]]:
    """What each operation gives, and what it changes in place."""
    values: dict[fx.Node, Any] = {}
    changed: dict[fx.Node, tuple[Tensor, ...]] = {}

    class Recorder(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            values[n], changed[n] = changes(lambda: super(Recorder, self).run_node(n), args, kwargs)
            return values[n]

    Recorder(exported, garbage_collect_values=False).run(images)
    return values, changed


class _Leaves:
    """Which module, of those that are one operation, an ATen operation belongs to."""

    def __init__(self, net: nn.Module, has_rule: Callable[[nn.Module], bool]) -> None:
        self.modules, self._has_rule = dict(net.named_modules()), has_rule

    def of(self, node: fx.Node) -> tuple[str, str] | None:
        """The name of its call, and the path of the module: the outermost one."""
        for call, (path, _) in (node.meta.get("nn_module_stack") or {}).items():
            path = _path(path)
            if path and path in self.modules and is_leaf(self.modules[path], self._has_rule):
                return call, path
        return None


def _module_call(leaf: tuple[str, str], nodes: list[fx.Node], values: dict[fx.Node, Any], net: nn.Module) -> Call | None:
    """The operations of one call of a module, as one operation; None if it gives several results."""
    _, path = leaf
    results = [node for node in nodes if any(user not in nodes for user in node.users)]
    if len(results) != 1:
        return None
    inputs = dict.fromkeys(i for node in nodes for i in node.all_input_nodes if i not in nodes and i.op != "get_attr")
    module = net.get_submodule(path)
    # An operation in place gives what it has changed, so the module's result may be an earlier one that changed.
    node = nodes[-1] if values[nodes[-1]] is values[results[0]] else results[0]
    return Call(
        node,
        path.replace(".", "_"),
        path,
        type(module),
        module,
        tuple(inputs),
        {},
        values[node],
        _place(node),
        path.rpartition(".")[0],
    )


def _function_call(node: fx.Node, values: dict[fx.Node, Any], keys: set[Key]) -> Call:
    key: Key | None = None
    args, kwargs = node.args, dict(node.kwargs)
    if node.op == "call_function":
        key, args, kwargs = _lowered(node, args, kwargs, keys)
    source = str(node.target) if node.op in ("get_attr", "placeholder") else node.name
    name = getattr(node.target, "__name__", node.name).partition(".")[0]  # "relu" of "relu.default"
    stack = [_path(path) for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    inside = stack[-1] if stack else ""
    return Call(node, name, source, key, None, tuple(args), kwargs, values[node], _place(node), inside)


def _lowered(
    node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any], keys: set[Key]
) -> tuple[Key, tuple[Any, ...], dict[str, Any]]:
    """The function that an ATen operation stands for, with its arguments."""
    target: Any = node.target
    schema = getattr(target, "_schema", None)
    if schema is None:  # operator.getitem
        return target, args, kwargs
    own = schema.name.partition("::")[2]
    if own in _LOWERINGS:
        return _LOWERINGS[own](*args, **kwargs)
    for name, options in ((own, {}), (_SAME.get(own, own), {}), (own.removesuffix("_"), {"inplace": True})):
        for key in (*(getattr(home, name, None) for home in (F, torch, torch.linalg)), name):
            if key is not None and key in keys:
                return key, args, kwargs | options
    return target, args, kwargs


#: ATen operations that torch has under another name, with the same arguments
_SAME = {
    "_softmax": "softmax",
    "_to_copy": "to",
    "alias": "clone",
    "linalg_vector_norm": "vector_norm",
    "split_with_sizes": "split",
}


def _slice(x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    axis = dim % x.meta["val"].ndim
    return operator.getitem, (x, (*(slice(None),) * axis, slice(start, end, step))), {}


def _reverse_subtraction(x: Any, other: Any, alpha: float = 1) -> Any:
    return (operator.sub, (other, x), {}) if alpha == 1 else (torch.sub, (other, x), {"alpha": alpha})


def _reciprocal(x: Any) -> Any:
    return operator.truediv, (1, x), {}


def _interpolation(mode: str, corners: bool) -> Callable[..., Any]:
    def lowered(x: Any, size: Any, *rest: Any) -> Any:
        align, factors = rest if corners else (None, *rest)
        return F.interpolate, (x,), {"size": size, "scale_factor": factors, "mode": mode, "align_corners": align}

    return lowered


_LOWERINGS: dict[str, Callable[..., Any]] = {
    "slice": _slice,
    "reciprocal": _reciprocal,
    "rsub": _reverse_subtraction,
    "upsample_nearest2d": _interpolation("nearest", corners=False),
    "_upsample_nearest_exact2d": _interpolation("nearest-exact", corners=False),
    "upsample_bilinear2d": _interpolation("bilinear", corners=True),
    "upsample_bicubic2d": _interpolation("bicubic", corners=True),
}


def _path(path: str) -> str:
    """The path of a module, without the number of its call."""
    return re.sub(r"@\d+$", "", path)


def _place(node: fx.Node) -> str:
    """The innermost line of the user's code, from the text of a stack."""
    frames = re.findall(r'File "(.+?)", line (\d+), in (.+)\n\s*(.*)', node.meta.get("stack_trace") or "")
    return place([traceback.FrameSummary(file, int(line), name, line=text) for file, line, name, text in frames])
