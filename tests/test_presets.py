from __future__ import annotations

import pytest
import torch

from torchckn import presets
from torchckn.errors import ConfigError


def test_ckn_cifar_is_two_layers_on_whitened_patches() -> None:
    images = torch.randint(0, 256, (20, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    ckn = presets.build("ckn-cifar", images)
    assert ckn.graph.shapes["whiten"] == (27, 32, 32)
    assert ckn.graph.shapes["pool1"] == (64, 16, 16)
    assert ckn.graph.features == 2304
    assert ckn(images[:2].float() / 255).shape == (2, 10)
    with pytest.raises(ConfigError, match="unknown preset 'ckn-cifr'.*Did you mean 'ckn-cifar'"):
        presets.build("ckn-cifr", images)
