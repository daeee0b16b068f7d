"""Strided convolutions over time and frequency, which shorten audio (NeMo's subsampling)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, relu

from quire_models import ModuleBuilder

if TYPE_CHECKING:
    from quire_models.towers.tower import TowerContext
    from quire_plugins.audio.phi4.audio_encoder import Phi4AudioTower


class Shortening(nn.Module):
    """Frames of several items to tokens.

    convolutions: named as in the checkpoint by their place: 0 is dense; 2 and 3, 5 and 6, … are depthwise and
    pointwise.
    """

    def __init__(self, part: Phi4AudioTower, builder: ModuleBuilder) -> None:
        super().__init__()
        channels = part.channels
        self.convolutions = nn.ModuleDict({"0": Kernel(channels, 1, 3, builder)})
        for i in range(part.halvings - 1):
            self.convolutions[str(3 * i + 2)] = Kernel(channels, 1, 3, builder)
            self.convolutions[str(3 * i + 3)] = Kernel(channels, channels, 1, builder)
        self.out = builder.projection(channels * part.bands, part.width, bias=True)

    def forward(self, frames: Sequence[Tensor], context: TowerContext) -> Tensor:
        """frames: [frames, mels] of each item -> tokens of all, [n, width]."""
        return self.out(torch.cat([self._convolved(some) for some in frames]), context)

    def _convolved(self, frames: Tensor) -> Tensor:
        """[frames, mels] -> [tokens, channels * bands]."""
        first, *others = self.convolutions.values()
        x = relu(first(frames[None, None], 1))
        for depthwise, pointwise in zip(others[::2], others[1::2], strict=True):
            x = relu(pointwise(depthwise(x, x.shape[1]), 1))
        return x[0].transpose(0, 1).flatten(1)


class Kernel(nn.Module):
    """A convolution with stride 2, or over one position only. weight: [outputs, inputs of a group, size, size]."""

    def __init__(self, outputs: int, inputs: int, size: int, builder: ModuleBuilder) -> None:
        super().__init__()
        self._size = size
        self.weight, self.bias = builder.parameter(outputs, inputs, size, size), builder.parameter(outputs)

    def forward(self, x: Tensor, groups: int) -> Tensor:
        """x [1, channels, time, frequency] -> the same with both halved, rounded up, or as long."""
        stride = 2 if self._size > 1 else 1
        return conv2d(x, self.weight, self.bias, stride=stride, padding=self._size // 2, groups=groups)
