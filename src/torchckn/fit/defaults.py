"""Defaults of training that depend on the method, presets, and the trials on validation images that chose them.

Needs no torch. Read next: :mod:`torchckn.fit.config`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ..choices import PresetName, TrainingMethod, check_choice

#: training steps, unless steps or epochs are given
STEPS = 500
#: steps, epochs, or images at a time that anybody may ask for
MOST = 10**9
#: batch size, unless one is given or there are fewer images
BATCH_SIZE = 256

#: megabytes of graphs that a step keeps for its backward pass
GRAPH_MEMORY = 1280.0

# Learning rate and momentum that did best on validation images of MNIST (LeNet-5, 32 filters, batch size 256, about 90 s in all):
# momentum 0.9 and a cosine from 2^-6, 98.8 %; without momentum and from 2^-4, 98.6 %.
# ConvNets, 300 steps on the embedded digits: from 0.1, 0.3, 1 LeNet-5 has 93.5, 95.4, 89.8 %, LeNet-1 96.5, 97.3, 97.4 %.
#: defaults that depend on the method
METHOD_DEFAULTS: dict[TrainingMethod, dict[str, Any]] = {
    "ulr": {"lr": "cosine:0.015625", "momentum": 0.9},
    "sgo": {"lr": "search", "momentum": 0.0},
    "sgo-ball": {"lr": "root:1", "momentum": 0.0},
    "sgd": {"lr": "cosine:0.3", "momentum": 0.9},
}

#: learning rate of AdamW, unless another is given
ADAMW_LR = "cosine:0.003"

# Accuracy on 10,000 validation images of MNIST: LeNet-5 with its own widths, 3,000 patches, first classifier on 10,000 images.
# 150 steps from 0.02, 0.03, 0.06: 98.2, 98.4, 98.1 %; of 512 images, 75 steps: 98.2 %; of 128, 300 steps: 98.2 %.
# 250 steps from 0.03 with tau 2^-3, 2^-5, 2^-7: 98.5, 98.5, 98.6 %; momentum 0.8 and from 0.05: 98.5 %.
# But with tau 2^-7 another seed diverged (95.9 %; 98.4 % with 2^-5).
# With 32 filters per layer: 200 steps from 2^-6, 0.03 with tau 2^-5: 98.6, 98.6 %; from 0.06 with tau 2^-3: 98.2 %; of 128, 400
# steps from 0.03: 98.4 %. 250 steps, another seed: from 2^-6 with tau 2^-5 98.5 %, from 0.03 with tau 2^-5, 2^-3: 98.4, 98.3 %.
# So learning rate and tau are the defaults. 500 steps from 0.03 with tau 2^-3, 2^-5: 98.7, 98.7 %; from 2^-6 98.8 %, with shifted
# images 98.7 %; 800 steps 98.95 %.
# The last classifier on 20,000 images instead of all loses 0.15 to 0.2 percentage points.
_QUICK: dict[str, Any] = {
    "head_update": "reuse",
    "patches": 3000,
    "start_images": 10_000,
    "evaluate_every": MOST,
}
#: options of kernel networks that are set by one word
PRESETS: dict[PresetName, dict[str, Any]] = {
    "fast": _QUICK | {"steps": 250},
    "accurate": _QUICK | {"steps": 800, "validation_labels": True},
}


def preset_options(name: PresetName, given: Collection[str]) -> dict[str, Any]:
    """The options of a preset, without its steps if epochs are among what is given."""
    check_choice("preset", name, PresetName)
    return {option: value for option, value in PRESETS[name].items() if option != "steps" or "epochs" not in given}


#: filters per layer that the command gives networks of the zoo with a preset
PRESET_FILTERS = 32
