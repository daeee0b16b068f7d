"""The module of `GroupedAudioTower`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from quire_models import Items, ModuleBuilder, TowerCall

if TYPE_CHECKING:
    from quire_plugins.audio.voxtral import GroupedAudioTower


class GroupedAudioModule(nn.Module):
    """Windows of audio to embeddings."""

    def __init__(self, width: int, part: GroupedAudioTower, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part = part
        self.encoder = part.encoder.build(part.encoder.width, builder)
        self.projector = part.projector.build(width, builder)

    def forward(self, items: Items, call: TowerCall) -> list[Tensor]:
        """Rows [length, width] of each item."""
        group, counts = self.part.group, [self.part.length] * len(items)
        tokens = torch.cat(self.encoder(items, call))  # [tokens of all, own width]
        rows: Tensor = self.projector(tokens.unflatten(0, (-1, group)).flatten(1), call.context(counts))
        return list(rows.split(counts))

    def dummy_input(self) -> tuple[Mapping[str, Tensor], int]:
        """One window of the longest input."""
        item, _ = self.encoder.dummy_input()  # type: ignore[operator]
        return item, self.part.length
