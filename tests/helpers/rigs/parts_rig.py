"""A small decoder as parts, and a model made of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from quire_kernels import select
from quire_models import Attention, Block, Decoder, GatedMlp, RMSNorm, Rope
from quire_models.testing import build

NORM = RMSNorm(1e-6)
ATTENTION = Attention(heads=4, kv_heads=2, head_dim=8, rope=Rope(8))
DECODER = Decoder(vocab=20, width=16, blocks=(Block(ATTENTION, GatedMlp(24), NORM),) * 2, norm=NORM)


def model_of(decoder: Decoder) -> Any:
    model = build(decoder, select.reference())
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0.0, 0.3)
    return model
