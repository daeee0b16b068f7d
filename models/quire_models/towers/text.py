"""Module of text encoders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from quire_models.modules.builder import ModuleBuilder
    from quire_models.parts.encoder import TextEncoderTower
    from quire_models.towers.tower import Items, TowerCall


class TextEncoderModule(nn.Module):
    """The module that the part `parts.encoder.TextEncoderTower` builds. positions: [count + offset, width]."""

    def __init__(self, width: int, part: TextEncoderTower, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part = part
        self._device = builder.device
        self._embed_rows: Callable[[Tensor], Tensor] | None = None
        places = part.positions
        self.positions = builder.parameter(places.count + places.offset, width) if places else None
        self.embed_norm = part.embed_norm.build(width, builder) if part.embed_norm else None
        self.blocks = nn.ModuleList(block.build(width, builder.at_layer(i)) for i, block in enumerate(part.blocks))
        self.norm = part.norm.build(width, builder) if part.norm else None

    def use_embeddings(self, rows: Callable[[Tensor], Tensor]) -> None:
        self._embed_rows = rows

    def forward(self, items: Items, call: TowerCall) -> list[Tensor]:
        """Rows [tokens, width] of each text."""
        assert self._embed_rows is not None, "the encoder reads the decoder's embedding table"
        texts = [item["ids"] for item in items]
        counts = [len(ids) for ids in texts]
        context = call.context(counts)
        x = self._embed_rows(torch.cat(texts)) * self.part.embed_scale  # [tokens of all, width]
        if self.positions is not None and self.part.positions is not None:
            first = self.part.positions.offset
            x = x + torch.cat([self.positions[first : first + count] for count in counts])
        x = x if self.embed_norm is None else self.embed_norm(x)
        for block in self.blocks:
            x = block(x, context)
        x = x if self.norm is None else self.norm(x)
        return list(x.split(counts))

    def dummy_input(self) -> tuple[Mapping[str, Tensor], int]:
        """A text of the largest number of tokens."""
        return {"ids": torch.zeros(self.part.length, dtype=torch.int64, device=self._device)}, self.part.length
