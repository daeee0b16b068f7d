"""Module of audio towers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

if TYPE_CHECKING:
    from quire_models.modules.builder import ModuleBuilder
    from quire_models.parts.audio import AudioTower
    from quire_models.towers.tower import Items, TowerCall, TowerContext

KERNEL_SIZE = 3
"""Kernel size of the convolutions, in frames."""


class AudioEncoderModule(nn.Module):
    """The module that the part `parts.audio.AudioTower` builds. positions: [count, width], None with
    rotary ones.

    An item has `frames`, floats [frames, mels]: two for each token, and optionally one more, which only the
    convolution of the last token reads as its right neighbor. Without it, and before the first frame, the input is
    padded with zeros.
    """

    def __init__(self, width: int, part: AudioTower, builder: ModuleBuilder) -> None:
        super().__init__()
        assert part.projected or part.width == width, f"the decoder has width {width}, but the tower {part.width}"
        self.part = part
        self._ops = builder.ops
        self.conv1 = builder.projection(KERNEL_SIZE * part.mels, part.width, bias=True)
        self.conv2 = builder.projection(KERNEL_SIZE * part.width, part.width, bias=True)
        self.positions = None if part.rope else builder.parameter(part.count, part.width)
        self._angles = builder.angles(part.rope) if part.rope else None
        self.blocks = nn.ModuleList(block.build(part.width, builder.at_layer(i)) for i, block in enumerate(part.blocks))
        self.norm = part.norm.build(part.width, builder)
        self.projector = builder.projection(part.width, width, bias=True) if part.projected else None

    def forward(self, items: Items, call: TowerCall) -> list[Tensor]:
        """Embedding rows [length, width] of each item."""
        counts = [len(item["frames"]) // 2 for item in items]
        context = call.context(counts)
        x = self._convolved([item["frames"] for item in items], call, context)
        if self.positions is not None:
            x = x + torch.cat([self.positions[:count] for count in counts])  # [tokens, own width]
        if self._angles is not None:
            places = torch.cat([torch.arange(count) for count in counts]).to(x.device)
            context.step_cache[self._angles] = self._angles.for_positions(places[None])
        for block in self.blocks:
            x = block(x, context)
        if self.part.pooled:
            x = torch.cat([_halved(some) for some in x.split(counts)])
        x = self.norm(x)
        lengths = [self.part.rows(count) for count in counts]
        rows: Tensor = x if self.projector is None else self.projector(x, call.context(lengths))
        return list(rows.split(lengths))

    def _convolved(self, frames: list[Tensor], call: TowerCall, tokens: TowerContext) -> Tensor:
        """Frames of each item, [frames, mels] -> [tokens of all, own width]. tokens: the context of the tokens."""
        pairs = [len(some) // 2 for some in frames]
        padded = [pad(some, (0, 0, 1, 1 - len(some) % 2)) for some in frames]
        x = self._act(
            self.conv1(torch.cat([_windows(some, 1) for some in padded]), call.context([2 * n for n in pairs]))
        )
        padded = [pad(some, (0, 0, 1, 0)) for some in x.split([2 * n for n in pairs])]
        return self._act(self.conv2(torch.cat([_windows(some, 2) for some in padded]), tokens))

    def _act(self, x: Tensor) -> Tensor:
        return self._ops.act(x, self.part.act)

    def dummy_input(self) -> tuple[Mapping[str, Tensor], int]:
        """Audio of the maximum length."""
        frames = self.conv1.weight.new_zeros(2 * self.part.count, self.part.mels)
        return {"frames": frames}, self.part.rows(self.part.count)


def _windows(x: Tensor, step: int) -> Tensor:
    """x [n, size] -> [(n - KERNEL_SIZE) // step + 1, KERNEL_SIZE * size]: windows at every `step`-th position,
    flattened.
    """
    return x.unfold(0, KERNEL_SIZE, step).transpose(1, 2).flatten(1)


def _halved(x: Tensor) -> Tensor:
    """x [n, size] -> [n // 2, size]: means of pairs."""
    return x[: len(x) // 2 * 2].unflatten(0, (-1, 2)).mean(1)
