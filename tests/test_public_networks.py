"""Blocks in the styles of public collections are translated, run, trained, saved and exported; exact where they can be."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torchckn
from torchckn import translate

from .networks import run
from .public_networks import PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_blocks_of_public_collections_run_backpropagate_save_and_export(name: str, tmp_path: Any) -> None:
    ckn = translate(PUBLIC[name](), (2, 8, 8))
    assert run(ckn, 2, 8, 8).shape == (3, 3)
    again = torchckn.load(torchckn.save(ckn.eval(), tmp_path / "model"))
    x = torch.rand(2, 2, 8, 8)
    assert torch.equal(again(x), ckn(x))
    torch.testing.assert_close(torchckn.export.plain(ckn)(x), ckn(x).softmax(1), rtol=1e-4, atol=1e-5)
    for width in ({"filters": 5}, {"width": 0.5}):
        other = translate(PUBLIC[name](), (1, 8, 8), **width)
        assert other(torch.rand(2, 1, 8, 8)).shape == (2, 3)
