from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import torchckn
from torchckn.errors import DataError
from torchckn.graph import Graph
from torchckn.storage import write_atomically

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
    with pytest.raises(DataError, match="model is not a torchckn model, or is truncated or corrupt"):
        torchckn.load(path)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x80\x04K\x01.", os.urandom(4096)])
def test_a_foreign_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(DataError, match="other is not a torchckn model"):
        torchckn.load(path)


def test_another_safetensors_file_is_refused(tmp_path: Path) -> None:
    save_file({"weight": torch.ones(2)}, tmp_path / "other")
    with pytest.raises(DataError, match="is a safetensors file, but not a torchckn model"):
        torchckn.load(tmp_path / "other")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 99}, "format version 99, and this torchckn reads version 1; update torchckn"),
        ({"graph": {}}, "not one that this version can rebuild: .*not a graph"),
        ({"classes": 4}, "not one that this version can rebuild: .*size mismatch"),
        ({"centering": "images"}, "not one that this version can rebuild: unknown centering"),
    ],
)
def test_a_description_that_does_not_fit_is_refused(
    tmp_path: Path, small_graph: Graph, change: dict[str, object], message: str
) -> None:
    ckn = torchckn.CKN(small_graph)
    description = {"version": 1, "graph": ckn.graph.to_json(), "classes": 10, "centering": "image", "training": True}
    description |= {"weights": "nystrom", "report": None}
    header = {"format": "torchckn", "network": json.dumps(description | change)}
    save_file(ckn.state_dict(), tmp_path / "model", header)
    with pytest.raises(DataError, match=message):
        torchckn.load(tmp_path / "model")


def test_missing_files_and_folders_are_named(tmp_path: Path, small_graph: Graph) -> None:
    with pytest.raises(DataError, match="nothing does not exist"):
        torchckn.load(tmp_path / "nothing")
    with pytest.raises(DataError, match="is a folder; load expected the file"):
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


def test_tied_weights_are_saved(tmp_path: Path, small_graph: Graph) -> None:
    ckn = torchckn.CKN(small_graph, classes=1)
    ckn.register_parameter("again", ckn.head.weight)
    torchckn.save(ckn, tmp_path / "model")
    with pytest.raises(DataError, match="not one that this version can rebuild"):
        torchckn.load(tmp_path / "model")
