from __future__ import annotations

import math
import os
import random
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import torchckn
from torchckn import CKN
from torchckn.errors import DataError
from torchckn.files import read_tensors, write_atomically, write_tensors
from torchckn.graph import Conv, Graph
from torchckn.storage import KIND

from .test_graph import every_operation


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("centering", ["image", "feature"])
def test_a_loaded_network_gives_the_same_numbers(tmp_path: Path, dtype: torch.dtype, centering: str) -> None:
    ckn = torchckn.CKN(every_operation(), classes=3, centering=centering, dtype=dtype).eval()  # type: ignore[arg-type]
    x = torch.rand(3, 3, 16, 16, dtype=dtype)
    ckn.scaling.calibrate(ckn.features(x))
    again = torchckn.load(torchckn.save(ckn, tmp_path / "folder" / "model.ckn"))
    assert torch.equal(again(x), ckn(x))
    assert again.graph == ckn.current_graph()
    assert not again.training


def test_trained_bandwidths_are_kept(tmp_path: Path) -> None:
    ckn = torchckn.CKN(every_operation())
    ckn.layers["first"].kernel.sigma.data.fill_(0.3)
    again = torchckn.load(torchckn.save(ckn, tmp_path / "model"))
    assert again.layers["first"].kernel.sigma.item() == pytest.approx(0.3)
    assert again.layers["first"].kernel.sigma.requires_grad


def test_saving_twice_replaces_the_file_and_leaves_nothing_else(tmp_path: Path, small_graph: Graph) -> None:
    for seed in (0, 1):
        ckn = torchckn.CKN(small_graph, generator=torch.Generator().manual_seed(seed))
        torchckn.save(ckn, tmp_path / "model")
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    assert torch.equal(torchckn.load(tmp_path / "model").head.weight, ckn.head.weight)


def test_a_failed_write_leaves_the_old_file_untouched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match="cannot write .*file: No space left on device; is the disk full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def saved(tmp_path: Path, small_graph: Graph) -> Path:
    return torchckn.save(torchckn.CKN(small_graph), tmp_path / "model")


@pytest.mark.parametrize("keep", [0, 3, 8, 60, -1, -500])
def test_a_truncated_file_is_refused(tmp_path: Path, small_graph: Graph, keep: int) -> None:
    path = saved(tmp_path, small_graph)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match="model is not a file that torchckn wrote, or is truncated or corrupt"):
        torchckn.load(path)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x80\x04K\x01.", os.urandom(4096)])
def test_a_foreign_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(DataError, match="other is not a file that torchckn wrote"):
        torchckn.load(path)


def test_another_safetensors_file_is_refused(tmp_path: Path) -> None:
    save_file({"weight": torch.ones(2)}, tmp_path / "other")
    with pytest.raises(DataError, match="is not a file that torchckn wrote"):
        torchckn.load(tmp_path / "other")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 99}, "format version 99, and this torchckn reads version 1; update torchckn"),
        ({"graph": {}}, "not one that this version can rebuild: expected a graph written by Graph.to_json"),
        ({"classes": 4}, "not one that this version can rebuild: tensor head.*: expected .4,?.*, got .10"),
        ({"centering": "images"}, "not one that this version can rebuild: unknown centering"),
    ],
)
def test_a_description_that_does_not_fit_is_refused(
    tmp_path: Path, small_graph: Graph, change: dict[str, object], message: str
) -> None:
    ckn = torchckn.CKN(small_graph)
    description = {"version": 1, "graph": ckn.graph.to_json(), "classes": 10, "centering": "image", "training": True}
    description |= {"weights": "nystrom", "report": None}
    write_tensors(tmp_path / "model", KIND, description | change, ckn.state_dict())
    with pytest.raises(DataError, match=message):
        torchckn.load(tmp_path / "model")


def test_missing_files_and_folders_are_named(tmp_path: Path, small_graph: Graph) -> None:
    with pytest.raises(DataError, match="nothing does not exist"):
        torchckn.load(tmp_path / "nothing")
    with pytest.raises(DataError, match="is a folder; expected a file"):
        torchckn.load(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot write .*model: .*; choose a folder that can be written to"):
        torchckn.save(torchckn.CKN(small_graph), tmp_path / "file" / "model")


def test_only_kernel_networks_are_saved(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="save expected a torchckn.CKN, got Linear"):
        torchckn.save(torch.nn.Linear(2, 2), tmp_path / "model")  # type: ignore[arg-type]


def test_what_was_changed_on_a_layer_is_saved_with_it(tmp_path: Path, small_graph: Graph) -> None:
    ckn = torchckn.CKN(small_graph)
    ckn.layers["conv"].eps = 0.1
    ckn.layers["dense"].weight.requires_grad_(False)
    again = torchckn.load(torchckn.save(ckn.eval(), tmp_path / "model"))
    x = torch.rand(2, 1, 10, 10)
    assert torch.equal(again(x), ckn(x))
    assert not again.layers["dense"].weight.requires_grad


def test_a_bandwidth_that_went_below_zero_is_saved_by_its_size(tmp_path: Path) -> None:
    ckn = torchckn.CKN(every_operation())
    ckn.layers["first"].kernel.sigma.data.fill_(-0.4)
    assert torchckn.load(torchckn.save(ckn, tmp_path / "model")).layers["first"].kernel.sigma.item() == pytest.approx(-0.4)


def test_a_pooling_that_is_not_the_graph_s_is_refused(tmp_path: Path, small_graph: Graph) -> None:
    ckn = torchckn.CKN(small_graph)
    ckn.layers["conv"].pool = torch.nn.AvgPool2d(4)
    with pytest.raises(DataError, match="layer 'conv' has another pooling than its graph says, AvgPool2d"):
        torchckn.save(ckn, tmp_path / "model")


def test_tensors_that_share_memory_are_written(tmp_path: Path) -> None:
    weight = torch.rand(2, 3)
    write_tensors(tmp_path / "tied", "pair", {}, {"one": weight, "again": weight})
    _, tensors = read_tensors(tmp_path / "tied", "pair")
    assert torch.equal(tensors["one"], weight)
    assert torch.equal(tensors["again"], weight)


def test_saving_twice_gives_the_same_bytes(tmp_path: Path, small_graph: Graph) -> None:
    ckn = torchckn.CKN(small_graph)
    files = [torchckn.save(ckn, tmp_path / name).read_bytes() for name in ("one", "two", "three")]
    assert files[0] == files[1] == files[2]


def test_every_changed_bit_is_noticed(tmp_path: Path, small_graph: Graph) -> None:
    path = saved(tmp_path, small_graph)
    content = path.read_bytes()
    chance = random.Random(0)
    for _ in range(100):
        position, bit = chance.randrange(len(content)), 1 << chance.randrange(8)
        path.write_bytes(content[:position] + bytes([content[position] ^ bit]) + content[position + 1 :])
        with pytest.raises(DataError):
            torchckn.load(path)


def rewritten(path: Path, facts: dict[str, object] | None = None, **tensors: torch.Tensor) -> Path:
    """A model file with other facts or tensors, and a digest that matches them: as somebody who means harm would write it."""
    before, values = read_tensors(path, KIND)
    write_tensors(path, KIND, before | (facts or {}), values | {name.replace("__", "."): v for name, v in tensors.items()})
    return path


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"classes": 10_000_000}, "tensor head.*: expected .10000000"),
        ({"classes": 2**60}, "it has the number 1152921504606846976, larger than"),
        ({"report": [[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]}, "nested deeper than"),
        ({"centering": "x" * 5000}, "it has a text of 5000 characters"),
    ],
)
def test_a_description_that_would_do_harm_is_refused_at_once(
    tmp_path: Path, small_graph: Graph, facts: dict[str, object], message: str
) -> None:
    path = rewritten(saved(tmp_path, small_graph), facts)
    with pytest.raises(DataError, match=message):
        torchckn.load(path)


def test_a_graph_of_very_many_nodes_is_refused_at_once(tmp_path: Path, small_graph: Graph) -> None:
    path = saved(tmp_path, small_graph)
    graph = small_graph.to_json()
    graph["nodes"] = [graph["nodes"][0] | {"name": f"n{i}"} for i in range(30_000)]
    with pytest.raises(DataError, match="it has 30000 nodes, more than 5000"):
        torchckn.load(rewritten(path, {"graph": graph}))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("head__weight", math.nan, "tensor head.weight has NaN or infinity"),
        ("layers__conv__weight", math.inf, "tensor layers.conv.weight has NaN or infinity"),
        ("layers__conv__weight", 3.0, "layer conv expected filters of norm 1, got norms from"),
        ("scaling__norm", 0.0, "the norm of its features is 0.0, expected a number > 0"),
        ("scaling__norm", math.nan, "tensor scaling.norm has NaN or infinity"),
    ],
)
def test_weights_that_no_fit_gives_are_refused(
    tmp_path: Path, small_graph: Graph, name: str, value: float, message: str
) -> None:
    path = saved(tmp_path, small_graph)
    tensor = read_tensors(path, KIND)[1][name.replace("__", ".")]
    with pytest.raises(DataError, match=message):
        torchckn.load(rewritten(path, **{name: torch.full_like(tensor, value)}))


def test_a_file_without_a_head_says_so(tmp_path: Path, small_graph: Graph) -> None:
    path = saved(tmp_path, small_graph)
    description, tensors = read_tensors(path, KIND)
    write_tensors(path, KIND, description, {name: t for name, t in tensors.items() if name != "head.weight"})
    with pytest.raises(DataError, match="tensor head.weight is missing"):
        torchckn.load(path)


def test_a_link_is_followed_and_a_device_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write_atomically(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"new"
    os.mkfifo(tmp_path / "pipe")
    for odd in (tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(DataError, match="cannot write .*: it is not a regular file; choose another name"):
            write_atomically(odd, b"new")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "private"
    path.touch(mode=0o600)
    write_atomically(path, b"new")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", 0o600)


def _with_head_without_bias(ckn: CKN) -> None:
    ckn.head = nn.Linear(ckn.graph.features, 3, bias=False)


def _with_other_geometry(ckn: CKN) -> None:
    layer: Any = ckn.layers["a"]
    layer.dilation = layer.padding = (2, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_with_head_without_bias, "tensor head.bias is missing; save expected a network as it was built"),
        (lambda ckn: ckn.register_buffer("mine", torch.zeros(2)), "tensor mine is not part of the network; save expected"),
        (_with_other_geometry, r"layer 'a' is .*dilation=\(2, 2\) in the network, and .*padding=\(1, 1\) in its graph"),
    ],
)
def test_a_network_that_its_description_does_not_give_back_is_not_saved(
    change: Callable[[CKN], None], message: str, tmp_path: Path
) -> None:
    ckn = CKN(Graph((1, 8, 8), [Conv("a", filters=4, kernel_size=(3, 3), padding=(1, 1))]), 3)
    torchckn.save(ckn, tmp_path / "before")
    change(ckn)
    with pytest.raises(DataError, match=message):
        torchckn.save(ckn, tmp_path / "after")
    assert not (tmp_path / "after").exists()
