"""Normalization."""

from __future__ import annotations

import torch.nn.functional as F
from torch import nn

from ...graph import Normalize
from ..builder import Step, Value
from .registry import rule


@rule(nn.LocalResponseNorm, F.local_response_norm)
def local_response_normalization(step: Step) -> Value:
    why = "division by the norm over all channels, not over neighboring ones"
    return step.emit(Normalize(step.name), "inexact", why, gaussian=False)


@rule(nn.BatchNorm2d, nn.BatchNorm1d, F.batch_norm, nn.SyncBatchNorm)
@rule(nn.LayerNorm, F.layer_norm, nn.GroupNorm, F.group_norm, nn.InstanceNorm2d, F.instance_norm)
def normalization(step: Step) -> Value:
    return step.drop("normalization has no counterpart; kernel layers normalize their patches", faithful=False)
