"""How a step's options change scores and masks, as functions that FlexAttention compiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from quire_kernels.attention import PositionBiases, Stripes

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Places:
    """Row, position and visible end of each token [T], row and position of each key [S]: int32.

    A row of -1 is none: filled up to a size for which a kernel is compiled.
    """

    token_rows: Tensor
    token_positions: Tensor
    ends: Tensor
    key_rows: Tensor
    key_positions: Tensor


def mask_of(at: Places, window: int | None, chunk: int | None, stripes: Stripes | None) -> MaskMod:
    def visible(b: Tensor, h: Tensor, t: Tensor, i: Tensor) -> Tensor:
        own, key = at.token_positions[t], at.key_positions[i]
        found = (at.token_rows[t] == at.key_rows[i]) & (key < at.ends[t])
        if window is not None:
            found = found & (own - key < window)
        if chunk is not None:
            found = found & (own // chunk == key // chunk)
        if stripes is not None:
            block, local, stride, step = stripes
            every = (key // block + 1 + h * step) % stride == 0
            found = found & ((own // block - key // block < local) | every)
        return found

    return visible


def scores_of(
    at: Places, softcap: float | None, slopes: Tensor | None, biases: PositionBiases | None
) -> ScoreMod | None:
    """None if scores are not changed."""
    if softcap is None and slopes is None and biases is None:
        return None

    def changed(score: Tensor, b: Tensor, h: Tensor, t: Tensor, i: Tensor) -> Tensor:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        ahead = at.key_positions[i] - at.token_positions[t]
        if slopes is not None:
            score = score + slopes[h] * ahead
        if biases is not None:
            score = score + biases.values[h, ahead.clamp(-biases.reach, biases.reach) + biases.reach]
        return score

    return changed
