"""The module of `QueryTower`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from quire_models import Items, ModuleBuilder, TowerCall

if TYPE_CHECKING:
    from quire_plugins.audio.granite_speech.granite_speech import QueryTower

DUMMY_FRAMES = 1500
"""Frames of thirty seconds of speech."""


class QueryTowerModule(nn.Module):
    """Audio to embeddings. An item has `frames`, floats [frames, size of a frame]."""

    def __init__(self, width: int, part: QueryTower, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part = part
        self.encoder = part.encoder.build(builder)
        self.projector = part.projector.build(width, builder)

    def forward(self, items: Items, call: TowerCall) -> list[Tensor]:
        """Rows of each item."""
        counts = [len(item["frames"]) for item in items]
        hidden = self.encoder(torch.cat([item["frames"] for item in items]), counts, call)
        return [rows * self.part.scale for rows in self.projector(hidden, counts, call)]

    def dummy_input(self) -> tuple[Mapping[str, Tensor], int]:
        """Half a minute of audio."""
        frames = self.projector.queries.new_zeros(DUMMY_FRAMES, self.part.encoder.inputs)  # type: ignore[operator]
        return {"frames": frames}, self.part.projector.rows(DUMMY_FRAMES)
