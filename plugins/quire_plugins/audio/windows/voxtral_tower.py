"""The module of `GroupedAudioTower`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from quire_models import Items, ModuleBuilder, TowerCall

if TYPE_CHECKING:
    from quire_plugins.audio.windows.voxtral import GroupedAudioTower


class GroupedAudioModule(nn.Module):
    """Windows of audio to embeddings."""

    def __init__(self, width: int, part: GroupedAudioTower, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part = part
        self.encoder = part.encoder.build(part.encoder.width, builder)
        self.projector = part.projector.build(width, builder)

    def forward(self, items: Items, call: TowerCall) -> list[Tensor]:
        """Rows of each item. An item may have `rows`, int64 [1]: how many rows are not of silence after its audio."""
        group = self.part.group
        tokens = self.encoder(items, call)  # [tokens, own width] of each item
        counts = [len(some) // group for some in tokens]
        grouped = torch.cat([some[: count * group] for some, count in zip(tokens, counts, strict=True)])
        rows: Tensor = self.projector(grouped.unflatten(0, (-1, group)).flatten(1), call.context(counts))
        each = zip(items, rows.split(counts), strict=True)
        return [some[: int(item["rows"])] if "rows" in item else some for item, some in each]

    def dummy_input(self) -> tuple[Mapping[str, Tensor], int]:
        """One window of the longest input."""
        item, _ = self.encoder.dummy_input()  # type: ignore[operator]
        return item, self.part.length
