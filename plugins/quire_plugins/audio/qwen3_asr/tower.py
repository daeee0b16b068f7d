"""The module of `ChunkedAudioTower`."""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, pad

from quire_models import Items, ModuleBuilder, TowerCall
from quire_plugins.audio.phi4.shortening import Kernel

if TYPE_CHECKING:
    from quire_plugins.audio.qwen3_asr.qwen3_asr import ChunkedAudioTower

DUMMY_FRAMES = 3000
"""Frames of thirty seconds of speech."""

MAX_PERIOD = 10_000
"""Of the sinusoids that are the positions within a chunk."""


class ChunkedAudioModule(nn.Module):
    """Audio to embeddings. An item has `frames`, floats [frames, mels]."""

    def __init__(self, part: ChunkedAudioTower, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part = part
        self._ops = builder.ops
        self.convolutions = nn.ModuleList(
            Kernel(part.channels, n, 3, builder) for n in (1, part.channels, part.channels)
        )
        self.conv_out = builder.projection(part.channels * part.bands, part.width)
        self.blocks = nn.ModuleList(block.build(part.width, builder.at_layer(i)) for i, block in enumerate(part.blocks))
        self.norm = part.norm.build(part.width, builder)
        self.up = builder.projection(part.width, part.width, bias=True)
        self.down = builder.projection(part.width, part.outputs, bias=True)

    def forward(self, items: Items, call: TowerCall) -> list[Tensor]:
        """Rows of each item."""
        part, counts = self.part, [self.part.rows(len(item["frames"])) for item in items]
        window = part.window * part.rows(part.chunk)
        runs = [min(window, count - start) for count in counts for start in range(0, count, window)]
        context = call.context(counts, runs)
        cut = [self._tokens(item["frames"])[:count] for item, count in zip(items, counts, strict=True)]
        positions = self._positions(cut[0])
        places = torch.cat([torch.arange(count) for count in counts]) % len(positions)
        x = self.conv_out(torch.cat(cut), context) + positions[places.to(positions.device)]
        for block in self.blocks:
            x = block(x, context)
        rows: Tensor = self.down(self._ops.act(self.up(self.norm(x), context), part.act), context)
        return list(rows.split(counts))

    def _tokens(self, frames: Tensor) -> Tensor:
        """[frames, mels] -> [tokens, channels * bands], chunk by chunk; the last chunk is padded with zeros."""
        padded = pad(frames, (0, 0, 0, -len(frames) % self.part.chunk))
        x = padded.unflatten(0, (-1, 1, self.part.chunk)).transpose(2, 3)  # [chunks, 1, mels, frames of a chunk]
        for convolution in self.convolutions:
            x = gelu(convolution(x, 1))
        return x.permute(0, 3, 1, 2).flatten(2).flatten(0, 1)

    def _positions(self, like: Tensor) -> Tensor:
        """[tokens of a chunk, width]: sines, then cosines."""
        half = self.part.width // 2
        periods = torch.exp(-log(MAX_PERIOD) / (half - 1) * torch.arange(half, device=like.device).float())
        angles = torch.arange(self.part.rows(self.part.chunk), device=like.device)[:, None] * periods
        return torch.cat([angles.sin(), angles.cos()], 1).to(like.dtype)

    def dummy_input(self) -> tuple[Mapping[str, Tensor], int]:
        """Half a minute of audio."""
        frames = self.conv_out.weight.new_zeros(DUMMY_FRAMES, self.part.mels)
        return {"frames": frames}, self.part.rows(DUMMY_FRAMES)
