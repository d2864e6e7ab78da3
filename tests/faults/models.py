"""Damaged and hostile model files: ``python -m tests.faults.models FOLDER COUNT``."""

from __future__ import annotations

import copy
import json
import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import torchckn
from torchckn import CKNError
from torchckn.files import read_tensors, write_tensors
from torchckn.storage import KIND

from ..test_graph import every_operation
from .harness import try_all

Facts, Tensors = dict[str, Any], dict[str, Tensor]

#: values that no network has, or that few have
ODD: list[Any] = [
    *(0, -1, 1, 2, 7, 10**6, 10_000_000, 2**31, 2**63, -(2**63), 10**400, 10**3999, 0.5, -0.5, 1e-300, 1e300, 5e-324, 1e308),
    *(None, True, False, "", "nan", "inf", "conv", "input", "../../etc/passwd", "[/bold]x", "<script>", "\x00", "é" * 100),
    *([], {}, [[]], [1000000, 1000000], [1000000, 1000000, 1000000, 1000000], [0, 0], [-1, -1], [1], [2, 2], [1, 1, 1, 1]),
    *(["first", "first"], ["input"], ["dense"], {"name": "RBFSphere"}, {"name": "RBFSphere", "sigma": 10**400}),
    *(
        {"name": "RBFSphere", "sigma": 1e200},
        {"name": "RBFSphere", "sigma": 1e-200},
        {"name": "Kernel"},
        {"name": "_Cosine"},
    ),
    *({"name": "Matern", "nu": 19.5, "sigma": 1e-200}, {"name": "Polynomial", "degree": 10**6, "offset": 1e308}),
    *({"name": "ArcCosine", "order": 10**400}, {"name": "ArcCosine", "order": "1"}, {"name": "nothing"}, "x" * 1999),
]
#: stands for a list in a list in a list, and so on; the depth follows
NESTED = "nested "
NAMES = [
    "",
    ".",
    "a.b",
    "keys",
    "items",
    "forward",
    "__class__",
    "input",
    "weight",
    "[/bold]x",
    "<b>",
    "\x00",
    "a" * 1999,
    "é",
]


def main(folder: Path, count: int) -> None:
    ckn = torchckn.CKN(every_operation(), classes=3, generator=torch.Generator().manual_seed(0)).eval()
    ckn.report = torchckn.translate(torchckn.zoo.build("lenet1", filters=4), (1, 28, 28)).report
    x = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    ckn.scaling.calibrate(ckn.features(x))
    ckn.penalty = 2.0**-10
    path = torchckn.save(ckn, folder / "model")
    content, (facts, tensors) = path.read_bytes(), read_tensors(path, KIND)
    expected = ckn(x)
    chance = random.Random(0)

    def outcome() -> str:
        try:
            again = torchckn.load(path)
        except CKNError as error:
            return "FAILED no message" if not str(error) else "refused"
        shape = (2, *again.graph.input_shape)
        if torch.Size(shape).numel() > 2**20 or sum(p.numel() for p in again.parameters()) > 2**24:
            return "FAILED loaded a network that is larger than its file"
        with torch.inference_mode():
            try:
                scores = again(x if shape == x.shape else torch.rand(shape, dtype=again.head.weight.dtype))
            except CKNError:
                return "loaded, and refused to compute"
        _use(again)
        return "loaded, with the same scores" if torch.equal(scores, expected) else "loaded, as another network"

    def damaged(change: Callable[[bytes], bytes]) -> Callable[[], str]:
        def attempt() -> str:
            path.write_bytes(change(content))
            found = outcome()
            return "FAILED loaded another network" if "another" in found else found

        return attempt

    def hostile(change: Callable[[Facts, Tensors], None]) -> Callable[[], str]:
        def attempt() -> str:
            own, values = copy.deepcopy(facts), {name: value.clone() for name, value in tensors.items()}
            change(own, values)
            _write(path, own, values)
            return outcome()

        return attempt

    named = list(_named())
    kinds = [(name, hostile(change)) for name, change in named[: count // 2]]
    while len(kinds) < count:
        kinds.append(_random_fault(chance, damaged, hostile))
    try_all(kinds)


def _write(path: Path, facts: Facts, tensors: Tensors) -> None:
    """Write a file as somebody would who is not held up by Python's limits of digits and depth."""
    digits, dumps = sys.get_int_max_str_digits(), json.dumps

    def with_depth(value: Any, **options: Any) -> str:
        return re.sub(rf'"{NESTED}(\d+)"', lambda m: "[" * int(m[1]) + "]" * int(m[1]), dumps(value, **options))

    sys.set_int_max_str_digits(0)
    json.dumps = with_depth
    try:
        write_tensors(path, KIND, facts, tensors)
    finally:
        json.dumps = dumps
        sys.set_int_max_str_digits(digits)


def _use(ckn: torchckn.CKN) -> None:
    """What commands do with a model that was loaded."""
    str(ckn.summary())
    if ckn.report is not None:
        str(ckn.report)
        ckn.report.to_html()
        ckn.report.to_svg()


def _named() -> Iterator[tuple[str, Callable[[Facts, Tensors], None]]]:
    """The files that did harm once, and their like."""

    def fact(key: str, value: Any) -> Callable[[Facts, Tensors], None]:
        return lambda facts, _: facts.__setitem__(key, value)

    def node(which: str, **fields: Any) -> Callable[[Facts, Tensors], None]:
        return lambda facts, _: next(n for n in facts["graph"]["nodes"] if n["name"] == which).update(fields)

    def many_nodes(facts: Facts, _: Tensors) -> None:
        first = facts["graph"]["nodes"][1]
        facts["graph"]["nodes"] = [first | {"name": f"n{i}", "inputs": []} for i in range(30_000)]

    def doubling(facts: Facts, _: Tensors) -> None:
        nodes = [{"op": "DirectSum", "name": "s0", "inputs": ["input", "input"]}]
        nodes += [{"op": "DirectSum", "name": f"s{i}", "inputs": [f"s{i - 1}"] * 2} for i in range(1, 2000)]
        facts["graph"]["nodes"] = nodes

    def growing(facts: Facts, _: Tensors) -> None:
        pads = [{"op": "Pad", "name": f"p{i}", "padding": [2**24] * 4} for i in range(60)]
        facts["graph"]["nodes"] = [*pads, {"op": "AdaptiveAveragePool", "name": "mean"}]

    for classes in (10_000_000, 2**24, 0, -1, 2**60, True, "3", 3.0, None):
        yield f"classes = {classes!r}", fact("classes", classes)
    yield "30,000 nodes", many_nodes
    yield "2,000 doubled sums", doubling
    yield "60 paddings", growing
    for name in ("left", "right", "average", "largest", "local", "border", "blur"):
        yield f"{name}: padding of a million", node(name, padding=[1000000, 1000000])
        yield f"{name}: four paddings of a million", node(name, padding=[1000000] * 4)
        yield f"{name}: padding 2**24", node(name, padding=2**24)
        yield (
            f"{name}: window and padding of a million",
            node(name, kernel_size=[1000001, 1000001], padding=[500000, 500000]),
        )
    for digits in (20, 400, 4000, 10_000):
        yield f"an integer of {digits} digits", lambda f, _, d=digits: f.__setitem__("classes", _integer(d))  # type: ignore[misc]
        yield f"sigma of {digits} digits", lambda f, t, d=digits: node("first", kernel=_rbf(_integer(d)))(f, t)  # type: ignore[misc]
        yield f"eps of {digits} digits", lambda f, t, d=digits: node("dense", eps=_integer(d))(f, t)  # type: ignore[misc]
    for sigma in (0.0, -1.0, 1e200, 1e-200, 1e308, 5e-324, "0.6", None, [0.6], True):
        yield f"sigma = {sigma!r}", node("first", kernel=_rbf(sigma))
        yield f"sigma of GaussianPool = {sigma!r}", node("blur", sigma=sigma)
    yield "GaussianPool of stride 2**24", node("blur", stride=2**24)
    yield "GaussianPool of size 2**24", node("blur", kernel_size=2**24 - 1, padding=2**23)
    yield "Whiten of patches of 4,000", node("white", patch_size=[4001, 4001])
    yield "Whiten with root 0", node("white", root=0)
    yield "Whiten with root -1", node("white", root=-1)
    yield "Newton with a million iterations", node("dense", inverse_sqrt="newton:1000000")
    yield "Newton with 10**20 iterations", node("dense", inverse_sqrt="newton:100000000000000000000")
    yield "output of a million pixels a side", node("mean", output_size=[1000000, 1000000])
    yield "regions without end", node("local", regions=[2**24, 2**24])
    yield "groups 0", node("pairs", groups=0)
    yield "groups -3", node("pairs", groups=-3)
    yield "groups 3.0", node("pairs", groups=3.0)
    for depth in (13, 900, 100_000):
        for key in ("report", "classes", "graph", "weights"):
            yield f"{key} nested {depth} levels", lambda f, _, k=key, d=depth: f.__setitem__(k, f"{NESTED}{d}")  # type: ignore[misc]
    for name in ("head.weight", "layers.first.weight", "scaling.norm", "scaling.mean", "layers.dense.weight", "lam"):
        for what, value in (
            ("NaN", float("nan")),
            ("inf", float("inf")),
            ("-inf", -float("inf")),
            ("0", 0.0),
            ("-1", -1.0),
            ("1e38", 1e38),
        ):
            yield f"{name} = {what}", lambda _, t, n=name, v=value: t.__setitem__(n, torch.full_like(t[n], v))  # type: ignore[misc]
        for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.bool, torch.uint8, torch.complex64):
            yield f"{name} of {dtype}", lambda _, t, n=name, d=dtype: t.__setitem__(n, t[n].to(d))  # type: ignore[misc]
        yield f"{name} without a dimension", lambda _, t, n=name: t.__setitem__(n, torch.zeros(()))  # type: ignore[misc]
        yield f"{name} without entries", lambda _, t, n=name: t.__setitem__(n, torch.zeros(0, 5))  # type: ignore[misc]
        yield f"{name} of other shape", lambda _, t, n=name: t.__setitem__(n, torch.ones(4, 3))  # type: ignore[misc]
        yield f"no {name}", lambda _, t, n=name: t.pop(n, None)  # type: ignore[misc]
    for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.complex64):
        yield f"all of {dtype}", lambda _, t, d=dtype: t.update({k: v.to(d) for k, v in t.items()})  # type: ignore[misc]
    yield "no tensors", lambda _, tensors: tensors.clear()
    yield "one more tensor", lambda _, tensors: tensors.__setitem__("more", torch.ones(1))
    for name in NAMES:
        yield f"a node called {name[:20]!r}", node("dense", name=name)
    for op in ("Node", "KernelNode", "WindowNode", "OnPositions", "Exec", "", None, 3, "__import__", "Graph", "conv"):
        yield f"operation {op!r}", node("dense", op=op)
    for key in ("version", "kind", "graph", "classes", "centering", "weights", "training", "report"):
        yield f"no {key}", lambda facts, _, k=key: facts.pop(k)  # type: ignore[misc]
    yield "a node that is its own input", node("dense", inputs=["dense"])
    yield "a node of a later one", node("first", inputs=["dense"])
    yield "a node of a text", node("dense", inputs="flat")
    yield "a node without inputs", node("sum", inputs=[])
    for weights in ([1e308, 1e308, 1e308], [0, 0, 0], ["a", 1, 1], [None, 1, 1], [1], {}, 3):
        yield f"weights {weights} of a sum", node("sum", weights=weights)
    yield "images of 2**24 pixels a side", lambda facts, _: facts["graph"].__setitem__("input_shape", [3, 2**24, 2**24])
    yield "images without pixels", lambda facts, _: facts["graph"].__setitem__("input_shape", [3, 0, 0])


def _integer(digits: int) -> int:
    return 10 ** (digits - 1)


def _rbf(sigma: Any) -> dict[str, Any]:
    return {"name": "RBFSphere", "sigma": sigma, "trainable": True}


def _random_fault(
    chance: random.Random, damaged: Callable[..., Callable[[], str]], hostile: Callable[..., Callable[[], str]]
) -> tuple[str, Callable[[], str]]:
    """A changed bit, byte or length; or an odd value, name or entry somewhere in a file whose digest matches."""
    kind = chance.choice(("bit", "cut", "bytes", "value", "value", "value", "value", "values", "tensor", "entry"))
    seed = chance.randrange(2**32)
    if kind in ("bit", "cut", "bytes"):
        return f"{kind} {seed}", damaged(lambda content: _damage(random.Random(seed), kind, content))
    if kind == "tensor":
        return f"{kind} {seed}", hostile(lambda facts, tensors: _odd_tensor(random.Random(seed), tensors))
    times = 5 if kind == "values" else 1
    change = _odd_entry if kind == "entry" else _odd_value

    def apply(facts: Facts, _: Tensors) -> None:
        own = random.Random(seed)
        for _time in range(times):
            change(own, facts)

    return f"{kind} {seed}", hostile(apply)


def _damage(chance: random.Random, kind: str, content: bytes) -> bytes:
    where = chance.choice((chance.randrange(len(content)), chance.randrange(min(4096, len(content)))))
    if kind == "cut":
        return content[:where]
    if kind == "bit":
        return content[:where] + bytes([content[where] ^ 1 << chance.randrange(8)]) + content[where + 1 :]
    return content[:where] + chance.randbytes(chance.randrange(1, 40)) + content[where + chance.randrange(0, 40) :]


def _places(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Every entry of every dictionary and list in ``value``: where it stands, and under which key."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(items):
        found.append((value, key))
        _places(item, found)
    return found


def _odd_value(chance: random.Random, facts: Facts) -> None:
    part = facts["graph"] if chance.random() < 0.7 else facts
    holder, key = chance.choice(_places(part, []) or [(facts, "graph")])
    holder[key] = copy.deepcopy(chance.choice(ODD))


def _odd_entry(chance: random.Random, facts: Facts) -> None:
    """An entry more or less, twice, or moved."""
    lists = [holder for holder, _ in _places(facts, []) if isinstance(holder, (list, dict)) and holder]
    holder = chance.choice(lists)
    if isinstance(holder, dict):
        key = chance.choice(list(holder))
        if chance.random() < 0.5:
            del holder[key]
        else:
            holder[chance.choice(["more", "", "op", "name", "__class__"])] = copy.deepcopy(chance.choice(ODD))
    else:
        entry = copy.deepcopy(chance.choice(holder))
        chance.choice(
            [lambda: holder.append(entry), holder.pop, holder.reverse, holder.clear, lambda: chance.shuffle(holder)]
        )()


def _odd_tensor(chance: random.Random, tensors: Tensors) -> None:
    name = chance.choice(sorted(tensors))
    value = tensors[name]
    changes: list[Callable[[], Tensor]] = [
        lambda: value * chance.choice([0, 2, -1, 1e30, float("nan"), float("inf")]),
        lambda: value.to(chance.choice([torch.float64, torch.float16, torch.int8, torch.bool])),
        lambda: value.flatten()[: chance.randrange(value.numel() + 1)],
        lambda: value.unsqueeze(0).expand(chance.randrange(1, 1000), *value.shape),
        lambda: torch.full_like(value, float("nan"), dtype=torch.float64),
    ]
    tensors[name] = chance.choice(changes)()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
